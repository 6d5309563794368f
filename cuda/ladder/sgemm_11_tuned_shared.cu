// Rung 11: tuned shared. One kernel with a knob for each step of a well-known series of small improvements.
//
// Origin: E steps 2 to 9 (30 → 58.3 TFLOP/s on the card it was written for); step 1, which leans on the L1 cache, is
// rung 4. A thread's outputs lie as there: with plain reads neighbours in a row are neighbouring threads.
//
//   step  E's step                                knob                 what it saves
//   2     shared memory instead of the L1         (always here)        tags, and lines that others evict
//   3     read C last                             C_FIRST = false      a wait for C before the first product (see docs)
//   4     32 → 16 steps of k in shared memory     BK = 16              shared memory a block, so room for more blocks
//   5     float4 from global memory               VECTOR_GLOBAL        three of four loads
//   6     float4 from shared memory               VECTOR_SHARED        three of four reads: 16 FFMA a read, not 4
//   7     some extra shared memory                EXTRA_SHARED         see docs/ladder.md: it is not what helps
//   8     a loop over the float4's four removed   (unrolled here by the compiler, in every instance)
//   9     more registers                          BLOCKS = 1           the reads of later k start earlier
//
// The knobs change how the data move, not how much: m·n·k·(1/BM + 1/BN) floats are read from global memory, 1/64 of a
// float a product at 128 × 128; 64 products a float from global memory and 4 a float from shared memory in each step.
#include "../abi/operand.cuh"
#include "../pipeline/grouped_tile.cuh"
#include "block_tile.cuh"
#include "panel.cuh"
#include "store_thread_tile.cuh"

template <int BK, bool C_FIRST, bool VECTOR_GLOBAL, bool VECTOR_SHARED, int EXTRA_SHARED>
struct TunedShared {
    static constexpr int BM = 128, BN = 128, TM = 8, TN = 8;
    static constexpr int kThreadsM = BM / TM;   // the grid of threads over the tile
    static constexpr int kThreadsN = BN / TN;
    static constexpr int kThreads = kThreadsM * kThreadsN;
    static constexpr int kGroup = VECTOR_SHARED ? kVector : 1;   // outputs of a thread that lie together
    static_assert(!C_FIRST || !VECTOR_GLOBAL, "with C read first, A is scaled by α in the plain load");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    using LoaderA = TileLoader<BM, BK, kThreads>;
    using LoaderB = TileLoader<BK, BN, kThreads>;
    using Thread = GroupedTile<TM, TN, kThreadsM * kGroup, kThreadsN * kGroup, kGroup>;
    struct Shared {
        alignas(16) typename PanelA::Tile a;
        alignas(16) typename PanelB::Tile b;
        unsigned char extra[EXTRA_SHARED + 1];   // never touched
    };
    static_assert(sizeof(Shared) <= 48 * 1024, "statically allocated shared memory ends at 48 KiB");

    // This thread's first row and column within the block's tile.
    static __device__ __forceinline__ int thread_row() { return threadIdx.x / kThreadsN * kGroup; }
    static __device__ __forceinline__ int thread_col() { return threadIdx.x % kThreadsN * kGroup; }

    // Load, one float an instruction. `scale` multiplies A.
    static __device__ __forceinline__ void load(Shared& shared, LoaderA& a, LoaderB& b, int rows, int cols, int depth,
                                                float scale) {
        a.load(rows, depth, [&](int row, int k, float value) { shared.a[k][row] = scale * value; });
        b.load(depth, cols, [&](int k, int col, float value) { shared.b[k][col] = value; });
        a.step_cols();
        b.step_rows();
    }

    // Load, four floats an instruction.
    template <bool INSIDE>
    static __device__ __forceinline__ void load(Shared& shared, PanelA& a, PanelB& b, int depth) {
        const typename PanelA::Chunks chunks_a = a.template fetch<INSIDE>(depth);
        const typename PanelB::Chunks chunks_b = b.template fetch<INSIDE>(depth);
        a.deposit(shared.a, chunks_a);
        b.deposit(shared.b, chunks_b);
    }

