// Tiles for the FFMA kernels that TMA brings, and transposes of those that are contiguous along k: for kernels with producer warps,
// on Hopper.
#pragma once

#include <cuda.h>

#include "../pipeline/batch_coordinates.cuh"
#include "../ptx/copies.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

// A tile of ROWS rows that TMA brings. Where rows are neighbours in memory, it arrives as the main loop wants it,
// [k][row]. Where k is contiguous, it arrives as [row][k], its 16-byte chunks swizzled within 64 bytes, and a producer warp
// transposes it in place: a band of 32 rows has the same room as [k][row] of that band.
template <int ROWS, int BK, bool TRANSPOSED>
struct CopiedTile {
    static constexpr int kBand = 32;
    static constexpr int kBandFloats = kBand * BK;
    static_assert(BK == 16 && ROWS % kBand == 0, "a row of 64 bytes is what TMA swizzles; bands are whole");

    // Where line k has the four rows that lie `step` rows after the ones to which `lane_offset` leads in line 0.
    static __device__ __forceinline__ constexpr int offset(int k, int step) {
        return TRANSPOSED ? step / kBand * kBandFloats + k * kBand + step % kBand : k * ROWS + step;
    }
    static __device__ __forceinline__ int lane_offset(int row) {
        return TRANSPOSED ? row / kBand * kBandFloats + row % kBand : row;
    }

    // Four rows lie beside each other in a line, but those of a transposed tile are rotated: at place i is row (i + rotation) % 4.
    static __device__ __forceinline__ int rotation(int row) { return TRANSPOSED ? row / 8 % kVector : 0; }

    // A lane gathers four rows of a line, four times, and writes them as vectors. Eight neighbouring lanes have eight fours of
    // rows and one line, so what they write fills all banks. So does what a warp reads: because of the rotation, eight lanes
    // read one element each of eight different chunks.
    static __device__ __forceinline__ void transpose(float* tile, int lane) {
        const int four = lane % 8, line = lane / 8;
        int from[kVector][BK / kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const int row = four * kVector + (i + rotation(four * kVector)) % kVector;
#pragma unroll
            for (int chunk = 0; chunk < BK / kVector; ++chunk)
                from[i][chunk] = row * BK + (chunk ^ row / 2 % 4) * kVector + line;
        }
        float* to = tile + line * kBand + four * kVector;
#pragma unroll
        for (int band = 0; band < ROWS / kBand; ++band) {
            float v[BK / kVector][kVector];
#pragma unroll
            for (int chunk = 0; chunk < BK / kVector; ++chunk)
#pragma unroll
                for (int i = 0; i < kVector; ++i) v[chunk][i] = tile[band * kBandFloats + from[i][chunk]];
            __syncwarp();   // all have read the band before any of it is overwritten
#pragma unroll
            for (int chunk = 0; chunk < BK / kVector; ++chunk)
                *reinterpret_cast<float4*>(to + band * kBandFloats + chunk * kVector * kBand) =
                    make_float4(v[chunk][0], v[chunk][1], v[chunk][2], v[chunk][3]);
        }
    }

    // Asks for the tile at (row, k) of a matrix of the batch.
    static __device__ __forceinline__ void copy(float* tile, const CUtensorMap& map, uint64_t* barrier, int row, int k,
                                                const BatchCoordinates& at) {
        ptx::tma_load_5d(tile, &map, barrier, TRANSPOSED ? k : row, TRANSPOSED ? row : k, at.x, at.y, at.z);
    }
};

// Brings four neighbours that lie rotated by so many places back in order.
template <typename T>
__device__ __forceinline__ void rotate_back(T (&v)[kVector], int by) {
    if (by & 1) {
        const T last = v[3];
        v[3] = v[2];
        v[2] = v[1];
        v[1] = v[0];
        v[0] = last;
    }
    if (by & 2) {
        const T first = v[0], second = v[1];
        v[0] = v[2];
        v[1] = v[3];
        v[2] = first;
        v[3] = second;
    }
}

// The same where rows and columns are rotated, as those of transposed tiles of A and B are.
__device__ __forceinline__ void rows_of_transposed_piece(const float4 (&q)[kVector], int rotation_a, int rotation_b,
                                                     float4 (&rows)[kVector]) {
    rows_of_piece(q, rows);
    rotate_back(rows, rotation_a);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        float x[] = {rows[i].x, rows[i].y, rows[i].z, rows[i].w};
        rotate_back(x, rotation_b);
        rows[i] = make_float4(x[0], x[1], x[2], x[3]);
    }
}

}  // namespace ffma_gemm
