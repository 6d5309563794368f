// The frame of the warp-specialised tensor-core kernels for Hopper: what surrounds their arithmetic.
//
// Of the two operands one is the *register operand* R (BM rows a block) and the other the *shared operand* S (BN rows
// a block). The tensor core reads S from shared memory, where it must lie K-major, and R from registers, which a
// consumer warp can fill from a tile of either orientation. So with
//
//   R = A, S = B:  NT and TT            R = B, S = A ("swapped", the block computes Dᵀ):  NT and NN
//
// nothing is transposed. Where S is MN-major too (TN; NN without the swap), converter warps turn its tiles K-major.
//
//   feeders     one warp issues the copies (TMA); the others, if there is something to convert, are converters
//   consumers   one warpgroup for each 64 rows of R, by all rows of S
//
// A kernel's own file has the consumers' arithmetic: a class with `accumulate(sum, stages)`.
//
// Launch. One dimension of blocks, `threads` and dynamic shared memory as each kernel's row of the table says.
//   pair kernels    clusters of 2; blocks a multiple of 2, any number (persistent): min(units, multiprocessors / 2) · 2
//   others          split_k 1: clusters of 1, any number of blocks; split_k > 1: clusters of split_k and exactly one
//                   cluster a tile
// Tensor maps. Rank 5: x, y, then three batch dimensions (args.batch_dims[3], [2], [1]; extent 1 where the operand's
// stride is 0; args.batch_dims[0] must be 1), 128-byte swizzle, zero fill, box 32 floats wide by
//   R: BM rows if K-major, 32 (of k) if MN-major        S: BN / MULTICAST rows if K-major, 32 (of k) if MN-major
#pragma once

#include <cuda.h>

#include "../epilogue/activation.cuh"
#include "../epilogue/epilogue.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "exact.cuh"
#include "split.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int BK = 32;               // one row of a tile: 128 bytes, the width of the swizzle
constexpr int kStepK = 8;            // k of one wgmma
constexpr int kSteps = BK / kStepK;
constexpr int kWarpgroup = 128;
constexpr int kConsumerRows = 64;    // rows of R a consumer warpgroup
constexpr int kRegisters = 65536;    // of a multiprocessor
constexpr int kTileAlign = 1024;     // the swizzle's period
constexpr int kSharedLimit = 227 * 1024;
constexpr int kConsumerBarrier = 1;  // named barrier of the consumers
constexpr int kStartBarrier = 2;     // that of the whole block, once
constexpr int kStagingBarrier = 3;   // the first of those of single consumer warpgroups
constexpr int kStagedRows = 32;      // of S whose results are staged at a time
constexpr int kStagingBytes = kConsumerRows * kStagedRows * 4;   // of a consumer warpgroup
constexpr int kBox = 32;             // rows of an MN-major box: 128 bytes
constexpr int kChunk = 16;           // bytes that the swizzle moves as one
constexpr int kTileRow = BK * 4;     // bytes of a row of a box
constexpr int kBoxBytes = kBox * kTileRow;   // of an MN-major box: 32 rows of k, 32 of the operand