    // Compute: the products of one step.
    static __device__ __forceinline__ void multiply(Thread& acc, const Shared& shared) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            typename Thread::Fragment fragment;
            Thread::read(fragment, &shared.a[k][thread_row()], &shared.b[k][thread_col()]);
            acc.multiply_add(fragment);
        }
    }

    // β·C, for the sums to start from.
    static __device__ __forceinline__ void start_from_c(Thread& acc, const GemmArgs& args, int batch, int row,
                                                        int col) {
        const BatchMember<> member(args, batch);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                acc.sum[i][j] = args.beta * load_or_zero(args.c, member.c, row + Thread::row_of(i),
                                                         col + Thread::col_of(j), args.m, args.n);
            }
        }
    }

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ Shared shared;
        for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
            const int row = tile.row() + thread_row();
            const int col = tile.col() + thread_col();
            const int rows = args.m - tile.row();   // what is left of the matrix, from the tile on
            const int cols = args.n - tile.col();
            const bool whole = rows >= BM && cols >= BN;
            Thread acc = {};
            if (C_FIRST && args.beta != 0.0f) start_from_c(acc, args, tile.batch, row, col);
            if constexpr (VECTOR_GLOBAL) {
                const BatchMember<> member(args, tile.batch);
                PanelA a = PanelA::of_a(args, member.a, tile.row());
                PanelB b = PanelB::of_b(args, member.b, tile.col());
                const bool inside = whole && is_vector(args.a_access) && is_vector(args.b_access);
                for (int depth = args.k; depth > 0; depth -= BK) {
                    if (inside && depth >= BK) {
                        load<true>(shared, a, b, depth);
                    } else {
                        load<false>(shared, a, b, depth);
                    }
                    __syncthreads();
                    multiply(acc, shared);
                    __syncthreads();
                }
            } else {
                LoaderA a(args, args.a, tile.batch, tile.row(), 0);
                LoaderB b(args, args.b, tile.batch, 0, tile.col());
                for (int depth = args.k; depth > 0; depth -= BK) {
                    load(shared, a, b, rows, cols, depth, C_FIRST ? args.alpha : 1.0f);
                    __syncthreads();
                    multiply(acc, shared);
                    __syncthreads();
                }
            }
            if (C_FIRST) {
                store_outputs(acc, args, 1.0f, 0.0f, tile.batch, row, col, whole);
            } else {
                store_outputs(acc, args, tile.batch, row, col, whole);
            }
        }
    }
};

// NAME, the blocks a multiprocessor must have registers for, then the knobs: BK, C_FIRST, VECTOR_GLOBAL, VECTOR_SHARED,
// EXTRA_SHARED in bytes.
#define TUNED_SHARED(NAME, BLOCKS, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(TunedShared<__VA_ARGS__>::kThreads, BLOCKS)     \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        TunedShared<__VA_ARGS__>::run(args);                                                     \
    }

TUNED_SHARED(sgemm_11_tuned_shared_c_first, 2, 32, true, false, false, 0)
TUNED_SHARED(sgemm_11_tuned_shared_c_last, 2, 32, false, false, false, 0)
TUNED_SHARED(sgemm_11_tuned_shared_bk16, 2, 16, false, false, false, 0)
TUNED_SHARED(sgemm_11_tuned_shared_global_float4, 2, 16, false, true, false, 0)
TUNED_SHARED(sgemm_11_tuned_shared, 2, 16, false, true, true, 0)
TUNED_SHARED(sgemm_11_tuned_shared_extra_shared, 2, 16, false, true, true, 16 * 1024)
TUNED_SHARED(sgemm_11_tuned_shared_more_registers, 1, 16, false, true, true, 0)
