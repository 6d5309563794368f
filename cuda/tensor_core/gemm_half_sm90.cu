// GEMM of 16-bit operands (f16, bf16) on Hopper: TMA brings tiles, wgmma multiplies them, TMA takes the result away.
//
// wgmma reads both operands from shared memory and takes 16-bit ones K-major or MN-major alike, as their descriptors say. So NN,
// NT, TN and TT are the same kernel: nothing is transposed, converted or passed through registers. Of the two operands one is R,
// on wgmma's 64-wide side (BM rows a block), the other is S, on its N side (BN rows):
//
//   R = A, S = B                  most tiles
//   R = B, S = A ("swapped")      few rows: the weights fill the 64-wide side, the block computes Dᵀ
//
// Few rows take as long as the weights take to arrive, which is shortest where all multiprocessors have as many of them. So some tiles
// have 56 rows of R: 14336 = 256 · 56, two blocks for each of 128 multiprocessors, where 224 tiles of 64 leave 40 with one. The last
// eight rows are the next tile's, which the L2 has by then.
//
//   producer     one warp, one thread of it: asks for the tiles of the next stages
//   consumers    a warpgroup for each 64 rows of R, by all rows of S: multiply, then the epilogue
//
// A stage has 64 of k: 128 bytes a row, the width of the swizzle. full[slot] counts the bytes that arrive, empty[slot] the warps
// that have read them. The producer runs ahead of the consumers into the next tile, so that copies go on while a tile ends.
//
// 128 × 256 tiles: 48 KB a stage for 1024 clocks of tensor cores, in which shared memory takes 48 KB from TMA and gives
// 16 KB of R and twice 32 KB of S: 128 KB, what it can move in that time. Clusters of two share the tile of S (or of R, along n): each
// block asks for one half, which both get. From the L2 come 32 KB a stage and block instead of 48.
//
// Shared memory is what limits smaller tiles: clocks it needs for a stage of 64 of k, beside those of the tensor cores.
//
//   tile                          128 × 256   128 × 192   128 × 128   two of 64 × 64
//   bytes moved / 128                  1024         832         640              512
//   tensor cores                       1024         768         512              256
//
// So tiles are as large as leave no multiprocessor idle, and a cluster of split_k blocks may cut k where there are few of them. A tile of
// 128 × 64 with a multiprocessor for itself needs 448 clocks for 256 of the tensor cores, and is the fastest for 1024³ (NN 5.5 µs on an H200).
// Where k is short, the end of a tile is most of it: then two blocks share a multiprocessor, one of which multiplies while the
// other's tile ends.
//
// The end of a tile. Sums are scaled and rounded, pass through shared memory (stmatrix; 16 rows of a box at a time, in two buffers) and
// are stored by TMA, which goes on while the next tile is multiplied. Where rows of D do not start on 16 bytes, those of large tiles
// pass through the same buffers, and lanes store neighbours. Where D is FP32, where the block computes Dᵀ, and in small tiles, whose code
// is to stay short, threads store their sums themselves. With more of an epilogue than α, values pass by in parts, so
// that there is one copy of its code: 128 copies took longer to fetch than to execute. An epilogue that is nothing but α is the first
// thing behind the main loop, for the same reason.
//
// Where a block has several tiles, consumers do not work out where each of them lies: the divisions stood between two tiles. The producer,
// which is ahead and has to know, leaves the place in shared memory before it asks for the tile's first stage. A tile's first multiplication
// starts from zero by itself, so no registers are cleared.
//
// In 2-CTA clusters, which have several tiles each, a tile whose epilogue is nothing but α is stored while the next one is multiplied: at its
// end sums are only rounded, to half as many registers, and a box of them goes out behind each of the next tile's first stages.
//
// Stream-K. Where the units of a 2-CTA kernel are no whole waves, clusters share the last ones: each has a range of their steps of k
// (scheduler/stream_k.cuh), which begins with the end of one unit, whose sums it leaves behind in the workspace, and ends with the
// beginning of another. Who has a unit's beginning, its owner, adds up the pieces in the order of k. By then they were left long ago
// (ranges begin with them), and TMA brings them through the ring like further stages. Only owners wait, and only for clusters that drew their
// numbers before them, so nothing can hang.
//
// Ragged tiles. What TMA fills with zeros takes it about twice as long as what it fetches, and a single tile that is mostly outside of the matrix
// keeps all waiting: on an H100 128 × 64 tiles took 82 µs for NT 448 × 2048 × 11264 (now 65), and 63 for 512 rows. So a tile of R that reaches beyond its
// matrix is fetched from some rows before it on, and multiplied from its first row on. Behind its last one wgmma reads rows of S, whose products
// are not stored. Tiles of S, and those of a matrix that is smaller than a tile, are filled up.
//
// Sums stay in the tensor core for all of a tile's k, or a piece's. Products are exact; Inf and NaN pass through as IEEE says.
//
// Launch. One dimension of blocks, `threads` and dynamic shared memory as each kernel's row of the table says.
//   2cta kernels    clusters of 2, any number of them; with stream-K as many as the plan says
//   others          split_k 1: clusters of 1, any number; split_k 2 to 6 or 8: clusters of split_k and exactly one a tile; not
//                   where two blocks of two warpgroups share a multiprocessor. Or slices along y of the grid (scheduler/slices.cuh)
// Tensor maps of A and B. Rank 5: x, y, then three batch dimensions (args.batch_dims[3], [2], [1]; extent 1 where the operand's
// stride is 0; args.batch_dims[0] must be 1), 128-byte swizzle, zero fill, box 64 elements wide by
//   R: BM / PAIR_S rows if K-major, 64 (of k) if MN-major        S: BN / PAIR_R rows if K-major, 64 (of k) if MN-major
// and of D, where it has the operands' type and d_access is kRowVector: BOX × 16 elements, swizzled over BOX · 2 bytes.

#include <cuda.h>

#include "../epilogue/half.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/wgmma_half.cuh"
#include "../scheduler/slices.cuh"
#include "../scheduler/stream_k.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

using Bits = uint16_t;                       // an element
constexpr int BK = kBox<Bits>;
constexpr int kStepK = 16;                   // k of one wgmma
constexpr int kConsumerRows = 64;            // rows of R a consumer warpgroup
constexpr int kWarpgroupWarps = kWarpgroup / kWarp;
constexpr int kSharedBytes = 228 * 1024;     // of a multiprocessor
constexpr int kSharedReserved = 1024;        // of it for each block
constexpr int kEpilogueRegisters = 96;       // of 32 values and what goes with them
constexpr int kOtherRegisters = 32;          // of a consumer beside its sums: addresses, counters, descriptors
constexpr int kStartBarrier = 1;
constexpr int kLeftBarrier = 2;              // all consumers have written the piece that they leave behind
constexpr int kStagingBuffers = 2;           // of a warp
constexpr int kPlaces = 16;                  // that a block remembers
// TMA stores rows of so many elements, 16 bytes: where rows end amid a word of 4 bytes, an H200 writes all of the word.
constexpr int kWholeRows = 8;
constexpr int kSector = 32;                  // bytes that the L2 keeps together
constexpr int kMostStages = 12;
constexpr int kRowsAtOnce = 4;               // that a warp has under way from shared memory to D

// Where a tile lies: its first row of R and of S, and its matrix in the tensor map of D.
struct alignas(32) Place {
    int row_r, row_s;
    BatchCoordinates at;
};

