// Strict FP32 GEMM for two operands that are both contiguous along k (x·Wᵀ, as linear layers store it), on Hopper, for few
// to some hundred rows of x: problems that are one short wave of tiles, or less.
//
// The other kernels read shared memory along m and n, so an operand that is contiguous along k has to be transposed in the
// registers of a producer. Here nobody transposes: TMA brings boxes of 32 k as they lie in memory, and a
// thread reads 16 bytes along k of each of its 8 rows of A and 8 of B: 256 FFMA to 16 reads, 94 %, as with any 8 × 8 tile.
// One thread issues the copies, so loads cost no registers, and the ring of stages holds 131 to 164 KB that are on their way.
//
//   stage     rows of A, then rows of B, 128 bytes (32 k) each; chunk c (16 bytes) of row r lies at c ^ r % 8
//   turn      a consumer warp reads one chunk of its rows, then multiplies: eight turns a stage, or its share of them
//   groups    small tiles have work for less than eight warps: a group of warps covers the tile. SETS of groups take stages
//             in turn, and the groups of a set share its chunks. Where there are several sets, two warps of a scheduler are
//             of different ones: where all warps share a stage, all wait for it, read together and multiply together, and
//             neither covers for the other
//
// The main loop, and why it keeps two sums for each output, is along_k_tile.cuh. ffma_small_m_sm90.cu has it, too, for at most 16
// rows: there x stays in shared memory and only W streams, blocks take strips of W from a queue, and warps of their own finish them.
//
// Traffic: (BM + BN) · 128 bytes a stage for BM · BN · 64 FLOP: from 14 FLOP a byte (16 × 128) to 32 (128 × 128) past the L2.
// W is read once for every BM rows of x; with few rows memory is the limit, at 2.9 of 3.35 TB/s.
//
// Two ways to fill the multiprocessors. One tile a block, and where tiles are few, a cluster of split_k blocks cuts the k of
// each: every block leaves its sums in shared memory, and each adds up and stores its share. That is the quickest end, but
// tiles times blocks of a cluster are seldom the number of multiprocessors. The kernels called stream_k have persistent blocks
// instead, which share the steps of k equally: scheduler/stream_k.cuh. Sums are always added in the order of k: the same bits every
// time.
#include <cuda.h>

#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/stream_k.cuh"
#include "../scheduler/tiles.cuh"
#include "along_k_tile.cuh"
#include "lanes.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

// How k is cut: by a cluster of blocks, one tile a cluster, or by persistent blocks that share the steps of k.
enum class Cut { kCluster, kStream };

template <int BM, int BN, int LM, int SETS, int STAGES, Cut CUT>
struct KMajor {
    static constexpr int BK = 32;                                // one row of a stage: 128 bytes, the width of the swizzle
    static constexpr int kRowBytes = BK * 4;
    static constexpr int LN = kWarp / LM, TM = 8, TN = 8;
    static constexpr int kWarpM = LM * TM, kWarpN = LN * TN;
    static constexpr int kWarpsM = BM / kWarpM, kWarpsN = BN / kWarpN;
    static constexpr int kGroupWarps = kWarpsM * kWarpsN;        // warps that cover the tile once
    static constexpr int kConsumerWarps = 8, kGroups = kConsumerWarps / kGroupWarps;
    static constexpr int kConsumers = kConsumerWarps * kWarp;
    static constexpr int kProducers = 128;                       // a warpgroup that gives its registers away; one thread works
    static constexpr int kThreads = kConsumers + kProducers;
    static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
    static constexpr int kConsumerBarrier = 1;
    static constexpr int kSetGroups = kGroups / SETS;            // groups that share a stage
    static constexpr int kTurns = kRowBytes / kChunk / kSetGroups;   // of a warp in a stage
    static constexpr int kStageBytes = (BM + BN) * kRowBytes;
    static constexpr int kQuads = BM * BN / kVector;                // 16-byte pieces of the tile
    static constexpr int kQuadRow = BN / kVector;
    static constexpr int kBankRows = BN < kWarp ? kWarp / BN : 1;   // rows that lie in 32 banks
    static constexpr int kEach = kQuads / kConsumers;            // that a thread stores
    static constexpr int kTogether = 2;                          // of them, where pieces of a tile come from other blocks
    static constexpr int kAhead = 4;                             // slices of k whose sums a thread has under way
    using Finish = stream_k::Finish<kConsumers, kEach, kTogether, kConsumerBarrier>;
    static_assert(kWarpsM * kWarpM == BM && kWarpsN * kWarpN == BN, "warp tiles fill the block tile");
    static_assert(kGroups * kGroupWarps == kConsumerWarps, "groups fill the block");
    static_assert(kSetGroups * SETS == kGroups && kTurns * kSetGroups * kChunk == kRowBytes,
                  "groups and chunks are dealt out evenly");
    static_assert(STAGES % SETS == 0, "a stage is always the same set's, which so sees every round of its barriers: by their "
                                      "parity, a round cannot be told from the one before the last");
    static_assert(kQuads % kConsumers == 0, "threads store equal shares of a whole tile");
    static_assert(kConsumerRegisters * kConsumers + kProducerRegisters * kProducers <= registers_at_launch(kThreads) * kThreads,
                  "a block can only deal out the registers that it was launched with; with more to ask it waits forever");

