// What the Hopper kernels have in shared memory, and which thread does what: all that follows from a tile.
#pragma once

#include "../epilogue/wgmma_store.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../scheduler/cluster_tiles.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int BK = kBox<float>;      // one row of a tile
constexpr int kStepK = 8;            // k of one wgmma
constexpr int kSteps = BK / kStepK;

template <int PRODUCTS_, int BM_, int BN_, Major MAJOR_, Major S_MAJOR_, bool SWAPPED_, int MULTICAST_>
struct Config {
    static constexpr int PRODUCTS = PRODUCTS_;       // TF32 products a result: 1, or 3 for FP32 accuracy
    static constexpr int BM = BM_;                   // rows of R a block
    static constexpr int BN = BN_;                   // rows of S a block
    static constexpr Major MAJOR = MAJOR_;           // of R
    static constexpr Major S_MAJOR = S_MAJOR_;
    static constexpr bool SWAPPED = SWAPPED_;        // R is B, S is A, the accumulator is Dᵀ
    static constexpr int MULTICAST = MULTICAST_;     // blocks of a cluster that share one tile of S; 1: clusters cut k
    static constexpr int ACCUMULATORS = BN / 2;      // a consumer thread's share of 64 × BN
    static constexpr int R_FLOATS = BM * BK;
    static_assert(BM % kWgmmaRows == 0, "consumers share R evenly");
    static constexpr int S_FLOATS = BN * BK;
    static constexpr int S_BYTES = S_FLOATS * 4;
    static constexpr int RAW_BYTES = R_FLOATS * 4 + S_BYTES;   // what the copies of one stage deliver to one block

    // What the converters make of a tile of S: a transposed head, a tail, both or nothing.
    static constexpr bool HEADS = S_MAJOR == Major::kRows;
    static constexpr bool TAILS = PRODUCTS == 3;
    static constexpr int CONVERTED_BYTES = (HEADS + TAILS) * S_BYTES;
    static constexpr int SLOTS = HEADS ? 4 : 3;
    static constexpr int FEEDERS = (CONVERTED_BYTES > 0 ? 2 : 1) * kWarpgroup;
    static constexpr int CONVERTERS = FEEDERS - kWarp;
    static constexpr int CONSUMERS = BM / kWgmmaRows * kWarpgroup;
    static constexpr int THREADS = FEEDERS + CONSUMERS;
    static constexpr int CONSUMER_REGISTERS = CONVERTED_BYTES > 0 ? 216 : 232;
    static constexpr int FEEDER_REGISTERS = 40;
    static_assert(CONSUMER_REGISTERS * CONSUMERS + FEEDER_REGISTERS * FEEDERS <= kRegisters,
                  "a block's registers fit into a multiprocessor");

    static constexpr int BARRIER_BYTES = 512;
    static constexpr int FIT = (kSharedLimit - BARRIER_BYTES - SLOTS * CONVERTED_BYTES) / RAW_BYTES;
    static constexpr int STAGES = FIT < 10 ? FIT : 10;
    static constexpr int RING_BYTES = STAGES * RAW_BYTES + SLOTS * CONVERTED_BYTES + BARRIER_BYTES;
    // Large tiles transpose their results in shared memory, where room is left and that is faster, so that stores are whole lines.
    static constexpr int STAGING_BYTES = CONSUMERS / kWarpgroup * kStagingBytes;
    static constexpr bool STAGED = BN >= 128 && (SWAPPED || PRODUCTS == 1) && RING_BYTES + STAGING_BYTES <= kSharedLimit;
    static constexpr int SHARED_BYTES = RING_BYTES + (STAGED ? STAGING_BYTES : 0);
    static_assert(STAGES >= 2 && SHARED_BYTES <= kSharedLimit, "rings and barriers fit into a block's shared memory");
    static_assert(BN % 16 == 0 && BN <= 256, "the sizes of S that wrappers of wgmma exist for");
    static_assert((BN / MULTICAST) % (S_MAJOR == Major::kK ? kSwizzle : kBox<float>) == 0, "a block's share of S is whole boxes");
    static_assert(S_BYTES % kTileAlign == 0, "every tile starts on a swizzle period");
    static_assert(STAGES * RAW_BYTES >= BM * BN * 4, "the ring holds a block's sums when clusters cut k");
    static_assert((2 * STAGES + 2 * SLOTS) * 8 <= BARRIER_BYTES, "barriers fit");
};

template <typename CONFIG>
struct Shared {
    char* base;   // aligned to kTileAlign

    __device__ __forceinline__ char* r(int slot) const { return base + slot * CONFIG::RAW_BYTES; }
    __device__ __forceinline__ char* s(int slot) const { return r(slot) + CONFIG::R_FLOATS * 4; }
    __device__ __forceinline__ char* converted(int slot) const {
        return base + CONFIG::STAGES * CONFIG::RAW_BYTES + slot * CONFIG::CONVERTED_BYTES;
    }
    __device__ __forceinline__ uint64_t* barriers() const {
        return reinterpret_cast<uint64_t*>(converted(CONFIG::SLOTS));
    }
    __device__ __forceinline__ char* staging() const { return base + CONFIG::RING_BYTES; }
    __device__ __forceinline__ uint64_t* raw_full(int slot) const { return barriers() + slot; }
    __device__ __forceinline__ uint64_t* raw_empty(int slot) const { return barriers() + CONFIG::STAGES + slot; }
    __device__ __forceinline__ uint64_t* converted_full(int slot) const {
        return barriers() + 2 * CONFIG::STAGES + slot;
    }
    __device__ __forceinline__ uint64_t* converted_empty(int slot) const {
        return barriers() + 2 * CONFIG::STAGES + CONFIG::SLOTS + slot;
    }
};

// The tiles of R and S that a block computes.
template <typename CONFIG>
using Work = ClusterTiles<CONFIG::BM, CONFIG::BN, CONFIG::MULTICAST, 1, CONFIG::MULTICAST == 1, CONFIG::SWAPPED, BK>;

}  // namespace

#endif  // sm_90a