template <Half TYPE_, int BM_, int BN_, Major R_MAJOR_, Major S_MAJOR_, bool SWAPPED_, int PAIR_, int BLOCKS_,
          int ROWS_ = BM_, bool SHARES_R_ = false>
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

    // Columns of D that are stored together. Blocks of a cluster that cuts k share the end of a tile out among them by boxes, so those of
    // small tiles are narrow.
    static constexpr int BOX = PAIR > 1 ? (BN % 64 == 0 ? 64 : 32) : WARPS > kWarpgroupWarps && BN % 32 == 0 ? 32 : 16;
    static constexpr int BOX_BYTES = kFragmentRows * BOX * 2;
    static constexpr int STAGING_BYTES = SWAPPED ? 0 : WARPS * kStagingBuffers * BOX_BYTES;
    static constexpr int BARRIER_BYTES = 256;
    static constexpr int LIMIT = kSharedBytes / BLOCKS - kSharedReserved;
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
    static constexpr bool STORES_BEHIND = PAIR > 1;
    static constexpr int BOXES = SWAPPED ? 0 : BN / BOX;
    static_assert(!STORES_BEHIND || CONSUMER_REGISTERS >= SUMS + SUMS / 2 + kOtherRegisters, "registers hold a tile and the one before, rounded");

    // Clusters that share tiles can share the last of them by ranges of k. A piece's sums come back in portions, of so many vectors of a
    // thread, as many as a stage has room for.
    static constexpr bool STREAMS = PAIR > 1;
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

    // Values that pass through the epilogue at a time: fewer where registers are short, for the sums stay beside them.
    static constexpr int REGISTERS = DEALS ? CONSUMER_REGISTERS : kRegisters / (THREADS * BLOCKS);
    static constexpr bool AMPLE = REGISTERS >= SUMS + kEpilogueRegisters;
    static constexpr int PART = AMPLE && SUMS % 32 == 0 ? 32 : SUMS % 16 == 0 ? 16 : SUMS % 8 == 0 ? 8 : 4;
    static_assert(SWAPPED || PART % (BOX / 2) == 0, "a part is whole boxes");
};

template <typename CONFIG>
struct Shared {
    char* base;   // aligned to kTileAlign

