// Rung 4: no shared memory at all: a thread computes TM × TN elements of D in registers and trusts the L1 cache.
//
// Origin: worklog E, its base kernel (after https://lpha-z.hatenablog.com/entry/2024/07/14/231500), in FP64 as there
// and in FP32; its step "C is read at the end" is the difference between the two variants of each.
//
// Against rung 3: instead of sharing through memory, a thread reuses what it has in registers. A block of E's shape is
// one row of 128 threads over 16 × 512 elements of D; each thread owns 16 rows and 4 columns, 128 columns apart:
//
//                 128 threads, 4 times side by side         loads a step of k and thread: TM + TN = 20 for 64
//        ┌────────┬────────┬────────┬────────┐              multiply-adds, 3.2 a load where rung 3 has 1/2
//        │ xxxxxx │ xxxxxx │ xxxxxx │ xxxxxx │ 16 rows
//        └────────┴────────┴────────┴────────┘ D            past the L1 cache: m·n·k·(1/BM + 1/BN), with BM = 16 and
//                                                           BN = 512, if A's rows stay in it between steps of k
//
// A warp's 32 threads share A's element (one address) and read 32 neighbours of B (one line of 128 bytes). Where A and
// B are row-major and the tile is whole, indices inside the tile are 32-bit: A's rows lie at fixed offsets from one
// moving pointer. Everything else, edges included, takes the guarded path.
//
// With C read first, as in E's base kernel, β·C is where the accumulators start. That needs α = 1: any other α would
// have to be divided out of C, so C is then read last all the same.
#include "../abi/operand.cuh"
#include "block_tile.cuh"

enum class ReadC { kFirst, kLast };

// Whether every element offset inside this operand's part of the tile, over all of k, fits a 32-bit index.
__device__ __forceinline__ bool fits_int32(int64_t stride, int64_t steps, int64_t rest) {
    return stride >= 0 && stride <= (INT32_MAX - rest) / steps;
}

template <typename T, int TM, int TN>
__device__ __forceinline__ void add_outer_product(T (&acc)[TM][TN], const T (&a)[TM], const T (&b)[TN]) {
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
    }
}

// STEPS steps of k from unguarded, row-major operands: first all loads, then all products.
template <int STEPS, int THREADS_M, int THREADS_N, typename T, int TM, int TN>
__device__ __forceinline__ void multiply_row_major(T (&acc)[TM][TN], const T* a, int lda, const T* b, int ldb) {
    T a_fragment[STEPS][TM], b_fragment[STEPS][TN];
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
#pragma unroll
        for (int j = 0; j < TN; ++j) b_fragment[k][j] = b[k * ldb + j * THREADS_N];
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int k = 0; k < STEPS; ++k) a_fragment[k][i] = a[i * THREADS_M * lda + k];
    }
#pragma unroll
    for (int k = 0; k < STEPS; ++k) add_outer_product(acc, a_fragment[k], b_fragment[k]);
}

template <typename T, int TM, int TN, int THREADS_M, int THREADS_N, ReadC READ_C>
__device__ __forceinline__ void sgemm_04(const GemmArgs& args) {
    static_assert(THREADS_N % 32 == 0, "a warp lies in one row of D, so that A's element is broadcast");
    constexpr int BM = TM * THREADS_M;
    constexpr int BN = TN * THREADS_N;
    constexpr int UNROLL = 4;   // steps of k whose loads are in flight together
    const int thread_row = threadIdx.x / THREADS_N;
    const int thread_col = threadIdx.x % THREADS_N;
    const bool row_major = args.a.col_stride == 1 && args.b.col_stride == 1 &&
                           fits_int32(args.a.row_stride, BM, UNROLL) && fits_int32(args.b.row_stride, UNROLL, BN);

    const bool c_first = READ_C == ReadC::kFirst && args.alpha == 1.0f;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        const BatchMember<T> member(args, tile.batch);
        const int row = tile.row() + thread_row;
        const int col = tile.col() + thread_col;
        T acc[TM][TN] = {};

        if (c_first && args.beta != 0.0f) {
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    acc[i][j] = T(args.beta) * load_or_zero(args.c, member.c, row + i * THREADS_M, col + j * THREADS_N,
                                                            args.m, args.n);
                }
            }
        }

        if (row_major && tile.row() + BM <= args.m && tile.col() + BN <= args.n) {
            const T* a = member.a + row * args.a.row_stride;
            const T* b = member.b + col;
            const int lda = static_cast<int>(args.a.row_stride);
            const int ldb = static_cast<int>(args.b.row_stride);
            int k_left = args.k;
            for (; k_left >= UNROLL; k_left -= UNROLL) {
                multiply_row_major<UNROLL, THREADS_M, THREADS_N>(acc, a, lda, b, ldb);
                a += UNROLL;
                b += UNROLL * ldb;
            }
            for (; k_left > 0; --k_left) {
                multiply_row_major<1, THREADS_M, THREADS_N>(acc, a, lda, b, ldb);
                a += 1;
                b += ldb;
            }
        } else {
            for (int k = 0; k < args.k; ++k) {
                T a_fragment[TM], b_fragment[TN];
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    a_fragment[i] = load_or_zero(args.a, member.a, row + i * THREADS_M, k, args.m, args.k);
                }
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    b_fragment[j] = load_or_zero(args.b, member.b, k, col + j * THREADS_N, args.k, args.n);
                }
                add_outer_product(acc, a_fragment, b_fragment);
            }
        }

        // With C read first the accumulators already are D.
        store_tile<THREADS_M, THREADS_N>(args, c_first ? 1.0f : args.alpha, c_first ? 0.0f : args.beta, tile.batch, row,
                                         col, acc);
    }
}

// One entry of the kernel table: NAME, the element's type, elements of a thread, threads of the block in both
// directions, when C is read.
#define SGEMM_04(NAME, T, TM, TN, THREADS_M, THREADS_N, READ_C)                                                 \
    extern "C" __global__ void __launch_bounds__((THREADS_M) * (THREADS_N))                                     \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_04<T, TM, TN, THREADS_M, THREADS_N, READ_C>(args);                                                \
    }

SGEMM_04(sgemm_04_l1_register_block_c_first, float, 16, 4, 1, 128, ReadC::kFirst)
SGEMM_04(sgemm_04_l1_register_block, float, 16, 4, 1, 128, ReadC::kLast)
SGEMM_04(sgemm_04_l1_register_block_8x4, float, 8, 4, 4, 32, ReadC::kLast)
SGEMM_04(dgemm_04_l1_register_block_c_first, double, 16, 4, 1, 128, ReadC::kFirst)
SGEMM_04(dgemm_04_l1_register_block, double, 16, 4, 1, 128, ReadC::kLast)