// Orientation of an operand in memory: K-major rows, or "MN-major" (consecutive rows are neighbours).
enum class Major { kK, kRows };

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
    static_assert(BM % kConsumerRows == 0, "consumers share R evenly");
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
    static constexpr int CONSUMERS = BM / kConsumerRows * kWarpgroup;
    static constexpr int THREADS = FEEDERS + CONSUMERS;
    static constexpr int CONSUMER_REGISTERS = CONVERTED_BYTES > 0 ? 216 : 232;
    static constexpr int FEEDER_REGISTERS = 40;
    static_assert(CONSUMER_REGISTERS * CONSUMERS + FEEDER_REGISTERS * FEEDERS <= kRegisters,
                  "a block's registers fit into a multiprocessor");

    static constexpr int BARRIER_BYTES = 512;
    static constexpr int FIT = (kSharedLimit - BARRIER_BYTES - SLOTS * CONVERTED_BYTES) / RAW_BYTES;
    static constexpr int STAGES = FIT < 10 ? FIT : 10;
    static constexpr int RING_BYTES = STAGES * RAW_BYTES + SLOTS * CONVERTED_BYTES + BARRIER_BYTES;
    // Large tiles turn their results in shared memory, where room is left and that is faster, so that stores are whole lines.
    static constexpr int STAGING_BYTES = CONSUMERS / kWarpgroup * kStagingBytes;
    static constexpr bool STAGED = BN >= 128 && (SWAPPED || PRODUCTS == 1) && RING_BYTES + STAGING_BYTES <= kSharedLimit;
    static constexpr int SHARED_BYTES = RING_BYTES + (STAGED ? STAGING_BYTES : 0);
    static_assert(STAGES >= 2 && SHARED_BYTES <= kSharedLimit, "rings and barriers fit into a block's shared memory");
    static_assert(BN % 16 == 0 && BN <= 256, "the sizes of S that wrappers of wgmma exist for");
    static_assert((BN / MULTICAST) % (S_MAJOR == Major::kK ? 8 : kBox) == 0, "a block's share of S is whole boxes");
    static_assert(S_BYTES % kTileAlign == 0, "every tile starts on a swizzle period");
    static_assert(STAGES * RAW_BYTES >= BM * BN * 4, "the ring holds a block's sums when clusters cut k");
    static_assert((2 * STAGES + 2 * SLOTS) * 8 <= BARRIER_BYTES, "barriers fit");
};

// Position in a ring of `SLOTS` slots, and the parity of the phase that the slot is in.
template <int SLOTS>
struct Ring {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
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

// The tiles of this launch in the order in which clusters take them, and this block's part of each.
template <typename CONFIG>
struct Work {
    int rows_r, rows_s;          // of the whole matrices
    int units_r, tiles_s;        // a unit is MULTICAST tiles of R, one a block
    int group;                   // units of R that are walked together
    int unit, step, units;       // this cluster's current unit, how far apart its units are, all units
    int rank;                    // of this block in its cluster
    int k_begin, k_end;

