// FP32-grade GEMM on Hopper's tensor cores: three TF32 products a result, promoted to FP32 every 32 of k.
//
// Every FP32 operand is split into a TF32 head and a TF32 tail (11 bits each), and
//
//   a·b ≈ tail(a)·head(b) + head(a)·tail(b) + head(a)·head(b)        (tail·tail, about 2⁻²⁴ of a·b, is left out)
//
// is summed in the tensor core, small terms first. The tensor core truncates when it adds, so a sum never stays in it
// for longer than one stage of k: after 32 steps of k it is added to FP32 registers with round to nearest.
//
// Roles. Of the two operands one is the *register operand* R (128 rows a block) and the other the *shared operand* S
// (BN rows a block). The tensor core reads S from shared memory, where it must lie K-major, and R from registers,
// which a consumer warp can fill from a tile of either orientation. So with
//
//   R = A, S = B:  NT and TT            R = B, S = A ("swapped", the block computes Dᵀ):  NT and NN
//
// nothing is transposed in memory. R's fragments are split on their way into registers. For S the tile that the copy
// engine brings is already its head, because wgmma ignores the low 13 bits of a word, and seven converter warps write
// the tail beside it.
//
//   warpgroups 0, 1   one warp issues the copies (TMA), seven warps write S's tails         40 registers
//   warpgroups 2, 3   consumers of 64 × BN each: split R, 12 wgmma a stage, promote, store  216 registers
//
// Per stage of 32 k, 128 × 128: 32 KB come in; shared memory moves 96 KB for wgmma's reads of S (64 rows use 4 KB a
// k8 step), 16 KB of fragments, 32 KB of splitting, 32 KB from the copy engine, while the tensor cores need 1536
// clocks: 176 KB of the 192 KB that shared memory can move in that time.
//
// Non-finite numbers. The split turns Inf into Inf + NaN, so sums that see one may be NaN where IEEE says Inf; but a
// sum that saw a non-finite operand, or one that overflowed in the split, is never finite. So a consumer recomputes
// exactly those elements whose sum is not finite, with FFMA from global memory.
//
// Where k is cut (`split_k` > 1) the slices of one tile are the blocks of a cluster and add their sums through
// distributed shared memory in the order of the slices: no workspace, no second launch, the same bits every time.

#include <cuda.h>

#include "../common/epilogue.cuh"
#include "../common/gemm_args.cuh"
#include "../common/ptx.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int BM = 128;              // rows of R a block
constexpr int BK = 32;               // one row of a tile: 128 bytes, the width of the swizzle
constexpr int kStepK = 8;            // k of one wgmma
constexpr int kSteps = BK / kStepK;
constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;        // warpgroups that multiply
constexpr int kConsumerWarps = kConsumers * kWarpgroup / kWarp;
constexpr int kProducers = 2;        // warpgroups that feed them
constexpr int kFeeders = kProducers * kWarpgroup;
constexpr int kThreads = kFeeders + kConsumers * kWarpgroup;
constexpr int kConverters = kFeeders - kWarp;     // threads that write tails
constexpr int kConverterWarps = kConverters / kWarp;
constexpr int kConsumerRegisters = 216;
constexpr int kProducerRegisters = 40;
constexpr int kTileAlign = 1024;     // the swizzle's period
constexpr int kSharedLimit = 227 * 1024;
constexpr int kConsumerBarrier = 1;  // named barrier of the consumers

static_assert(kConsumerRegisters * kConsumers * kWarpgroup + kProducerRegisters * kFeeders <= 65536,
              "the register file of a multiprocessor has 65536 registers");

// Orientation of the register operand in memory: K-major rows, or "MN-major" (consecutive rows are neighbours).
enum class Major { kK, kRows };

