// The converter warps of the Hopper kernels: they make K-major heads and tails of tiles that come as they lie in memory.
#pragma once

#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "layout_sm90.cuh"
#include "split.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

__device__ __forceinline__ float4 tails_of_truncated(float4 x) {
    return make_float4(tail_of_truncated(x.x), tail_of_truncated(x.y), tail_of_truncated(x.z), tail_of_truncated(x.w));
}

// Where vector `index` of a tile of S, four neighbours in k, is read and written. K-major: from and to the same place.
// MN-major: a warp reads 32 rows of S from four rows of k, a word a lane, and writes a chunk a lane; both without bank
// conflicts, because the swizzle's bits are those of the row read, and of the row written.
template <typename CONFIG>
struct Vector {
    uint32_t from, to;   // bytes from the start of the tile

    __device__ __forceinline__ explicit Vector(int index) {
        if constexpr (CONFIG::S_MAJOR == Major::kK) {
            from = to = index * kChunk;
        } else {
            constexpr int kChunks = BK / kVector;
            const int unit = index / kWarp, lane = index % kWarp;   // a unit is one chunk of the K-major rows of a box
            from = unit * kVector * kTileRow + (lane / 4 ^ unit * kVector % 8) * kChunk + lane % 4 * 4;
            to = unit / kChunks * kBoxBytes<float> + lane * kTileRow + (unit % kChunks ^ lane % 8) * kChunk;
        }
    }
    __device__ __forceinline__ float4 load(const char* tile) const {
        if constexpr (CONFIG::S_MAJOR == Major::kK) {
            return *reinterpret_cast<const float4*>(tile + from);
        } else {
            const auto word = [&](int k) {   // the chunks of a row of k are permuted by k % 8
                return *reinterpret_cast<const float*>(tile + (from ^ k * kChunk) + k * kTileRow);
            };
            return make_float4(word(0), word(1), word(2), word(3));
        }
    }
};

// The converter warps: from each raw tile of S its K-major head, its tail, or both.
template <typename CONFIG>
__device__ __forceinline__ void convert(const Shared<CONFIG>& shared, Work<CONFIG> work, int thread) {
    constexpr int kConverters = CONFIG::CONVERTERS;
    constexpr int kVectors = CONFIG::S_FLOATS / kVector;
    constexpr int kTurns = (kVectors + kConverters - 1) / kConverters;
    constexpr int kMost = CONFIG::HEADS ? 2 : 3;   // vectors in registers at a time
    constexpr int kFlight = kTurns < kMost ? kTurns : kMost;
    Ring<CONFIG::STAGES> raw;
    Ring<CONFIG::SLOTS> converted;
    for (; work.more(); work.next()) {
        const int stages = work.stages();
        for (int stage = 0; stage < stages; ++stage) {
            ptx::mbarrier_wait(shared.converted_empty(converted.stage), converted.parity ^ 1);
            ptx::mbarrier_wait(shared.raw_full(raw.stage), raw.parity);
            if constexpr (CONFIG::HEADS) thread = ptx::recompute(thread);
            const char* from = shared.s(raw.stage);
            char* head = shared.converted(converted.stage);
            char* tail = head + CONFIG::HEADS * CONFIG::S_BYTES;
#pragma unroll
            for (int first = 0; first < kTurns; first += kFlight) {
                // Turns before the last are whole: every thread has a vector.
                const auto mine = [&](int turn) {
                    return turn < kVectors / kConverters ||
                           (turn < kTurns && turn * kConverters + thread < kVectors);
                };
                const auto vector = [&](int turn) { return Vector<CONFIG>(turn * kConverters + thread); };
                float4 x[kFlight];
#pragma unroll
                for (int i = 0; i < kFlight; ++i) {
                    if (mine(first + i)) x[i] = vector(first + i).load(from);
                }
                if constexpr (CONFIG::HEADS) {
#pragma unroll
                    for (int i = 0; i < kFlight; ++i) {
                        if (mine(first + i)) *reinterpret_cast<float4*>(head + vector(first + i).to) = x[i];
                    }
                }
                if constexpr (CONFIG::TAILS) {
#pragma unroll
                    for (int i = 0; i < kFlight; ++i) x[i] = tails_of_truncated(x[i]);
#pragma unroll
                    for (int i = 0; i < kFlight; ++i) {
                        if (mine(first + i)) *reinterpret_cast<float4*>(tail + vector(first + i).to) = x[i];
                    }
                }
            }
            ptx::fence_async_proxy();
            __syncwarp();
            if (thread % kWarp == 0) ptx::mbarrier_arrive(shared.converted_full(converted.stage));
            raw.advance();
            converted.advance();
        }
    }
}

}  // namespace

#endif  // sm_90a
