// The end of a tile whose sums lie in registers as columns of four (ThreadTile::quad): they pass through shared memory, and leave it row by
// row, 128 neighbouring bytes at once wherever a row of D starts.
#pragma once

#include <type_traits>

#include "../epilogue/epilogue.cuh"
#include "lanes.cuh"
#include "store_sums.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

// A block's tile: BM × BN, WM × WN of it a warp and TM × TN a thread. Sliced-K: GROUPS groups of warps have sums of the tile, each of its own
// part of k.
template <int BM, int BN, int WM, int WN, int TM, int TN, int GROUPS = 1>
struct ColumnStore {
    static constexpr int kLanesM = WM / TM, kLanesN = WN / TN;
    using Thread = ThreadTile<kLanesM, kLanesN, TM, TN>;
    using LaneGrid = Lanes<kLanesM, kLanesN>;
    static constexpr int kWarpsN = BN / WN, kWarps = BM / WM * kWarpsN;   // of a group
    static constexpr int kGroupThreads = kWarps * kWarp, kThreads = GROUPS * kGroupThreads;
    static constexpr int kColumns = (WN - 1) / kWarp + 1;   // of a lane, when rows are stored
    static constexpr int kPitchSum = BN + 1;   // where the epilogue walks the whole tile
    static_assert(BM % WM == 0 && BN % WN == 0 && kLanesM * kLanesN == kWarp, "warp tiles fill the block's, and lanes the warp's");

    // Shared memory for the sums.
    union RoomOfOne {
        float4 out[kWarps][kLanesM * WN];
        float sums[BM * kPitchSum];
    };
    struct RoomOfGroups {
        float4 out[GROUPS][kWarps][kLanesM * WN];
        float sums[BM * kPitchSum];   // of all groups
    };
    using Room = std::conditional_t<GROUPS == 1, RoomOfOne, RoomOfGroups>;

    // A thread's first output in the tile.
    static __device__ __forceinline__ int first_row(int warp, int lane) { return warp / kWarpsN * WM + LaneGrid::m(lane) * kVector; }
    static __device__ __forceinline__ int first_col(int warp, int lane) { return warp % kWarpsN * WN + LaneGrid::n(lane) * kVector; }

    // All threads of the block come here, once nobody uses `room` for anything else.
    static __device__ __forceinline__ void store(const Thread& tile, const GemmArgs& args, const WorkUnit& work, Room& room, int warp,
                                                 int lane) {
        if (is_plain(args)) store_columns(tile, args, work, room.out[warp], warp, lane);
        else store_with_epilogue(tile, args, work, room.sums, first_row(warp, lane), first_col(warp, lane));
    }

    // The same for groups: each adds up all groups' sums, in the order of k, of its share of the rows, and stores them.
    static __device__ __forceinline__ void store_groups(const Thread& tile, const GemmArgs& args, const WorkUnit& work, RoomOfGroups& room,
                                                        int group, int warp, int lane) {
        static_assert(TM == kVector && kLanesM % GROUPS == 0, "a warp's sums are kLanesM times four rows, and groups share these");
        constexpr int kEach = kLanesM / GROUPS;
        const int m = LaneGrid::m(lane), n = LaneGrid::n(lane) * kVector;
#pragma unroll
        for (int j = 0; j < TN; ++j) room.out[group][warp][place(m, n + Thread::col(j))] = tile.quad(0, j);
        __syncthreads();
        const bool plain = is_plain(args);
        const Scalars scalars(args);
        const int row = warp / kWarpsN * WM + group * kEach * kVector, col = warp % kWarpsN * WN + lane;   // in the tile
        const int rows_left = args.m - work.row - row, cols_left = of_warp(args.n - work.col - col, lane);
        const int64_t stride = args.d.row_stride;
        float* to = static_cast<float*>(args.d.data) + batch_offset(args, args.d, work.batch) + (work.row + row) * stride + work.col + col;
        float* sums = room.sums + row * kPitchSum + col;
#pragma unroll
        for (int r = 0; r < kEach; ++r) {
            float4 quads[kColumns];
#pragma unroll
            for (int c = 0; c < kColumns; ++c) {
                if (!is_column(c, lane)) continue;
                const int at = place(group * kEach + r, c * kWarp + lane);
                quads[c] = room.out[0][warp][at];
#pragma unroll
                for (int other = 1; other < GROUPS; ++other) {
                    const float4 more = room.out[other][warp][at];
                    quads[c].x += more.x;
                    quads[c].y += more.y;
                    quads[c].z += more.z;
                    quads[c].w += more.w;
                }
            }
#pragma unroll
            for (int v = 0; v < kVector; ++v) {
                const bool inside = r * kVector + v < rows_left;
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    if (!is_column(c, lane)) continue;
                    const float sum = in_row(quads[c], v);
                    if (!plain) sums[(r * kVector + v) * kPitchSum + c * kWarp] = sum;
                    else if (inside && c * kWarp < cols_left) to[c * kWarp] = scalars.scale(sum);
                }
                to += stride;
            }
        }
        if (plain) return;
        wait_for_sums(args);
        const Epilogue epilogue(args, work.batch);
        store_sums<BM, BN, kThreads, kPitchSum>(args, work, epilogue, room.sums);
    }