    __device__ __forceinline__ explicit Work(const GemmArgs& args) {
        rows_r = CONFIG::SWAPPED ? args.n : args.m;
        rows_s = CONFIG::SWAPPED ? args.m : args.n;
        const int tiles_r = (rows_r + CONFIG::BM - 1) / CONFIG::BM;
        units_r = (tiles_r + CONFIG::MULTICAST - 1) / CONFIG::MULTICAST;
        tiles_s = (rows_s + CONFIG::BN - 1) / CONFIG::BN;
        group = min(max(args.group_m, 1), units_r);
        units = units_r * tiles_s * args.batch;
        const int blocks = static_cast<int>(ptx::cluster_size());
        rank = static_cast<int>(ptx::cluster_rank());
        unit = static_cast<int>(ptx::cluster_index());
        step = static_cast<int>(ptx::cluster_count());
        k_begin = 0;
        k_end = args.k;
        if (CONFIG::MULTICAST == 1 && blocks > 1) {   // the cluster cuts k
            k_begin = min(rank * args.k_slice, args.k);
            k_end = min(k_begin + args.k_slice, args.k);
        }
    }
    __device__ __forceinline__ bool more() const { return unit < units; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ int stages() const { return (k_end - k_begin + BK - 1) / BK; }

    // First row of R and S of this block's tile, and the matrix of the batch.
    __device__ __forceinline__ void locate(int& row_r, int& row_s, int& batch) const {
        if (tiles_s == 1 && units == units_r) {   // few rows: no divisions before the first copy
            batch = 0;
            row_r = (CONFIG::MULTICAST > 1 ? unit * CONFIG::MULTICAST + rank : unit) * CONFIG::BM;
            row_s = 0;
            return;
        }
        const int per_matrix = units_r * tiles_s;
        batch = unit / per_matrix;
        const int index = unit - batch * per_matrix;
        const int per_group = group * tiles_s;
        const int first = index / per_group * group;
        const int height = min(group, units_r - first);
        const int inside = index % per_group;
        int tile_r = first + inside % height;
        if (CONFIG::MULTICAST > 1) tile_r = tile_r * CONFIG::MULTICAST + rank;
        row_r = tile_r * CONFIG::BM;
        row_s = inside / height * CONFIG::BN;
    }
};

// ---- load ------------------------------------------------------------------------------------------------------

// One operand's part of a stage: `ROWS` rows from `row`, 32 of k. MULTICAST blocks receive it.
template <Major MAJOR, int ROWS, int MULTICAST>
__device__ __forceinline__ void load_tile(char* tile, const CUtensorMap& map, uint64_t* full, int row, int k,
                                          const BatchCoordinates& at) {
    constexpr uint16_t kAll = (1 << MULTICAST) - 1;
    constexpr int kBoxRows = MAJOR == Major::kK ? ROWS : kBox;
#pragma unroll
    for (int first = 0; first < ROWS; first += kBoxRows) {
        const int x = MAJOR == Major::kK ? k : row + first, y = MAJOR == Major::kK ? row + first : k;
        if constexpr (MULTICAST == 1) {
            ptx::tma_load_5d(tile + first * kTileRow, &map, full, x, y, at.x, at.y, at.z);
        } else {
            ptx::tma_load_5d_multicast(tile + first * kTileRow, &map, full, kAll, x, y, at.x, at.y, at.z);
        }
    }
}

template <typename CONFIG>
__device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& r_map, const CUtensorMap& s_map,
                                        const Shared<CONFIG>& shared, Work<CONFIG> work) {
    constexpr int kShare = CONFIG::BN / CONFIG::MULTICAST;
    const int share = CONFIG::MULTICAST > 1 ? work.rank * kShare : 0;
    const GemmOperand& r = CONFIG::SWAPPED ? args.b : args.a;
    const GemmOperand& s = CONFIG::SWAPPED ? args.a : args.b;
    Ring<CONFIG::STAGES> ring;
    for (; work.more(); work.next()) {
        int row_r, row_s, batch;
        work.locate(row_r, row_s, batch);
        const BatchCoordinates br(args, r, batch), bs(args, s, batch);
        for (int k = work.k_begin; k < work.k_end; k += BK) {
            ptx::mbarrier_wait(shared.raw_empty(ring.slot), ring.phase ^ 1);
            uint64_t* full = shared.raw_full(ring.slot);
            ptx::mbarrier_arrive_expect_bytes(full, CONFIG::RAW_BYTES);
            load_tile<CONFIG::MAJOR, CONFIG::BM, 1>(shared.r(ring.slot), r_map, full, row_r, k, br);
            load_tile<CONFIG::S_MAJOR, kShare, CONFIG::MULTICAST>(shared.s(ring.slot) + share * kTileRow, s_map, full,
                                                                  row_s + share, k, bs);
            ring.advance();
        }
    }
}

// ---- convert ---------------------------------------------------------------------------------------------------

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
            to = unit / kChunks * kBoxBytes + lane * kTileRow + (unit % kChunks ^ lane % 8) * kChunk;
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
            ptx::mbarrier_wait(shared.converted_empty(converted.slot), converted.phase ^ 1);
            ptx::mbarrier_wait(shared.raw_full(raw.slot), raw.phase);
            if constexpr (CONFIG::HEADS) thread = ptx::recompute(thread);
            const char* from = shared.s(raw.slot);
            char* head = shared.converted(converted.slot);
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
            if (thread % kWarp == 0) ptx::mbarrier_arrive(shared.converted_full(converted.slot));
            raw.advance();
            converted.advance();
        }
    }
}

// ---- the consumers' part of a tile -----------------------------------------------------------------------------

// Where a consumer thread's fragments and accumulators lie in the block's tile.
template <typename CONFIG>
struct Place {
    int lane, warp, group, quad;   // warp of the consumers; lane = 4·group + quad

    __device__ __forceinline__ explicit Place(int thread)
        : lane(thread % kWarp), warp(thread / kWarp), group(lane / 4), quad(lane % 4) {}