    __device__ __forceinline__ char* r(int slot) const { return base + slot * CONFIG::STAGE_BYTES; }
    __device__ __forceinline__ char* s(int slot) const { return r(slot) + CONFIG::R_BYTES; }
    __device__ __forceinline__ char* staging(int warp, int buffer) const {
        return base + CONFIG::RING_BYTES + (warp * kStagingBuffers + buffer) * CONFIG::BOX_BYTES;
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

// How many rows before its first one, row_r, a tile of R is fetched: as many as reach beyond the matrix, in whole steps, if the matrix has so many
// before it and a stage has so many behind it. Of a tile, all BM rows that are fetched count, of which a narrower one has fewer (ROWS).
template <typename CONFIG>
__device__ __forceinline__ int shift_r(const GemmArgs& args, int row_r) {
    constexpr int kStep = CONFIG::SHIFT_STEP;
    const int beyond = row_r + CONFIG::BM - (CONFIG::SWAPPED ? args.n : args.m);
    return beyond > 0 && beyond < CONFIG::BM ? min(min(beyond, CONFIG::MOST_SHIFT), row_r) / kStep * kStep : 0;
}

// The tiles of this launch in the order in which clusters take them, and this block's part of each.
template <typename CONFIG>
struct Work {
    int units_r, units_s;        // a unit is PAIR tiles that share one operand, one a block
    int group;                   // units of R that are walked together
    int unit, step, units;       // this cluster's current unit, how far apart its units are, all units that are not cut
    int all_units;
    int rank;                    // of this block in its cluster
    int k_begin, k_end;

    __device__ __forceinline__ explicit Work(const GemmArgs& args) {
        const int rows_r = CONFIG::SWAPPED ? args.n : args.m, rows_s = CONFIG::SWAPPED ? args.m : args.n;
        const int tiles_r = (rows_r + CONFIG::ROWS - 1) / CONFIG::ROWS, tiles_s = (rows_s + CONFIG::BN - 1) / CONFIG::BN;
        units_r = (tiles_r + CONFIG::PAIR_R - 1) / CONFIG::PAIR_R;
        units_s = (tiles_s + CONFIG::PAIR_S - 1) / CONFIG::PAIR_S;
        group = min(max(args.group_m, 1), units_r);
        all_units = units_r * units_s * args.batch;
        units = streams(args) ? args.whole_tiles : all_units;
        rank = static_cast<int>(ptx::cluster_rank());
        unit = static_cast<int>(ptx::cluster_index());
        step = static_cast<int>(ptx::cluster_count());
        k_begin = 0;
        k_end = args.k;
        if (CONFIG::PAIR == 1) {   // a cluster may have more blocks than k has slices
            k_begin = min(slice_begin(args, cut() ? rank : 0), args.k);
            k_end = slice_end(args, k_begin);
        }
    }
    // Whether the blocks of the cluster have slices of k; the plan gave each cluster exactly one tile then.
    static __device__ __forceinline__ bool cut() { return CONFIG::CUTS && ptx::cluster_size() > 1; }
    static __device__ __forceinline__ int apart() { return CONFIG::PAIR == 1 ? slice_apart() : 0; }
    // Whether clusters share the last units by ranges of k.
    static __device__ __forceinline__ bool streams(const GemmArgs& args) { return CONFIG::STREAMS && args.stream_ranges > 0; }
    __device__ __forceinline__ bool more() const { return unit < units; }
    // Units from here on.
    __device__ __forceinline__ int left() const { return (units - unit + step - 1) / step; }
    __device__ __forceinline__ bool several() const { return step < units - unit; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ int stages() const { return (k_end - k_begin + BK - 1) / BK; }

    // First row of R and S of this block's tile, and the matrix of the batch (or of the slices).
    __device__ __forceinline__ void locate(int& row_r, int& row_s, int& batch) const {
        const int rank_r = CONFIG::PAIR_R > 1 ? rank : 0, rank_s = CONFIG::PAIR_S > 1 ? rank : 0;
        if (units_s == 1 && all_units == units_r) {   // few rows: no divisions before the first copy
            batch = apart();
            row_r = (unit * CONFIG::PAIR_R + rank_r) * CONFIG::ROWS;
            row_s = rank_s * CONFIG::BN;
            return;
        }
        const int per_matrix = units_r * units_s, matrix = unit / per_matrix;
        batch = matrix + apart();
        const int index = unit - matrix * per_matrix;
        const int per_group = group * units_s;
        const int first = index / per_group * group;
        const int height = min(group, units_r - first);
        const int inside = index % per_group;
        const int unit_r = first + inside % height;
        row_r = (unit_r * CONFIG::PAIR_R + rank_r) * CONFIG::ROWS;
        int unit_s = inside / height;
        // Every other group is walked backwards, so that it begins with the tiles of S that the L2 still holds.
        if (CONFIG::PAIR > 1 && index / per_group % 2 == 1) unit_s = units_s - 1 - unit_s;
        row_s = (unit_s * CONFIG::PAIR_S + rank_s) * CONFIG::BN;
    }
};

// The pieces of this cluster's range: the end of a unit, whole units, the beginning of one. Work::unit, k_begin and k_end are those of the
// current piece.
template <typename CONFIG>
struct Pieces : Work<CONFIG> {
    using Work<CONFIG>::unit, Work<CONFIG>::k_begin, Work<CONFIG>::k_end;
    stream_k::Ranges ranges;
    int whole;      // units that are not cut
    int range;
    int piece;      // the unit of the current piece, among those that are cut

    // From the piece of this index on.
    __device__ __forceinline__ Pieces(const GemmArgs& args, int number, int index) : Work<CONFIG>(args), whole(args.whole_tiles) {
        ranges.of(args, this->all_units - whole, (ptx::recompute(args.k) + BK - 1) / BK);
        range = this->step - 1 - number;
        piece = from() / ranges.steps + index;
        find(args);
    }
    __device__ __forceinline__ int from() const { return ranges.first_step(range); }
    __device__ __forceinline__ int to() const { return ranges.first_step(range + 1); }
    __device__ __forceinline__ bool more() const { return piece * ranges.steps < to(); }
    __device__ __forceinline__ void next(const GemmArgs& args) {
        ++piece;
        find(args);
    }
    // Whether the piece is not the unit's first: then its sums are left behind.
    __device__ __forceinline__ bool left() const { return k_begin > 0; }
    // The pieces that follow this one, the unit's first, in ranges of their own.
    __device__ __forceinline__ int others() const { return ranges.range_of((piece + 1) * ranges.steps - 1) - range; }

private:
    __device__ __forceinline__ void find(const GemmArgs& args) {
        unit = whole + piece;
        const int first = piece * ranges.steps;
        k_begin = max(from() - first, 0) * BK;
        k_end = min(min(to() - first, ranges.steps) * BK, args.k);
    }
};

// What the piece that a range begins with leaves behind in the workspace: a flag, and the sums of this block, a thread's vectors CONSUMERS
// apart. The flags of all ranges come first.
template <typename CONFIG>
struct Left {
    static constexpr int kVectors = CONFIG::VECTORS * CONFIG::CONSUMERS;
    uint64_t* flag;
    float4* sums;

    __device__ __forceinline__ Left(const GemmArgs& args, int range, int rank) {
        flag = static_cast<uint64_t*>(args.workspace) + range * CONFIG::PAIR + rank;
        // Range 0 begins with a whole unit, or its first piece.
        sums = static_cast<float4*>(args.workspace) + static_cast<int>(ptx::cluster_count()) +
               static_cast<int64_t>((range - 1) * CONFIG::PAIR + rank) * kVectors;
    }
    static_assert(!CONFIG::STREAMS || CONFIG::PAIR * sizeof(uint64_t) == sizeof(float4), "the flags of a range take the room of a vector");
};

// ---- load ------------------------------------------------------------------------------------------------------

// A thread draws the number of this cluster and sends it to all of its blocks.
template <typename CONFIG>
__device__ __forceinline__ void draw(const GemmArgs& args, const Shared<CONFIG>& shared) {
    const float number = __int_as_float(stream_k::draw_number(args, ptx::cluster_count()));
    for (int block = 0; block < CONFIG::PAIR; ++block) {
        ptx::store_cluster_async(ptx::cluster_address(shared.number(), block), make_float4(number, 0.0f, 0.0f, 0.0f),
                                 ptx::cluster_address(shared.numbered(), block));
    }
}

template <typename CONFIG>
__device__ __forceinline__ int drawn(const Shared<CONFIG>& shared) {
    ptx::mbarrier_wait(shared.numbered(), 0);
    return __float_as_int(shared.number()->x);
}

// Brings the sums that follow an owner's piece, when they are there, as further stages of the ring.
template <typename CONFIG>
__device__ __forceinline__ void bring_back(const GemmArgs& args, const Shared<CONFIG>& shared, const Pieces<CONFIG>& pieces,
                                           Ring<CONFIG::STAGES>& ring) {
    const int others = pieces.others();
    for (int other = 1; other <= others; ++other) {
        const Left<CONFIG> left(args, pieces.range + other, pieces.rank);
        while (ptx::load_acquire_gpu(left.flag) != args.epoch + stream_k::kReady) {}
        *left.flag = 0;   // for a graph that repeats this launch, whose epoch is the same
        ptx::fence_async_proxy_global();
        for (int first = 0; first < CONFIG::VECTORS; first += CONFIG::PORTION) {
            const uint32_t bytes = min(CONFIG::PORTION, CONFIG::VECTORS - first) * CONFIG::CONSUMERS * kVectorBytes;
            ptx::mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            ptx::mbarrier_arrive_expect_bytes(shared.full(ring.stage), bytes);
            ptx::bulk_load(shared.r(ring.stage), left.sums + first * CONFIG::CONSUMERS, bytes, shared.full(ring.stage));
            ring.advance();
        }
    }
}

// Tells the owner, once the consumers have left a piece behind. Only a range's first piece can be one.
template <typename CONFIG>
__device__ __forceinline__ void tell_owner(const GemmArgs& args, const Pieces<CONFIG>& pieces, int lane) {
    if (!pieces.more() || !pieces.left()) return;
    ptx::named_barrier_sync(kLeftBarrier, CONFIG::CONSUMERS + kWarp);
    if (lane == 0) ptx::store_release_gpu(Left<CONFIG>(args, pieces.range, pieces.rank).flag, args.epoch + stream_k::kReady);
}

template <typename CONFIG>
__device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& r_map, const CUtensorMap& s_map,
                                        const Shared<CONFIG>& shared, Work<CONFIG> work, Ring<CONFIG::STAGES>& ring) {
    constexpr int kShareR = CONFIG::BM / CONFIG::PAIR_S, kShareS = CONFIG::BN / CONFIG::PAIR_R;   // rows that this block asks for
    constexpr uint16_t kAll = (1 << CONFIG::PAIR) - 1;   // blocks that receive what is shared
    const int share_r = CONFIG::PAIR_S > 1 ? work.rank * kShareR : 0, share_s = CONFIG::PAIR_R > 1 ? work.rank * kShareS : 0;
    const GemmOperand& r = CONFIG::SWAPPED ? args.b : args.a;
    const GemmOperand& s = CONFIG::SWAPPED ? args.a : args.b;
    const auto load = [&](const Work<CONFIG>& work, Place* place) {
        int row_r, row_s, batch;
        work.locate(row_r, row_s, batch);
        const BatchCoordinates br(args, r, batch), bs(args, s, batch);
        if (!CONFIG::SWAPPED && place != nullptr) *place = Place{row_r, row_s, BatchCoordinates(args, args.d, batch)};
        row_r -= shift_r<CONFIG>(args, row_r);
        for (int k = work.k_begin; k < work.k_end; k += BK) {
            ptx::mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
            uint64_t* full = shared.full(ring.stage);
            ptx::mbarrier_arrive_expect_bytes(full, CONFIG::STAGE_BYTES);
            load_tile<Bits, CONFIG::R_MAJOR, kShareR, (CONFIG::PAIR_S > 1)>(shared.r(ring.stage) + share_r * kTileRow, r_map, full, kAll,
                                                                            row_r + share_r, k, br);
            load_tile<Bits, CONFIG::S_MAJOR, kShareS, (CONFIG::PAIR_R > 1)>(shared.s(ring.stage) + share_s * kTileRow, s_map, full, kAll,
                                                                            row_s + share_s, k, bs);
            ring.advance();
        }
    };
    const bool several = work.several();   // then consumers read places
    for (int tile = 0; work.more(); work.next(), ++tile) load(work, several ? shared.place(tile) : nullptr);
    if constexpr (CONFIG::STREAMS) {
        if (Work<CONFIG>::streams(args)) {
            for (Pieces<CONFIG> pieces(args, drawn(shared), 0); pieces.more(); pieces.next(args)) {
                load(pieces, nullptr);
                if (!pieces.left()) bring_back(args, shared, pieces, ring);
            }
        }
    }
    ptx::let_next_kernel_start();   // all of this block's copies are under way
}

// Waits until all stages have been read.
template <typename CONFIG>
__device__ __forceinline__ void drain(const Shared<CONFIG>& shared, Ring<CONFIG::STAGES>& ring) {
    for (int slot = 0; slot < CONFIG::STAGES; ++slot) {
        ptx::mbarrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
        ring.advance();
    }
}

// ---- compute ---------------------------------------------------------------------------------------------------

template <Major MAJOR>
__device__ __forceinline__ uint64_t descriptor(const char* tile) {
    const uint32_t shared = ptx::shared_address(tile);
    return MAJOR == Major::kK ? ptx::wgmma_descriptor_swizzle128(shared) : ptx::wgmma_descriptor_swizzle128_rows(shared);
}

// From one step of k to the next, in the descriptor's unit of 16 bytes.
template <Major MAJOR>
constexpr uint64_t kStepOf = (MAJOR == Major::kK ? kStepK * 2 : kStepK * kTileRow) / kChunk;

template <typename CONFIG>
struct Consumer {
    const Shared<CONFIG>& shared;
    Ring<CONFIG::STAGES> ring;
    uint64_t r, s;        // descriptors of this warpgroup's rows of R, and of S, in the first slot
    uint32_t emptied;     // of lanes that tell the blocks whose copies write here: the first slot's barrier there
    int warp, lane;

    __device__ __forceinline__ Consumer(const Shared<CONFIG>& shared_, int warp_, int lane_) : shared(shared_), warp(warp_), lane(lane_) {
        s = descriptor<CONFIG::S_MAJOR>(shared.s(0));
        emptied = CONFIG::PAIR > 1 && lane < CONFIG::PAIR ? ptx::cluster_address(shared.empty(0), lane) : 0;
    }

    // Waits for the first stage of a tile whose place the producer has left.
    __device__ __forceinline__ void begin(const GemmArgs& args, const Place* place) {
        ptx::mbarrier_wait(shared.full(ring.stage), ring.parity);
        turn_to(args, place->row_r);
    }

    // Looks for the tile of R at this row.
    __device__ __forceinline__ void turn_to(const GemmArgs& args, int row_r) {
        const int first = warp / kWarpgroupWarps * kConsumerRows + shift_r<CONFIG>(args, row_r);
        r = descriptor<CONFIG::R_MAJOR>(shared.r(0) + first * kTileRow);
    }

    // Gives a stage back.
    __device__ __forceinline__ void release(int slot) const {
        if constexpr (CONFIG::PAIR > 1) {
            if (lane < CONFIG::PAIR) ptx::mbarrier_arrive_cluster(emptied + slot * static_cast<uint32_t>(sizeof(uint64_t)));
        } else {
            if (lane == 0) ptx::mbarrier_arrive(shared.empty(slot));
        }
    }

    // Multiplies the next stage, and gives the one before it back, if `follows`. This group of wgmma stays under way while the next stage
    // is waited for. `meanwhile` is what else the warp does while the tensor cores are busy. FRESH: sums start from zero.
    template <bool FRESH, typename MEANWHILE>
    __device__ __forceinline__ void multiply(float (&sum)[CONFIG::SUMS], bool follows, int& before, MEANWHILE&& meanwhile) {
        ptx::mbarrier_wait(shared.full(ring.stage), ring.parity);
        const uint64_t at = ring.stage * (CONFIG::STAGE_BYTES / kChunk);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < BK / kStepK; ++step) {
            ptx::wgmma_half<CONFIG::TYPE, CONFIG::R_MAJOR == Major::kRows, CONFIG::S_MAJOR == Major::kRows>(
                sum, r + at + step * kStepOf<CONFIG::R_MAJOR>, s + at + step * kStepOf<CONFIG::S_MAJOR>, !(FRESH && step == 0));
        }
        ptx::wgmma_commit();
        meanwhile();
        ptx::wgmma_wait<1>();
        if (follows) release(before);
        before = ring.stage;
        ring.advance();
    }
    __device__ __forceinline__ void complete(float (&sum)[CONFIG::SUMS], int before) const {
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(sum);
        release(before);
    }

    // The sums over the next `stages` stages; none where a slice is beyond the end of k.
    __device__ __forceinline__ void accumulate(float (&sum)[CONFIG::SUMS], int stages) {
#pragma unroll
        for (int i = 0; i < CONFIG::SUMS; ++i) sum[i] = 0.0f;
        if (stages == 0) return;
        ptx::wgmma_pin(sum);
        int before = 0;
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage) multiply<false>(sum, stage > 0, before, [] {});
        complete(sum, before);
    }