private:
    static __device__ __forceinline__ bool is_plain(const GemmArgs& args) {
        return args.split_k == 1 && args.activation == kIdentity && Scalars(args).beta == 0.0f && args.bias == nullptr &&
               args.residual.data == nullptr;
    }

    // Whether the warp has the c-th column of a lane, and how many of the columns that are left from the lane's first one on are the warp's: lanes
    // of the upper half have one less where a warp has an odd multiple of 16.
    static_assert(WN % (kWarp / 2) == 0, "half a warp stores neighbours");
    static __device__ __forceinline__ bool is_column(int c, int lane) { return WN % kWarp == 0 || c * kWarp + lane < WN; }
    static __device__ __forceinline__ int of_warp(int cols_left, int lane) { return WN % kWarp == 0 ? cols_left : min(cols_left, WN - lane); }

    // The element of row `v`: pairs are swapped in a quad.
    static __device__ __forceinline__ float in_row(const float4& q, int v) { return v == 0 ? q.y : v == 1 ? q.x : v == 2 ? q.w : q.z; }

    // Where column c of lanes m lies in `out`: moved within its four, so that any eight lanes that write 16 bytes at a time, some of them to
    // every fourth column and some at other m, and any eight that read neighbouring columns, use all banks.
    static __device__ __forceinline__ constexpr int place(int m, int c) {
        constexpr int kTurn = kLanesM == 4 || kLanesM == 16 ? 1 : 2;   // eight lanes are 4 × 2 there, and 2 × 4 else (Lanes)
        return m * WN + c / kVector * kVector + (c + c / (2 * kVector) + m * kTurn) % kVector;
    }

    // α·A·B alone, through `out`, which is this warp's: four rows of each piece at a time, which leave the registers as columns of four
    // (ThreadTile::quad) and are read as such by lanes that have neighbouring columns, and store a row after the other.
    static __device__ __forceinline__ void store_columns(const Thread& tile, const GemmArgs& args, const WorkUnit& work, float4* out, int warp,
                                                         int lane) {
        const Scalars scalars(args);
        const int first_row = work.row + warp / kWarpsN * WM, first_col = work.col + warp % kWarpsN * WN + lane;
        const int rows_left = args.m - first_row, cols_left = of_warp(args.n - first_col, lane);
        const int64_t stride = args.d.row_stride;
        float* const d = static_cast<float*>(args.d.data) + batch_offset(args, args.d, work.batch) + first_row * stride + first_col;
        float* to = d;   // rows are stored in their order
        const int m = LaneGrid::m(lane), n = LaneGrid::n(lane) * kVector;
#pragma unroll
        for (int i = 0; i < TM; i += kVector) {
#pragma unroll
            for (int j = 0; j < TN; ++j) out[place(m, n + Thread::col(j))] = tile.quad(i, j);
            __syncwarp();
#pragma unroll
            for (int r = 0; r < kLanesM; ++r) {
                float4 quads[kColumns];
#pragma unroll
                for (int c = 0; c < kColumns; ++c) {
                    if (is_column(c, lane)) quads[c] = out[place(r, c * kWarp + lane)];
                }
#pragma unroll
                for (int v = 0; v < kVector; ++v) {
                    const bool inside = Thread::row(i) + r * kVector + v < rows_left;
#pragma unroll
                    for (int c = 0; c < kColumns; ++c) {
                        const float sum = in_row(quads[c], v);
                        if (inside && c * kWarp < cols_left) to[c * kWarp] = scalars.scale(sum);
                    }
                    to += stride;
                }
            }
            __syncwarp();
        }
    }

    // Everything else: all sums of the tile go to shared memory, for one short copy of the epilogue's code.
    static __device__ __forceinline__ void store_with_epilogue(const Thread& tile, const GemmArgs& args, const WorkUnit& work, float* sums,
                                                               int row, int col) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[(row + Thread::row(i)) * kPitchSum + col + Thread::col(j)] = tile.acc[i][j];
        wait_for_sums(args);
        const Epilogue epilogue(args, work.batch);
        store_sums<BM, BN, kThreads, kPitchSum>(args, work, epilogue, sums);
    }
};

}  // namespace ffma_gemm
