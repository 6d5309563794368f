// Rung 8: fragments of A and B are copied to registers before they are multiplied.
//
// Origin: worklog B, NVIDIA_SGEMM_PRACTICE, kernel 5; worklog A's sgemm2DBlocktiling does so from the start.
//
// Against rung 6: the source text names each shared element once a step of k instead of TM or TN times, as TM + TN
// reads followed by an outer product:
//
//            b_fragment
//            ┌─┬─┬─┬─┐         global loads: m·n·k·(1/BM + 1/BN) = m·n·k/64, as before
//            └─┴─┴─┴─┘
//   a_       ┌─┬─┬─┬─┐         shared loads a step of k: 8 + 8 floats for 64 multiply-adds. Read literally, rung 6 has
//   fragment ├─┼─┼─┼─┤         128 loads there. But its loops are unrolled and nothing is written to shared memory
//     ┌─┐    ├─┼─┼─┼─┤         between the barriers, so the compiler finds the repeated reads by itself: the machine
//     └─┘    └─┴─┴─┴─┘ acc     code is the same, and so is the speed.
#include "block_tile.cuh"

template <int BM, int BN, int BK, int TM, int TN>
__device__ __forceinline__ void sgemm_08(const GemmArgs& args) {
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles fill the block tile");
    constexpr int THREADS = BM / TM * (BN / TN);
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];
    const int thread_row = threadIdx.x / (BN / TN) * TM;
    const int thread_col = threadIdx.x % (BN / TN) * TN;

    for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
        TileLoader<BM, BK, THREADS> a(args, args.a, tile.batch, tile.row(), 0);
        TileLoader<BK, BN, THREADS> b(args, args.b, tile.batch, 0, tile.col());
        float acc[TM][TN] = {};

        for (int k_left = args.k; k_left > 0; k_left -= BK) {
            a.load(args.m - tile.row(), k_left, [&](int row, int k, float value) { As[row][k] = value; });
            b.load(k_left, args.n - tile.col(), [&](int k, int col, float value) { Bs[k][col] = value; });
            a.step_cols();
            b.step_rows();
            __syncthreads();

#pragma unroll
            for (int k = 0; k < BK; ++k) {
                float a_fragment[TM], b_fragment[TN];
#pragma unroll
                for (int j = 0; j < TN; ++j) b_fragment[j] = Bs[k][thread_col + j];
#pragma unroll
                for (int i = 0; i < TM; ++i) a_fragment[i] = As[thread_row + i][k];
#pragma unroll
                for (int i = 0; i < TM; ++i) {
#pragma unroll
                    for (int j = 0; j < TN; ++j) acc[i][j] += a_fragment[i] * b_fragment[j];
                }
            }
            __syncthreads();
        }

        store_tile<1, 1>(args, tile.batch, tile.row() + thread_row, tile.col() + thread_col, acc);
    }
}

// One entry of the kernel table: NAME, the block's tile, the thread's tile.
#define SGEMM_08(NAME, BM, BN, BK, TM, TN, BLOCKS)                                                                      \
    extern "C" __global__ void __launch_bounds__((BM) / (TM) * ((BN) / (TN)), BLOCKS)                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_08<BM, BN, BK, TM, TN>(args);                                                                     \
    }

SGEMM_08(sgemm_08_register_cached, 128, 128, 8, 8, 8, 2)