    // The same for a stage or more. What was in `sum` is lost: no instructions to make it 0.
    __device__ __forceinline__ void accumulate_afresh(float (&sum)[CONFIG::SUMS], int stages) {
        int before = 0;
        multiply<true>(sum, false, before, [] {});
#pragma unroll 1
        for (int stage = 1; stage < stages; ++stage) multiply<false>(sum, true, before, [] {});
        complete(sum, before);
    }

    // The same for CONFIG::BOXES stages or more, with meanwhile(i) behind stage i, for each i < CONFIG::BOXES. What was in `sum` is lost.
    template <typename MEANWHILE>
    __device__ __forceinline__ void accumulate_with(float (&sum)[CONFIG::SUMS], int stages, MEANWHILE&& meanwhile) {
        int before = 0;
        multiply<true>(sum, false, before, [&] { meanwhile(0); });
#pragma unroll
        for (int i = 1; i < CONFIG::BOXES; ++i) multiply<false>(sum, true, before, [&] { meanwhile(i); });
#pragma unroll 1
        for (int stage = CONFIG::BOXES; stage < stages; ++stage) multiply<false>(sum, true, before, [] {});
        complete(sum, before);
    }

    // Adds so many pieces that TMA brings back.
    __device__ __forceinline__ void add(float (&sum)[CONFIG::SUMS], int pieces) {
#pragma unroll 1
        for (int piece = 0; piece < pieces; ++piece) {
#pragma unroll
            for (int first = 0; first < CONFIG::VECTORS; first += CONFIG::PORTION) {
                ptx::mbarrier_wait(shared.full(ring.stage), ring.parity);
                const float4* const from = reinterpret_cast<const float4*>(shared.r(ring.stage)) + threadIdx.x;
#pragma unroll
                for (int i = first; i < CONFIG::VECTORS && i < first + CONFIG::PORTION; ++i) {
                    const float4 part = from[(i - first) * CONFIG::CONSUMERS];
                    sum[4 * i] += part.x;
                    sum[4 * i + 1] += part.y;
                    sum[4 * i + 2] += part.z;
                    sum[4 * i + 3] += part.w;
                }
                __syncwarp();
                release(ring.stage);
                ring.advance();
            }
        }
    }
};

// ---- store -----------------------------------------------------------------------------------------------------

template <typename CONFIG>
using EpilogueOf = HalfEpilogue<CONFIG::TYPE, CONFIG::SWAPPED, (CONFIG::ROWS < CONFIG::BM)>;