template <int BN_, Major MAJOR_, bool SWAPPED_, int MULTICAST_>
struct Config {
    static constexpr int BN = BN_;
    static constexpr Major MAJOR = MAJOR_;
    static constexpr bool SWAPPED = SWAPPED_;        // R is B, S is A, the accumulator is Dᵀ
    static constexpr int MULTICAST = MULTICAST_;     // blocks of a cluster that share one tile of S; 1: clusters cut k
    static constexpr int ACCUMULATORS = BN / 2;      // a consumer thread's share of 64 × BN
    static constexpr int R_FLOATS = BM * BK;
    static constexpr int S_FLOATS = BN * BK;
    static constexpr int TAILS = 3;
    static constexpr int RAW_BYTES = (R_FLOATS + S_FLOATS) * 4;
    static constexpr int BARRIER_BYTES = 512;
    static constexpr int FIT = (kSharedLimit - BARRIER_BYTES - TAILS * S_FLOATS * 4) / RAW_BYTES;
    static constexpr int STAGES = FIT < 10 ? FIT : 10;
    static constexpr int SHARED_BYTES = STAGES * RAW_BYTES + TAILS * S_FLOATS * 4 + BARRIER_BYTES;
    static_assert(SHARED_BYTES <= kSharedLimit, "the rings and barriers must fit into the shared memory of a block");
    static constexpr uint32_t STAGE_BYTES = RAW_BYTES;   // what the copies of one stage deliver to one block

    static_assert(BN % 16 == 0 && BN <= 128, "a consumer holds two sets of BN/2 accumulators");
    static_assert((BN / MULTICAST) % 8 == 0, "each block's share of S is whole swizzle groups");
    static_assert(S_FLOATS * 4 % kTileAlign == 0, "every tile starts on a swizzle period");
    static_assert(STAGES * RAW_BYTES >= BM * BN * 4, "the ring holds a block's sums when clusters cut k");
    static_assert((2 * STAGES + 2 * TAILS) * 8 <= BARRIER_BYTES, "barriers fit");
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
    __device__ __forceinline__ char* tail(int slot) const {
        return base + CONFIG::STAGES * CONFIG::RAW_BYTES + slot * CONFIG::S_FLOATS * 4;
    }
    __device__ __forceinline__ uint64_t* barriers() const { return reinterpret_cast<uint64_t*>(tail(CONFIG::TAILS)); }
    __device__ __forceinline__ uint64_t* raw_full(int slot) const { return barriers() + slot; }
    __device__ __forceinline__ uint64_t* raw_empty(int slot) const { return barriers() + CONFIG::STAGES + slot; }
    __device__ __forceinline__ uint64_t* tail_full(int slot) const { return barriers() + 2 * CONFIG::STAGES + slot; }
    __device__ __forceinline__ uint64_t* tail_empty(int slot) const {
        return barriers() + 2 * CONFIG::STAGES + CONFIG::TAILS + slot;
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
        const int tiles_r = (rows_r + BM - 1) / BM;
        units_r = (tiles_r + CONFIG::MULTICAST - 1) / CONFIG::MULTICAST;
        tiles_s = (rows_s + CONFIG::BN - 1) / CONFIG::BN;
        group = min(max(args.group_m, 1), units_r);
        units = units_r * tiles_s * args.batch;
        const int blocks = static_cast<int>(ptx::cluster_size());
        rank = static_cast<int>(ptx::cluster_rank());
        unit = blockIdx.x / blocks;
        step = gridDim.x / blocks;
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
        const int per_matrix = units_r * tiles_s;
        batch = unit / per_matrix;
        const int index = unit - batch * per_matrix;
        const int per_group = group * tiles_s;
        const int first = index / per_group * group;
        const int height = min(group, units_r - first);
        const int inside = index % per_group;
        int tile_r = first + inside % height;
        if (CONFIG::MULTICAST > 1) tile_r = tile_r * CONFIG::MULTICAST + rank;
        row_r = tile_r * BM;
        row_s = inside / height * CONFIG::BN;
    }
};

// Coordinates of a matrix of the batch in an operand's tensor map; a broadcast dimension has extent 1 there.
struct BatchCoordinates {
    int x, y, z;

    __device__ __forceinline__ BatchCoordinates(const GemmArgs& args, const GemmOperand& operand, int batch) {
        x = batch % args.batch_dims[3];
        batch /= args.batch_dims[3];
        y = batch % args.batch_dims[2];
        z = batch / args.batch_dims[2];
        if (operand.batch_stride[3] == 0) x = 0;
        if (operand.batch_stride[2] == 0) y = 0;
        if (operand.batch_stride[1] == 0) z = 0;
    }
};

