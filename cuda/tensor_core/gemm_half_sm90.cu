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
// thing behind the main loop, for the same reason. In large tiles, what most layers have (a bias, ReLU, GELU by erf) has code for each part
// that does only that: nothing moves from register to register, and a part's bias arrives while the part before it is computed.
//
// Where a block has several tiles, consumers do not work out where each of them lies: the divisions stood between two tiles. The producer,
// which is ahead and has to know, leaves the place in shared memory before it asks for the tile's first stage. A tile's first multiplication
// starts from zero by itself, so no registers are cleared.
//
// In 2-CTA clusters, which have several tiles each, a tile whose epilogue is nothing but α, or what most layers have, is stored while the next one is
// multiplied. At its end sums are rounded, to half as many registers, and a box of them goes out behind each of the next tile's first stages, or two
// behind each of two stages. GELU takes longer: what registers have room for waits in FP32, and is computed behind the next tile's stages.
//
// Stream-K. Where the units of a 2-CTA kernel are no whole waves, clusters share the last ones: each has a range of their steps of k
// (scheduler/stream_k.cuh), which begins with the end of one unit, whose sums it leaves behind in the workspace, and ends with the
// beginning of another. Who has a unit's beginning, its owner, adds up the pieces in the order of k. By then they were left long ago
// (ranges begin with them), and TMA brings them through the ring like further stages. Only owners wait, and only for clusters that drew their
// numbers before them, so nothing can hang.
//
// Gated columns. S holds gate and up in turn, so a thread has both of a pair in neighbouring sums, and D has half as many columns: those, n / 2, are to be
// a multiple of 8 where TMA stores, and elsewhere threads store elements themselves. Each box of a tile has a staging buffer of its own, and SiLU has its
// code once for each part. Registers do not last for stream-K beside that.
//
// Ragged tiles. What TMA fills with zeros takes it about twice as long as what it fetches, and a single tile that is mostly outside of the matrix
// keeps all waiting: on an H100 128 × 64 tiles took 82 µs for NT 448 × 2048 × 11264 (now 65), and 63 for 512 rows. So a tile of R that reaches beyond its
// matrix is fetched from some rows before it on, and multiplied from its first row on. Behind its last one wgmma reads rows of S, whose products
// are not stored. Tiles of S, and those of a matrix that is smaller than a tile, are filled up.
//
// Sums stay in the tensor core for all of a tile's k, or a piece's. Products are exact; Inf and NaN pass through as IEEE says.
//
// What follows from a tile's size is in half_layout_sm90.cuh, which tiles and pieces a block has in half_work_sm90.cuh, and the end of a tile
// in half_store_sm90.cuh. Here are the copies, the multiplications, and the order of it all.
//
// Launch. One dimension of blocks, `threads` and dynamic shared memory as each kernel's row of the table says.
//   2cta kernels    clusters of 2, any number of them; with stream-K as many as the plan says
//   others          split_k 1: clusters of 1, any number; split_k 2 to 6 or 8: clusters of split_k and exactly one a tile; not
//                   where two blocks of two warpgroups share a multiprocessor. Or slices along y of the grid (scheduler/slices.cuh)
// Tensor maps of A and B. Rank 5: x, y, then three batch dimensions (args.batch_dims[3], [2], [1]; extent 1 where the operand's
// stride is 0; args.batch_dims[0] must be 1), 128-byte swizzle, zero fill, box 64 elements wide by
//   R: BM / PAIR_S rows if K-major, 64 (of k) if MN-major        S: BN / PAIR_R rows if K-major, 64 (of k) if MN-major
// and of D, where it has the operands' type and d_access is kRowVector: D_BOX × 16 elements, swizzled over D_BOX · 2 bytes.

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
#include "../scheduler/stream_k.cuh"
#include "half_layout_sm90.cuh"
#include "half_store_sm90.cuh"
#include "half_work_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int kStepK = 16;   // k of one wgmma
constexpr int kStartBarrier = 1;