    // Row of the tile of R for the fragment rows `group` (half 0) and `group + 8` (half 1). For an MN-major R the rows
    // are dealt out so that the 32 lanes of a load hit 32 banks: lanes of equal quad differ in the chunk bit that the
    // swizzle of k = quad leaves alone.
    __device__ __forceinline__ int row(int half) const { return row(half, group); }
    __device__ __forceinline__ int row(int half, int of_group) const {
        if constexpr (CONFIG::MAJOR == Major::kK) return warp * 16 + half * 8 + of_group;
        return warp / 2 * 32 + of_group / 4 * 16 + warp % 2 * 8 + half * 4 + of_group % 4;
    }
    // Row of the tile of S that accumulator `index` belongs to.
    __device__ __forceinline__ int column(int index) const { return column(index, quad); }
    __device__ __forceinline__ int column(int index, int of_quad) const {
        return index / 4 * 8 + of_quad * 2 + index % 2;
    }
};

// Gives a raw tile back to the feeders: of every block that may write into it.
template <typename CONFIG>
__device__ __forceinline__ void release_raw(const Place<CONFIG>& place, uint64_t* raw_empty) {
    if constexpr (CONFIG::MULTICAST == 1) {
        if (place.lane == 0) ptx::mbarrier_arrive(raw_empty);
    } else {
        if (place.lane < CONFIG::MULTICAST) ptx::mbarrier_arrive_cluster(raw_empty, place.lane);
    }
}

// Calls visit(step, part, word) for the 16 words of a tile of R that are this thread's operands of the wgmma of a
// stage: parts are (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4).
template <typename CONFIG, typename VISIT>
__device__ __forceinline__ void visit_fragments(const char* tile, const Place<CONFIG>& place, VISIT visit) {
    uint32_t origin;
    if constexpr (CONFIG::MAJOR == Major::kK) {
        origin = place.row(0) * kTileRow + place.group * kChunk + place.quad * 4;
    } else {
        const int row = place.row(0);
        origin = row / 32 * kBoxBytes + place.quad * kTileRow + (row % 32 / 4 ^ place.quad) * kChunk + row % 4 * 4;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part % 2, far = part / 2;
            uint32_t offset;
            if constexpr (CONFIG::MAJOR == Major::kK) {
                offset = (origin ^ (step * 2 + far) * kChunk) + half * 8 * kTileRow;
            } else {
                offset = (origin ^ (far * 4 ^ half) * kChunk) + (step * kStepK + far * 4) * kTileRow;
            }
            visit(step, part, *reinterpret_cast<const float*>(tile + offset));
        }
    }
}

// ---- non-finite sums -------------------------------------------------------------------------------------------

// Replaces the sums that are not finite by what FP32 arithmetic says.
template <typename CONFIG>
__device__ __forceinline__ void repair(const GemmArgs& args, const Place<CONFIG>& place, int row_r, int row_s,
                                       int batch, int k_begin, int k_end, float (&sum)[CONFIG::ACCUMULATORS]) {
    // More, and registers that the main loop needs would be spilled. Of operands that are not contiguous along k every element
    // has an address.
    constexpr bool kCrowded = CONFIG::ACCUMULATORS > 64;
    constexpr int kPart = kCrowded && CONFIG::MAJOR == Major::kRows ? 4 : 8;
    constexpr bool kSharedRows = CONFIG::MAJOR == Major::kK && CONFIG::S_MAJOR == Major::kK;
    constexpr int kAhead = kCrowded || CONFIG::S_MAJOR == Major::kRows ? 1 : 2;
    constexpr int kFlight = kCrowded && CONFIG::MAJOR == Major::kRows ? 0 : 4;
    if (all_finite(sum)) return;
    const auto operand = [&](const GemmOperand& from, Major major, int rows, int64_t row_stride, int64_t k_stride) {
        if (major == Major::kK) k_stride = 1;
        else row_stride = 1;
        const float* data = static_cast<const float*>(from.data) + batch_offset(args, from, batch) + k_begin * k_stride;
        return ExactOperand{data, row_stride, k_stride, rows, major == Major::kK, major == Major::kRows};
    };
    const auto a = [&](Major major) { return operand(args.a, major, args.m, args.a.row_stride, args.a.col_stride); };
    const auto b = [&](Major major) { return operand(args.b, major, args.n, args.b.col_stride, args.b.row_stride); };
    const ExactOperand r = CONFIG::SWAPPED ? b(CONFIG::MAJOR) : a(CONFIG::MAJOR);
    const ExactOperand s = CONFIG::SWAPPED ? a(CONFIG::S_MAJOR) : b(CONFIG::S_MAJOR);
    const auto row_of = [&](int half, int group) { return row_r + place.row(half, group); };
    unsigned of_r = kUnseen;
    visit_parts<kPart>(sum, [&](int part, float (&x)[kPart]) {
        recompute<kAhead, kSharedRows, kFlight>(r, s, row_of, row_s + part * 2 * kPart, k_end - k_begin, of_r, x);
    });
}

