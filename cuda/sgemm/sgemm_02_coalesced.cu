// Rung 2: consecutive threads on consecutive columns, and loads whose addresses cost next to nothing.
//
// Origin: worklog A, sgemm_global_mem_coalesce (after https://siboehm.com/articles/22/CUDA-MMM, kernel 2).
//
// Against rung 1: threads are numbered in one dimension and mapped to D with a division and a remainder, so that the
// choice which neighbours share a warp is made here and not by the launch. Where the columns of A and of B are one
// element apart, which is what row-major operands are, the walk along k is unrolled: A's next elements lie at constant
// distances, B's pointer moves by one addition, and the loads of several steps are in flight together.
//
// Traffic as before, 2·m·n·k loads and one multiply-add for two loads, but a warp's loads are now 1 + 4 sectors of 32
// bytes instead of 32 + 1: per step 32 multiply-adds for 160 bytes out of the L1 cache.
#include "../common/block_tile.cuh"

// Σ a[k]·b[k·ldb]: A's row and B's column where both have unit column stride.
__device__ __forceinline__ float dot_row_major(const float* a, const float* b, int64_t ldb, int k) {
    constexpr int UNROLL = 16;
    float acc = 0.0f;
#pragma unroll UNROLL
    for (int i = 0; i < k; ++i) {
        acc += a[i] * *b;
        b += ldb;
    }
    return acc;
}

// The same for any strides.
__device__ __forceinline__ float dot_strided(const float* a, int64_t a_step, const float* b, int64_t b_step, int k) {
    float acc = 0.0f;
    for (int i = 0; i < k; ++i) acc += a[i * a_step] * b[i * b_step];
    return acc;
}

template <int BLOCK>
__device__ __forceinline__ void sgemm_02(const GemmArgs& args) {
    const bool row_major = args.a.col_stride == 1 && args.b.col_stride == 1;
    for (TileWalk<BLOCK, BLOCK> tile; tile.inside(args); tile.next(args)) {
        const int row = tile.row() + threadIdx.x / BLOCK;
        const int col = tile.col() + threadIdx.x % BLOCK;
        if (row >= args.m || col >= args.n) continue;

        const BatchMember<> member(args, tile.batch);
        const float* a = member.a + row * args.a.row_stride;
        const float* b = member.b + col * args.b.col_stride;
        const float acc = row_major ? dot_row_major(a, b, args.b.row_stride, args.k)
                                    : dot_strided(a, args.a.col_stride, b, args.b.row_stride, args.k);
        store_scaled(args, member, row, col, acc);
    }
}

// One entry of the kernel table: NAME, the edge of the square block of threads (and tile of D), blocks an SM.
#define SGEMM_02(NAME, BLOCK, BLOCKS)                                                                          \
    extern "C" __global__ void __launch_bounds__((BLOCK) * (BLOCK), BLOCKS)                                         \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_02<BLOCK>(args);                                                                                 \
    }

SGEMM_02(sgemm_02_coalesced_16, 16, 4)
SGEMM_02(sgemm_02_coalesced, 32, 1)
