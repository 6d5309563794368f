// Tiles for the FFMA kernels that TMA brings, transposes of those that are contiguous along k, and the main loop
// over a ring of them: for kernels with producer warps, on Hopper.
#pragma once

#include <cuda.h>

#include "../pipeline/batch_coordinates.cuh"
#include "../ptx/barriers.cuh"
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

// The main loop: `steps` stages of the ring, multiplied in parts of kPart lines that are unrolled. `advance` moves the cursor
// to the next stage, of the thread's or of its group's.
template <typename TILE_A, typename TILE_B, int BK, typename TILE, typename SHARED, typename CURSOR, typename ADVANCE>
__device__ __forceinline__ void multiply_stages(TILE& tile, SHARED& shared, CURSOR& cursor, int steps, int row, int col,
                                                int lane, const ADVANCE& advance) {
    constexpr int kPart = 8, kParts = BK / kPart;
    const int offset_a = TILE_A::lane_offset(row), offset_b = TILE_B::lane_offset(col);
    const float* a = shared.stages[cursor.stage].a[0] + offset_a;
    const float* b = shared.stages[cursor.stage].b[0] + offset_b;
    const auto load = [&](int buffer, int k) { tile.template load<TILE_A, TILE_B>(buffer, a, b, k); };
    ptx::mbarrier_wait(&shared.full[cursor.stage], cursor.parity);
    load(0, 0);
#pragma unroll 1
    for (int parts = steps * kParts; parts > 0; --parts) {
#pragma unroll
        for (int line = 0; line < kPart - 1; ++line) {
            load((line + 1) % 2, line + 1);
            tile.multiply(line % 2);
        }
        // The last line's operands are asked for already, so now the next part's can be.
        if (parts % kParts == 1) {
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(&shared.empty[cursor.stage]);
            advance(cursor);
            if (parts > 1) ptx::mbarrier_wait(&shared.full[cursor.stage], cursor.parity);
            a = shared.stages[cursor.stage].a[0] + offset_a;
            b = shared.stages[cursor.stage].b[0] + offset_b;
        } else {
            a += TILE_A::offset(kPart, 0);
            b += TILE_B::offset(kPart, 0);
        }
        if (parts > 1) load(kPart % 2, 0);
        tile.multiply((kPart - 1) % 2);
    }
}

}  // namespace ffma_gemm
