// Strict FP32 GEMM for operands at any alignment whose sums are long enough to keep the multiply-adds busy: copies of single words, spread
// over the steps of k that they run beside.
//
// ffma_words.cu starts all copies of a portion of k at once. All warps of a block do so at the same time, after the same barrier: the
// queue of memory instructions fills up, and until it is empty nobody multiplies. Here a portion is short (8 or 16 of k), and each of its
// steps starts its share of the copies for the portion after next:
//
//        step k       LDS step k + 1 │ LDGSTS 2 or 3 words │ 64 FFMA
//        step k + 1   LDS step k + 2 │ LDGSTS 2 or 3 words │ 64 FFMA        the last step: wait, barrier, LDS of the next portion
//
// What else is new, beside those kernels:
//   - a thread's outputs are 8 × 8 (or 4 × 8) in pieces of 4 × 4, so both operands are read 16 bytes at a time: 4 reads of shared memory
//     for 64 FFMA in place of 10, and accumulators that keep out of the way of operands in the register file (thread_tile.cuh);
//   - a copy takes two or three instructions for its addresses and one for its predicate: what lies outside of the matrix is ignored by
//     the copy itself (ignore-src), with nothing to select;
//   - sums leave through shared memory a few rows of a warp at a time, so that a warp stores whole rows of its tile: 128 bytes at once,
//     wherever a row of D starts.
//
// FFMA are four fifths of the instructions of the main loop. Three stages are better than four: two portions ahead are enough, and a
// block starts to multiply earlier.
//
// H200, µs (benches/results/h200/random-fp32-strict.json):   this   cuBLAS
//   NT 39 × 655×655×88                                         113      158   (64×128)
//   NT 1843×4544×435                                           190      172   (64×128)
//   NN 32 × 1916×48×108                                         32       35   (128×64)
//   NT 12 × 1103×2138×160                                      256      229   (64×128)
//   TN 8 × 1702×96×448                                          44       40   (128×32)
#include "../epilogue/epilogue.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "lanes.cuh"
#include "store_sums.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

// Where element `i` of step k lies in a panel whose rows of k are PITCH words apart.
template <int PITCH>
struct Pitched {
    static __device__ __forceinline__ constexpr int offset(int k, int i) { return k * PITCH + i; }
};

// How THREADS threads copy EXTENT rows of A (columns of B) by DEPTH steps of k, as panel[DEPTH][PITCH]: kCopies words each, the same
// distance apart in memory, and the same distance apart in the panel.
//   along k:     DEPTH threads beside each other read a run of a row; the next copies are rows further on
//   along rows:  EXTENT threads beside each other read a run of one k; the next copies are steps of k further on
template <int EXTENT, int DEPTH, int THREADS, int PITCH>
struct WordCopies {
    static constexpr int kWord = sizeof(float);
    static constexpr int kCopies = EXTENT * DEPTH / THREADS;
    static constexpr int kRowsAtOnce = THREADS / DEPTH;     // where threads lie along k
    static constexpr int kDepthAtOnce = THREADS / EXTENT;   // where they lie along rows
    static_assert(THREADS % DEPTH == 0 && EXTENT % kRowsAtOnce == 0, "threads along k fill whole columns");
    static_assert(THREADS % EXTENT == 0 && DEPTH % kDepthAtOnce == 0, "threads along rows fill whole rows");

    const float* next;        // the word of this thread's next copy
    int64_t step, advance;    // from copy to copy, and more of it after the last one of a portion
    uint32_t place, apart;    // bytes from the panel's start to the first copy's place, and from place to place
    int k;                    // the first copy's, in the panel
    int rows_left;            // from its row on
    bool along_k;

    __device__ __forceinline__ WordCopies(const Source& source, int first_row, int first_k) {
        along_k = !source.along_rows();
        const int row = along_k ? threadIdx.x / DEPTH : threadIdx.x % EXTENT;
        k = along_k ? threadIdx.x % DEPTH : threadIdx.x / EXTENT;
        rows_left = source.rows - first_row - row;
        place = (k * PITCH + row) * kWord;
        apart = (along_k ? kRowsAtOnce : kDepthAtOnce * PITCH) * kWord;
        step = along_k ? kRowsAtOnce * source.row_stride : kDepthAtOnce * source.k_stride;
        advance = DEPTH * source.k_stride - kCopies * step;
        next = source.data + (first_row + row) * source.row_stride + (first_k + k) * source.k_stride;
    }