// ---- load ------------------------------------------------------------------------------------------------------

template <typename CONFIG>
__device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& r_map, const CUtensorMap& s_map,
                                        const Shared<CONFIG>& shared, Work<CONFIG> work) {
    constexpr int kBox = 32;   // rows of an MN-major box: 128 bytes
    constexpr int kShare = CONFIG::BN / CONFIG::MULTICAST;
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
            ptx::mbarrier_arrive_expect_bytes(full, CONFIG::STAGE_BYTES);
            char* tile_r = shared.r(ring.slot);
            char* tile_s = shared.s(ring.slot);
            if constexpr (CONFIG::MAJOR == Major::kK) {
                ptx::tma_load_5d(tile_r, &r_map, full, k, row_r, br.x, br.y, br.z);
            } else {
#pragma unroll
                for (int box = 0; box < BM / kBox; ++box) {
                    ptx::tma_load_5d(tile_r + box * kBox * BK * 4, &r_map, full, row_r + box * kBox, k, br.x, br.y,
                                     br.z);
                }
            }
            if constexpr (CONFIG::MULTICAST == 1) {
                ptx::tma_load_5d(tile_s, &s_map, full, k, row_s, bs.x, bs.y, bs.z);
            } else {
                constexpr uint16_t kAll = (1 << CONFIG::MULTICAST) - 1;
                ptx::tma_load_5d_multicast(tile_s + work.rank * kShare * BK * 4, &s_map, full, kAll, k,
                                           row_s + work.rank * kShare, bs.x, bs.y, bs.z);
            }
            ring.advance();
        }
    }
}

// ---- split -----------------------------------------------------------------------------------------------------

constexpr uint32_t kHeadMask = 0xFFFFE000u;   // sign, exponent and the 10 stored bits of TF32
constexpr uint32_t kHalfUnit = 0x1000u;       // half of TF32's last bit: adding it rounds a later truncation

// x = truncated head + tail; the head is what wgmma reads of x itself, the tail is rounded to TF32.
__device__ __forceinline__ float tail_of_truncated(float x) {
    const float head = __uint_as_float(__float_as_uint(x) & kHeadMask);
    return __uint_as_float(__float_as_uint(x - head) + kHalfUnit);
}

// x = rounded head + tail. A rounded head leaves a tail of either sign with one bit less, which halves the error.
__device__ __forceinline__ void split_rounded(float x, uint32_t& head, uint32_t& tail) {
    head = (__float_as_uint(x) + kHalfUnit) & kHeadMask;
    tail = __float_as_uint(x - __uint_as_float(head));
}

// The converter warps: from each raw tile of S its tail, in the same layout.
template <typename CONFIG>
__device__ __forceinline__ void convert(const Shared<CONFIG>& shared, Work<CONFIG> work, int thread) {
    constexpr int kVectors = CONFIG::S_FLOATS / kVector;
    constexpr int kTurns = (kVectors + kConverters - 1) / kConverters;
    constexpr int kFlight = kTurns < 3 ? kTurns : 3;   // vectors in registers at a time
    Ring<CONFIG::STAGES> raw;
    Ring<CONFIG::TAILS> tail;
    for (; work.more(); work.next()) {
        const int stages = work.stages();
        for (int stage = 0; stage < stages; ++stage) {
            ptx::mbarrier_wait(shared.tail_empty(tail.slot), tail.phase ^ 1);
            ptx::mbarrier_wait(shared.raw_full(raw.slot), raw.phase);
            const float4* from = reinterpret_cast<const float4*>(shared.s(raw.slot)) + thread;
            float4* to = reinterpret_cast<float4*>(shared.tail(tail.slot)) + thread;
#pragma unroll
            for (int first = 0; first < kTurns; first += kFlight) {
                // Turns before the last are whole: every thread has a vector.
                const auto mine = [&](int turn) {
                    return turn < kVectors / kConverters ||
                           (turn < kTurns && turn * kConverters + thread < kVectors);
                };
                float4 x[kFlight];
#pragma unroll
                for (int i = 0; i < kFlight; ++i) {
                    if (mine(first + i)) x[i] = from[(first + i) * kConverters];
                }
#pragma unroll
                for (int i = 0; i < kFlight; ++i) {
                    x[i] = make_float4(tail_of_truncated(x[i].x), tail_of_truncated(x[i].y),
                                       tail_of_truncated(x[i].z), tail_of_truncated(x[i].w));
                }
#pragma unroll
                for (int i = 0; i < kFlight; ++i) {
                    if (mine(first + i)) to[(first + i) * kConverters] = x[i];
                }
            }
            ptx::fence_async_proxy();
            __syncwarp();
            if (thread % kWarp == 0) ptx::mbarrier_arrive(shared.tail_full(tail.slot));
            raw.advance();
            tail.advance();
        }
    }
}