// The epilogue of a tile whose first row of R is `row_r`.
template <typename CONFIG>
__device__ __forceinline__ EpilogueOf<CONFIG> epilogue_of(const GemmArgs& args, int batch, int row_r) {
    EpilogueOf<CONFIG> epilogue(args, batch);
    if constexpr (CONFIG::ROWS < CONFIG::BM) epilogue.tile_end = row_r + CONFIG::ROWS;
    return epilogue;
}

// Where a warp's results go: through its staging buffers, by TMA or, where rows of D start anywhere, row by row; or from registers.
template <typename CONFIG>
struct Output {
    const GemmArgs& args;
    const CUtensorMap& map;
    const Shared<CONFIG>& shared;
    int warp, lane;
    bool mapped;      // the map describes D
    bool plain;       // so it does, and α is all that there is to the epilogue
    bool whole;       // and rows start on sectors of the L2, so that boxes are whole sectors
    int buffer = 0;   // that is next; goes on from tile to tile, for TMA may still read the other

    __device__ __forceinline__ Output(const GemmArgs& args_, const CUtensorMap& map_, const Shared<CONFIG>& shared_, int warp_,
                                      int lane_)
        : args(args_),
          map(map_),
          shared(shared_),
          warp(warp_),
          lane(lane_),
          mapped(!CONFIG::SWAPPED && args_.d_type == kElementOf<CONFIG::TYPE> && args_.d_access == kRowVector &&
                 args_.n % kWholeRows == 0),
          plain(mapped && Scalars(args_).beta == 0.0f && args_.bias == nullptr && args_.residual.data == nullptr &&
                args_.activation == kIdentity),
          whole(plain && reinterpret_cast<uint64_t>(args_.d.data) % kSector == 0 &&
                (args_.d.row_stride | args_.d.batch_stride[1] | args_.d.batch_stride[2] | args_.d.batch_stride[3]) %
                        static_cast<int>(kSector / sizeof(Bits)) == 0) {}

    // The whole epilogue, if it is plain. row: of this warp.
    template <int COUNT>
    __device__ __forceinline__ void scale_and_store(const BatchCoordinates& at, int row, int col, float (&x)[COUNT]) {
        Scalars(args).scale_all(x);
        store_boxes(at, row, col, x);
    }
    template <int COUNT>
    __device__ __forceinline__ void scale_and_store(const Place& place, float (&x)[COUNT]) {
        scale_and_store(place.at, place.row_r + warp * kFragmentRows, place.row_s, x);
    }

    // Box `box` of a tile whose values are rounded, two a word.
    template <int WORDS>
    __device__ __forceinline__ void store_rounded(const Place& place, const uint32_t (&words)[WORDS], int box) {
        store_box(place.at, place.row_r + warp * kFragmentRows, place.row_s + box * CONFIG::BOX,
                  [&words, box](int i) { return words[box * (CONFIG::BOX / 4) + i]; });
    }

    // COUNT values a thread of 16 rows from `row` on and of the columns from `col` on; the warp's, not the thread's.
    template <int COUNT>
    __device__ __forceinline__ void store(const EpilogueOf<CONFIG>& epilogue,
                                          const BatchCoordinates& at, int row, int col, const float (&x)[COUNT]) {
        if constexpr (!CONFIG::SWAPPED) {
            if (mapped) return store_boxes(at, row, col, x);
        }
        store_without_map(epilogue, row, col, x);
    }
    template <int COUNT>
    __device__ __forceinline__ void store_without_map(const EpilogueOf<CONFIG>& epilogue, int row, int col,
                                                      const float (&x)[COUNT]) {
        if constexpr (CONFIG::SWAPPED) {   // 16 columns of D
            epilogue.store(args, row + lane % 4 * 2, col + lane / 4, x);
        } else if (CONFIG::WARPS <= kWarpgroupWarps || epilogue.d.wide) {
            epilogue.store(args, row + lane / 4, col + lane % 4 * 2, x);
        } else if constexpr (CONFIG::WARPS > kWarpgroupWarps) {
#pragma unroll
            for (int first = 0; first < COUNT; first += CONFIG::BOX / 2) store_rows(epilogue.d, row, col + first * 2, x, first);
        }
    }

    // Waits until TMA has read what it was given.
    __device__ __forceinline__ void finish() const {
        if (!CONFIG::SWAPPED && lane == 0) ptx::bulk_wait_read<0>();
    }

private:
    // Where the swizzle of a map puts a chunk of a box's row: within 128 bytes of a row by row % 8, 64 bytes by row / 2 % 4, or
    // 32 bytes by row / 4 % 2.
    static __device__ __forceinline__ int swizzled(int line, int chunk) {
        constexpr int kRowBytes = CONFIG::BOX * 2, kChunks = kRowBytes / kChunk;
        return line * kRowBytes + (chunk ^ (line * kRowBytes / kTileRow % kChunks)) * kChunk;
    }

    // Writes a box into the next staging buffer, which nobody reads any more. pair(i): the values 2·i and 2·i + 1 of the thread, rounded.
    template <typename PAIRS>
    __device__ __forceinline__ const char* stage(PAIRS&& pair) {
        const char* const staging = shared.staging(warp, buffer);
        buffer = (buffer + 1) % kStagingBuffers;
        const int line = lane % kFragmentRows, half = lane / kFragmentRows;
#pragma unroll
        for (int chunk = 0; chunk < CONFIG::BOX * 2 / kChunk; chunk += 2) {
            const int i = chunk * 2;
            ptx::store_matrices(ptx::shared_address(staging) + swizzled(line, chunk + half), pair(i), pair(i + 1), pair(i + 2), pair(i + 3));
        }
        return staging;
    }
    // The box whose first value is x[first].
    template <int COUNT>
    static __device__ __forceinline__ auto rounding(const float (&x)[COUNT], int first) {
        return [&x, first](int i) { return ptx::round_pair<CONFIG::TYPE>(x[first + 2 * i], x[first + 2 * i + 1]); };
    }

    template <int COUNT>
    __device__ __forceinline__ void store_boxes(const BatchCoordinates& at, int row, int col, const float (&x)[COUNT]) {
#pragma unroll
        for (int first = 0; first < COUNT; first += CONFIG::BOX / 2) store_box(at, row, col + first * 2, rounding(x, first));
    }

    template <typename PAIRS>
    __device__ __forceinline__ void store_box(const BatchCoordinates& at, int row, int col, PAIRS&& pair) {
        if (lane == 0) ptx::bulk_wait_read<kStagingBuffers - 1>();
        __syncwarp();
        const char* const staging = stage(pair);
        ptx::fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            if (row < args.m && col < args.n)
                ptx::tma_store_5d(&map, ptx::shared_address(staging), col, row, at.x, at.y, at.z);
            ptx::bulk_commit();
        }
    }

    // Lanes store neighbours. From registers a warp would store two elements each of four places in eight rows at a time.
    template <int COUNT>
    __device__ __forceinline__ void store_rows(const Elements<CONFIG::TYPE>& d, int row, int col, const float (&x)[COUNT], int first) {
        constexpr int kWidth = CONFIG::BOX < kWarp ? CONFIG::BOX : kWarp;   // elements of a row that lanes store at a time
        constexpr int kTurnLines = kWarp / kWidth;
        const char* const staging = stage(rounding(x, first));
        __syncwarp();   // also: all lanes have read the other buffer, which is written next
#pragma unroll
        for (int left = 0; left < CONFIG::BOX; left += kWidth) {
            const int column = left + lane % kWidth;
            if (col + column >= args.n) break;
            int line = lane / kWidth;
            Bits* to = static_cast<Bits*>(d.data) + d.place(row + line, col + column);
#pragma unroll kRowsAtOnce
            for (int turn = 0; turn < kFragmentRows / kTurnLines; ++turn, line += kTurnLines, to += kTurnLines * d.row_stride) {
                const char* const from = staging + swizzled(line, column * 2 / kChunk) + column * 2 % kChunk;
                if (row + line < args.m) *to = *reinterpret_cast<const Bits*>(from);
            }
        }
    }
};

