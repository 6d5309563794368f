// Strict FP32 GEMM for at most 16 rows of x and operands that are both contiguous along k (x·Wᵀ), on Hopper: W is read once,
// at the speed of memory.
//
// With 16 rows an element of W takes part in 16 products, 8 FLOP a byte, where FFMA would limit an H100 at 20. So this is a
// stream of W, as in gemv.cu, but with too many rows for each piece of x to come out of the L1. ffma_kmajor_sm90.cu streams W
// too, and loses where blocks with equal shares of W end between 19 and 31 µs after the start, because multiprocessors do
// not get equal shares of the bandwidth. Here shares follow the speed:
//
//   slice     k is cut into slices of at most 2048, and a block works on one slice: x's part of it stays in shared memory
//   strip     16 rows of W, by the length of the slice: two for every block at first, then from a work queue, one by one
//   stage     256 k of a strip in the ring, a box of 32 k for each consumer warp: [row][k], 128 bytes (swizzled) a row
//   lane      8 rows of x by 8 rows of W, every lane with k of its own or shared with three others: 256 FFMA to 16 reads, in the main
//             loop of along_k_tile.cuh
//
// A producer warp asks for strips, three finisher warps end them: the consumer warps leave their sums and go on. Where k
// has several slices, the sums of a strip go to the workspace, and the finisher that is the last to bring its slice adds
// them up, in the order of k: the same bits every time, and nobody waits for another block. Counters are 0 before and after
// every launch: of strips taken, for each slice; of slices done, for each strip.
//
// Traffic: W once, x once a block out of the L2; in the ring 80 KB of W are on their way, three times what memory at 3 TB/s
// and 1 µs needs.
#include <cuda.h>

#include "../epilogue/epilogue.cuh"
#include "../epilogue/lane_sum.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "along_k_tile.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

constexpr int kCounterBytes = 1 << 16;   // before the workspace: src/gemm/schedule/work_queue.rs knows it, too

// BM rows of x, which LM lanes share; stages of the ring; the longest slice.
template <int BM, int LM, int STAGES, int MAX_SLICE>
struct SmallM {
    static constexpr int BN = 16, LN = 2, TM = 8, TN = 8;
    static constexpr int LK = kWarp / (LM * LN);               // lanes with chunks of k of their own
    static constexpr int kBoxK = 32, kRowBytes = kBoxK * 4;
    static constexpr int kConsumerWarps = 8, kConsumers = kConsumerWarps * kWarp;
    static constexpr int kHelpers = 128;                       // a warpgroup: one producer warp, and finishers
    static constexpr int kFinishers = kHelpers / kWarp - 1;    // warps, which take strips in turn
    static constexpr int kThreads = kConsumers + kHelpers;
    static constexpr int kSumsBarrier = 1;                     // and following: a finisher's sums are there
    static constexpr int kConsumerRegisters = 216, kHelperRegisters = 72;
    static constexpr int kStageK = kConsumerWarps * kBoxK;
    static constexpr int kTurns = kRowBytes / kChunk / LK;     // chunks of a lane in a box
    static constexpr int kBoxX = BM * kRowBytes, kBoxW = BN * kRowBytes;
    static constexpr int kQuadRow = BN / kVector, kQuads = BM * kQuadRow;   // 16-byte pieces of a strip's result
    static constexpr int kTogether = 4;                        // slices' sums that a finisher has under way
    static constexpr int kFixed = 2;                           // strips of a block that are not from the queue
    static constexpr int kAhead = 2;                           // stages that are asked for before the block has gathered
    // So many rows of a lane are neighbours; then come those of the other lanes. So all of a lane's rows that are a period
    // of the swizzle apart have the same place in it, and the lanes of half a warp read from all banks.
    static constexpr int kRunM = kSwizzle / LM, kRunN = kSwizzle / LN;
    static_assert(LM * TM == BM && LN * TN == BN, "a warp's lanes cover the strip's result");
    static_assert(TM % LK == 0 && kRunN % kVector == 0, "a lane ends up with whole vectors of a row");
    static_assert(kAhead <= STAGES && MAX_SLICE % kStageK == 0, "slices are made of stages");
    static_assert(kConsumerRegisters * kConsumers + kHelperRegisters * kHelpers <= registers_at_launch(kThreads) * kThreads,
                  "a block can only deal out the registers that it was launched with; with more to ask it waits forever");