    struct Shared {
        unsigned char stage[STAGES][kStageBytes];
        float4 sums[kGroups][kQuads];
        uint64_t full[STAGES], empty[STAGES];
        int number;   // that this block drew, for stream-K

        __device__ __forceinline__ typename Finish::Sums& tile() {
            return *reinterpret_cast<typename Finish::Sums*>(sums[0]);
        }
        // After the last tile the stages are free.
        __device__ __forceinline__ typename Finish::Ahead& parts() {
            static_assert(sizeof(stage) >= sizeof(typename Finish::Ahead), "parts of a tile take the room of the stages");
            return *reinterpret_cast<typename Finish::Ahead*>(stage);
        }
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= kSharedLimit, "what a block may have");
    static_assert(kStageBytes % (kSwizzle * kRowBytes) == 0 && BM % kSwizzle == 0, "boxes start on a period of the swizzle");

    // Neighbouring rows of a thread are so far apart that all have the same place in the swizzle, where there are enough
    // warps to take the rows between.
    static constexpr int kRowStep = LM == 4 && kWarpsM % 2 == 0 ? kSwizzle : LM;
    static constexpr int kColStep = LN == 4 && kWarpsN % 2 == 0 ? kSwizzle : LN;

    // First row of a thread in the block's tile (and, with the numbers of the other side, its first column).
    template <int LANES, int STEP>
    static __device__ __forceinline__ int first(int warp, int lane) {
        return STEP == LANES ? warp * LANES * 8 + lane : warp / 2 * LANES * 16 + warp % 2 * LANES + lane;
    }

    // A tile, or a part of its k: `steps` stages from k_begin on.
    struct Work {
        int batch, row, col, k_begin, steps;
    };

    // The block's work of this number, if it has so many.
    static __device__ __forceinline__ bool take(const GemmArgs& args, const Shared& shared, int number, Work& work) {
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        if constexpr (CUT == Cut::kStream) {
            stream_k::Piece piece;
            if (!schedule_of(args, shared, grid).take(number, piece)) return false;
            const WorkUnit unit = work_unit<BM, BN>(args, grid, piece.tile);
            work = {unit.batch, unit.row, unit.col, piece.begin * BK, piece.end - piece.begin};
        } else {
            if (number > 0) return false;
            work = {0, 0, static_cast<int>(blockIdx.x) * BN, 0, (args.k - 1) / BK + 1};   // simplest, without a division
            if (grid.tiles_m > 1 || args.batch > 1 || args.split_k > 1 || gridDim.y > 1) {
                const WorkUnit unit = work_unit<BM, BN>(args, grid, blockIdx.x);
                work = {unit.batch, unit.row, unit.col, unit.k_begin, (unit.k_end - unit.k_begin + BK - 1) / BK};
            }
        }
        return true;
    }

    static __device__ __forceinline__ stream_k::Schedule schedule_of(const GemmArgs& args, const Shared& shared,
                                                                     const TileGrid& grid) {
        return {args, shared.number, grid.units(args), (args.k - 1) / BK + 1};
    }

