// What the kernels with consumer warps and producer warps have in common where TMA brings both operands, on Hopper: a stage of their
// ring, what a producer warp does for it, where the consumer warps lie in the tile, and the main loop. What they differ in is the
// schedule: which tiles and steps of k a block takes, and which of its warps take which stage.
#pragma once

#include <cuda.h>

#include "../pipeline/batch_coordinates.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "copied_tile.cuh"
#include "lanes.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

// The consumer warps of a block. A group of them covers the tile, TM × TN outputs a thread.
template <int BM, int BN, int TM, int TN>
struct ConsumerWarps {
    static constexpr int LM = BM < 8 * TM ? 4 : 8, LN = kWarp / LM;   // a tile of 32 rows has no room for more
    using Lanes = ffma_gemm::Lanes<LM, LN>;
    using Thread = ThreadTile<LM, LN, TM, TN>;
    static constexpr int kWarps = 8, kThreads = kWarps * kWarp;
    static constexpr int kWarpsN = BN / Thread::kWarpN;
    static constexpr int kGroupWarps = BM / Thread::kWarpM * kWarpsN;
    static constexpr int kGroups = kWarps / kGroupWarps;
    static_assert(kGroupWarps * Thread::kWarpM * Thread::kWarpN == BM * BN, "warp tiles fill the block tile");
    static_assert(kGroups * kGroupWarps == kWarps, "groups fill the two consumer warpgroups, which share the register file with one of "
                                                   "producers");

    // A thread's first output in the tile, by its warp in the group and its lane.
    static __device__ __forceinline__ int first_row(int warp, int lane) {
        return warp / kWarpsN * Thread::kWarpM + Lanes::m(lane) * kVector;
    }
    static __device__ __forceinline__ int first_col(int warp, int lane) {
        return warp % kWarpsN * Thread::kWarpN + Lanes::n(lane) * kVector;
    }
};

// A and B of BK steps of k.
template <int BM, int BN, int BK>
struct Stage {
    float a[BK][BM];
    float b[BK][BN];
};

// The main loop over stages with tiles of these kinds: `steps` stages of the ring, multiplied in parts of kPart lines that are unrolled.
// `advance` moves the cursor to the next stage that the thread's group takes.
template <typename TILE_A, typename TILE_B, int BK>
struct MainLoop {
    using TileA = TILE_A;
    using TileB = TILE_B;

    template <typename THREAD, typename SHARED, typename RING, typename ADVANCE>
    static __device__ __forceinline__ void multiply(THREAD& tile, SHARED& shared, RING& cursor, int steps, int row, int col, int lane,
                                                    const ADVANCE& advance) {
        constexpr int kPart = 8, kParts = BK / kPart;
        const int offset_a = TileA::lane_offset(row), offset_b = TileB::lane_offset(col);
        const float* a = shared.stages[cursor.stage].a[0] + offset_a;
        const float* b = shared.stages[cursor.stage].b[0] + offset_b;
        const auto load = [&](int buffer, int k) { tile.template load<TileA, TileB>(buffer, a, b, k); };
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
                a += TileA::offset(kPart, 0);
                b += TileB::offset(kPart, 0);
            }
            if (parts > 1) load(kPart % 2, 0);
            tile.multiply((kPart - 1) % 2);
        }
    }
};

// A stage that TMA brings. What is contiguous along k arrives as it lies in memory, which `raw` announces, and a producer warp
// transposes it before the stage is full.
template <int BM, int BN, int BK, bool A_TRANSPOSED, bool B_TRANSPOSED>
struct CopiedStage : MainLoop<CopiedTile<BM, BK, A_TRANSPOSED>, CopiedTile<BN, BK, B_TRANSPOSED>, BK> {
    using Stage = ffma_gemm::Stage<BM, BN, BK>;
    using TileA = CopiedTile<BM, BK, A_TRANSPOSED>;
    using TileB = CopiedTile<BN, BK, B_TRANSPOSED>;
    static constexpr bool kWords = false;   // TMA copies, not threads
    static constexpr bool kTransposes = A_TRANSPOSED || B_TRANSPOSED;
    static constexpr int kArrivals = kTransposes ? kWarp : 1;   // of every lane that transposed, or of the one that asked
    static constexpr uint32_t kBytes = sizeof(Stage);
    static constexpr uint32_t kRawBytes = (A_TRANSPOSED ? sizeof(Stage::a) : 0) + (B_TRANSPOSED ? sizeof(Stage::b) : 0);

    // Asking for a stage: one lane says how many bytes will arrive, then asks for the tiles of A from a row and of B from a column on.
    static __device__ __forceinline__ void expect(uint64_t* full, uint64_t* raw) {
        if (kRawBytes > 0) ptx::mbarrier_arrive_expect_bytes(raw, kRawBytes);
        if (kRawBytes == 0) ptx::mbarrier_arrive_expect_bytes(full, kBytes);
        else if (kRawBytes < kBytes) ptx::mbarrier_expect_bytes(full, kBytes - kRawBytes);
    }
    static __device__ __forceinline__ void copy_a(Stage& stage, const CUtensorMap& map, uint64_t* full, uint64_t* raw, int row, int k,
                                                  const BatchCoordinates& at) {
        TileA::copy(stage.a[0], map, A_TRANSPOSED ? raw : full, row, k, at);
    }
    static __device__ __forceinline__ void copy_b(Stage& stage, const CUtensorMap& map, uint64_t* full, uint64_t* raw, int col, int k,
                                                  const BatchCoordinates& at) {
        TileB::copy(stage.b[0], map, B_TRANSPOSED ? raw : full, col, k, at);
    }

    // Transposes what has arrived, and says so. All lanes of a warp call this.
    static __device__ __forceinline__ void transpose(Stage& stage, uint64_t* full, int lane) {
        if (A_TRANSPOSED && B_TRANSPOSED) CopiedTile<BM + BN, BK, true>::transpose(stage.a[0], lane);   // B's bands follow A's
        else if (A_TRANSPOSED) TileA::transpose(stage.a[0], lane);
        else TileB::transpose(stage.b[0], lane);
        ptx::fence_async_proxy();   // before TMA writes here again
        ptx::mbarrier_arrive(full);
    }

    // The rows of a piece of a thread's outputs, of which (row, col) is the first in the tile.
    static __device__ __forceinline__ void rows_of(const float4 (&q)[kVector], int row, int col, float4 (&rows)[kVector]) {
        rows_of_transposed_piece(q, TileA::rotation(row), TileB::rotation(col), rows);
    }
};

}  // namespace ffma_gemm