// ---- load ------------------------------------------------------------------------------------------------------

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
    // is waited for. `meanwhile` is what else the warp does while the tensor cores are busy: LATE, when the stage before has been given back. FRESH: sums
    // start from zero.
    template <bool FRESH, bool LATE = false, typename MEANWHILE>
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
        if constexpr (!LATE) meanwhile();
        ptx::wgmma_wait<1>();
        if (follows) release(before);
        before = ring.stage;
        ring.advance();
        if constexpr (LATE) meanwhile();
    }
    __device__ __forceinline__ void complete(float (&sum)[CONFIG::SUMS], int before) const {
        ptx::wgmma_wait<0>();
        ptx::settle(sum);
        release(before);
    }

    // The sums over the next `stages` stages; none where a slice is beyond the end of k.
    __device__ __forceinline__ void accumulate(float (&sum)[CONFIG::SUMS], int stages) {
#pragma unroll
        for (int i = 0; i < CONFIG::SUMS; ++i) sum[i] = 0.0f;
        if (stages == 0) return;
        ptx::settle(sum);
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

    // The same for STAGES stages or more, with behind(stage) behind each of the first STAGES of them, and last() behind the last one. What was in `sum` is
    // lost.
    template <int STAGES, bool LATE, typename BEHIND, typename LAST>
    __device__ __forceinline__ void accumulate_with(float (&sum)[CONFIG::SUMS], int stages, BEHIND&& behind, LAST&& last) {
        int before = 0;
        multiply<true, LATE>(sum, false, before, [&] { behind(0); });
#pragma unroll
        for (int stage = 1; stage < STAGES; ++stage) multiply<false, LATE>(sum, true, before, [&] { behind(stage); });
#pragma unroll 1
        for (int stage = STAGES; stage < stages; ++stage) multiply<false>(sum, true, before, [] {});
        last();
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

// ---- tiles and pieces ------------------------------------------------------------------------------------------

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

// The same with a tile stored behind the first stages of the next one, STAGES of them, which a tile has at least: warps would only wait during
// their multiplications. Between the last multiplication of a tile and the first of the next one stand α, if it is not 1, and rounding. SHORT: and a bias,
// which was asked for during the last multiplication, and ReLU.
template <typename CONFIG, int STAGES, bool SHORT>
__device__ __forceinline__ void multiply_and_store_behind(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                          Output<CONFIG>& output, int tiles, int stages) {
    uint32_t rounded[CONFIG::SUMS / 2] = {};   // the tile before
    ShortEpilogue<CONFIG::TYPE, CONFIG::SUMS> epilogue;
    int tile = 0;
    const auto store = [&](int box) {
        if (tile > 0) output.store_rounded(*shared.place(tile - 1), rounded, box);
    };
    const auto behind = [&](int stage) {   // as evenly as can be
#pragma unroll
        for (int box = 0; box < CONFIG::BOXES; ++box) {
            if (box * STAGES / CONFIG::BOXES == stage) store(box);
        }
    };
#pragma unroll 1
    for (; tile < tiles; ++tile) {
        consumer.begin(args, shared.place(tile));
        float sum[CONFIG::SUMS];
        consumer.template accumulate_with<STAGES, false>(sum, stages, behind, [&] {
            if constexpr (SHORT) epilogue.ask(args, shared.place(tile)->row_s + output.lane % 4 * 2);
        });
        Scalars(args).scale_all(sum);
        if constexpr (SHORT) {
            epilogue.add(sum);
            epilogue.template activate_as<false>(args, sum);
        }
#pragma unroll
        for (int i = 0; i < CONFIG::SUMS / 2; ++i) rounded[i] = ptx::round_pair<CONFIG::TYPE>(sum[2 * i], sum[2 * i + 1]);
    }
#pragma unroll
    for (int box = 0; box < CONFIG::BOXES; ++box) store(box);
}

// So many tiles, one after the other, in the way that suits their number of stages, which is BOXES at least where the epilogue is not plain. Two boxes
// behind each of two stages are stored in 0.96 to 0.99 of the time of tiles that end first; two behind a single stage in 1.0 to 1.2 of it (an H200;
// attention's scores with heads of 128 and of 64).
template <typename CONFIG>
__device__ __forceinline__ void multiply_and_store_several(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                           Output<CONFIG>& output, int tiles, int stages) {
    if constexpr (CONFIG::STORES_BEHIND) {
        if (!output.plain) return multiply_and_store_behind<CONFIG, CONFIG::BOXES, CONFIG::SHORTENS>(args, shared, consumer, output, tiles, stages);
        if (stages >= CONFIG::BOXES) return multiply_and_store_behind<CONFIG, CONFIG::BOXES, false>(args, shared, consumer, output, tiles, stages);
        if constexpr (CONFIG::BOXES == 4) {
            if (stages == 2) return multiply_and_store_behind<CONFIG, 2, false>(args, shared, consumer, output, tiles, stages);
        }
    }
    multiply_and_store<CONFIG>(args, shared, consumer, output, tiles, stages);
}

// The same where the epilogue is a short one with GELU, of tiles that have HELD_PARTS stages at least. HELD sums of a thread wait in FP32, and are computed behind
// these stages of the next tile, a few behind each; the others, for which registers do not last, are computed at the end of their tile and stored
// behind the first stage of the next one. Of a tile of 256 columns that is half and half. At the very end what waits passes by in turn: another copy of
// all of the code took longer to fetch than to execute.
template <typename CONFIG>
__device__ __forceinline__ void multiply_and_activate_behind(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                             Output<CONFIG>& output, int tiles, int stages) {
    constexpr int kHeld = CONFIG::HELD, kNow = CONFIG::SUMS - kHeld, kPart = CONFIG::HELD_PART, kBoxSums = CONFIG::BOX_SUMS;
    constexpr int kBoxesNow = kNow / kBoxSums;
    static_assert(kBoxesNow <= CONFIG::BUFFERS, "each box that is stored later has a buffer");
    float held[kHeld] = {};
    ShortEpilogue<CONFIG::TYPE, CONFIG::SUMS> epilogue;
    int tile = 0;
    const auto behind = [&](int part) {
        if (tile == 0) return;
        if (kBoxesNow > 0 && part == 0) output.template send_staged<kBoxesNow>(*shared.place(tile - 1), 0);
        const int first = part * kPart, next = first + kPart;
#pragma unroll
        for (int i = 0; i < kPart; ++i) held[first + i] = gelu_erf_of<CONFIG::TYPE>(held[first + i]);
        if (next % kBoxSums == 0) output.store_values(*shared.place(tile - 1), held, next - kBoxSums, kBoxesNow + first / kBoxSums);
    };
#pragma unroll 1
    for (; tile < tiles; ++tile) {
        consumer.begin(args, shared.place(tile));
        float sum[CONFIG::SUMS];
        consumer.template accumulate_with<CONFIG::HELD_PARTS, true>(
            sum, stages, behind, [&] { epilogue.ask(args, shared.place(tile)->row_s + output.lane % 4 * 2); });
        Scalars(args).scale_all(sum);
        epilogue.add(sum);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] = sum[kNow + i];
        if constexpr (kBoxesNow > 0) {
            output.empty_staging();
#pragma unroll
            for (int first = 0; first < kNow; first += kBoxSums) {
#pragma unroll
                for (int i = first; i < first + kBoxSums; ++i) sum[i] = gelu_erf_of<CONFIG::TYPE>(sum[i]);
                output.stage_values(sum, first);
            }
        }
    }
    const Place place = *shared.place(tile - 1);
    if constexpr (kBoxesNow > 0) output.template send_staged<kBoxesNow>(place, 0);
    in_turn<CONFIG::HELD_TURN>(held, [&](int turn, float (&x)[CONFIG::HELD_TURN]) {
        epilogue.template activate_as<true>(args, x);
        output.store_in_turn(place, kBoxesNow, turn, x);
    });
}

// The pieces of this cluster's range. What they are is found out anew behind the multiplications, and not kept: registers are short.
template <typename CONFIG>
__device__ __forceinline__ void multiply_pieces(const GemmArgs& args, const Shared<CONFIG>& shared, Consumer<CONFIG>& consumer,
                                                Output<CONFIG>& output, bool is_short) {
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
            row_r += output.warp * kFragmentRows;
            consumer.add(sum, pieces.others());
            if constexpr (CONFIG::SHORTENS) {
                if (is_short && args.activation == kGeluErf) {   // what takes longest; for the others one copy of the code will do
                    ShortEpilogueOf<CONFIG> epilogue;
                    const int col = row_s + output.lane % 4 * 2;
                    epilogue.ask(args, col);
                    epilogue.template apply_as<true>(args, col, sum, storing_parts(args, output, row_r, row_s, batch));
                    continue;
                }
            }
            finish<CONFIG>(args, output, row_r, row_s, batch, sum);
        }
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
        const bool produces = warp == CONFIG::WARPS && ptx::elect_lane();
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
        const int stages = work.stages();
        const bool is_short = CONFIG::SHORTENS && output.mapped && !output.plain && !cut && ShortEpilogueOf<CONFIG>::suits(args);
        const bool gelu = is_short && args.activation == kGeluErf;
        const bool behind = CONFIG::STORES_BEHIND && stages >= (gelu ? CONFIG::HELD_PARTS : CONFIG::BOXES);
        // Boxes that begin amid a sector only where many stages lie between them: see multiply_and_store.
        const bool follow = (output.plain && output.whole) || (behind && (output.plain || is_short));
        if (!CONFIG::SWAPPED && !CONFIG::GATED && work.several() && follow && stages > 0) {
            if constexpr (CONFIG::STORES_BEHIND && CONFIG::SHORTENS) {
                if (gelu) multiply_and_activate_behind<CONFIG>(args, shared, consumer, output, work.left(), stages);
                else multiply_and_store_several<CONFIG>(args, shared, consumer, output, work.left(), stages);
            } else if constexpr (!CONFIG::SWAPPED && !CONFIG::GATED) {
                multiply_and_store_several<CONFIG>(args, shared, consumer, output, work.left(), stages);
            }
        } else for (Work<CONFIG> mine = work; mine.more(); mine.next()) {
            int row_r, row_s, batch;
            mine.locate(row_r, row_s, batch);
            consumer.turn_to(args, row_r);
            row_r += warp * kFragmentRows;
            float sum[CONFIG::SUMS];
            if constexpr (CONFIG::SHORTENS) {
                if (is_short) {
                    ShortEpilogueOf<CONFIG> epilogue;
                    const int col = row_s + lane % 4 * 2;
                    epilogue.ask(args, col);
                    consumer.accumulate(sum, mine.stages());
                    epilogue.apply(args, col, sum, storing_parts(args, output, row_r, row_s, batch));
                    continue;
                }
            }
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
            if (Work<CONFIG>::streams(args)) multiply_pieces(args, shared, consumer, output, is_short);
        }
        output.finish();
    }
}

}  // namespace

// TILE, rows of R, rows of S, orientation of R and of S, swapped, blocks that share an operand, blocks a multiprocessor, rows from a tile of R
// to the next, whether it is R that they share, whether columns are gated. Names give the tile of A·B, m × n.
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

// Gate and up of a gated layer, whose rows are S in turn: half as many columns of D, and nothing between two products.
GEMM_HALF_SM90(128x256_2cta_gated_nt, 128, 256, Major::kK, Major::kK, false, 2, 1, 128, false, true)
GEMM_HALF_SM90(128x224_2cta_gated_nt, 128, 224, Major::kK, Major::kK, false, 2, 1, 128, false, true)
GEMM_HALF_SM90(128x128_gated_nt, 128, 128, Major::kK, Major::kK, false, 1, 1, 128, false, true)

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