// ---- compute ---------------------------------------------------------------------------------------------------

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

struct Fragments {
    uint32_t head[kSteps][4], tail[kSteps][4];
};

// Reads this thread's part of a raw tile of R and splits it.
template <typename CONFIG>
__device__ __forceinline__ void load_fragments(const char* tile, const Place<CONFIG>& place, Fragments& fragments) {
    constexpr int kChunk = 16;        // bytes that the swizzle moves as one
    constexpr int kRow = BK * 4;      // bytes of a row of a box
    constexpr int kBox = 32 * kRow;   // bytes of an MN-major box: 32 rows of k, 32 of R
    uint32_t origin;
    if constexpr (CONFIG::MAJOR == Major::kK) {
        origin = place.row(0) * kRow + place.group * kChunk + place.quad * 4;
    } else {
        const int row = place.row(0);
        origin = row / 32 * kBox + place.quad * kRow + (row % 32 / 4 ^ place.quad) * kChunk + row % 4 * 4;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {   // (group, quad), (group + 8, quad), (group, quad + 4), (… + 8, … + 4)
            const int half = part % 2, far = part / 2;
            uint32_t offset;
            if constexpr (CONFIG::MAJOR == Major::kK) {
                offset = (origin ^ (step * 2 + far) * kChunk) + half * 8 * kRow;
            } else {
                offset = (origin ^ (far * 4 ^ half) * kChunk) + (step * kStepK + far * 4) * kRow;
            }
            const float x = *reinterpret_cast<const float*>(tile + offset);
            split_rounded(x, fragments.head[step][part], fragments.tail[step][part]);
        }
    }
}

// Issues the three products of one stage into `acc`, which starts from zero.
template <typename CONFIG>
__device__ __forceinline__ void multiply(float (&acc)[CONFIG::ACCUMULATORS], const Fragments& r, uint64_t s_head,
                                         uint64_t s_tail) {
    constexpr uint64_t kStep = kStepK * 4 / 16;   // a descriptor counts 16 bytes
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) ptx::wgmma_tf32(acc, r.tail[step], s_head + step * kStep, step > 0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) ptx::wgmma_tf32(acc, r.head[step], s_tail + step * kStep, true);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) ptx::wgmma_tf32(acc, r.head[step], s_head + step * kStep, true);
    ptx::wgmma_commit();
}

// A consumer's walk through the rings. What the tensor cores do not need at once (waiting for the next stage, reading
// and splitting its fragments, the addresses) is done while they work, so that little but the promotion lies between
// two groups of wgmma; the other warpgroup's group covers that.
template <typename CONFIG>
struct Consumer {
    const Shared<CONFIG>& shared;
    const Place<CONFIG>& place;
    Ring<CONFIG::STAGES> raw;
    Ring<CONFIG::TAILS> tail;
    uint64_t s_head, s_tail;   // descriptors of the tiles of S under the cursors, moved along rather than computed

    __device__ __forceinline__ Consumer(const Shared<CONFIG>& shared_, const Place<CONFIG>& place_)
        : shared(shared_), place(place_),
          s_head(ptx::wgmma_descriptor_swizzle128(ptx::shared_address(shared_.s(0)))),
          s_tail(ptx::wgmma_descriptor_swizzle128(ptx::shared_address(shared_.tail(0)))) {}

