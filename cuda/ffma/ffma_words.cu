// Strict FP32 GEMM for operands at any alignment, by asynchronous copies of single words: for small tiles, and for matrices whose rows
// do not start on 16 bytes. The other kernels would read those by words too, in worse order, or have them repacked first.
//
// Everything is laid out so that a warp moves neighbouring words wherever a row begins:
//   - copies to shared memory are 4 bytes long, neighbouring threads along the direction in which the operand is contiguous. What
//     lies outside the matrix is filled in by the copy itself, without a branch;
//   - a thread's columns are 16 apart, so that 16 neighbouring threads store 64 neighbouring bytes of a row of D. Four
//     neighbouring columns a thread, stored one by one, would write each sector of the L2 four times;
//   - tiles come in sizes between the powers of two, as heads of 80 and windows of 77 do.
//
//          columns →  0 … 15   16 … 31   …       thread (i, j): rows TM·i … TM·i + TM − 1, columns j, j + 16, j + 32, …
//        rows i = 0 │ j = 0…15│ j = 0…15│        A is read 16 bytes at a time, by 16 threads at once; B word by word,
//             i = 1 │ j = 0…15│ j = 0…15│        without bank conflicts
//
// Where nothing is added to α·A·B it is stored out of registers. Otherwise, and where a cluster cuts k, sums pass through
// shared memory, for one short copy of the epilogue's code. There is little before the first copy and after the last sum, which
// is what products of 5 µs are made of.
//
// H200, µs: the planner's choice before, this kernel, cuBLAS.
//   NN 672 × 74×74×40     45    20    26   (80×80)         TN 1013×15×1             5.3   2.3   3.1   (32×32)
//   TN 2 × 3624×388×16    17     8    10   (80×80)         NN 275 × 8×88×8 (cold)  19.7   3.6   4.9   (16×64)
//   NT 8 × 65536×768×9   866   607   802   (128×128)       TN 704 × 28×112×28      15.6  11.5  11.6   (32×64)
// For long k and large tiles the kernels that read 16 bytes at a time stay ahead, a repack included: words cost a copy each.
// Of 15 variants these were best for some of 142 products; two stages for 80 × 80 leave room for a fourth block.
#include "../epilogue/epilogue.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "store_sums.cuh"

namespace ffma_gemm {

// EXTENT rows of A (columns of B) by DEPTH steps of k on their way to shared memory, as tile[DEPTH][PITCH].
template <int EXTENT, int DEPTH, int THREADS, int PITCH>
struct WordPanel {
    static constexpr int kRowsAtOnce = THREADS / DEPTH;     // where threads lie along k
    static constexpr int kDepthAtOnce = THREADS / EXTENT;   // where they lie along rows
    static_assert(THREADS % DEPTH == 0 && EXTENT % kRowsAtOnce == 0, "threads along k fill whole columns");
    static_assert(THREADS % EXTENT == 0 && DEPTH % kDepthAtOnce == 0, "threads along rows fill whole rows");

    const float* from;   // this thread's first word of the next panel
    const float* safe;   // an address inside the matrix, for copies that read nothing
    int64_t row_stride, k_stride;
    int rows_left;       // from this thread's first row on
    int place, k;        // of this thread's first word in the tile
    bool along_k;

    __device__ __forceinline__ void start(const Source& source, int first_row, int first_k) {
        along_k = !source.along_rows();
        const int row = along_k ? threadIdx.x / DEPTH : threadIdx.x % EXTENT;
        k = along_k ? threadIdx.x % DEPTH : threadIdx.x / EXTENT;
        place = k * PITCH + row;
        rows_left = source.rows - first_row - row;
        row_stride = source.row_stride;
        k_stride = source.k_stride;
        safe = source.data;
        from = source.data + (first_row + row) * row_stride + (first_k + k) * k_stride;
    }

    // Of the panel `k_left` steps lie inside the slice.
    __device__ __forceinline__ void copy(float* tile, int k_left) {
        float* to = tile + place;
        const float* word = from;
        if (along_k) {
            const int64_t step = kRowsAtOnce * row_stride;
            const int rows = k < k_left ? rows_left : 0;
#pragma unroll
            for (int i = 0; i < EXTENT; i += kRowsAtOnce) {
                put(to + i, word, i < rows);
                word += step;
            }
        } else {
            const int64_t step = kDepthAtOnce * k_stride;
            const int depth = rows_left > 0 ? k_left - k : 0;
#pragma unroll
            for (int i = 0; i < DEPTH; i += kDepthAtOnce) {
                put(to + i * PITCH, word, i < depth);
                word += step;
            }
        }
        from += DEPTH * k_stride;
    }

private:
    __device__ __forceinline__ void put(float* to, const float* word, bool inside) const {
        ptx::cp_async_4(to, inside ? word : safe, inside ? sizeof(float) : 0);
    }
};

template <int BM, int BN, int BK, int TM, int STAGES>
struct Words {
    static constexpr int kAcross = 16, TN = BN / kAcross;   // threads beside each other, and columns of each
    static constexpr int kThreads = BM / TM * kAcross;
    static constexpr int kPitchA = BM + kVector, kPitchB = BN + kVector, kPitchSum = BN + 1;
    static_assert(BN % kAcross == 0 && BM % TM == 0 && TM % kVector == 0 && kThreads % kWarp == 0, "threads fill the tile");