// ---- store -----------------------------------------------------------------------------------------------------

// Walks an m × n operand in the order of `COUNT` accumulators: element (r, s) of the tile is (r, s) of the matrix, or
// (s, r) when swapped. A running pointer and two offsets serve every access.
template <typename CONFIG, int COUNT, typename VISIT>
__device__ __forceinline__ void walk(const GemmOperand& operand, const float* base, int r, int s, int half_rows,
                                     VISIT visit) {
    const int64_t step_r = CONFIG::SWAPPED ? operand.col_stride : operand.row_stride;
    const int64_t step_s = CONFIG::SWAPPED ? operand.row_stride : operand.col_stride;
    const float* at = base + r * step_r + s * step_s;
    const int64_t half = half_rows * step_r;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        visit(i, at);
        visit(i + 1, at + step_s);
        visit(i + 2, at + half);
        visit(i + 3, at + half + step_s);
        at += 8 * step_s;
    }
}

// Stores a consumer's results, which lie scattered over its threads, in runs of LANE_FLOATS numbers a lane and at least 128
// bytes a row of D. They pass through shared memory, 32 rows of S at a time; its 16-byte chunks are permuted so that neither
// side meets bank conflicts. With four numbers a lane, rows of D start on 16 bytes, and n is a multiple of four.
template <typename CONFIG, int LANE_FLOATS>
__device__ __forceinline__ void store_staged(const GemmArgs& args, int thread, char* staging, float* d, int row_r,
                                             int row_s, const float (&x)[CONFIG::ACCUMULATORS]) {
    constexpr int kWarps = kWarpgroup / kWarp, kPasses = kStagedRows / 2 / LANE_FLOATS;
    constexpr int kChunkFloats = kChunk / 4;
    static_assert(LANE_FLOATS == 1 || LANE_FLOATS == kChunkFloats, "a lane's numbers stay together");
    const auto store = [&](int row, int col, const float* from) {
        if (row < args.m && col < args.n) {
            float* to = d + row * args.d.row_stride + col;
            if constexpr (LANE_FLOATS == 1) *to = *from;
            else *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        }
    };
#pragma unroll
    for (int first = 0; first < CONFIG::BN; first += kStagedRows) {
        const Place<CONFIG> place(ptx::recompute(thread));   // addresses are not worth registers from turn to turn
        const int warpgroup = place.warp / kWarps, warp = place.warp % kWarps;
        float* staged = reinterpret_cast<float*>(staging + warpgroup * kStagingBytes);
        const auto value = [&](int i) { return x[first / 2 + i]; };   // two a row of S and thread
        if constexpr (CONFIG::SWAPPED) {
            // Rows of D are rows of S, and have a row of staging each: 64 numbers, the warpgroup's rows of R.
            ptx::named_barrier_sync(kStagingBarrier + warpgroup, kWarpgroup);
#pragma unroll
            for (int i = 0; i < kStagedRows / 2; ++i) {
                const int r = place.row(i / 2 % 2) % kConsumerRows;
                staged[place.column(i) * kConsumerRows + (r ^ place.quad * kChunkFloats)] = value(i);
            }
            ptx::named_barrier_sync(kStagingBarrier + warpgroup, kWarpgroup);
            constexpr int kLanes = kConsumerRows / LANE_FLOATS;   // of a row
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int number = (pass * kWarps + warp) * kWarp + place.lane;
                const int s = number / kLanes, r = number % kLanes * LANE_FLOATS;
                store(row_s + first + s, row_r + warpgroup * kConsumerRows + r,
                      staged + s * kConsumerRows + (r ^ s / 2 % 4 * kChunkFloats));
            }
        } else {
            // Rows of D are rows of R. A warp stores its own 16, so it need not wait for the others.
            float* mine = staged + warp * (kStagingBytes / 4 / kWarps);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < kStagedRows / 2; i += 2) {
                const int line = i / 2 % 2 * 8 + place.group;
                *reinterpret_cast<float2*>(mine + line * kStagedRows + (place.column(i) ^ line % 4 * 8)) =
                    make_float2(value(i), value(i + 1));
            }
            __syncwarp();
            constexpr int kLanes = kStagedRows / LANE_FLOATS;
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int line = pass * (kWarp / kLanes) + place.lane / kLanes;
                const int s = place.lane % kLanes * LANE_FLOATS;
                store(row_r + place.row(line / 8, line % 8), row_s + first + s,
                      mine + line * kStagedRows + (s ^ line % 4 * 8));
            }
        }
    }
}