    __device__ __forceinline__ void advance() {
        raw.advance();
        tail.advance();
        constexpr uint64_t kRaw = CONFIG::RAW_BYTES / 16, kTail = CONFIG::S_FLOATS * 4 / 16;
        s_head = raw.slot == 0 ? s_head - (CONFIG::STAGES - 1) * kRaw : s_head + kRaw;
        s_tail = tail.slot == 0 ? s_tail - (CONFIG::TAILS - 1) * kTail : s_tail + kTail;
    }

    // Waits for the stage under the cursors and reads this thread's fragments of R.
    __device__ __forceinline__ void fetch(Fragments& fragments) {
        ptx::mbarrier_wait(shared.raw_full(raw.slot), raw.phase);
        load_fragments<CONFIG>(shared.r(raw.slot), place, fragments);
        ptx::mbarrier_wait(shared.tail_full(tail.slot), tail.phase);
    }

    // Multiplies the stage whose fragments are in `now`, and fetches the next.
    __device__ __forceinline__ void step(float (&sum)[CONFIG::ACCUMULATORS], const Fragments& now, Fragments& next,
                                         bool more) {
        float acc[CONFIG::ACCUMULATORS];
        multiply<CONFIG>(acc, now, s_head, s_tail);
        uint64_t* raw_empty = shared.raw_empty(raw.slot);
        uint64_t* tail_empty = shared.tail_empty(tail.slot);
        advance();
        if (more) fetch(next);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(acc);
        if constexpr (CONFIG::MULTICAST == 1) {
            if (place.lane == 0) ptx::mbarrier_arrive(raw_empty);
        } else {
            if (place.lane < CONFIG::MULTICAST) ptx::mbarrier_arrive_cluster(raw_empty, place.lane);
        }
        if (place.lane == 0) ptx::mbarrier_arrive(tail_empty);
#pragma unroll
        for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) sum[i] += acc[i];
        ptx::wgmma_pin(sum);
    }

    // Adds `stages` stages of k to `sum`.
    __device__ __forceinline__ void accumulate(float (&sum)[CONFIG::ACCUMULATORS], int stages) {
        if (stages == 0) return;
        Fragments even, odd;
        fetch(even);
        for (int stage = 0; stage < stages; stage += 2) {
            step(sum, even, odd, stage + 1 < stages);
            if (stage + 1 == stages) break;
            step(sum, odd, even, stage + 2 < stages);
        }
    }
};

// ---- non-finite sums -------------------------------------------------------------------------------------------

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

// Σ a(row, k)·b(k, col) over a range of k in FP32, by the 32 lanes of a warp together.
__device__ __forceinline__ float warp_dot(const GemmArgs& args, int batch, int row, int col, int k_begin, int k_end) {
    const float* a = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch) +
                     row * args.a.row_stride;
    const float* b = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch) +
                     col * args.b.col_stride;
    constexpr unsigned kAll = 0xFFFFFFFFu;
    float sum = 0.0f;
    for (int first = k_begin; first < k_end; first += kWarp) {
        const int k = first + threadIdx.x % kWarp;
        if (k < k_end) sum = fmaf(a[k * args.a.col_stride], b[k * args.b.row_stride], sum);
        if (__any_sync(kAll, isnan(sum))) break;   // NaN stays NaN
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAll, sum, distance);
    return sum;
}

// Replaces the sums that are not finite by what FP32 arithmetic says. Rare, so small rather than fast: the registers
// are turned around like a drum, so that one copy of the code serves all of them.
template <typename CONFIG>
__device__ __forceinline__ void repair(const GemmArgs& args, const Place<CONFIG>& place, int row_r, int row_s,
                                       int batch, int k_begin, int k_end, float (&sum)[CONFIG::ACCUMULATORS]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    float probe = 0.0f;
#pragma unroll
    for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) probe = fmaf(sum[i], 0.0f, probe);   // NaN if any is Inf or NaN
    if (!__any_sync(kAll, isnan(probe))) return;
