// Rung 9: a thread computes a 4 × 4 tile in each quadrant of the block's tile, and A comes transposed.
//
// Origin: worklog D, matrixMul_3.
//
// Against rung 8: the thread tile is still 8 × 8, but in four pieces, a half tile apart, so rungs 6 and 7 meet:
//
//        ┌────────┬────────┐      global loads: m·n·k·(1/BM + 1/BN) = m·n·k/64
//        │ ▄▄     │ ▄▄     │      shared loads a step of k: 8 + 8 floats for 64 multiply-adds
//        │        │        │
//        ├────────┼────────┤      Four neighbours are one 16-byte read, as in rung 6. The 16 threads that share a row of
//        │ ▄▄     │ ▄▄     │      D read 16 neighbouring groups of four: 256 contiguous bytes, every bank twice. With
//        │        │        │      8 × 8 in one piece their groups are 32 bytes apart and meet on the same banks.
//        └────────┴────────┘ D
//
// A is read best when its rows are one element apart, that is when it is stored k × m: then a step's tile arrives with
// its rows along m, neighbouring threads load and store neighbouring floats, and the shared tile is [k][row], where a
// thread's four rows are one read. The source transposes a row-major A with a kernel of its own beforehand: 2·m·k more
// elements of traffic for an A that serves n/BN tile columns. Any other strides give the same result, loaded slowly.
#include "block_tile.cuh"

template <int BM, int BN, int BK>
__device__ __forceinline__ void sgemm_09(const GemmArgs& args) {
    constexpr int TILE = 4;        // edge of a thread's tile in one quadrant: floats in a 16-byte read
    constexpr int QUADRANTS = 2;   // in each direction
    constexpr int QUADRANT_M = BM / QUADRANTS;
    constexpr int QUADRANT_N = BN / QUADRANTS;
    constexpr int THREADS = QUADRANT_M / TILE * (QUADRANT_N / TILE);
    static_assert(BM % (QUADRANTS * TILE) == 0 && BN % (QUADRANTS * TILE) == 0, "thread tiles fill the quadrants");
    __shared__ __align__(16) float As[BK][BM];
    __shared__ __align__(16) float Bs[BK][BN];
    const int thread_row = threadIdx.x / (QUADRANT_N / TILE) * TILE;
    const int thread_col = threadIdx.x % (QUADRANT_N / TILE) * TILE;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        TileLoader<BM, BK, THREADS, Neighbours::kAlongColumn> a(args, args.a, tile.batch, tile.row(), 0);
        TileLoader<BK, BN, THREADS> b(args, args.b, tile.batch, 0, tile.col());
        float acc[QUADRANTS][QUADRANTS][TILE][TILE] = {};

        for (int k_left = args.k; k_left > 0; k_left -= BK) {
            a.load(args.m - tile.row(), k_left, [&](int row, int k, float value) { As[k][row] = value; });
            b.load(k_left, args.n - tile.col(), [&](int k, int col, float value) { Bs[k][col] = value; });
            a.step_cols();
            b.step_rows();
            __syncthreads();

#pragma unroll
            for (int k = 0; k < BK; ++k) {
                float a_fragment[QUADRANTS][TILE], b_fragment[QUADRANTS][TILE];
#pragma unroll
                for (int q = 0; q < QUADRANTS; ++q) {
#pragma unroll
                    for (int i = 0; i < TILE; ++i) {
                        a_fragment[q][i] = As[k][q * QUADRANT_M + thread_row + i];
                        b_fragment[q][i] = Bs[k][q * QUADRANT_N + thread_col + i];
                    }
                }
#pragma unroll
                for (int qm = 0; qm < QUADRANTS; ++qm) {
#pragma unroll
                    for (int qn = 0; qn < QUADRANTS; ++qn) {
#pragma unroll
                        for (int i = 0; i < TILE; ++i) {
#pragma unroll
                            for (int j = 0; j < TILE; ++j) {
                                acc[qm][qn][i][j] += a_fragment[qm][i] * b_fragment[qn][j];
                            }
                        }
                    }
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (int qm = 0; qm < QUADRANTS; ++qm) {
#pragma unroll
            for (int qn = 0; qn < QUADRANTS; ++qn) {
                store_tile<1, 1>(args, tile.batch, tile.row() + qm * QUADRANT_M + thread_row,
                                 tile.col() + qn * QUADRANT_N + thread_col, acc[qm][qn]);
            }
        }
    }
}

// One entry of the kernel table: NAME, the block's tile, blocks an SM. Every thread has 64 elements of D.
#define SGEMM_09(NAME, BM, BN, BK, BLOCKS)                                                                      \
    extern "C" __global__ void __launch_bounds__((BM) * (BN) / 64, BLOCKS)                                      \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_09<BM, BN, BK>(args);                                                                             \
    }

SGEMM_09(sgemm_09_quadrants, 128, 128, 8, 2)
SGEMM_09(sgemm_09_quadrants_bk16, 128, 128, 16, 2)
