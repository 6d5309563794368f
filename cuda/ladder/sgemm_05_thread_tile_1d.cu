// Rung 5: a thread computes a column of TM elements of D, and keeps B's element in a register for all of them.
//
// Origin: worklog A, sgemm1DBlocktiling (after https://siboehm.com/articles/22/CUDA-MMM, kernel 4); worklog B,
// NVIDIA_SGEMM_PRACTICE, kernel 3.
//
// Against rung 3: the tile of D grows to 64 × 64, k goes in steps of 8 so that shared memory does not grow with it, and
// each of the 512 threads owns 8 elements of a column:
//
//            BN = 64                      global loads: m·n·k·(1/BM + 1/BN) = m·n·k/32, half of rung 3's
//        ┌────────────┐ BK = 8  B
//        └──────│─────┘                   shared loads a step of k: 1 of B and TM of A for TM multiply-adds, 8/9 instead
//   A    ┌──────│─────┐                   of 1/2. The step of k is the outer loop: that is what lets B's element stay
//   ┌─┐  │     ┌┴┐    │                   in its register. A warp lies along a row of D, so A's elements are one
//   │ ├──┼─────┤ │ TM │ BM = 64           address for all 32 threads, and the compiler reads four steps of k at once.
//   └─┘  └─────└─┘────┘ D
//   BK
#include "block_tile.cuh"

template <int BM, int BN, int BK, int TM>
__device__ __forceinline__ void sgemm_05(const GemmArgs& args) {
    static_assert(BM % TM == 0, "thread tiles fill the block tile");
    static_assert(BN % 32 == 0, "a warp lies in one row of thread tiles, so that A's elements are broadcast");
    constexpr int THREADS = BM / TM * BN;
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];
    const int thread_row = threadIdx.x / BN * TM;
    const int thread_col = threadIdx.x % BN;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        TileLoader<BM, BK, THREADS> a(args, args.a, tile.batch, tile.row(), 0);
        TileLoader<BK, BN, THREADS> b(args, args.b, tile.batch, 0, tile.col());
        float acc[TM][1] = {};

        for (int k_left = args.k; k_left > 0; k_left -= BK) {
            a.load(args.m - tile.row(), k_left, [&](int row, int k, float value) { As[row][k] = value; });
            b.load(k_left, args.n - tile.col(), [&](int k, int col, float value) { Bs[k][col] = value; });
            a.step_cols();
            b.step_rows();
            __syncthreads();

#pragma unroll
            for (int k = 0; k < BK; ++k) {
                const float b_element = Bs[k][thread_col];
#pragma unroll
                for (int i = 0; i < TM; ++i) acc[i][0] += As[thread_row + i][k] * b_element;
            }
            __syncthreads();
        }

        store_tile<1, 1>(args, tile.batch, tile.row() + thread_row, tile.col() + thread_col, acc);
    }
}

// One entry of the kernel table: NAME, the block's tile, the height of a thread's column, blocks an SM.
#define SGEMM_05(NAME, BM, BN, BK, TM, BLOCKS)                                                                  \
    extern "C" __global__ void __launch_bounds__((BM) / (TM) * (BN), BLOCKS)                                    \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_05<BM, BN, BK, TM>(args);                                                                         \
    }

// Four blocks of 512 threads where an SM holds so many; three would fit elsewhere, but spill registers.
SGEMM_05(sgemm_05_thread_tile_1d, 64, 64, 8, 8, kThreadsPerSm == 2048 ? 4 : 2)
SGEMM_05(sgemm_05_thread_tile_1d_bk32, 64, 64, 32, 8, 2)