// Stores the half of a thread's results that lies in one row of D, which begins anywhere: two neighbours at a time, of every
// eight columns. Where the row starts on an odd multiple of four bytes, a lane stores its second number with the first of the
// lane after it, the last of four lanes with the one that the first lane has of the next eight columns. `left` columns from
// the thread's first on are inside.
template <int COUNT, typename PLACE>
__device__ __forceinline__ void store_pairs(float* line, int left, const PLACE& place, int half, const float (&x)[COUNT]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    constexpr int kColumns = 8, kLanes = 4, kLast = COUNT / 4 - 1;
    const bool odd = reinterpret_cast<uintptr_t>(line) % sizeof(float2) != 0;
    const int next = place.lane / kLanes * kLanes + (place.quad + 1) % kLanes;
    if (odd && place.quad == 0 && left > 0) line[0] = x[2 * half];
#pragma unroll
    for (int j = 0; j <= kLast; ++j) {
        const float even = x[4 * j + 2 * half], own = x[4 * j + 2 * half + 1];
        const float ahead = j < kLast ? x[4 * (j < kLast ? j + 1 : j) + 2 * half] : 0.0f;
        const float taken = __shfl_sync(kAll, place.quad == 0 ? ahead : even, next);
        const int col = kColumns * j + odd;
        const bool alone = odd && j == kLast && place.quad == kLanes - 1;   // nobody has its neighbour
        const float2 pair = odd ? make_float2(own, taken) : make_float2(even, own);
        if (col + 1 < left && !alone) *reinterpret_cast<float2*>(line + col) = pair;
        else if (col < left) line[col] = pair.x;
    }
}