#pragma unroll 1
    for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) {
        const int r = row_r + place.row(i / 2 % 2), s = row_s + place.column(i);
        const int row = CONFIG::SWAPPED ? s : r, col = CONFIG::SWAPPED ? r : s;
        float x = sum[0];
        unsigned bad = __ballot_sync(kAll, !is_finite(x) && row < args.m && col < args.n);
        while (bad != 0) {
            const int owner = __ffs(bad) - 1;
            bad &= bad - 1;
            const float exact = warp_dot(args, batch, __shfl_sync(kAll, row, owner), __shfl_sync(kAll, col, owner),
                                         k_begin, k_end);
            if (place.lane == owner) x = exact;
        }
#pragma unroll
        for (int j = 0; j + 1 < CONFIG::ACCUMULATORS; ++j) sum[j] = sum[j + 1];
        sum[CONFIG::ACCUMULATORS - 1] = x;
    }
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

// The epilogue of `COUNT` accumulators whose first belongs to row `row_s` of S: each part of it over all of them, so
// that the common case is a row of multiplications and a row of stores.
template <typename CONFIG, int COUNT>
__device__ __forceinline__ void finish(const GemmArgs& args, const Place<CONFIG>& place, int row_r, int row_s,
                                       int batch, float (&x)[COUNT]) {
    const Epilogue epilogue(args, batch);
    const int rows_r = CONFIG::SWAPPED ? args.n : args.m;
    const int rows_s = CONFIG::SWAPPED ? args.m : args.n;
    const int r = row_r + place.row(0), s = row_s + place.column(0);
    const int half_rows = place.row(1) - place.row(0);
    const bool in_r[2] = {r < rows_r, r + half_rows < rows_r};
    const int left = rows_s - s;   // accumulator i is inside while its column, counted from s, is less
    const auto inside = [&](int i) { return in_r[i / 2 % 2] && i / 4 * 8 + i % 2 < left; };

#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] *= args.alpha;
    if (epilogue.c != nullptr) {
        walk<CONFIG, COUNT>(args.c, epilogue.c, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] = fmaf(args.beta, *at, x[i]);
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
    if (args.activation == kRelu) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = activate(kRelu, x[i]);
    } else if (args.activation != kIdentity) {   // long code: one copy, and the registers pass by it like a drum
#pragma unroll 1
        for (int turn = 0; turn < COUNT; turn += 4) {
            float now[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) now[i] = activate(args.activation, x[i]);
#pragma unroll
            for (int i = 0; i + 4 < COUNT; ++i) x[i] = x[i + 4];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[COUNT - 4 + i] = now[i];
        }
    }
    if (epilogue.residual != nullptr) {
        walk<CONFIG, COUNT>(args.residual, epilogue.residual, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] += *at;
        });
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
    walk<CONFIG, COUNT>(args.d, epilogue.d, r, s, half_rows, [&](int i, const float* at) {
        if (inside(i)) *const_cast<float*>(at) = x[i];
    });
}

// The blocks of the cluster hold the sums of the slices of k: adds them in order and stores. The accumulators are
// dealt out to the blocks in small groups.
template <typename CONFIG>
__device__ __forceinline__ void reduce_and_store(const GemmArgs& args, const Shared<CONFIG>& shared,
                                                 const Place<CONFIG>& place, const Work<CONFIG>& work, int thread,
                                                 int row_r, int row_s, int batch,
                                                 const float (&sum)[CONFIG::ACCUMULATORS]) {
    constexpr int kAllConsumers = kConsumers * kWarpgroup;
    constexpr int kGroup = CONFIG::ACCUMULATORS > 16 ? 8 : 4;
    ptx::named_barrier_sync(kConsumerBarrier, kAllConsumers);   // the other warpgroup may still read the ring
    float* mine = reinterpret_cast<float*>(shared.base) + thread;
#pragma unroll
    for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) mine[i * kAllConsumers] = sum[i];
    ptx::cluster_sync();
    const int slices = static_cast<int>(ptx::cluster_size());