// `x` is what this warp's threads have of its 16 rows of R and of rows of S from row_s on: epilogue and store.
template <typename CONFIG, int COUNT>
__device__ __forceinline__ void apply_and_store(const GemmArgs& args, Output<CONFIG>& output,
                                                const EpilogueOf<CONFIG>& epilogue,
                                                const BatchCoordinates& at, int row_r, int row_s, float (&x)[COUNT]) {
    const int row = CONFIG::SWAPPED ? row_s : row_r, col = CONFIG::SWAPPED ? row_r : row_s;
    const int group = output.lane / 4, pair = output.lane % 4 * 2;
    epilogue.apply(args, row + (CONFIG::SWAPPED ? pair : group), col + (CONFIG::SWAPPED ? group : pair), x);
    output.store(epilogue, at, row, col, x);
}

// The end of a tile. row_r: the first of the warp's 16 rows of R.
template <typename CONFIG>
__device__ __forceinline__ void finish(const GemmArgs& args, Output<CONFIG>& output, int row_r, int row_s, int batch,
                                       float (&sum)[CONFIG::SUMS]) {
    const BatchCoordinates at(args, args.d, batch);
    if constexpr (!CONFIG::SWAPPED) {
        if (output.plain) return output.scale_and_store(at, row_r, row_s, sum);
    }
    const auto epilogue = epilogue_of<CONFIG>(args, batch, row_r - output.warp * kFragmentRows);
    if (epilogue.bare(args)) {
        epilogue.scale(sum);
        output.store_without_map(epilogue, CONFIG::SWAPPED ? row_s : row_r, CONFIG::SWAPPED ? row_r : row_s, sum);
        return;
    }
    in_turn<CONFIG::PART>(sum, [&](int part, float (&x)[CONFIG::PART]) {
        apply_and_store<CONFIG>(args, output, epilogue, at, row_r, row_s + part * CONFIG::PART * 2, x);
    });
}

// So many tiles of this block, each with so many stages, where the epilogue is plain. Where k is short most of a tile's time is its end, so
// nothing stands between two tiles but rounding and storing: neither divisions nor zeros.
//
// Boxes of 128 bytes that begin amid a sector are not for this. The faster they follow each other the more sectors the L2 fetches from memory
// to fill up: 392 × (760 × 760 × 96) in 2-CTA tiles of 128 × 128 took 338 µs, and 221 with what stood in between.
template <typename CONFIG>
__device__ __forceinline__ void multiply_and_store(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                   Output<CONFIG>& output, int tiles, int stages) {
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        consumer.begin(args, shared.place(tile));
        float sum[CONFIG::SUMS];
        consumer.accumulate_afresh(sum, stages);
        const Place place = *shared.place(tile);   // once, in registers: not again for each box
        output.scale_and_store(place, sum);
    }
}

// The same where a tile has CONFIG::BOXES stages or more. Between the last multiplication of a tile and the first of the next one, sums are
// rounded, and nothing else: the tile is stored behind the first stages of the next one, during whose multiplications warps would only wait.
template <typename CONFIG>
__device__ __forceinline__ void multiply_and_store_behind(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                          Output<CONFIG>& output, int tiles, int stages) {
    float sum[CONFIG::SUMS] = {};
    uint32_t rounded[CONFIG::SUMS / 2] = {};   // the tile before
    int tile = 0;
    const auto store = [&](int box) {
        if (tile > 0) output.store_rounded(*shared.place(tile - 1), rounded, box);
    };
#pragma unroll 1
    for (; tile < tiles; ++tile) {
        consumer.begin(args, shared.place(tile));
        consumer.accumulate_with(sum, stages, store);
        Scalars(args).scale_all(sum);
#pragma unroll
        for (int i = 0; i < CONFIG::SUMS / 2; ++i) rounded[i] = ptx::round_pair<CONFIG::TYPE>(sum[2 * i], sum[2 * i + 1]);
    }
#pragma unroll
    for (int box = 0; box < CONFIG::BOXES; ++box) store(box);
}

// The pieces of this cluster's range. What they are is found out anew behind the multiplications, and not kept: registers are short.
template <typename CONFIG>
__device__ __forceinline__ void multiply_pieces(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                Output<CONFIG>& output) {
#pragma unroll 1
    for (int index = 0;; ++index) {
        int stages;
        {
            const Pieces<CONFIG> pieces(args, drawn(shared), index);
            if (!pieces.more()) return;
            stages = pieces.stages();
            int row_r, row_s, batch;
            pieces.locate(row_r, row_s, batch);
            consumer.turn_to(args, row_r);
        }
        float sum[CONFIG::SUMS];
        consumer.accumulate(sum, stages);
        const Pieces<CONFIG> pieces(args, drawn(shared), ptx::recompute(index));
        if (pieces.left()) {
            float4* const to = Left<CONFIG>(args, pieces.range, pieces.rank).sums + threadIdx.x;
#pragma unroll
            for (int i = 0; i < CONFIG::VECTORS; ++i)
                ptx::store_l2(to + i * CONFIG::CONSUMERS, make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]));
            ptx::fence_async_proxy_global();
            ptx::named_barrier_arrive(kLeftBarrier, CONFIG::CONSUMERS + kWarp);
        } else {
            int row_r, row_s, batch;
            pieces.locate(row_r, row_s, batch);
            consumer.add(sum, pieces.others());
            finish<CONFIG>(args, output, row_r + output.warp * kFragmentRows, row_s, batch, sum);
        }
    }
}

// The blocks of the cluster hold the sums of the slices of k: each adds up its shares of them, in the order of k, and stores those. A
// share is a box of D, or, swapped, 8 rows. Blocks write what the others are to add up into their rings, as soon as those are free.

// Bytes that the other blocks write here.
template <typename CONFIG>
__device__ __forceinline__ uint32_t bytes_of_others(int rank, int slices) {
    const int shares = (CONFIG::SHARES - rank + slices - 1) / slices;
    return (slices - 1) * shares * CONFIG::SHARE * CONFIG::CONSUMERS * kVectorBytes;
}