    struct Stage {
        float a[BK * kPitchA], b[BK * kPitchB];
    };
    union Shared {
        Stage stages[STAGES];
        float sums[BM * kPitchSum];
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        WordPanel<BM, BK, kThreads, kPitchA> a;
        WordPanel<BN, BK, kThreads, kPitchB> b;
        a.start(Source::of_a(args, work.batch), work.row, work.k_begin);
        b.start(Source::of_b(args, work.batch), work.col, work.k_begin);
        int to_copy = work.k_end - work.k_begin, copied = 0;
        const auto start_copies = [&] {
            if (to_copy > 0) {
                a.copy(shared.stages[copied].a, to_copy);
                b.copy(shared.stages[copied].b, to_copy);
                to_copy -= BK;
            }
            ptx::cp_async_commit();   // an empty group past the end keeps the count of groups simple
            copied = copied + 1 == STAGES ? 0 : copied + 1;
        };
        const int first_row = threadIdx.x / kAcross * TM, first_col = threadIdx.x % kAcross;

        float acc[TM][TN];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) start_copies();
        int stage = 0;
#pragma unroll 1
        for (int k = work.k_begin; k < work.k_end; k += BK) {
            ptx::cp_async_wait<STAGES - 2>();
            __syncthreads();   // everybody's part has arrived, and the oldest stage is free
            start_copies();
            const float* a_row = shared.stages[stage].a + first_row;
            const float* b_row = shared.stages[stage].b + first_col;
#pragma unroll 8
            for (int i = 0; i < BK; ++i) multiply(acc, a_row + i * kPitchA, b_row + i * kPitchB);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        store(args, work, acc, shared.sums, first_row, first_col);
    }

private:
    static __device__ __forceinline__ void multiply(float (&acc)[TM][TN], const float* a, const float* b) {
        float x[TM], y[TN];
#pragma unroll
        for (int i = 0; i < TM; i += kVector) *reinterpret_cast<float4*>(x + i) = *reinterpret_cast<const float4*>(a + i);
#pragma unroll
        for (int j = 0; j < TN; ++j) y[j] = b[j * kAcross];
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int i = 0; i < TM; ++i) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }

    static __device__ __forceinline__ void store(const GemmArgs& args, const WorkUnit& work, const float (&acc)[TM][TN],
                                                 float* sums, int first_row, int first_col) {
        const Epilogue epilogue(args, work.batch);
        const bool plain = args.split_k == 1 && args.activation == kIdentity && epilogue.c == nullptr &&
                           epilogue.bias == nullptr && epilogue.residual == nullptr;
        if (plain) {
            const int rows = args.m - work.row - first_row, cols = args.n - work.col - first_col;
            float* d = epilogue.d + (work.row + first_row) * args.d.row_stride + work.col + first_col;
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (i < rows) {
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        if (j * kAcross < cols) d[j * kAcross] = epilogue.scalars.scale(acc[i][j]);
                    }
                }
                d += args.d.row_stride;
            }
            return;
        }
        __syncthreads();   // nobody reads the stages any more, and nothing is under way: past the end nothing is copied
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[(first_row + i) * kPitchSum + first_col + j * kAcross] = acc[i][j];
        wait_for_sums(args);
        store_sums<BM, BN, kThreads, kPitchSum>(args, work, epilogue, sums);
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, then the tile.
#define FFMA_WORDS(NAME, BLOCKS, BM, BN, BK, TM, STAGES)                                                          \
    enum : int { NAME##_shared = sizeof(ffma_gemm::Words<BM, BN, BK, TM, STAGES>::Shared) };                      \
    extern "C" __global__ void                                                                                    \
        LAUNCH_BOUNDS_SHARED_BY(BLOCKS, ffma_gemm::Words<BM, BN, BK, TM, STAGES>::kThreads)                       \
        NAME(const __grid_constant__ GemmArgs args) {                                                             \
        ptx::wait_for_previous_kernels();                                                                         \
        ffma_gemm::Words<BM, BN, BK, TM, STAGES>::run(args);                                                      \
    }

FFMA_WORDS(ffma_words_128x128, 2, 128, 128, 16, 8, 3)
FFMA_WORDS(ffma_words_96x96, 2, 96, 96, 16, 8, 3)
FFMA_WORDS(ffma_words_80x80, 4, 80, 80, 16, 8, 2)
FFMA_WORDS(ffma_words_64x64, 5, 64, 64, 16, 8, 3)
FFMA_WORDS(ffma_words_64x32, 4, 64, 32, 16, 8, 3)
FFMA_WORDS(ffma_words_32x64, 6, 32, 64, 16, 4, 3)
FFMA_WORDS(ffma_words_32x32, 8, 32, 32, 16, 4, 4)
FFMA_WORDS(ffma_words_16x64, 8, 16, 64, 16, 4, 4)