    // So many of this thread's copies of a portion read something: those inside the matrix and inside of the `k_left` steps that are
    // left of the slice.
    __device__ __forceinline__ int inside(int k_left) const {
        if (along_k) return k < k_left ? (rows_left + kRowsAtOnce - 1) / kRowsAtOnce : 0;
        return rows_left > 0 ? (k_left - k + kDepthAtOnce - 1) / kDepthAtOnce : 0;
    }

    // Starts those copies of a portion that belong to its step `s`; the first `inside` of the portion read, the others fill with zeros.
    __device__ __forceinline__ void start(uint32_t panel, int s, int inside) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (i * DEPTH / kCopies != s) continue;
            ptx::cp_async_4_or_zero(panel + place + i * apart, next, i < inside);
            next += step;
        }
    }
};

// A block's tile: BM × BN in portions of BK along k, WM × WN of it a warp and TM × TN a thread.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct Unaligned {
    static constexpr int kLanesM = WM / TM, kLanesN = WN / TN;
    using Thread = ThreadTile<kLanesM, kLanesN, TM, TN>;
    using LaneGrid = Lanes<kLanesM, kLanesN>;
    static constexpr int kWarpsN = BN / WN, kWarps = BM / WM * kWarpsN, kThreads = kWarps * kWarp;
    static_assert(BM % WM == 0 && BN % WN == 0 && kLanesM * kLanesN == kWarp, "warp tiles fill the block's, and lanes the warp's");
    static_assert(BK % 2 == 0, "fragments alternate between two sets of registers, which must match up from portion to portion");
    static_assert(STAGES >= 2, "one stage is read while another is filled");

    // Rows of k are padded by a vector: words that are transposed land four banks apart.
    static constexpr int kPitchA = BM + kVector, kPitchB = BN + kVector;
    // On their way out rows are padded by a vector as well; where the epilogue walks the whole tile, by a word.
    static constexpr int kPitchOut = WN + kVector, kPitchSum = BN + 1;
    using A = Pitched<kPitchA>;
    using B = Pitched<kPitchB>;

    struct Stage {
        float a[BK * kPitchA], b[BK * kPitchB];
    };
    union Shared {
        Stage stages[STAGES];
        float out[kWarps][kLanesM * kPitchOut];
        float sums[BM * kPitchSum];
    };
    using CopiesA = WordCopies<BM, BK, kThreads, kPitchA>;
    using CopiesB = WordCopies<BN, BK, kThreads, kPitchB>;

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        const int row = warp / kWarpsN * WM + LaneGrid::m(lane) * kVector;
        const int col = warp % kWarpsN * WN + LaneGrid::n(lane) * kVector;
        Thread tile;
        tile.clear();
        multiply(tile, args, work, shared, row, col);
        if (is_plain(args)) {
            store_rows(tile, args, work, shared.out[warp], warp, lane);
        } else {
            store_with_epilogue(tile, args, work, shared.sums, row, col);
        }
    }

private:
    static __device__ __forceinline__ void multiply(Thread& tile, const GemmArgs& args, const WorkUnit& work, Shared& shared, int row,
                                                    int col) {
        CopiesA a(Source::of_a(args, work.batch), work.row, work.k_begin);
        CopiesB b(Source::of_b(args, work.batch), work.col, work.k_begin);
        int to_copy = work.k_end - work.k_begin;
        const uint32_t ring = ptx::shared_address(shared.stages);
        constexpr uint32_t kBehind = sizeof(Stage::a);   // where B lies in a stage
        uint32_t filled = ring;                          // the stage that is filled
        const auto end_portion = [&] {
            a.next += a.advance;
            b.next += b.advance;
            to_copy -= BK;
            ptx::cp_async_commit();
            filled = filled == ring + (STAGES - 1) * sizeof(Stage) ? ring : filled + sizeof(Stage);
        };
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; ++i) {
            if (to_copy > 0) {
                const int inside_a = a.inside(to_copy), inside_b = b.inside(to_copy);
#pragma unroll
                for (int s = 0; s < BK; ++s) {
                    a.start(filled, s, inside_a);
                    b.start(filled + kBehind, s, inside_b);
                }
            }
            end_portion();   // an empty group past the end keeps the count of groups simple
        }
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();   // everybody's part of the first portion has arrived
        const Stage* stage = shared.stages;
        tile.template load<A, B>(0, stage->a + row, stage->b + col, 0);