template <typename CONFIG>
__device__ __forceinline__ void reduce_and_finish(const GemmArgs& args, const Shared<CONFIG>& shared, Output<CONFIG>& output,
                                                  int row_r, int row_s, int batch, const float (&sum)[CONFIG::SUMS]) {
    // Asked for anew, and not kept while the tile is multiplied: registers are short.
    const int slices = static_cast<int>(ptx::cluster_size_now()), rank = static_cast<int>(ptx::cluster_rank_now());
    const int each = CONFIG::most_shares(slices) * CONFIG::SHARE;   // vectors of a slice
    float4* const mine = reinterpret_cast<float4*>(shared.base) + ptx::recompute(threadIdx.x);
    ptx::cluster_wait();   // all have their barriers
    ptx::mbarrier_wait(shared.vacant(), 0);
    int owner = 0, at = rank * each;
#pragma unroll
    for (int share = 0; share < CONFIG::SHARES; ++share) {
        const uint32_t theirs = ptx::cluster_address(mine + at * CONFIG::CONSUMERS, owner);
        const uint32_t summed = ptx::cluster_address(shared.summed(), owner);
#pragma unroll
        for (int i = 0; i < CONFIG::SHARE; ++i) {
            const float* const x = &sum[(share * CONFIG::SHARE + i) * kVector];
            const float4 part = make_float4(x[0], x[1], x[2], x[3]);
            if (owner == rank) mine[(at + i) * CONFIG::CONSUMERS] = part;
            else ptx::store_cluster_async(theirs + i * CONFIG::CONSUMERS * kVectorBytes, part, summed);
        }
        if (++owner == slices) owner = 0, at += CONFIG::SHARE;
    }
    ptx::mbarrier_wait(shared.summed(), 0);

    const auto epilogue = epilogue_of<CONFIG>(args, batch, row_r - output.warp * kFragmentRows);
    const BatchCoordinates at_d(args, args.d, batch);
    const float4* first_slice = mine;
#pragma unroll 1
    for (int share = rank; share < CONFIG::SHARES; share += slices, first_slice += CONFIG::SHARE * CONFIG::CONSUMERS) {
        float x[CONFIG::SHARE * kVector] = {};
        const float4* from = first_slice;
#pragma unroll 8
        for (int slice = 0; slice < slices; ++slice, from += each * CONFIG::CONSUMERS) {
#pragma unroll
            for (int i = 0; i < CONFIG::SHARE; ++i) {
                const float4 part = from[i * CONFIG::CONSUMERS];
                x[4 * i] += part.x;
                x[4 * i + 1] += part.y;
                x[4 * i + 2] += part.z;
                x[4 * i + 3] += part.w;
            }
        }
        const int first = row_s + share * CONFIG::SHARE * kFragmentColumns;
        if constexpr (!CONFIG::SWAPPED) {
            if (output.plain) {
                output.scale_and_store(at_d, row_r, first, x);
                continue;
            }
        }
        apply_and_store<CONFIG>(args, output, epilogue, at_d, row_r, first, x);
    }
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <typename CONFIG>
__device__ __forceinline__ void gemm(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map,
                                     const CUtensorMap& d_map) {
    extern __shared__ __align__(kTileAlign) char memory[];
    const Shared<CONFIG> shared{memory};
    const Work<CONFIG> work(args);
    const CUtensorMap& r_map = CONFIG::SWAPPED ? b_map : a_map;
    const CUtensorMap& s_map = CONFIG::SWAPPED ? a_map : b_map;
    const int warp = __shfl_sync(kWholeWarp, threadIdx.x / kWarp, 0);   // uniform, and known to be
    const int lane = threadIdx.x % kWarp;
    const bool cut = Work<CONFIG>::cut(), streams = Work<CONFIG>::streams(args);

    if (warp == CONFIG::WARPS) {
        if (lane == 0) {
            ptx::tma_prefetch_descriptor(&r_map);
            ptx::tma_prefetch_descriptor(&s_map);
            if (!CONFIG::SWAPPED) ptx::tma_prefetch_descriptor(&d_map);
            for (int slot = 0; slot < CONFIG::STAGES; ++slot) {
                ptx::mbarrier_init(shared.full(slot), 1);
                ptx::mbarrier_init(shared.empty(slot), CONFIG::WARPS * CONFIG::PAIR);
            }
            if (cut) {
                ptx::mbarrier_init(shared.vacant(), ptx::cluster_size());
                ptx::mbarrier_init(shared.summed(), 1);
            }
            if (streams) ptx::mbarrier_init(shared.numbered(), 1);
            ptx::fence_mbarrier_init();
            ptx::fence_async_proxy();
            if (streams) ptx::mbarrier_arrive_expect_bytes(shared.numbered(), sizeof(float4));
            if (cut) ptx::mbarrier_arrive_expect_bytes(shared.summed(), bytes_of_others<CONFIG>(work.rank, ptx::cluster_size()));
        }
        __syncwarp();
    }
    // All may use the barriers from here on, those of both blocks if they share tiles. The warp that made them goes on and
    // asks for the first tiles. Clusters meet relaxed, for the fence above is what makes the barriers visible: a release would also
    // wait for the L2.
    if constexpr (CONFIG::PAIR > 1) {
        ptx::cluster_arrive_relaxed();
        ptx::cluster_wait();
        if (streams && work.rank == 0 && warp == CONFIG::WARPS + 1 && lane == 0) draw(args, shared);
    } else {
        if (cut) ptx::cluster_arrive_relaxed();   // waited for before blocks reach each other
        if (warp == CONFIG::WARPS) ptx::named_barrier_arrive(kStartBarrier, CONFIG::THREADS);
        else ptx::named_barrier_sync(kStartBarrier, CONFIG::THREADS);
    }
    ptx::wait_for_previous_kernels();   // while the last of them ended, this one got ready

    if (warp >= CONFIG::WARPS) {
        if constexpr (CONFIG::DEALS) ptx::registers_decrease_to<CONFIG::PRODUCER_REGISTERS>();
        Ring<CONFIG::STAGES> ring;
        const bool produces = warp == CONFIG::WARPS && lane == 0;
        if (produces) produce<CONFIG>(args, r_map, s_map, shared, work, ring);
        if constexpr (CONFIG::STREAMS) {
            if (streams && warp == CONFIG::WARPS + 1) tell_owner(args, Pieces<CONFIG>(args, drawn(shared), 0), lane);
        }
        __syncwarp();
        if (cut) ptx::cluster_wait();
        if ((CONFIG::PAIR > 1 || cut) && produces) {
            // Blocks that share tiles stay until the other one has told them of each stage, in their shared memory.
            drain<CONFIG>(shared, ring);
            if (cut) {
                for (int block = 0; block < static_cast<int>(ptx::cluster_size()); ++block) ptx::mbarrier_arrive_cluster(shared.vacant(), block);
            }
        }
    } else {
        if constexpr (CONFIG::DEALS) ptx::registers_increase_to<CONFIG::CONSUMER_REGISTERS>();
        Consumer<CONFIG> consumer(shared, warp, lane);
        Output<CONFIG> output(args, d_map, shared, warp, lane);
        const bool several = !CONFIG::SWAPPED && work.several(), behind = CONFIG::STORES_BEHIND && work.stages() >= CONFIG::BOXES;
        if (several && output.plain && behind) {
            if constexpr (CONFIG::STORES_BEHIND) {
                multiply_and_store_behind<CONFIG>(args, shared, consumer, output, work.left(), work.stages());
            }
        } else if (several && output.whole && work.stages() > 0) {
            if constexpr (!CONFIG::SWAPPED) multiply_and_store<CONFIG>(args, shared, consumer, output, work.left(), work.stages());
        } else for (Work<CONFIG> mine = work; mine.more(); mine.next()) {
            int row_r, row_s, batch;
            mine.locate(row_r, row_s, batch);
            consumer.turn_to(args, row_r);
            row_r += warp * kFragmentRows;
            float sum[CONFIG::SUMS];
            consumer.accumulate(sum, mine.stages());
            if constexpr (CONFIG::CUTS) {
                if (ptx::cluster_size_now() > 1) {
                    reduce_and_finish<CONFIG>(args, shared, output, row_r, row_s, batch, sum);
                    break;   // a cluster has one tile then
                }
            }
            finish<CONFIG>(args, output, row_r, row_s, batch, sum);
        }
        if constexpr (CONFIG::STREAMS) {
            if (Work<CONFIG>::streams(args)) multiply_pieces(args, shared, consumer, output);
        }
        output.finish();
    }
}

}  // namespace

