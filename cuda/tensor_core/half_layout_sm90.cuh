// What the 16-bit kernels for Hopper have in shared memory, and which thread does what: all that follows from a tile. gemm_half_sm90.cu
// says what R, S, swapped tiles and clusters are.
#pragma once

#include "../epilogue/half.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

using Bits = uint16_t;                       // an element
constexpr int BK = kBox<Bits>;
constexpr int kConsumerRows = 64;            // rows of R a consumer warpgroup
constexpr int kWarpgroupWarps = kWarpgroup / kWarp;
constexpr int kEpilogueRegisters = 96;       // of 32 values and what goes with them
constexpr int kOtherRegisters = 32;          // of a consumer beside its sums: addresses, counters, descriptors
constexpr int kPlaces = 16;                  // that a block remembers
constexpr int kMostStages = 12;

// Where a tile lies: its first row of R and of S, and its matrix in the tensor map of D.
struct alignas(32) Place {
    int row_r, row_s;
    BatchCoordinates at;
};

template <Half TYPE_, int BM_, int BN_, Major R_MAJOR_, Major S_MAJOR_, bool SWAPPED_, int PAIR_, int BLOCKS_,
          int ROWS_ = BM_, bool SHARES_R_ = false, bool GATED_ = false>
struct Config {
    static constexpr Half TYPE = TYPE_;
    static constexpr int BM = BM_;                     // rows of R a block
    static constexpr int BN = BN_;                     // rows of S a block
    static constexpr Major R_MAJOR = R_MAJOR_, S_MAJOR = S_MAJOR_;
    static constexpr bool SWAPPED = SWAPPED_;          // R is B, S is A, the sums are those of Dᵀ
    static constexpr int PAIR = PAIR_;                 // blocks of a cluster that share a tile of S, or of R; 1: clusters cut k
    static constexpr int PAIR_R = SHARES_R_ ? 1 : PAIR, PAIR_S = SHARES_R_ ? PAIR : 1;   // tiles of R and of S of a cluster
    static constexpr int BLOCKS = BLOCKS_;             // that fit on a multiprocessor
    static constexpr int ROWS = ROWS_;                 // of R from a tile to the next: what is beyond is computed, and not stored
    static constexpr bool GATED = GATED_;              // two columns of S make one of D
    static constexpr int SUMS = BN / 2;                // a consumer thread's share of 64 × BN
    static constexpr int VECTORS = SUMS / kVector;

    static constexpr int WARPS = BM / kConsumerRows * kWarpgroupWarps;   // of consumers
    static constexpr int CONSUMERS = WARPS * kWarp;
    // Registers are redistributed by whole warpgroups, so the producer then has three idle warps beside it.
    static constexpr bool DEALS = BLOCKS == 1;
    static constexpr int THREADS = CONSUMERS + (DEALS ? kWarpgroup : kWarp);
    static constexpr int CONSUMER_REGISTERS = 224, PRODUCER_REGISTERS = 56;
    static_assert(!DEALS || CONSUMER_REGISTERS * CONSUMERS + PRODUCER_REGISTERS * kWarpgroup <= kRegisters,
                  "a block's registers fit into a multiprocessor");

    static constexpr int R_BYTES = BM * kTileRow, S_BYTES = BN * kTileRow;
    static constexpr int STAGE_BYTES = R_BYTES + S_BYTES;