#pragma unroll 1
        for (int k = work.k_begin; k < work.k_end; k += BK) {
            // Past the end copies fill with zeros what nobody reads.
            const int inside_a = to_copy > 0 ? a.inside(to_copy) : 0, inside_b = to_copy > 0 ? b.inside(to_copy) : 0;
            const float *from_a = stage->a + row, *from_b = stage->b + col;
#pragma unroll
            for (int s = 0; s < BK; ++s) {
                if (s + 1 < BK) tile.template load<A, B>((s + 1) % 2, from_a, from_b, s + 1);
                a.start(filled, s, inside_a);
                b.start(filled + kBehind, s, inside_b);
                if (s + 1 == BK) {
                    end_portion();
                    ptx::cp_async_wait<STAGES - 2>();
                    __syncthreads();   // the next portion has arrived, and nobody reads this one any more
                    stage = stage == shared.stages + STAGES - 1 ? shared.stages : stage + 1;
                    tile.template load<A, B>((s + 1) % 2, stage->a + row, stage->b + col, 0);
                }
                tile.multiply(s % 2);
            }
        }
        ptx::cp_async_wait<0>();
        __syncthreads();   // nobody reads or fills the ring any more
    }

    static __device__ __forceinline__ bool is_plain(const GemmArgs& args) {
        return args.split_k == 1 && args.activation == kIdentity && Scalars(args).beta == 0.0f && args.bias == nullptr &&
               args.residual.data == nullptr;
    }

    // α·A·B alone: row by row of the threads' outputs, through `out`, which is this warp's.
    static __device__ __forceinline__ void store_rows(const Thread& tile, const GemmArgs& args, const WorkUnit& work, float* out, int warp,
                                                      int lane) {
        const Scalars scalars(args);
        float* const d = static_cast<float*>(args.d.data) + batch_offset(args, args.d, work.batch);
        const int first_row = work.row + warp / kWarpsN * WM, first_col = work.col + warp % kWarpsN * WN + lane;
        float* const mine = out + LaneGrid::m(lane) * kPitchOut + LaneGrid::n(lane) * kVector;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; j += kVector) {
                const float (&acc)[TN] = tile.acc[i];
                *reinterpret_cast<float4*>(mine + Thread::col(j)) =
                    make_float4(scalars.scale(acc[j]), scalars.scale(acc[j + 1]), scalars.scale(acc[j + 2]), scalars.scale(acc[j + 3]));
            }
            __syncwarp();
#pragma unroll
            for (int r = 0; r < kLanesM; ++r) {
                const int row = first_row + Thread::row(i) + r * kVector;
                float* const to = d + row * args.d.row_stride + first_col;
#pragma unroll
                for (int c = 0; c < WN; c += kWarp) {
                    if (row < args.m && first_col + c < args.n) to[c] = out[r * kPitchOut + c + lane];
                }
            }
            __syncwarp();
        }
    }

    // Everything else: all sums of the tile go to shared memory, for one short copy of the epilogue's code.
    static __device__ __forceinline__ void store_with_epilogue(const Thread& tile, const GemmArgs& args, const WorkUnit& work, float* sums,
                                                               int row, int col) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[(row + Thread::row(i)) * kPitchSum + col + Thread::col(j)] = tile.acc[i][j];
        wait_for_sums(args);
        const Epilogue epilogue(args, work.batch);
        store_sums<BM, BN, kThreads, kPitchSum>(args, work, epilogue, sums);
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, BM, BN, BK, WM, WN, TM, TN, stages.
#define FFMA_UNALIGNED(NAME, BLOCKS, ...)                                                                      \
    enum : int { NAME##_shared = sizeof(ffma_gemm::Unaligned<__VA_ARGS__>::Shared) };                          \
    extern "C" __global__ void                                                                                 \
        __launch_bounds__((ffma_gemm::Unaligned<__VA_ARGS__>::kThreads), BLOCKS)                               \
        NAME(const __grid_constant__ GemmArgs args) {                                                          \
        ptx::wait_for_previous_kernels();                                                                      \
        ffma_gemm::Unaligned<__VA_ARGS__>::run(args);                                                          \
    }

FFMA_UNALIGNED(ffma_unaligned_64x128, 4, 64, 128, 8, 32, 64, 8, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_128x64, 4, 128, 64, 8, 64, 32, 8, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_64x64, 5, 64, 64, 16, 32, 32, 4, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_128x32, 4, 128, 32, 16, 32, 32, 4, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_64x32, 8, 64, 32, 16, 32, 32, 4, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_32x64, 8, 32, 64, 16, 32, 32, 4, 8, 3)
FFMA_UNALIGNED(ffma_unaligned_32x32, 16, 32, 32, 16, 32, 32, 4, 8, 3)
