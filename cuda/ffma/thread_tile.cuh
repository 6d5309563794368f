// The outputs of a thread, and the outer product in registers.
#pragma once

#include "tile_loader.cuh"

namespace ffma_gemm {

// TM × TN accumulators of a thread. Its rows come in chunks of four, LM chunks apart from each other, so that the lanes
// of a warp read neighbouring chunks; columns likewise.
template <int LM, int LN, int TM, int TN>
struct ThreadTile {
    static constexpr int kWarpM = LM * TM, kWarpN = LN * TN;
    static_assert(TM % kVector == 0 && TN % kVector == 0, "fragments are read 16 bytes at a time");

    float acc[TM][TN];
    float a[2][TM], b[2][TN];   // fragments of this step and the next

    static __device__ __forceinline__ int row(int i) { return i / kVector * LM * kVector + i % kVector; }
    static __device__ __forceinline__ int col(int j) { return j / kVector * LN * kVector + j % kVector; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
    }

    // Reads the thread's operands for step k of the tiles; (row, col) is its first output in the block tile. `k` and the
    // thread's chunks are known to the compiler, its lane is not: a swizzle is applied to each on its own.
    template <int BM, int BN>
    __device__ __forceinline__ void load(int buffer, const float (*tile_a)[BM], const float (*tile_b)[BN], int k,
                                         int first_row, int first_col) {
        static_assert(kWarpM % 32 == 0 || kWarpM == 16, "the swizzle moves chunks within a warp's rows");
        static_assert(kWarpN % 32 == 0, "the swizzle moves chunks within a warp's columns");
        const int swizzle_a = chunk_swizzle<BM>(k), swizzle_b = chunk_swizzle<BN>(k);
        const float* a_line = tile_a[k] + (first_row ^ swizzle_a % LM * kVector);
        const float* b_line = tile_b[k] + (first_col ^ swizzle_b % LN * kVector);
#pragma unroll
        for (int i = 0; i < TM; i += kVector)
            *reinterpret_cast<float4*>(&a[buffer][i]) =
                *reinterpret_cast<const float4*>(a_line + (row(i) ^ swizzle_a / LM * LM * kVector));
#pragma unroll
        for (int j = 0; j < TN; j += kVector)
            *reinterpret_cast<float4*>(&b[buffer][j]) =
                *reinterpret_cast<const float4*>(b_line + (col(j) ^ swizzle_b / LN * LN * kVector));
    }

    // The same for tiles that lie as A and B say: `a` and `b` point to the thread's first chunks in line 0. B comes first
    // because the compiler then spreads the reads over the step; in clumps they take 3 % more time.
    template <typename A, typename B>
    __device__ __forceinline__ void load(int buffer, const float* from_a, const float* from_b, int k) {
#pragma unroll
        for (int j = 0; j < TN; j += kVector)
            *reinterpret_cast<float4*>(&b[buffer][j]) = *reinterpret_cast<const float4*>(from_b + B::offset(k, col(j)));
#pragma unroll
        for (int i = 0; i < TM; i += kVector)
            *reinterpret_cast<float4*>(&a[buffer][i]) = *reinterpret_cast<const float4*>(from_a + A::offset(k, row(i)));
    }

    // Columns in turn, up and down the rows. See quad().
    __device__ __forceinline__ void multiply(int buffer) {
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int row = j % 2 == 0 ? i : TM - 1 - i;
                acc[row][j] = fmaf(a[buffer][row], b[buffer][j], acc[row][j]);
            }
    }

    // Four rows of one column in swapped pairs, to be stored as one vector.
    //
    // A register file has two banks, even registers and odd ones, and each gives one operand a clock; an FFMA that takes
    // two from one bank costs two clocks. Going down a column, b stays in the operand cache and each FFMA takes a new
    // element of a and a new accumulator. Element i of a is in a register of i's parity, as a 16-byte read put it there.
    // A 16-byte store wants its registers in a row, too, so where the accumulators of rows 1, 0, 3, 2 are stored as one
    // vector, the compiler gives them registers of the opposite parity, and the two never meet in a bank.
    __device__ __forceinline__ float4 quad(int first_row, int j) const {
        return make_float4(acc[first_row + 1][j], acc[first_row][j], acc[first_row + 3][j], acc[first_row + 2][j]);
    }

    // The outputs are stored in pieces of 4 × 4, which are counted along the rows. Column j of a piece, as quad() has it, and how far
    // the piece is from the thread's first output.
    static constexpr int kPiecesAcross = TN / kVector, kPieces = TM / kVector * kPiecesAcross;
    __device__ __forceinline__ float4 quad_of_piece(int piece, int j) const {
        return quad(piece / kPiecesAcross * kVector, piece % kPiecesAcross * kVector + j);
    }
    static __device__ __forceinline__ int piece_row(int piece) { return row(piece / kPiecesAcross * kVector); }
    static __device__ __forceinline__ int piece_col(int piece) { return col(piece % kPiecesAcross * kVector); }
};

// A 4 × 4 piece of a thread's outputs as it left the registers: four columns, in swapped pairs as quad() made them. Back come four
// rows.
__device__ __forceinline__ void rows_of_piece(const float4 (&q)[kVector], float4 (&rows)[kVector]) {
    rows[0] = make_float4(q[0].y, q[1].y, q[2].y, q[3].y);
    rows[1] = make_float4(q[0].x, q[1].x, q[2].x, q[3].x);
    rows[2] = make_float4(q[0].w, q[1].w, q[2].w, q[3].w);
    rows[3] = make_float4(q[0].z, q[1].z, q[2].z, q[3].z);
}

}  // namespace ffma_gemm
