// Rung 2: consecutive threads on consecutive columns, and loads whose addresses cost next to nothing.
//
// Origin: worklog A, sgemm_global_mem_coalesce (after https://siboehm.com/articles/22/CUDA-MMM, kernel 2).
//
// Against rung 1: threads are numbered in one dimension and mapped to D with a division and a remainder, so that the
// choice which neighbours share a warp is made here and not by the launch. Where the columns of A and of B are one
// element apart, which is what row-major operands are, eight steps of k are loaded before the first of them is used,
// B's rows first: those come from far away and all warps of the block wait for the same ones.
//
// Traffic as before, 2·m·n·k loads and one multiply-add for two loads, but a warp's loads are now 1 + 4 sectors of 32
// bytes instead of 32 + 1: per step 32 multiply-adds for 160 bytes out of the L1 cache.
#include "block_tile.cuh"

// Σ a[k]·b[k·ldb]: A's row and B's column where both have unit column stride.
__device__ __forceinline__ float dot_row_major(const float* a, const float* b, int64_t ldb, int k) {
    constexpr int STEPS = 8;   // loaded together: 16 registers, so that 2048 threads fit an SM
    float acc = 0.0f;
    for (; k >= STEPS; k -= STEPS) {
        float a_steps[STEPS], b_steps[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) b_steps[i] = b[i * ldb];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) a_steps[i] = a[i];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) acc += a_steps[i] * b_steps[i];
        a += STEPS;
        b += STEPS * ldb;
    }
    for (; k > 0; --k) {
        acc += *a * *b;
        a += 1;
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

// One entry of the kernel table: NAME, the edge of the square block of threads (and tile of D).
#define SGEMM_02(NAME, BLOCK)                                                                                  \
    extern "C" __global__ void __launch_bounds__((BLOCK) * (BLOCK), kThreadsPerSm / ((BLOCK) * (BLOCK)))            \
        NAME(const __grid_constant__ GemmArgs args) {                                                          \
        sgemm_02<BLOCK>(args);                                                                                 \
    }

SGEMM_02(sgemm_02_coalesced_16, 16)
SGEMM_02(sgemm_02_coalesced, 32)