// The epilogue of `COUNT` accumulators whose first belongs to row `row_s` of S: each part of it over all of them, so
// that the common case is a row of multiplications and a row of stores.
template <typename CONFIG, int COUNT>
__device__ __forceinline__ void finish(const GemmArgs& args, const Place<CONFIG>& place, int row_r, int row_s,
                                       int batch, char* staging, float (&x)[COUNT]) {
    const Epilogue epilogue(args, batch);
    const int rows_r = CONFIG::SWAPPED ? args.n : args.m;
    const int rows_s = CONFIG::SWAPPED ? args.m : args.n;
    const int r = row_r + place.row(0), s = row_s + place.column(0);
    const int half_rows = place.row(1) - place.row(0);
    const bool in_r[2] = {r < rows_r, r + half_rows < rows_r};
    const int left = rows_s - s;   // accumulator i is inside while its column, counted from s, is less
    const auto inside = [&](int i) { return in_r[i / 2 % 2] && i / 4 * 8 + i % 2 < left; };

#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = epilogue.scalars.scale(x[i]);
    if (epilogue.c != nullptr) {
        walk<CONFIG, COUNT>(args.c, epilogue.c, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] = fmaf(epilogue.scalars.beta, *at, x[i]);
        });
    }
    if (epilogue.bias != nullptr) {   // one a column of D: along S, or, swapped, along R
        if constexpr (CONFIG::SWAPPED) {
            const float bias[2] = {in_r[0] ? epilogue.bias[r * args.bias_stride] : 0.0f,
                                   in_r[1] ? epilogue.bias[(r + half_rows) * args.bias_stride] : 0.0f};
#pragma unroll
            for (int i = 0; i < COUNT; ++i) x[i] += bias[i / 2 % 2];
        } else {
            const float* at = epilogue.bias + s * args.bias_stride;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                const float even = i / 4 * 8 < left ? at[i / 4 * 8 * args.bias_stride] : 0.0f;
                const float odd = i / 4 * 8 + 1 < left ? at[(i / 4 * 8 + 1) * args.bias_stride] : 0.0f;
                x[i] += even;
                x[i + 1] += odd;
                x[i + 2] += even;
                x[i + 3] += odd;
            }
        }
    }
    activate_in_turn<(COUNT < 16 ? COUNT : 16)>(args.activation, x);
    if (epilogue.residual != nullptr) {
        walk<CONFIG, COUNT>(args.residual, epilogue.residual, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] = Epilogue::combine(args, x[i], *at);
        });
    }
    if constexpr (CONFIG::STAGED && COUNT == CONFIG::ACCUMULATORS) {
        const int thread = place.warp * kWarp + place.lane;
        if (args.d_access == kRowVector && args.n % 4 == 0) {
            store_staged<CONFIG, kChunk / 4>(args, thread, staging, epilogue.d, row_r, row_s, x);
        } else {
            store_staged<CONFIG, 1>(args, thread, staging, epilogue.d, row_r, row_s, x);
        }
        return;
    }
    if (!CONFIG::SWAPPED && args.d_access == kRowVector && rows_s % 2 == 0) {   // both of a pair are inside, or none
        float2* even = reinterpret_cast<float2*>(epilogue.d + r * args.d.row_stride + s);
        float2* odd = reinterpret_cast<float2*>(epilogue.d + (r + half_rows) * args.d.row_stride + s);
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            if (inside(i)) even[i] = make_float2(x[i], x[i + 1]);
            if (inside(i + 2)) odd[i] = make_float2(x[i + 2], x[i + 3]);
        }
        return;
    }
    if constexpr (CONFIG::SWAPPED) {
        walk<CONFIG, COUNT>(args.d, epilogue.d, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) *const_cast<float*>(at) = x[i];
        });
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* line = epilogue.d + (r + half * half_rows) * args.d.row_stride + s;
            store_pairs<COUNT>(line, in_r[half] ? left : 0, place, half, x);
        }
    }
}

// The blocks of the cluster hold the sums of the slices of k: adds them in order and stores. The accumulators are
// dealt out to the blocks in small groups.
template <typename CONFIG>
__device__ __forceinline__ void reduce_and_store(const GemmArgs& args, const Shared<CONFIG>& shared,
                                                 const Place<CONFIG>& place, const Work<CONFIG>& work, int thread,
                                                 int row_r, int row_s, int batch,
                                                 const float (&sum)[CONFIG::ACCUMULATORS]) {
    constexpr int kGroup = CONFIG::ACCUMULATORS > 16 ? 8 : 4;
    ptx::named_barrier_sync(kConsumerBarrier, CONFIG::CONSUMERS);   // the other warpgroup may still read the ring
    float* mine = reinterpret_cast<float*>(shared.base) + thread;
#pragma unroll
    for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) mine[i * CONFIG::CONSUMERS] = sum[i];
    ptx::cluster_sync();
    const int slices = static_cast<int>(ptx::cluster_size());
#pragma unroll 1
    for (int first = work.rank * kGroup; first < CONFIG::ACCUMULATORS; first += slices * kGroup) {
        float total[kGroup] = {};
#pragma unroll 8
        for (int slice = 0; slice < slices; ++slice) {
            const uint32_t theirs = ptx::cluster_address(mine + first * CONFIG::CONSUMERS, slice);
#pragma unroll
            for (int i = 0; i < kGroup; ++i) total[i] += ptx::load_cluster(theirs + i * CONFIG::CONSUMERS * 4);
        }
        finish<CONFIG, kGroup>(args, place, row_r, row_s + first / 4 * 8, batch, nullptr, total);
    }
}