    struct Shared {
        unsigned char w[STAGES][kConsumerWarps][kBoxW];
        unsigned char x[MAX_SLICE / kBoxK][kBoxX];
        float4 sums[kConsumerWarps][kQuads];
        uint64_t full[STAGES], empty[STAGES], sums_empty;
        int strip[STAGES];   // whose stage it is; -1: there are no more
        int done;            // the strip of the sums; -1: there are no more
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= kSharedLimit, "what a block may have");
    static_assert(kBoxX % (kSwizzle * kRowBytes) == 0 && kBoxW % (kSwizzle * kRowBytes) == 0,
                  "boxes start on a period of the swizzle");

    // What a block works on: a slice of a matrix of the batch is a group's, which has `members` blocks.
    struct Share {
        int group, member, members, batch, k_begin, steps, strips;
        __device__ __forceinline__ explicit Share(const GemmArgs& args) {
            const int groups = args.batch * args.split_k, block = static_cast<int>(blockIdx.x);
            member = block / groups;
            group = block - member * groups;
            members = static_cast<int>(gridDim.x) / groups;
            batch = group / args.split_k;
            k_begin = (group - batch * args.split_k) * args.k_slice;
            steps = (min(args.k_slice, args.k - k_begin) - 1) / kStageK + 1;
            strips = (args.n - 1) / BN + 1;
        }
    };

    static __device__ __forceinline__ unsigned* strips_taken(const GemmArgs& args) { return static_cast<unsigned*>(args.workspace); }
    static __device__ __forceinline__ unsigned* slices_done(const GemmArgs& args) {
        return strips_taken(args) + args.batch * args.split_k;
    }
    static __device__ __forceinline__ float4* sums_of(const GemmArgs& args, const Share& share, int group, int strip) {
        return reinterpret_cast<float4*>(static_cast<unsigned char*>(args.workspace) + kCounterBytes) +
               (static_cast<int64_t>(group) * share.strips + strip) * kQuads;
    }