// TILE, rows of R, rows of S, orientation of R and of S, swapped, blocks that share an operand, blocks a multiprocessor, rows from a tile of R
// to the next, whether it is R that they share. Names give the tile of D, m × n.
#define GEMM_HALF_SM90_OF(NAME, ...)                                                                                   \
    enum : int { NAME##_shared = Config<__VA_ARGS__>::SHARED_BYTES };                                                  \
    extern "C" __global__ void __launch_bounds__(Config<__VA_ARGS__>::THREADS, Config<__VA_ARGS__>::BLOCKS)            \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,                         \
             const __grid_constant__ CUtensorMap b_map, const __grid_constant__ CUtensorMap d_map) {                   \
        gemm<Config<__VA_ARGS__>>(args, a_map, b_map, d_map);                                                          \
    }
#define GEMM_HALF_SM90(TILE, ...)                                                                                      \
    GEMM_HALF_SM90_OF(gemm_f16_sm90_##TILE, Half::kF16, __VA_ARGS__)                                                   \
    GEMM_HALF_SM90_OF(gemm_bf16_sm90_##TILE, Half::kBF16, __VA_ARGS__)

// Large problems: clusters of two blocks, neighbours along m, that share each tile of B.
GEMM_HALF_SM90(128x256_2cta_nt, 128, 256, Major::kK, Major::kK, false, 2, 1)
GEMM_HALF_SM90(128x256_2cta_nn, 128, 256, Major::kK, Major::kRows, false, 2, 1)
GEMM_HALF_SM90(128x256_2cta_tn, 128, 256, Major::kRows, Major::kRows, false, 2, 1)
GEMM_HALF_SM90(128x256_2cta_tt, 128, 256, Major::kRows, Major::kK, false, 2, 1)
// Widths that divide the weights of common models into whole waves: 14336 = 64 · 224 = 128 · 112, 768 = 4 · 192.
GEMM_HALF_SM90(128x224_2cta_nt, 128, 224, Major::kK, Major::kK, false, 2, 1)
GEMM_HALF_SM90(128x192_2cta_nt, 128, 192, Major::kK, Major::kK, false, 2, 1)
GEMM_HALF_SM90(128x96_nt, 128, 96, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x112_nt, 128, 112, Major::kK, Major::kK, false, 1, 1)

// Few rows of tiles, of a size that leaves no multiprocessor idle.
GEMM_HALF_SM90(128x128_2cta_nt, 128, 128, Major::kK, Major::kK, false, 2, 1)
GEMM_HALF_SM90(128x128_2cta_nn, 128, 128, Major::kK, Major::kRows, false, 2, 1)
GEMM_HALF_SM90(128x128_2cta_tn, 128, 128, Major::kRows, Major::kRows, false, 2, 1)
GEMM_HALF_SM90(128x128_2cta_tt, 128, 128, Major::kRows, Major::kK, false, 2, 1)

// Matrices of few columns of tiles: clusters of two blocks, neighbours along n, that share each tile of A. On an H100, 2048 × 768 × 3072 takes
// 17.2 µs with either, 18.7 with 128 × 96 tiles of single blocks, and cuBLAS 17.8 µs.
GEMM_HALF_SM90(128x128_2cta_along_n_nt, 128, 128, Major::kK, Major::kK, false, 2, 1, 128, true)
GEMM_HALF_SM90(128x96_2cta_along_n_nt, 128, 96, Major::kK, Major::kK, false, 2, 1, 128, true)

// Fewer tiles: a cluster of split_k blocks cuts k.
GEMM_HALF_SM90(128x256_nt, 128, 256, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x256_nn, 128, 256, Major::kK, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x256_tn, 128, 256, Major::kRows, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x192_nt, 128, 192, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x192_nn, 128, 192, Major::kK, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x192_tn, 128, 192, Major::kRows, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x192_tt, 128, 192, Major::kRows, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x128_nt, 128, 128, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x128_nn, 128, 128, Major::kK, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x128_tn, 128, 128, Major::kRows, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x128_tt, 128, 128, Major::kRows, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x64_nt, 128, 64, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(128x64_nn, 128, 64, Major::kK, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x64_tn, 128, 64, Major::kRows, Major::kRows, false, 1, 1)
GEMM_HALF_SM90(128x64_tt, 128, 64, Major::kRows, Major::kK, false, 1, 1)
GEMM_HALF_SM90(64x96_nt, 64, 96, Major::kK, Major::kK, false, 1, 1)
// 14336 = 128 · 112: one wave where there are 64 rows.
GEMM_HALF_SM90(64x112_nt, 64, 112, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(64x64_deep_nt, 64, 64, Major::kK, Major::kK, false, 1, 1)
GEMM_HALF_SM90(64x64_nt, 64, 64, Major::kK, Major::kK, false, 1, 2)
GEMM_HALF_SM90(64x64_nn, 64, 64, Major::kK, Major::kRows, false, 1, 2)
GEMM_HALF_SM90(64x64_tn, 64, 64, Major::kRows, Major::kRows, false, 1, 2)
GEMM_HALF_SM90(64x64_tt, 64, 64, Major::kRows, Major::kK, false, 1, 2)
// Short k.
GEMM_HALF_SM90(128x128_2blocks_nt, 128, 128, Major::kK, Major::kK, false, 1, 2)
GEMM_HALF_SM90(128x128_2blocks_nn, 128, 128, Major::kK, Major::kRows, false, 1, 2)
GEMM_HALF_SM90(128x128_2blocks_tn, 128, 128, Major::kRows, Major::kRows, false, 1, 2)
GEMM_HALF_SM90(128x128_2blocks_tt, 128, 128, Major::kRows, Major::kK, false, 1, 2)

// Few rows: the weights are R.
GEMM_HALF_SM90(8x64_nt, 64, 8, Major::kK, Major::kK, true, 1, 2)
GEMM_HALF_SM90(16x64_nt, 64, 16, Major::kK, Major::kK, true, 1, 2)
GEMM_HALF_SM90(32x64_nt, 64, 32, Major::kK, Major::kK, true, 1, 2)
GEMM_HALF_SM90(8x56_nt, 64, 8, Major::kK, Major::kK, true, 1, 2, 56)
GEMM_HALF_SM90(16x56_nt, 64, 16, Major::kK, Major::kK, true, 1, 2, 56)
GEMM_HALF_SM90(32x56_nt, 64, 32, Major::kK, Major::kK, true, 1, 2, 56)
// One block a multiprocessor, and twice as much under way: where k is cut, and so there are few blocks.
GEMM_HALF_SM90(16x64_deep_nt, 64, 16, Major::kK, Major::kK, true, 1, 1)
GEMM_HALF_SM90(32x64_deep_nt, 64, 32, Major::kK, Major::kK, true, 1, 1)
GEMM_HALF_SM90(16x64_nn, 64, 16, Major::kRows, Major::kK, true, 1, 2)
GEMM_HALF_SM90(32x64_nn, 64, 32, Major::kRows, Major::kK, true, 1, 2)

#endif  // sm_90a