// ---- the kernel ------------------------------------------------------------------------------------------------

// CONSUMER is constructed from (shared, place, length of the sums) and adds the next `stages` stages of the rings to the sums.
template <typename CONFIG, typename CONSUMER>
__device__ __forceinline__ void gemm(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
    extern __shared__ __align__(kTileAlign) char memory[];
    const Shared<CONFIG> shared{memory};
    const Work<CONFIG> work(args);
    const CUtensorMap& r_map = CONFIG::SWAPPED ? b_map : a_map;
    const CUtensorMap& s_map = CONFIG::SWAPPED ? a_map : b_map;
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWarp, 0);   // uniform, and known to be
    const bool cut = CONFIG::MULTICAST == 1 && ptx::cluster_size() > 1;

    if (threadIdx.x == 0) {
        ptx::tma_prefetch_descriptor(&r_map);
        ptx::tma_prefetch_descriptor(&s_map);
        for (int slot = 0; slot < CONFIG::STAGES; ++slot) {
            ptx::mbarrier_init(shared.raw_full(slot), 1);
            ptx::mbarrier_init(shared.raw_empty(slot), CONFIG::CONSUMERS / kWarp * CONFIG::MULTICAST);
        }
        for (int slot = 0; slot < CONFIG::SLOTS; ++slot) {
            ptx::mbarrier_init(shared.converted_full(slot), CONFIG::CONVERTERS / kWarp);
            ptx::mbarrier_init(shared.converted_empty(slot), CONFIG::CONSUMERS / kWarp);
        }
        ptx::fence_mbarrier_init();
        ptx::fence_async_proxy();
    }
    // All may use the barriers from here on, those of both blocks if they share tiles. The warp that made them goes on and
    // asks for the first tiles.
    if constexpr (CONFIG::MULTICAST > 1) {
        ptx::cluster_sync();
    } else if (warp == 0) {
        __syncwarp();
        ptx::named_barrier_arrive(kStartBarrier, CONFIG::THREADS);
    } else {
        ptx::named_barrier_sync(kStartBarrier, CONFIG::THREADS);
    }
    ptx::wait_for_previous_kernels();   // while the last of them ended, this one got ready

    if (warp < CONFIG::FEEDERS / kWarp) {
        ptx::registers_decrease_to<CONFIG::FEEDER_REGISTERS>();
        if (warp == 0) {
            if (threadIdx.x == 0) produce<CONFIG>(args, r_map, s_map, shared, work);
            __syncwarp();
        } else if constexpr (CONFIG::CONVERTED_BYTES > 0) {
            convert<CONFIG>(shared, work, threadIdx.x - kWarp);
        }
        if (cut) ptx::cluster_sync();
    } else {
        ptx::registers_increase_to<CONFIG::CONSUMER_REGISTERS>();
        const int thread = threadIdx.x - CONFIG::FEEDERS;
        const Place<CONFIG> place(thread);
        CONSUMER consumer(shared, place, args.k);
        for (Work<CONFIG> mine = work; mine.more(); mine.next()) {
            int row_r, row_s, batch;
            mine.locate(row_r, row_s, batch);
            float sum[CONFIG::ACCUMULATORS];
#pragma unroll
            for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) sum[i] = 0.0f;
            consumer.accumulate(sum, mine.stages());
            repair<CONFIG>(args, place, row_r, row_s, batch, mine.k_begin, mine.k_end, sum);
            if (cut) {   // the plan gave every cluster exactly one tile
                reduce_and_store<CONFIG>(args, shared, place, mine, thread, row_r, row_s, batch, sum);
            } else {
                finish<CONFIG, CONFIG::ACCUMULATORS>(args, place, row_r, row_s, batch, shared.staging(), sum);
            }
        }
    }
    ptx::cluster_sync();   // no block leaves while another may still write to its shared memory or read it
}

}  // namespace

#endif  // sm_90a