    // Columns of A·B whose results are stored together, and how many columns of D these make. Blocks of a cluster that cuts k share the end of a tile out among them by boxes, so those of
    // small tiles are narrow.
    static constexpr int BOX = PAIR > 1 ? (BN % 64 == 0 ? 64 : 32) : WARPS > kWarpgroupWarps && BN % 32 == 0 ? 32 : 16;
    static constexpr int D_BOX = GATED ? BOX / 2 : BOX;
    static constexpr int BOX_BYTES = kFragmentRows * D_BOX * 2;
    // Of a warp. Gated columns leave a tile's boxes room to wait for TMA side by side.
    static constexpr int BUFFERS = GATED ? BN / BOX : 2;
    static constexpr int STAGING_BYTES = SWAPPED ? 0 : WARPS * BUFFERS * BOX_BYTES;
    static constexpr int BARRIER_BYTES = 256;
    static constexpr int LIMIT = kSharedMemory / BLOCKS - kSharedReserved;
    static constexpr int PLACE_BYTES = SWAPPED ? 0 : kPlaces * sizeof(Place);
    static constexpr int FIT = (LIMIT - STAGING_BYTES - BARRIER_BYTES - PLACE_BYTES) / STAGE_BYTES;
    static constexpr int STAGES = FIT < kMostStages ? FIT : kMostStages;
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = RING_BYTES + STAGING_BYTES + BARRIER_BYTES + PLACE_BYTES;
    static_assert((2 * STAGES + 6) * 8 <= BARRIER_BYTES, "barriers and the number that was drawn fit");
    static_assert(kPlaces > STAGES + 1, "tiles have a stage at least, so consumers have read a place before the producer leaves another there");
    static_assert(STAGES >= 3, "copies are under way while a stage is read and another is given back");
    static_assert(BM % kConsumerRows == 0, "consumers share R evenly");
    static_assert(ROWS == BM || (SWAPPED && R_MAJOR == Major::kK && ROWS < BM), "only threads that store Dᵀ leave rows out");
    static_assert(S_BYTES % kTileAlign == 0 && RING_BYTES % kTileAlign == 0 && BOX_BYTES % 512 == 0,
                  "every tile and box starts on a period of its swizzle");
    static_assert((BM / PAIR_S) % (R_MAJOR == Major::kK ? kSwizzle : kBox<Bits>) == 0, "a block's share of R is whole boxes");
    static_assert((BN / PAIR_R) % (S_MAJOR == Major::kK ? kSwizzle : kBox<Bits>) == 0, "a block's share of S is whole boxes");
    static_assert(SWAPPED || BN % BOX == 0, "boxes do not reach into the next tile");

    // A tile is stored while the next one is multiplied, a box a stage: see multiply_and_store_behind.
    static constexpr bool STORES_BEHIND = PAIR > 1 && !GATED;
    static constexpr int BOXES = SWAPPED ? 0 : BN / BOX;
    static_assert(!STORES_BEHIND || CONSUMER_REGISTERS >= SUMS + SUMS / 2 + kOtherRegisters, "registers hold a tile and the one before, rounded");

    // What GELU takes waits for the next tile's first stages as well, for as many sums as registers are left for, so many a stage: see
    // multiply_and_activate_behind.
    static constexpr int BOX_SUMS = BOX / 2, HELD_LIMIT = (CONSUMER_REGISTERS - SUMS - kOtherRegisters) / BOX_SUMS * BOX_SUMS;
    static constexpr int HELD = HELD_LIMIT < SUMS ? HELD_LIMIT : SUMS, HELD_PART = 8, HELD_PARTS = HELD / HELD_PART;
    static constexpr int HELD_TURN = 16;   // at the very end
    static_assert(!STORES_BEHIND || (BOX_SUMS % HELD_PART == 0 && BOX_SUMS % HELD_TURN == 0), "a box is whole parts, and whole turns");

    // Clusters that share tiles can share the last of them by ranges of k, but where columns are gated: registers are short. A piece's sums come back in portions, of so many vectors of a
    // thread, as many as a stage has room for.
    static constexpr bool STREAMS = PAIR > 1 && !GATED;
    static constexpr int PORTION = STAGE_BYTES / (CONSUMERS * kVectorBytes);
    static_assert(!STREAMS || (DEALS && PORTION > 0), "there is a warp that tells of pieces, and a stage holds a vector of each thread");

    // A tile of R is fetched earlier by whole multiples of so many rows: periods of the swizzle, or boxes. And by as many as S has at most: wgmma
    // reads as many rows behind R, where the same stage's S is.
    static constexpr int SHIFT_STEP = R_MAJOR == Major::kK ? kSwizzle : kBox<Bits>, MOST_SHIFT = BN;

