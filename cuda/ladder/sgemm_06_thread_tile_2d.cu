// Rung 6: a thread computes TM × TN contiguous elements of D.
//
// Origin: worklog A, sgemm2DBlocktiling (after https://siboehm.com/articles/22/CUDA-MMM, kernel 5); worklog B,
// NVIDIA_SGEMM_PRACTICE, kernel 4; worklog D, matrixMul_2_2, for the variants of 4 × 4 with A transposed.
//
// Against rung 5: the thread tile is a square, so each element of A that it reads serves TN products and each of B TM:
//
//            BN = 128                     global loads: m·n·k·(1/BM + 1/BN) = m·n·k/64
//        ┌────────────────┐ BK = 8  B
//        └──────│─│───────┘               shared loads a step of k: TM + TN floats for TM·TN multiply-adds: 64 for 16
//   A    ┌──────│─│───────┐               floats with 8 × 8 (4 a float), 16 for 8 with 4 × 4 (2 a float), where rung 5
//   ┌─┐  │     ┌┴─┴┐      │               has 8/9
//   │ ├──┼─────┤   │ TM   │ BM = 128
//   └─┘  │     └───┘      │               Elements of a thread are neighbours, in a row of Bs and, where A is stored
//   BK   └──────TN────────┘ D             transposed, in a row of As: 4 of them are one 16-byte read.
//
// That last point is what sets this rung apart from rung 7, which does the same arithmetic per float. The padded
// variant of 4 × 4 shows it: a row of BM + 1 floats keeps all but every fourth row off 16-byte boundaries, so that the
// compiler must read A's elements one by one.
#include "block_tile.cuh"

enum class StoreA { kAsItComes, kTransposed };

template <int BM, int BN, int BK, int TM, int TN, StoreA STORE, int PAD>
__device__ __forceinline__ void sgemm_06(const GemmArgs& args) {
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles fill the block tile");
    constexpr int THREADS = BM / TM * (BN / TN);
    constexpr bool TRANSPOSED = STORE == StoreA::kTransposed;
    __shared__ __align__(16) float As[TRANSPOSED ? BK : BM][(TRANSPOSED ? BM : BK) + PAD];
    __shared__ __align__(16) float Bs[BK][BN + PAD];
    const int thread_row = threadIdx.x / (BN / TN) * TM;
    const int thread_col = threadIdx.x % (BN / TN) * TN;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        TileLoader<BM, BK, THREADS> a(args, args.a, tile.batch, tile.row(), 0);
        TileLoader<BK, BN, THREADS> b(args, args.b, tile.batch, 0, tile.col());
        float acc[TM][TN] = {};

        for (int k_left = args.k; k_left > 0; k_left -= BK) {
            a.load(args.m - tile.row(), k_left, [&](int row, int k, float value) {
                (TRANSPOSED ? As[k][row] : As[row][k]) = value;
            });
            b.load(k_left, args.n - tile.col(), [&](int k, int col, float value) { Bs[k][col] = value; });
            a.step_cols();
            b.step_rows();
            __syncthreads();

#pragma unroll
            for (int k = 0; k < BK; ++k) {
#pragma unroll
                for (int i = 0; i < TM; ++i) {
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        acc[i][j] += (TRANSPOSED ? As[k][thread_row + i] : As[thread_row + i][k]) *
                                     Bs[k][thread_col + j];
                    }
                }
            }
            __syncthreads();
        }

        store_tile<1, 1>(args, tile.batch, tile.row() + thread_row, tile.col() + thread_col, acc);
    }
}

// One entry of the kernel table: NAME, the block's tile, the thread's tile, how A's tile is stored, and floats of
// padding after each row in shared memory.
#define SGEMM_06(NAME, BM, BN, BK, TM, TN, STORE, PAD, BLOCKS)                                                          \
    extern "C" __global__ void __launch_bounds__((BM) / (TM) * ((BN) / (TN)), BLOCKS)                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_06<BM, BN, BK, TM, TN, STORE, PAD>(args);                                                         \
    }

SGEMM_06(sgemm_06_thread_tile_2d, 128, 128, 8, 8, 8, StoreA::kAsItComes, 0, 2)
SGEMM_06(sgemm_06_thread_tile_2d_4x4, 128, 128, 8, 4, 4, StoreA::kTransposed, 0, 1)
SGEMM_06(sgemm_06_thread_tile_2d_4x4_padded, 128, 128, 8, 4, 4, StoreA::kTransposed, 1, 1)