#pragma unroll 1
    for (int first = work.rank * kGroup; first < CONFIG::ACCUMULATORS; first += slices * kGroup) {
        float total[kGroup] = {};
#pragma unroll 4
        for (int slice = 0; slice < slices; ++slice) {
            const uint32_t theirs = ptx::cluster_address(mine + first * kAllConsumers, slice);
#pragma unroll
            for (int i = 0; i < kGroup; ++i) total[i] += ptx::load_cluster(theirs + i * kAllConsumers * 4);
        }
        finish<CONFIG, kGroup>(args, place, row_r, row_s + first / 4 * 8, batch, total);
    }
}

// ---- the kernel ------------------------------------------------------------------------------------------------

template <typename CONFIG>
__device__ __forceinline__ void gemm(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
    extern __shared__ __align__(kTileAlign) char memory[];
    const Shared<CONFIG> shared{memory};
    const Work<CONFIG> work(args);
    const CUtensorMap& r_map = CONFIG::SWAPPED ? b_map : a_map;
    const CUtensorMap& s_map = CONFIG::SWAPPED ? a_map : b_map;
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / kWarp, 0);   // uniform, and known to be
    const bool cut = CONFIG::MULTICAST == 1 && ptx::cluster_size() > 1;

    if (threadIdx.x == 0) {
        for (int slot = 0; slot < CONFIG::STAGES; ++slot) {
            ptx::mbarrier_init(shared.raw_full(slot), 1);
            ptx::mbarrier_init(shared.raw_empty(slot), kConsumerWarps * CONFIG::MULTICAST);
        }
        for (int slot = 0; slot < CONFIG::TAILS; ++slot) {
            
            ptx::mbarrier_init(shared.tail_full(slot), kConverterWarps);
            ptx::mbarrier_init(shared.tail_empty(slot), kConsumerWarps);
        }
        ptx::fence_mbarrier_init();
        ptx::tma_prefetch_descriptor(&r_map);
        ptx::tma_prefetch_descriptor(&s_map);
    }
    ptx::cluster_sync();

    if (warp < kFeeders / kWarp) {
        ptx::registers_decrease_to<kProducerRegisters>();
        if (warp == 0) {
            if (threadIdx.x == 0) produce<CONFIG>(args, r_map, s_map, shared, work);
            __syncwarp();
        } else {
            convert<CONFIG>(shared, work, threadIdx.x - kWarp);
        }
        if (cut) ptx::cluster_sync();
    } else {
        ptx::registers_increase_to<kConsumerRegisters>();
        const int thread = threadIdx.x - kFeeders;
        const Place<CONFIG> place(thread);
        Consumer<CONFIG> consumer(shared, place);
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
                finish<CONFIG, CONFIG::ACCUMULATORS>(args, place, row_r, row_s, batch, sum);
            }
        }
    }
    ptx::cluster_sync();   // no block leaves while another may still write to its shared memory or read it
}

}  // namespace

#define GEMM_TF32X3_SM90(NAME, BN, MAJOR, SWAPPED, MULTICAST)                                                          \
    extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                          \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,                         \
             const __grid_constant__ CUtensorMap b_map) {                                                              \
        gemm<Config<BN, MAJOR, SWAPPED, MULTICAST>>(args, a_map, b_map);                                               \
    }

// Large problems: clusters of two blocks, neighbours along R, that share each tile of S. Names give the tile of D, m × n.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_pair_nt, 128, Major::kK, false, 2)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_pair_tt, 128, Major::kRows, false, 2)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_pair_nn, 128, Major::kRows, true, 2)

// Problems with few tiles: a cluster of split_k blocks (1, 2, 4 or 8) cuts k.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_nt, 128, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_tt, 128, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_nn, 128, Major::kRows, true, 1)

// Narrow n: a few columns of B beside 128 rows of A.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_nt, 64, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x32_nt, 32, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x16_nt, 16, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_tt, 64, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x32_tt, 32, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x16_tt, 16, Major::kRows, false, 1)

// Small m: the weights are the register operand and stream past a few rows of activations.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x128_nt, 64, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x128_nt, 32, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x128_nt, 16, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x128_nn, 64, Major::kRows, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x128_nn, 32, Major::kRows, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x128_nn, 16, Major::kRows, true, 1)

#endif  // sm_90a
