// Strict FP32 GEMM for every device from sm_80 on, any layout, stride, alignment, batch and tail.
//
// One block computes one BM × BN tile of one matrix over one slice of k. While it multiplies tile t of A and B out of
// shared memory it already holds tile t + 1 in registers, so a step of BK costs one barrier; two tile buffers are
// enough. The loader (tile_loader.cuh) takes operands 16 bytes at a time along whichever dimension is contiguous, transposing
// in registers where that is k, and element by element where nothing is aligned.
//
// A thread computes TM × TN outputs: TM·TN FFMA for (TM + TN) / 4 16-byte reads of shared memory. 8 × 16 gives 128 to
// 6, so 95 % of the issue slots can be FFMA; smaller thread tiles trade that for more blocks. Small tiles give each
// step of k to WARPS_K groups of warps, which keeps 8 × 8 outputs a thread where the tile alone has too few; the
// groups' sums meet in shared memory. Few tiles and a long k: a cluster of split_k blocks shares a tile.
#include "../scheduler/tiles.cuh"
#include "lanes.cuh"
#include "store_tile.cuh"
#include "thread_tile.cuh"
#include "tile_loader.cuh"

namespace ffma_gemm {

template <int BM, int BN, int BK, int LM, int TM, int TN, int WARPS_K>
struct Tiled {
    static constexpr int LN = kWarp / LM;
    using Thread = ThreadTile<LM, LN, TM, TN>;
    static constexpr int kWarpsM = BM / Thread::kWarpM, kWarpsN = BN / Thread::kWarpN;
    static constexpr int kGroup = kWarpsM * kWarpsN * kWarp;   // threads that cover the tile once
    static constexpr int kThreads = kGroup * WARPS_K;
    static constexpr bool kQuickScalars = BM <= 64 && BN <= 64;   // larger tiles have no registers left for it
    static constexpr int kSteps = BK / WARPS_K;                // steps of k for one group in one tile
    static_assert(kWarpsM * Thread::kWarpM == BM && kWarpsN * Thread::kWarpN == BN, "warp tiles fill the block tile");
    static_assert(kSteps * WARPS_K == BK && kSteps % 8 == 0, "groups share a tile's steps evenly, in whole swizzles");
    static_assert(chunk_swizzle<BM>(kSteps) < LM && chunk_swizzle<BN>(kSteps) < LN,
                  "what a group's first step adds to the swizzle moves lanes only");

    struct Tiles {
        float a[2][BK][BM];
        float b[2][BK][BN];
    };
    // The groups' accumulators pass through the same memory once the tiles are done with.
    static_assert(WARPS_K == 1 || sizeof(Tiles) >= sizeof(float) * BM * BN, "one group's sums fit into the tiles");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ __align__(128) Tiles tiles;
        const int thread = threadIdx.x;
        const int group = thread / kGroup, in_group = thread % kGroup;
        const int warp = in_group / kWarp, lane = thread % kWarp;
        const int row = warp / kWarpsN * Thread::kWarpM + Lanes<LM, LN>::m(lane) * kVector;
        const int col = warp % kWarpsN * Thread::kWarpN + Lanes<LM, LN>::n(lane) * kVector;
        const int first_step = group * kSteps;
        const int row_at = row ^ chunk_swizzle<BM>(first_step) * kVector;   // where the group finds them in the tiles
        const int col_at = col ^ chunk_swizzle<BN>(first_step) * kVector;

        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const WorkUnit work = work_unit<BM, BN>(args, grid, blockIdx.x);
        TileLoader<BM, BK, kThreads, kQuickScalars> a;
        TileLoader<BN, BK, kThreads, kQuickScalars> b;
        a.start(Source::of_a(args, work.batch), thread, work.row, work.k_begin);
        b.start(Source::of_b(args, work.batch), thread, work.col, work.k_begin);

        Thread tile;
        tile.clear();
        int k_left = work.k_end - work.k_begin;
        a.fetch(k_left);
        b.fetch(k_left);
        a.commit(tiles.a[0]);
        b.commit(tiles.b[0]);
        __syncthreads();

        for (int buffer = 0; k_left > 0; buffer ^= 1) {
            k_left -= BK;
            if (k_left > 0) {
                a.fetch(k_left);
                b.fetch(k_left);
            }
            const float(*tile_a)[BM] = tiles.a[buffer] + first_step;
            const float(*tile_b)[BN] = tiles.b[buffer] + first_step;
            tile.load(0, tile_a, tile_b, 0, row_at, col_at);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                if (step + 1 < kSteps) tile.load((step + 1) % 2, tile_a, tile_b, step + 1, row_at, col_at);
                tile.multiply(step % 2);
            }
            if (k_left > 0) {
                a.commit(tiles.a[buffer ^ 1]);
                b.commit(tiles.b[buffer ^ 1]);
            }
            __syncthreads();
        }

        float* shared = reinterpret_cast<float*>(&tiles);
        if (WARPS_K > 1) add_groups(tile, shared, group, in_group);
        store_tile<kGroup, WARPS_K, sizeof(Tiles)>(tile, args, work, group, in_group, work.row + row,
                                                                  work.col + col, reinterpret_cast<float4*>(shared));
    }

    // Adds the sums of groups 1, 2, … to group 0's, in that order, through shared memory.
    static __device__ __forceinline__ void add_groups(Thread& tile, float* shared, int group, int in_group) {
        for (int from = 1; from < WARPS_K; ++from) {
            if (group == from) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) shared[(i * TN + j) * kGroup + in_group] = tile.acc[i][j];
            }
            __syncthreads();
            if (group == 0) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) tile.acc[i][j] += shared[(i * TN + j) * kGroup + in_group];
            }
            __syncthreads();
        }
    }
};

}  // namespace ffma_gemm

// One entry a tile: block tile, BK, lanes along m, thread tile, groups along k, blocks that share a multiprocessor.
#define FFMA_TILED(NAME, BM, BN, BK, LM, TM, TN, WARPS_K, BLOCKS)                                              \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Tiled<BM, BN, BK, LM, TM, TN, WARPS_K>::kThreads), BLOCKS) \
        NAME(const __grid_constant__ GemmArgs args) {                                                          \
        ffma_gemm::Tiled<BM, BN, BK, LM, TM, TN, WARPS_K>::run(args);                                               \
    }

FFMA_TILED(ffma_128x256, 128, 256, 16, 8, 8, 16, 1, 1)
FFMA_TILED(ffma_64x128, 64, 128, 16, 8, 8, 8, 1, 3)
FFMA_TILED(ffma_64x64, 64, 64, 32, 8, 8, 8, 2, 2)
FFMA_TILED(ffma_32x128, 32, 128, 32, 4, 8, 8, 2, 2)
FFMA_TILED(ffma_32x64, 32, 64, 32, 4, 8, 8, 2, 4)
FFMA_TILED(ffma_16x128, 16, 128, 32, 2, 8, 8, 4, 2)
FFMA_TILED(ffma_32x32, 32, 32, 32, 8, 4, 8, 2, 6)
FFMA_TILED(ffma_128x32, 128, 32, 32, 8, 4, 8, 1, 3)