    static __device__ __forceinline__ void run(const GemmArgs& args, const CUtensorMap& x_map, const CUtensorMap& w_map) {
        extern __shared__ __align__(1024) unsigned char shared_bytes[];
        Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
        const int warp = threadIdx.x / kWarp;
        const bool produces = warp == kConsumerWarps;
        if (threadIdx.x == kConsumers) {
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], 1);
                ptx::mbarrier_init(&shared.empty[stage], kConsumerWarps);
            }
            ptx::mbarrier_init(&shared.sums_empty, kWarp);
            ptx::fence_mbarrier_init();
        }
        ptx::wait_for_previous_kernels();   // one of them may write an operand, or use the workspace
        if (produces) {
            __syncwarp();
            const Share share(args);
            const Loader loader(args, share, x_map, w_map, shared);
            for (int step = 0; step < min(share.steps, kAhead); ++step) loader.load(step, share.member, step, true);
        }
        __syncthreads();
        if (warp < kConsumerWarps) {
            ptx::registers_increase_to<kConsumerRegisters>();
            multiply(args, shared);
        } else {
            ptx::registers_decrease_to<kHelperRegisters>();
            if (produces) produce(args, x_map, w_map, shared);
            else finish(args, shared);
        }
    }

    // ---- load ----

    // A warp that asks for a stage of W, and for x's part of it where that is not there yet: a lane for each box.
    struct Loader {
        const CUtensorMap& x_map;
        const CUtensorMap& w_map;
        Shared& shared;
        const BatchCoordinates x, w;
        const int lane, k_begin;

        __device__ __forceinline__ Loader(const GemmArgs& args, const Share& share, const CUtensorMap& x_map,
                                          const CUtensorMap& w_map, Shared& shared)
            : x_map(x_map), w_map(w_map), shared(shared), x(args, args.a, share.batch), w(args, args.b, share.batch),
              lane(threadIdx.x % kWarp), k_begin(share.k_begin) {}

        __device__ __forceinline__ void load(int stage, int strip, int step, bool with_x) const {
            uint64_t* full = &shared.full[stage];
            if (lane == 0) {
                shared.strip[stage] = strip;
                ptx::mbarrier_arrive_expect_bytes(full, kConsumerWarps * (kBoxW + (with_x ? kBoxX : 0)));
            }
            __syncwarp();
            const int box = lane % kConsumerWarps, k = k_begin + step * kStageK + box * kBoxK;
            if (lane < kConsumerWarps)
                ptx::tma_load_5d(shared.w[stage][box], &w_map, full, k, strip * BN, w.x, w.y, w.z);
            else if (with_x && lane < 2 * kConsumerWarps)
                ptx::tma_load_5d(shared.x[step * kConsumerWarps + box], &x_map, full, k, 0, x.x, x.y, x.z);
        }
    };

    static __device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& x_map, const CUtensorMap& w_map,
                                                   Shared& shared) {
        const Share share(args);
        const Loader loader(args, share, x_map, w_map, shared);
        const int fixed = kFixed * share.members;
        // Every block that had its fixed strips draws until it gets none; the last to do so clears the counter.
        const unsigned draws = max(share.strips - fixed, 0) + min(share.strips - share.members, share.members);
        int step = min(share.steps, kAhead);   // these are on their way
        Ring<STAGES> cursor{step % STAGES, static_cast<uint32_t>(step / STAGES)};
        int strip = share.member;
        for (int number = 0; strip < share.strips; ++number) {
            for (; step < share.steps; ++step) {
                ptx::mbarrier_wait(&shared.empty[cursor.stage], cursor.parity ^ 1);   // the first round is free
                loader.load(cursor.stage, strip, step, number == 0);
                cursor.advance();
            }
            step = 0;
            if (number + 1 < kFixed) {
                strip += share.members;
            } else {
                unsigned drawn = 0;
                if (loader.lane == 0) {
                    drawn = atomicAdd(strips_taken(args) + share.group, 1u);
                    if (drawn == draws - 1) strips_taken(args)[share.group] = 0;
                }
                strip = fixed + static_cast<int>(__shfl_sync(kWholeWarp, drawn, 0));
            }
        }
        ptx::mbarrier_wait(&shared.empty[cursor.stage], cursor.parity ^ 1);
        if (loader.lane == 0) {
            shared.strip[cursor.stage] = -1;
            ptx::mbarrier_arrive(&shared.full[cursor.stage]);
        }
    }

    // ---- compute ----

    // Row number i of a lane, counted from its first.
    template <int RUN>
    static __device__ __forceinline__ constexpr int row_of(int i) {
        return i % RUN + i / RUN * kSwizzle;
    }

    struct Steps {
        static __device__ __forceinline__ constexpr int a(int i) { return row_of<kRunM>(i); }
        static __device__ __forceinline__ constexpr int b(int j) { return row_of<kRunN>(j); }
    };
    using Tile = AlongKTile<TM, TN, Steps>;

    static __device__ __forceinline__ void multiply(const GemmArgs& args, Shared& shared) {
        const Share share(args);
        const int lane = threadIdx.x % kWarp, warp = ptx::recompute(threadIdx.x / kWarp);   // not known: see AlongKTile
        // Neighbouring lanes differ in W's rows, the next bits are x's rows, the others chunks of k.
        const int row = lane / LN % LM * kRunM, col = lane % LN * kRunN, chunk = lane / (LN * LM);
        const uint32_t x_lane = ptx::shared_address(shared.x[warp]) + row * kRowBytes + (row % kSwizzle ^ chunk) * kChunk;
        const uint32_t w_lane = ptx::shared_address(shared.w[0][warp]) + col * kRowBytes + (col % kSwizzle ^ chunk) * kChunk;
        Ring<STAGES> cursor{0, 0};
        uint32_t sums_parity = 1;   // the first time they are free
        int finisher = 0;
        for (;;) {
            ptx::mbarrier_wait(&shared.full[cursor.stage], cursor.parity);
            const int strip = shared.strip[cursor.stage];
            if (strip < 0) break;
            Tile tile;
            tile.clear();
#pragma unroll 1
            for (int step = 0; step < share.steps; ++step) {
                tile.template multiply_stage<kTurns, LK * kChunk>(shared.full, shared.empty, cursor, x_lane, step * kConsumerWarps * kBoxX,
                                                                  w_lane, cursor.stage * kConsumerWarps * kBoxW, 0, lane);
                cursor.advance();
            }
            tile.pair_registers(args.m <= 0, shared.sums[0] + threadIdx.x);

            float sums[TM * TN];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) sums[i * TN + j] = tile.total(i, j);
            using Sum = LaneSum<TM * TN, kWarp / 2, LN * LM>;
            Sum::add(sums, lane);
            const int first = Sum::owned(lane) / TN;
            ptx::mbarrier_wait(&shared.sums_empty, sums_parity);
            sums_parity ^= 1;
#pragma unroll
            for (int i = 0; i < TM / LK; ++i)
#pragma unroll
                for (int j = 0; j < TN; j += kVector)
                    shared.sums[warp][(row + row_of<kRunM>(first + i)) * kQuadRow + (col + row_of<kRunN>(j)) / kVector] =
                        make_float4(sums[i * TN + j], sums[i * TN + j + 1], sums[i * TN + j + 2], sums[i * TN + j + 3]);
            if (threadIdx.x == 0) shared.done = strip;
            __syncwarp();
            ptx::named_barrier_arrive(kSumsBarrier + finisher, kConsumers + kWarp);
            finisher = finisher == kFinishers - 1 ? 0 : finisher + 1;
        }
        ptx::mbarrier_wait(&shared.sums_empty, sums_parity);
        if (threadIdx.x == 0) shared.done = -1;
        __syncwarp();
