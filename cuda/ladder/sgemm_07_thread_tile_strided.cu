// Rung 7: the same thread tile, its elements BM/TM rows and BN/TN columns apart.
//
// Origin: worklog D, matrixMul_2_1.
//
// Against rung 6: the block's tile is cut into TM × TN areas, and a thread computes one element in each, at the same
// place. Traffic and arithmetic per float are those of rung 6:
//
//        ┌───┬───┬───┬───┐      global loads: m·n·k·(1/BM + 1/BN) = m·n·k/64
//        │x  │x  │x  │x  │      shared loads a step of k: TM + TN floats for TM·TN multiply-adds
//        ├───┼───┼───┼───┤
//        │x  │x  │x  │x  │      What differs is the instructions. Neighbouring threads read neighbouring floats of B,
//        ├───┼───┼───┼───┤      free of bank conflicts, but one float at a time; a thread's floats are BN/TN apart, so
//        │x  │x  │x  │x  │      no read can bring four. The source pads rows of shared memory by one float, so that the
//        ├───┼───┼───┼───┤      transposing store of A spreads over the banks.
//        │x  │x  │x  │x  │ D
//        └───┴───┴───┴───┘
#include "block_tile.cuh"

template <int BM, int BN, int BK, int TM, int TN, int PAD>
__device__ __forceinline__ void sgemm_07(const GemmArgs& args) {
    static_assert(BM % TM == 0 && BN % TN == 0, "the areas fill the block tile");
    constexpr int AREA_M = BM / TM;
    constexpr int AREA_N = BN / TN;
    constexpr int THREADS = AREA_M * AREA_N;
    __shared__ float As[BK][BM + PAD];   // [k][row]: A's tile is transposed while it is stored
    __shared__ float Bs[BK][BN + PAD];
    const int area_row = threadIdx.x / AREA_N;
    const int area_col = threadIdx.x % AREA_N;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        TileLoader<BM, BK, THREADS> a(args, args.a, tile.batch, tile.row(), 0);
        TileLoader<BK, BN, THREADS> b(args, args.b, tile.batch, 0, tile.col());
        float acc[TM][TN] = {};

        for (int k_left = args.k; k_left > 0; k_left -= BK) {
            a.load(args.m - tile.row(), k_left, [&](int row, int k, float value) { As[k][row] = value; });
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
                        acc[i][j] += As[k][area_row + i * AREA_M] * Bs[k][area_col + j * AREA_N];
                    }
                }
            }
            __syncthreads();
        }

        store_tile<AREA_M, AREA_N>(args, tile.batch, tile.row() + area_row, tile.col() + area_col, acc);
    }
}

// One entry of the kernel table: NAME, the block's tile, elements of a thread, floats of padding after each row in
// shared memory.
#define SGEMM_07(NAME, BM, BN, BK, TM, TN, PAD, BLOCKS)                                                                 \
    extern "C" __global__ void __launch_bounds__((BM) / (TM) * ((BN) / (TN)), BLOCKS)                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_07<BM, BN, BK, TM, TN, PAD>(args);                                                                \
    }

SGEMM_07(sgemm_07_thread_tile_strided_unpadded, 128, 128, 8, 4, 4, 0, 1)
SGEMM_07(sgemm_07_thread_tile_strided, 128, 128, 8, 4, 4, 1, 1)
SGEMM_07(sgemm_07_thread_tile_strided_8x8, 128, 128, 8, 8, 8, 1, 2)
