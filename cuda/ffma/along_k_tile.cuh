// The outputs of a thread whose operands both lie along k, as TMA brings them: rows of 128 bytes, swizzled.
#pragma once

#include "../pipeline/tma_tiles.cuh"
#include "../ptx/machine.cuh"

namespace ffma_gemm {

// TM rows of A by TN rows of B. STEPS says how far they are from the thread's first ones: a(i) and b(j).
template <int TM, int TN, typename STEPS>
struct AlongKTile {
    float sum[TM][TN][2];   // of even k and of odd k

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sum[i][j][0] = sum[i][j][1] = 0.0f;
    }

    // One chunk: four products of a column of A's and a row of B's factors. All reads come before the first FFMA: the
    // warp barrier keeps the compiler from mixing them, which would cost it the order that spares the register banks (62
    // conflicts in place of 5). It does so where the compiler cannot tell that the warp is together anyway. While this
    // warp waits for its reads, another multiplies.
    __device__ __forceinline__ void multiply(uint32_t a_address, uint32_t b_address) {
        float a[TM][kVector], b[TN][kVector];
#pragma unroll
        for (int i = 0; i < TM; ++i) read(a[i], a_address, STEPS::a(i));
#pragma unroll
        for (int j = 0; j < TN; ++j) read(b[j], b_address, STEPS::b(j));
        __syncwarp();
#pragma unroll
        for (int k = 0; k < kVector; ++k)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int step = 0; step < TN; ++step) {
                    const int j = i % 2 == 0 ? step : TN - 1 - step;
                    sum[i][j][k % 2] = fmaf(a[i][k], b[j][k], sum[i][j][k % 2]);
                }
    }

    // `address` is that of the chunk in the thread's first row.
    static __device__ __forceinline__ void read(float (&to)[kVector], uint32_t address, int row) {
        const float4 chunk = ptx::load_shared_vector((address ^ row % kSwizzle * kChunk) + row * kTileRow);
        to[0] = chunk.x, to[1] = chunk.y, to[2] = chunk.z, to[3] = chunk.w;
    }

    // Gives the compiler a reason to keep the sums of even k in odd registers and those of odd k in even ones: stores of
    // 16 bytes take four registers in a row. They are never carried out, `never` being what the plan rules out.
    __device__ __forceinline__ void pair_registers(bool never, float4* anywhere) const {
        if (!never) return;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; j += 2)
                anywhere[i * TN + j] = make_float4(sum[i][j][1], sum[i][j][0], sum[i][j + 1][1], sum[i][j + 1][0]);
    }
};

}  // namespace ffma_gemm