    static __device__ __forceinline__ void run(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
        extern __shared__ __align__(1024) unsigned char shared_bytes[];
        Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
        if (threadIdx.x == kConsumers) {
            ptx::tma_prefetch_descriptor(&a_map);
            ptx::tma_prefetch_descriptor(&b_map);
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], 1);
                ptx::mbarrier_init(&shared.empty[stage], kConsumerWarps / SETS);
            }
            if (CUT == Cut::kStream) shared.number = stream_k::draw_number(args);
            ptx::fence_mbarrier_init();
        }
        ptx::wait_for_previous_kernels();   // one of them may repack an operand, while this one gets ready
        __syncthreads();
        if (threadIdx.x >= kConsumers) {
            ptx::registers_decrease_to<kProducerRegisters>();
            if (threadIdx.x == kConsumers) produce(args, a_map, b_map, shared);
        } else {
            ptx::registers_increase_to<kConsumerRegisters>();
            multiply(args, shared);
        }
    }

    // ---- load ----

    static __device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map,
                                                   Shared& shared) {
        Ring<STAGES> cursor{0, 0};
        Work work;
        for (int number = 0; take(args, shared, number, work); ++number) {
            const BatchCoordinates a(args, args.a, work.batch), b(args, args.b, work.batch);
            for (int step = 0; step < work.steps; ++step) {
                const int k = work.k_begin + step * BK;
                ptx::mbarrier_wait(&shared.empty[cursor.stage], cursor.parity ^ 1);   // the first round is free
                uint64_t* full = &shared.full[cursor.stage];
                unsigned char* stage = shared.stage[cursor.stage];
                ptx::mbarrier_arrive_expect_bytes(full, kStageBytes);
                ptx::tma_load_5d(stage + BM * kRowBytes, &b_map, full, k, work.col, b.x, b.y, b.z);
                ptx::tma_load_5d(stage, &a_map, full, k, work.row, a.x, a.y, a.z);
                cursor.advance(1);
            }
        }
    }

    // ---- compute ----

    // How far the rows of a thread's outputs are from its first.
    struct Steps {
        static __device__ __forceinline__ constexpr int a(int i) { return i * kRowStep; }
        static __device__ __forceinline__ constexpr int b(int j) { return j * kColStep; }
    };
    using Tile = AlongKTile<TM, TN, Steps>;

    static __device__ __forceinline__ void multiply(const GemmArgs& args, Shared& shared) {
        const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
        const int group = ptx::recompute(warp) / kGroupWarps, in_group = warp % kGroupWarps;   // not known: see AlongKTile
        const int row = first<LM, kRowStep>(in_group / kWarpsN, Lanes<LM, LN>::m(lane));
        const int col = first<LN, kColStep>(in_group % kWarpsN, Lanes<LM, LN>::n(lane));
        const uint32_t ring = ptx::shared_address(shared.stage);
        const uint32_t a_lane = ring + row * kRowBytes + row % kSwizzle * kChunk;
        const uint32_t b_lane = ring + (BM + col) * kRowBytes + col % kSwizzle * kChunk;
        const uint32_t first_chunk = group % kSetGroups * kTurns * kChunk;

        Ring<STAGES> cursor{group / kSetGroups, 0};
        int next = cursor.stage;   // the set's next step, counted from the first of this work
        Work work;
        for (int number = 0; take(args, shared, number, work); number = ptx::recompute(number + 1)) {
            Tile tile;
            tile.clear();
#pragma unroll 1
            for (; next < work.steps; next += SETS) {
                const uint32_t at = cursor.stage * kStageBytes;
                tile.template multiply_stage<kTurns, kChunk>(shared.full, shared.empty, cursor, a_lane, at, b_lane, at, first_chunk,
                                                             lane);
                cursor.advance(SETS);
            }
            next -= work.steps;

            tile.pair_registers(args.m <= 0, shared.sums[0] + thread);
            if (number > 0) ptx::named_barrier_sync(kConsumerBarrier, kConsumers);   // nobody reads the last tile's sums any more
            float* sums = reinterpret_cast<float*>(shared.sums[group]);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sums[place_of(row + i * kRowStep, col + j * kColStep)] = tile.total(i, j);
            ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
            if constexpr (CUT == Cut::kStream) store_piece(args, shared, ptx::recompute(number), ptx::recompute(thread));
            else store(args, shared, work, thread);
        }
    }

    // ---- store ----

    // Sums lie in shared memory row by row. The quads of a row are permuted, so that the lanes of a warp, LM rows by LN
    // columns, write to 32 banks. Where a warp has but two columns (128 × 16), rows that lie in the same banks are told apart.
    static __device__ __forceinline__ int permutation(int row) {
        return LN < kVector ? row / kBankRows % kQuadRow : row % LM * (LN / kVector);
    }
    static __device__ __forceinline__ int place_of(int row, int col) {
        return (row * kQuadRow + (col / kVector ^ permutation(row))) * kVector + col % kVector;
    }
    static_assert((LM - 1) * (LN / kVector) < kQuadRow && (kQuadRow & (kQuadRow - 1)) == 0, "a permutation stays within a row");

    static __device__ __forceinline__ float4 sum_groups(const Shared& shared, int quad) {
        float4 sum = shared.sums[0][quad];
#pragma unroll
        for (int group = 1; group < kGroups; ++group) add(sum, shared.sums[group][quad]);
        return sum;
    }

    // The epilogue of the quad at this place.
    static __device__ __forceinline__ void store_quad(const GemmArgs& args, const Epilogue& epilogue, const Work& work, int quad,
                                                      float4 sum) {
        const int row = quad / kQuadRow, col = (quad % kQuadRow ^ permutation(row)) * kVector;
        epilogue.store_vector(args, work.row + row, work.col + col, sum);
    }

    static __device__ __forceinline__ void store(const GemmArgs& args, Shared& shared, const Work& work, int thread) {
        const Epilogue epilogue(args, work.batch);
        if (args.split_k == 1) {
#pragma unroll 1
            for (int quad = thread; quad < kQuads; quad += kConsumers)
                store_quad(args, epilogue, work, quad, sum_groups(shared, quad));
            return;
        }
        if (kGroups > 1) {
#pragma unroll 1
            for (int quad = thread; quad < kQuads; quad += kConsumers) shared.sums[0][quad] = sum_groups(shared, quad);
        }
        ptx::cluster_sync();
        const int slice = static_cast<int>(ptx::cluster_rank()), last = kQuads * (slice + 1) / args.split_k;
#pragma unroll 1
        for (int quad = kQuads * slice / args.split_k + thread; quad < last; quad += kConsumers)
            store_quad(args, epilogue, work, quad, sum_of_slices<kAhead>(args.split_k, [&](int of) {
                return ptx::load_cluster_vector(ptx::cluster_address(&shared.sums[0][quad], of));
            }));
        ptx::cluster_sync();   // no block leaves while another reads its sums
    }

    static __device__ __forceinline__ void store_piece(const GemmArgs& args, Shared& shared, int number, int thread) {
        const stream_k::Schedule schedule = schedule_of(args, shared, TileGrid::of<BM, BN>(args));
        stream_k::Piece piece;
        Work work;
        schedule.take(number, piece);
        take(args, shared, number, work);
        const Finish finish(args, schedule, piece, shared.tile(), thread);
#pragma unroll 1
        for (int group = 0; group < kEach / kTogether; ++group) {
            float4* place = finish.place(group);
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                place[i * kConsumers] = sum_groups(shared, (group * kTogether + i) * kConsumers + thread);
        }
        const Epilogue epilogue(args, work.batch);
        finish.run(shared.parts(), [&](int group, int warp, const float4 (&sums)[kTogether]) {
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int quad = (group * kTogether + i) * kConsumers + warp * kWarp + thread % kWarp;
                store_quad(args, epilogue, work, quad, sums[i]);
            }
        });
    }
};

}  // namespace ffma_gemm

