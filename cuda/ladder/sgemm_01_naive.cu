// Rung 1: one thread computes one element of D, straight from global memory.
//
// Origin: worklog B, NVIDIA_SGEMM_PRACTICE, kernel 1; worklog C, naiveGEMM; worklog A, sgemm_naive, for the variant
// whose warps walk down a column of D (after https://siboehm.com/articles/22/CUDA-MMM, kernel 1).
//
// Each thread reads a row of A and a column of B: 2·m·n·k loads, one multiply-add for two loads. What a load costs
// depends on how the 32 threads of a warp lie in D:
//
//            a warp along a row of D                     a warp down a column of D
//   A        one address for all 32: 1 sector            32 rows of A: 32 sectors
//   B        32 neighbours: 4 sectors of 32 bytes        one address for all 32: 1 sector
//   D        32 neighbours: 4 sectors                    32 rows of D: 32 sectors
//
// The second is kept as sgemm_01_naive_uncoalesced: the same arithmetic, many times the memory traffic.
#include "block_tile.cuh"

enum class WarpAlong { kRowOfD, kColumnOfD };

template <int BLOCK, WarpAlong WARP>
__device__ __forceinline__ void sgemm_01(const GemmArgs& args) {
    static_assert(BLOCK == 32, "a warp is one row, or one column, of the block");
    const int slow = threadIdx.x / BLOCK;
    const int fast = threadIdx.x % BLOCK;
    for (TileWalk<BLOCK, BLOCK> tile; tile.inside(args); tile.next(args)) {
        const int row = tile.row() + (WARP == WarpAlong::kRowOfD ? slow : fast);
        const int col = tile.col() + (WARP == WarpAlong::kRowOfD ? fast : slow);
        if (row >= args.m || col >= args.n) continue;

        const BatchMember<> member(args, tile.batch);
        float acc = 0.0f;
        for (int k = 0; k < args.k; ++k) {
            acc += member.a[row * args.a.row_stride + k * args.a.col_stride] *
                   member.b[k * args.b.row_stride + col * args.b.col_stride];
        }
        store_scaled(args, member, row, col, acc);
    }
}

// One entry of the kernel table: NAME, the edge of the square block of threads (and tile of D), the warp's direction.
#define SGEMM_01(NAME, BLOCK, WARP)                                                                            \
    extern "C" __global__ void __launch_bounds__((BLOCK) * (BLOCK)) NAME(const __grid_constant__ GemmArgs args) { \
        sgemm_01<BLOCK, WARP>(args);                                                                           \
    }

SGEMM_01(sgemm_01_naive_uncoalesced, 32, WarpAlong::kColumnOfD)
SGEMM_01(sgemm_01_naive, 32, WarpAlong::kRowOfD)