    // Where clusters cut k, blocks share the sums out among them, so many vectors of 8 rows of S at a time.
    static constexpr int SHARE = SWAPPED ? 1 : BOX / kFragmentColumns, SHARES = VECTORS / SHARE;
    static_assert(SHARES * SHARE * kVector == SUMS, "sums are whole shares");
    // Shares of the block that has the most.
    static __host__ __device__ constexpr uint32_t most_shares(uint32_t slices) { return (SHARES + slices - 1) / slices; }
    static constexpr bool holds(uint32_t slices) {
        return slices * most_shares(slices) * SHARE * CONSUMERS * kVectorBytes <= RING_BYTES;
    }
    // Whether clusters may cut k: into so many slices the ring holds what a block adds up.
    static constexpr bool CUTS = PAIR == 1 && holds(2) && holds(3) && holds(4) && holds(5) && holds(6) && holds(8);
    static_assert(CUTS || PAIR > 1 || BLOCKS > 1, "kernels for few tiles can cut k");
    static_assert(!(SWAPPED && PAIR > 1), "swapped tiles are for few rows");
    static_assert(!(SWAPPED && GATED), "a thread has gate and up side by side");

    // Values that pass through the epilogue at a time: fewer where registers are short, for the sums stay beside them.
    static constexpr int REGISTERS = DEALS ? CONSUMER_REGISTERS : kRegisters / (THREADS * BLOCKS);
    static constexpr bool AMPLE = REGISTERS >= SUMS + kEpilogueRegisters;
    static constexpr int PART = AMPLE && SUMS % 32 == 0 ? 32 : SUMS % 16 == 0 ? 16 : SUMS % 8 == 0 ? 8 : 4;
    static_assert(SWAPPED || PART % (BOX / 2) == 0, "a part is whole boxes");
    // Whether the epilogue that most layers have has code of its own: in large tiles, where registers last for the bias of the next part, beside
    // what clusters that cut k need.
    static constexpr bool SHORTENS = !SWAPPED && !GATED && AMPLE && SUMS > PART && (!CUTS || REGISTERS >= SUMS + PART + kEpilogueRegisters);
};

template <typename CONFIG>
struct Shared {
    char* base;   // aligned to kTileAlign

    __device__ __forceinline__ char* r(int slot) const { return base + slot * CONFIG::STAGE_BYTES; }
    __device__ __forceinline__ char* s(int slot) const { return r(slot) + CONFIG::R_BYTES; }
    __device__ __forceinline__ char* staging(int warp, int buffer) const {
        return base + CONFIG::RING_BYTES + (warp * CONFIG::BUFFERS + buffer) * CONFIG::BOX_BYTES;
    }
    __device__ __forceinline__ uint64_t* full(int slot) const {
        return reinterpret_cast<uint64_t*>(base + CONFIG::RING_BYTES + CONFIG::STAGING_BYTES) + slot;
    }
    __device__ __forceinline__ uint64_t* empty(int slot) const { return full(CONFIG::STAGES + slot); }
    // Where clusters cut k: whether all blocks have read their rings, and whether the others' sums have arrived.
    __device__ __forceinline__ uint64_t* vacant() const { return full(2 * CONFIG::STAGES); }
    __device__ __forceinline__ uint64_t* summed() const { return full(2 * CONFIG::STAGES + 1); }
    // Of this block's tile of this number.
    __device__ __forceinline__ Place* place(int tile) const {
        return reinterpret_cast<Place*>(base + CONFIG::RING_BYTES + CONFIG::STAGING_BYTES + CONFIG::BARRIER_BYTES) + tile % kPlaces;
    }
    // The number that this cluster drew, and whether it has arrived.
    __device__ __forceinline__ uint64_t* numbered() const { return full(2 * CONFIG::STAGES + 2); }
    __device__ __forceinline__ float4* number() const { return reinterpret_cast<float4*>(full(2 * CONFIG::STAGES + 4)); }
};

}  // namespace

#endif  // sm_90a