// NAME, then the tile: BM, BN, lanes along m, sets of groups of warps, stages, how blocks divide k.
#define FFMA_KMAJOR(NAME, ...)                                                                                      \
    enum : int { NAME##_shared = ffma_gemm::KMajor<__VA_ARGS__>::kSharedBytes };                                    \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::KMajor<__VA_ARGS__>::kThreads), 1)                     \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,                      \
             const __grid_constant__ CUtensorMap b_map) {                                                           \
        ffma_gemm::KMajor<__VA_ARGS__>::run(args, a_map, b_map);                                                    \
    }

using ffma_gemm::Cut;

FFMA_KMAJOR(ffma_kmajor_16x128_sm90, 16, 128, 2, 4, 8, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_32x64_sm90, 32, 64, 4, 4, 12, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_32x128_sm90, 32, 128, 4, 4, 8, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_128x16_sm90, 128, 16, 16, 4, 8, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_64x32_sm90, 64, 32, 8, 4, 12, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_128x32_sm90, 128, 32, 8, 4, 8, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_64x64_sm90, 64, 64, 8, 4, 8, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_128x64_sm90, 128, 64, 8, 2, 6, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_128x128_sm90, 128, 128, 8, 1, 5, Cut::kCluster)
FFMA_KMAJOR(ffma_kmajor_64x64_stream_k_sm90, 64, 64, 8, 4, 8, Cut::kStream)
FFMA_KMAJOR(ffma_kmajor_128x64_stream_k_sm90, 128, 64, 8, 2, 6, Cut::kStream)

#endif  // sm_90a