#pragma unroll
        for (finisher = 0; finisher < kFinishers; ++finisher)
            ptx::named_barrier_arrive(kSumsBarrier + finisher, kConsumers + kWarp);
    }

    // ---- store ----

    static __device__ __forceinline__ void finish(const GemmArgs& args, Shared& shared) {
        const Share share(args);
        const Epilogue epilogue(args, share.batch);
        const int lane = threadIdx.x % kWarp, finisher = threadIdx.x / kWarp - kConsumerWarps - 1;
        for (;;) {
            __syncwarp();
            ptx::named_barrier_sync(kSumsBarrier + finisher, kConsumers + kWarp);
            const int strip = shared.done;
            if (strip < 0) break;
            float4* mine = sums_of(args, share, share.group, strip);
#pragma unroll 1
            for (int quad = lane; quad < kQuads; quad += kWarp) {
                float4 sum = shared.sums[0][quad];
#pragma unroll
                for (int warp = 1; warp < kConsumerWarps; ++warp) add(sum, shared.sums[warp][quad]);
                if (args.split_k > 1) ptx::store_l2(mine + quad, sum);
                else store(args, epilogue, strip, quad, sum);
            }
            ptx::mbarrier_arrive(&shared.sums_empty);
            if (args.split_k > 1 && is_last(args, share, strip, lane)) {
#pragma unroll 1
                for (int quad = lane; quad < kQuads; quad += kWarp)
                    store(args, epilogue, strip, quad, sum_slices(args, share, strip, quad));
            }
        }
    }

    // Whether the sums of all slices of this strip are there, and can be read.
    static __device__ __forceinline__ bool is_last(const GemmArgs& args, const Share& share, int strip, int lane) {
        int last = 0;
        __syncwarp();   // every lane has left its sums
        if (lane == 0) {
            unsigned* counter = slices_done(args) + share.batch * share.strips + strip;
            __threadfence();   // this warp's sums before the count, and the others' after it
            last = atomicAdd(counter, 1u) == args.split_k - 1u;
            __threadfence();
            if (last) *counter = 0;
        }
        last = __shfl_sync(kWholeWarp, last, 0);
        __syncwarp();   // what lane 0 may read, all may
        return last != 0;
    }

    static __device__ __forceinline__ float4 sum_slices(const GemmArgs& args, const Share& share, int strip, int quad) {
        const float4* from = sums_of(args, share, share.batch * args.split_k, strip) + quad;
        const int64_t stride = static_cast<int64_t>(share.strips) * kQuads;
        return sum_of_slices<kTogether>(args.split_k, [&](int slice) { return ptx::load_l2(from + slice * stride); });
    }

    static __device__ __forceinline__ void store(const GemmArgs& args, const Epilogue& epilogue, int strip, int quad, float4 sum) {
        epilogue.store_vector(args, quad / kQuadRow, strip * BN + quad % kQuadRow * kVector, sum);
    }
};

}  // namespace ffma_gemm

// NAME, then: rows of x, lanes that share them, stages, the longest slice.
#define FFMA_SMALL_M(NAME, ...)                                                                                      \
    enum : int { NAME##_shared = ffma_gemm::SmallM<__VA_ARGS__>::kSharedBytes };                                    \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::SmallM<__VA_ARGS__>::kThreads), 1)                     \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap x_map,                      \
             const __grid_constant__ CUtensorMap w_map) {                                                           \
        ffma_gemm::SmallM<__VA_ARGS__>::run(args, x_map, w_map);                                                    \
    }

FFMA_SMALL_M(ffma_small_m_16_sm90, 16, 2, 5, 2048)

#endif  // sm_90a
