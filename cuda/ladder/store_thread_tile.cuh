// The end of a tile of the ladder's later rungs: a thread stores its outputs, 16 bytes at a time where it may.
#pragma once

#include "../ptx/machine.cuh"
#include "batch_member.cuh"

template <typename TILE>
__device__ __forceinline__ void store_vectors(const TILE& tile, const GemmArgs& args, float alpha, float beta, int batch,
                                              int row, int col) {
    const BatchMember<> member(args, batch);
#pragma unroll
    for (int i = 0; i < TILE::kRows; ++i) {
        const int64_t at = row + TILE::row_of(i);
        float* d = member.d + at * args.d.row_stride + col;
        const float* c = member.c + at * args.c.row_stride + col;
#pragma unroll
        for (int j = 0; j < TILE::kCols; j += kVector) {
            float4 value = make_float4(alpha * tile.sum[i][j], alpha * tile.sum[i][j + 1], alpha * tile.sum[i][j + 2],
                                       alpha * tile.sum[i][j + 3]);
            if (beta != 0.0f) {
                const float4 old = *reinterpret_cast<const float4*>(c + TILE::col_of(j));
                value.x += beta * old.x;
                value.y += beta * old.y;
                value.z += beta * old.z;
                value.w += beta * old.w;
            }
            *reinterpret_cast<float4*>(d + TILE::col_of(j)) = value;
        }
    }
}

template <typename TILE>
__device__ __forceinline__ void store_scalars(const TILE& tile, const GemmArgs& args, float alpha, float beta, int batch,
                                              int row, int col) {
    const BatchMember<> member(args, batch);
#pragma unroll
    for (int i = 0; i < TILE::kRows; ++i) {
        const int64_t at = row + TILE::row_of(i);
        if (at >= args.m) continue;
        float* d = member.d + at * args.d.row_stride + col;
        const float* c = member.c + at * args.c.row_stride + col * args.c.col_stride;
#pragma unroll
        for (int j = 0; j < TILE::kCols; ++j) {
            if (TILE::col_of(j) >= args.n - col) continue;
            float value = alpha * tile.sum[i][j];
            if (beta != 0.0f) value += beta * c[TILE::col_of(j) * args.c.col_stride];
            d[TILE::col_of(j)] = value;
        }
    }
}

// `tile`, a GroupedTile: D ← α·sum + β·C, where the thread's first element is (row, col) of the matrices and the last one is still
// within int. `whole` says that no element of the block's tile lies outside.
template <typename TILE>
__device__ __forceinline__ void store_outputs(const TILE& tile, const GemmArgs& args, float alpha, float beta, int batch,
                                              int row, int col, bool whole) {
    const bool vectors = args.d_access == kRowVector && (beta == 0.0f || args.c_access == kRowVector);
    if (TILE::kGroup == kVector && whole && vectors) {
        store_vectors(tile, args, alpha, beta, batch, row, col);
    } else {
        store_scalars(tile, args, alpha, beta, batch, row, col);
    }
}

// The same with the problem's own α and β.
template <typename TILE>
__device__ __forceinline__ void store_outputs(const TILE& tile, const GemmArgs& args, int batch, int row, int col, bool whole) {
    store_outputs(tile, args, args.alpha, args.beta, batch, row, col, whole);
}
