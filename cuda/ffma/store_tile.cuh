// The end of a tile whose sums are in registers.
#pragma once

#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../ptx/cluster.cuh"
#include "../scheduler/tiles.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

__device__ __forceinline__ constexpr int largest_part(int all, int most) {
    int part = all < most ? all : most;
    while (all % part != 0) --part;
    return part;
}

// Stores a block's tile. THREADS threads hold it in registers, `in_group` is this one's number among them and (row, col)
// its first output; all GROUPS · THREADS threads of the block come along.
//
// The sums pass through shared memory, a 4 × 4 piece of each thread at a time, so that there is one copy of the epilogue's
// large code, and for the reason that ThreadTile::quad() gives: `room` is ROOM bytes of shared memory that nobody uses any
// more, and a tile that needs more passes through it in parts.
//
// Where k is cut, the slices of a tile are the blocks of a cluster (compute capability 9.0 and newer). Each leaves its sums
// in its shared memory, and each adds up and stores its share of the tile, always in the order of k: no workspace, no
// second launch, the same bits every time.
template <int THREADS, int GROUPS, int ROOM, int LM, int LN, int TM, int TN>
__device__ __forceinline__ void store_tile(const ThreadTile<LM, LN, TM, TN>& tile, const GemmArgs& args, const WorkUnit& work,
                                           int group, int in_group, int row, int col, float4* room) {
    using Tile = ThreadTile<LM, LN, TM, TN>;
    constexpr int kPieces = Tile::kPieces;
    constexpr int kFit = ROOM / (THREADS * kVector * static_cast<int>(sizeof(float4)));
    constexpr int kPart = largest_part(kPieces, kFit);                    // pieces that pass at a time
    const Epilogue epilogue(args, work.batch);
    [[maybe_unused]] const bool split = args.split_k > 1;   // there are clusters from sm_90 on
    float4* mine = room + in_group;
#pragma unroll
    for (int first = 0; first < kPieces; first += kPart) {
        if (group == 0) {
#pragma unroll
            for (int v = 0; v < kPart * kVector; ++v) mine[v * THREADS] = tile.quad_of_piece(first + v / kVector, v % kVector);
        }
        // q: four columns of four rows each, as quad() transposed them.
        const auto store = [&](int piece, const float4 (&q)[kVector]) {
            float4 rows[kVector];
            rows_of_piece(q, rows);
            epilogue.store_rows(args, row + Tile::piece_row(first + piece), col + Tile::piece_col(first + piece), rows);
        };
        if (GROUPS > 1) __syncthreads();   // the groups share the work
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (split) ptx::cluster_sync();
#endif
#pragma unroll 1
        for (int piece = work.slice + group * args.split_k; piece < kPart; piece += GROUPS * args.split_k) {
            const float4* from = mine + piece * kVector * THREADS;
            float4 q[kVector];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
            if (split) {
                sum_over_cluster<kVector, THREADS, 1>(from, args.split_k, q);
                store(piece, q);
                continue;
            }
#endif
#pragma unroll
            for (int j = 0; j < kVector; ++j) q[j] = from[j * THREADS];
            store(piece, q);
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (split) ptx::cluster_sync();   // the room is free again, and no block leaves while another reads its sums
#endif
        if (GROUPS > 1) __syncthreads();
    }
}

}  // namespace ffma_gemm
