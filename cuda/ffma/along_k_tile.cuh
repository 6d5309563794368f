// What the kernels whose operands both lie along k have in common: the outputs of a thread, and the main loop over stages as TMA
// brings them, rows of 128 bytes, swizzled. Nobody transposes: a thread reads 16 bytes along k of each of its rows of A and of B.
//
// Register banks. Even registers are one bank and odd ones the other, and an FFMA that takes two new operands from one bank costs
// two clocks. What a thread reads along k lies in registers in the order of k, so both factors of a product come from the same bank.
// Sums of even k and of odd k are therefore kept apart, each in the bank that its factors are not in: 5 of 256 FFMA conflict. That
// takes 128 accumulators for 64 outputs; the two are added when the tile is done.
#pragma once

#include "../pipeline/ring.cuh"
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

    // One stage: waits for it, multiplies TURNS of its chunks, and gives it back. `a_lane` and `b_lane` are the addresses of the
    // thread's first rows in the first stage, with their swizzle, `a_stage` and `b_stage` how far from there this one's are. The first
    // chunk begins `from` bytes after a row's beginning, the others every STEP bytes from there.
    template <int TURNS, int STEP, int STAGES>
    __device__ __forceinline__ void multiply_stage(uint64_t* full, uint64_t* empty, const Ring<STAGES>& cursor, uint32_t a_lane,
                                                   uint32_t a_stage, uint32_t b_lane, uint32_t b_stage, uint32_t from, int lane) {
        ptx::mbarrier_wait(&full[cursor.stage], cursor.parity);
#pragma unroll 1
        for (uint32_t chunk = from; chunk < from + TURNS * STEP; chunk += STEP)
            multiply((a_lane + a_stage) ^ chunk, (b_lane + b_stage) ^ chunk);
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(&empty[cursor.stage]);
    }

    // `address` is that of the chunk in the thread's first row.
    static __device__ __forceinline__ void read(float (&to)[kVector], uint32_t address, int row) {
        const float4 chunk = ptx::load_shared_vector((address ^ row % kSwizzle * kChunk) + row * kTileRow);
        to[0] = chunk.x, to[1] = chunk.y, to[2] = chunk.z, to[3] = chunk.w;
    }

    __device__ __forceinline__ float total(int i, int j) const { return sum[i][j][0] + sum[i][j][1]; }

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
