// Rung 14: async pipelined. Global memory goes to shared memory without passing through registers, several steps ahead.
//
// Origin: beyond the worklogs; cp.async came with sm_80.
//
// What changes against rung 13: there a panel waits in registers between its load and its way to shared memory, so a
// kernel can be one step ahead and pays with registers and with instructions. A copy of cp.async needs neither: a
// thread starts it and goes on. STAGES panels of A and of B lie in shared memory in a ring; while one is multiplied,
// STAGES − 1 others are under way.
//
//      step t        read ──► [ t ]  [t+1]  [t+2] ◄── copies start here           STAGES = 3
//      step t + 1             [t+3]  [t+1]  [t+2]                                 the oldest buffer is the next target
//
// How a panel is copied, 16 bytes or 4 at a time, is in async_panel.cuh, the loop around it in async_pipeline.cuh. Where
// copies of 4 bytes transpose, BK = 16 puts two of a warp's on one bank. (Eight along k and four along the extent avoid
// that, but ask for twice as many rows at a time, and measured slower.)
//
// Global-memory traffic and arithmetic per load: as in rung 13, m·n·k·(1/BM + 1/BN) floats read; 85 products a float
// from global memory and 5.3 a float from shared memory at 128 × 256 and 8 × 16.
#include "../pipeline/async_pipeline.cuh"
#include "block_tile.cuh"
#include "store_thread_tile.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct AsyncPipelined : AsyncPipeline<BM, BN, BK, WM, WN, TM, TN, STAGES> {
    using Pipeline = AsyncPipeline<BM, BN, BK, WM, WN, TM, TN, STAGES>;
    static constexpr int kSharedBytes = sizeof(typename Pipeline::Shared);

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        using Shared = typename Pipeline::Shared;
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
            const BatchMember<> member(args, tile.batch);
            auto a = Pipeline::PanelA::of_a(args, member.a, tile.row());
            auto b = Pipeline::PanelB::of_b(args, member.b, tile.col());
            const bool whole = a.extent >= BM && b.extent >= BN;   // no element of the tile lies outside
            typename Pipeline::Thread acc = {};
            Pipeline::accumulate(acc, shared, a, b, args.k);
            store_outputs(acc, args, tile.batch, tile.row() + Pipeline::thread_row(),
                          tile.col() + Pipeline::thread_col(), whole);
            __syncthreads();   // nobody reads the last stage any more when the next tile's copies start
        }
    }
};

// NAME, then the tile: BM, BN, BK, WM, WN, TM, TN, STAGES.
#define ASYNC_PIPELINED(NAME, ...)                                                               \
    enum : int { NAME##_shared = AsyncPipelined<__VA_ARGS__>::kSharedBytes };                    \
    extern "C" __global__ void __launch_bounds__(AsyncPipelined<__VA_ARGS__>::kThreads)          \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        AsyncPipelined<__VA_ARGS__>::run(args);                                                  \
    }

ASYNC_PIPELINED(sgemm_14_async_pipelined, 128, 256, 16, 32, 128, 8, 16, 3)
ASYNC_PIPELINED(sgemm_14_async_pipelined_128x128, 128, 128, 16, 32, 128, 8, 16, 3)
