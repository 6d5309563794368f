// Strict FP32 GEMM for Hopper: products of one short wave of tiles. By TMA for NN and TN, and in 128 × 128 for TT;
// NT is left to ffma_kmajor_sm90.cu.
//
// The main loop of copied_stage.cuh, 8 × 16 outputs a thread, comes to 87 % of the issue slots; but a tile of eight such
// warps, 128 × 256, is too large for a result of 1024 × 1024, which has 32 of them, and smaller outputs a thread read more
// shared memory for an FFMA. Here the tile is smaller and the outputs of a thread are not: a group of one, two or four warps
// covers the tile, and two, four or eight groups take turns in the stages of k. When k is done, the sums of the groups are
// added up through shared memory.
//
//   tile        warps a group   groups   stages
//   128 × 128   4               2        12
//   64 × 128    2               4        16
//   64 × 64     1               8        24
//
// One tile a block, and where tiles are few, a cluster of split_k blocks cuts the k of each, adds up through distributed shared
// memory, and every block stores its share. Sums are always added in the order of groups and blocks: the same bits every time.
//
// Operands. As in ffma_specialized_sm90.cu, by TMA, and transposed in shared memory by producer warps where they are contiguous
// along k. Two warps that share a scheduler do not run alike, and each group has stages of its own, so what lies ready has to
// last for a group that runs ahead: with two stages a group the main loop reached 77 % of the FFMA's peak, with four 81 %. Since no tile
// follows the first, the sums can take the room of the stages when these are done, and 192 KB are stages.
// For operands at any alignment there is a kernel of 128 × 128 for all layouts, whose producers copy words: word_stage.cuh.
// Traffic: (BM + BN) · BK · 4 bytes for BM · BN · BK · 2 FLOP: 32 FLOP a byte, 21, and 16.
#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "copied_stage.cuh"
#include "word_stage.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

constexpr int kStageK = 16;   // k of a stage

// OPERANDS: how stages are filled, a CopiedStage or a WordStage. AHEAD: how many of them a producer warp asks TMA for before it transposes
// the first.
template <int BM, int BN, int STAGES, int AHEAD, typename OPERANDS>
struct SlicedK {
    static constexpr int BK = kStageK, TM = 8, TN = 16;
    using Consumers = ConsumerWarps<BM, BN, TM, TN>;
    using Thread = typename Consumers::Thread;
    using Operands = OPERANDS;
    static constexpr int kGroups = Consumers::kGroups, kGroupThreads = Consumers::kGroupWarps * kWarp;
    static constexpr int kConsumers = Consumers::kThreads;
    static constexpr int kProducerWarps = 4, kProducers = kProducerWarps * kWarp;
    static constexpr int kThreads = kConsumers + kProducers;
    static constexpr int kConsumerRegisters = 208, kProducerRegisters = 88;   // with 72 the producers would spill
    static constexpr int kConsumerBarrier = 1;                  // the consumer warps' own
    static constexpr int kEach = Thread::kPieces / kGroups;     // pieces that a thread stores
    static_assert(Thread::kPieces % kGroups == 0, "groups share the tile");
    static_assert(STAGES % kProducerWarps == 0 && STAGES % kGroups == 0, "a stage has one producer warp and one group");
    static_assert(Operands::kWords || (AHEAD >= 1 && AHEAD <= STAGES / kProducerWarps), "what is transposed has been asked for, into stages of its own");
    static_assert(kConsumerRegisters * kConsumers + kProducerRegisters * kProducers <= registers_at_launch(kThreads) * kThreads,
                  "a block can only deal out the registers that it was launched with; with more to ask it waits forever");

    struct Shared {
        union {
            typename Operands::Stage stages[STAGES];
            float4 sums[kGroups][kEach][kVector][kConsumers];   // after the last stage
        };
        uint64_t full[STAGES], empty[STAGES], raw[STAGES];
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= kSharedLimit, "what a block may have");

    static __device__ __forceinline__ WorkUnit work_of(const GemmArgs& args) {
        return work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
    }

    // `maps`: tensor maps of A and of B, for operands that TMA brings.
    template <typename... MAPS>
    static __device__ __forceinline__ void run(const GemmArgs& args, const MAPS&... maps) {
        extern __shared__ __align__(1024) unsigned char shared_bytes[];
        Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
        if (threadIdx.x == kConsumers) {
            (ptx::tma_prefetch_descriptor(&maps), ...);
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], Operands::kArrivals);
                if (!Operands::kWords) ptx::mbarrier_init(&shared.raw[stage], 1);
                ptx::mbarrier_init(&shared.empty[stage], Consumers::kGroupWarps);
            }
            if (!Operands::kWords) ptx::fence_mbarrier_init();   // for TMA
        }
        __syncthreads();
        ptx::wait_for_previous_kernels();   // one of them may repack an operand
        if (threadIdx.x >= kConsumers) {
            ptx::registers_decrease_to<kProducerRegisters>();
            produce(args, shared, threadIdx.x - kConsumers, maps...);
        } else {
            ptx::registers_increase_to<kConsumerRegisters>();
            multiply(args, shared, threadIdx.x);
        }
    }

    // ---- load ----

    static __device__ __forceinline__ void produce(const GemmArgs& args, Shared& shared, int thread) {
        const WorkUnit work = work_of(args);
        Ring<STAGES> cursor;
        static_assert(Operands::kThreads == kProducers, "all producers copy");
        Operands::produce(args, shared, cursor, work, work.k_begin, work.k_end, thread);
    }

    static __device__ __forceinline__ void produce(const GemmArgs& args, Shared& shared, int thread, const CUtensorMap& map_a,
                                                   const CUtensorMap& map_b) {
        const int warp = thread / kWarp, lane = thread % kWarp;
        const WorkUnit work = work_of(args);
        const BatchCoordinates at_a(args, args.a, work.batch), at_b(args, args.b, work.batch);
        const int steps = (work.k_end - work.k_begin + BK - 1) / BK;
        Ring<STAGES> ask{warp, 1}, turn{warp, 0};   // the first round is free
        int asked = warp;
        const auto ask_next = [&] {
            if (asked < steps) {
                ptx::mbarrier_wait(&shared.empty[ask.stage], ask.parity);
                if (lane == 0) {
                    uint64_t* full = &shared.full[ask.stage];
                    uint64_t* raw = &shared.raw[ask.stage];
                    typename Operands::Stage& stage = shared.stages[ask.stage];
                    Operands::expect(full, raw);
                    const int k = work.k_begin + asked * BK;
                    Operands::copy_a(stage, map_a, full, raw, work.row, k, at_a);
                    Operands::copy_b(stage, map_b, full, raw, work.col, k, at_b);
                }
                ask.advance(kProducerWarps);
                asked += kProducerWarps;
            }
        };
        if (!Operands::kTransposes) {
#pragma unroll 1
            while (asked < steps) ask_next();
        } else {
#pragma unroll 1
            for (int i = 0; i < AHEAD; ++i) ask_next();
#pragma unroll 1
            for (int step = warp; step < steps; step += kProducerWarps) {
                ptx::mbarrier_wait(&shared.raw[turn.stage], turn.parity);
                Operands::transpose(shared.stages[turn.stage], &shared.full[turn.stage], lane);
                turn.advance(kProducerWarps);
                ask_next();
            }
        }
    }

    // ---- compute ----

    static __device__ __forceinline__ void multiply(const GemmArgs& args, Shared& shared, int thread) {
        const int warp = thread / kWarp, lane = thread % kWarp, group = warp / Consumers::kGroupWarps, in_group = warp % Consumers::kGroupWarps;
        const int row = Consumers::first_row(in_group, lane), col = Consumers::first_col(in_group, lane);
        const WorkUnit work = work_of(args);
        const int steps = (work.k_end - work.k_begin + BK - 1) / BK;
        Thread tile;
        tile.clear();
        Ring<STAGES> cursor{group, 0};
        if (group < steps)
            Operands::multiply(tile, shared, cursor, (steps - group + kGroups - 1) / kGroups, row, col, lane,
                               [](Ring<STAGES>& cursor) { cursor.advance(kGroups); });
        store(tile, args, shared, ptx::recompute(thread));
    }

    // ---- store ----

    static __device__ __forceinline__ void store(const Thread& tile, const GemmArgs& args, Shared& shared, int thread) {
        ptx::named_barrier_sync(kConsumerBarrier, kConsumers);   // all have read the last stages
        float4* mine = &shared.sums[thread / kGroupThreads][0][0][thread % kGroupThreads];
#pragma unroll
        for (int piece = 0; piece < Thread::kPieces; ++piece)
#pragma unroll
            for (int i = 0; i < kVector; ++i)
                mine[(piece / kGroups * kVector + i) * kConsumers + piece % kGroups * kGroupThreads] =
                    tile.quad_of_piece(piece, i);
        ptx::named_barrier_sync(kConsumerBarrier, kConsumers);
        const WorkUnit work = work_of(args);
        const Epilogue epilogue(args, work.batch);
        if (args.split_k == 1) {
#pragma unroll 1
            for (int i = 0; i < kEach; ++i) {
                float4 q[kVector];
                sum_groups(shared, i, thread, q);
                store_piece(args, epilogue, work, i, thread, q);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < kEach; ++i) {
            float4 q[kVector];
            sum_groups(shared, i, thread, q);
#pragma unroll
            for (int j = 0; j < kVector; ++j) shared.sums[0][i][j][thread] = q[j];
        }
        ptx::cluster_sync();
        const int slice = static_cast<int>(ptx::cluster_rank());
        // Shares are whole warps' pieces.
        const int last = kEach * Consumers::kWarps * (slice + 1) / args.split_k, lane = thread % kWarp;
#pragma unroll 1
        for (int unit = kEach * Consumers::kWarps * slice / args.split_k + thread / kWarp; unit < last; unit += Consumers::kWarps) {
            const int i = unit / Consumers::kWarps, of = unit % Consumers::kWarps * kWarp + lane;
            float4 q[kVector];
            sum_over_cluster<kVector, kConsumers, 1>(&shared.sums[0][i][0][of], args.split_k, q);
            store_piece(args, epilogue, work, i, of, q);
        }
        ptx::cluster_sync();   // no block leaves while another reads its sums
    }

    static __device__ __forceinline__ void sum_groups(const Shared& shared, int i, int thread, float4 (&q)[kVector]) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) q[j] = shared.sums[0][i][j][thread];
#pragma unroll
        for (int group = 1; group < kGroups; ++group)
#pragma unroll
            for (int j = 0; j < kVector; ++j) add(q[j], shared.sums[group][i][j][thread]);
    }

    // Stores 4 × 4 outputs: the i-th piece of a thread, where all threads of a block are counted as parts of the tile.
    static __device__ __forceinline__ void store_piece(const GemmArgs& args, const Epilogue& epilogue, const WorkUnit& work, int i,
                                                       int thread, const float4 (&q)[kVector]) {
        const int piece = i * kGroups + thread / kGroupThreads, warp = thread % kGroupThreads / kWarp, lane = thread % kWarp;
        const int row = Consumers::first_row(warp, lane) + Thread::piece_row(piece);
        const int col = Consumers::first_col(warp, lane) + Thread::piece_col(piece);
        float4 rows[kVector];
        Operands::rows_of(q, row, col, rows);
        epilogue.template store_rows<typename Consumers::Lanes>(args, work.row + row, work.col + col, rows);
    }
};

template <int BM, int BN, int STAGES, int AHEAD, bool A_TRANSPOSED, bool B_TRANSPOSED>
using SlicedCopies = SlicedK<BM, BN, STAGES, AHEAD, CopiedStage<BM, BN, kStageK, A_TRANSPOSED, B_TRANSPOSED>>;
template <int BM, int BN, int STAGES>
using SlicedWords = SlicedK<BM, BN, STAGES, 0, WordStage<BM, BN, kStageK>>;

}  // namespace ffma_gemm

// NAME, then the tile: BM, BN, stages, how many of them a producer warp asks for before it transposes the first, whether A and
// whether B is contiguous along k and has to be transposed in shared memory. The tensor maps are of rank 5: the contiguous
// dimension, the other one, and three of the batch. A box has BK elements of k, and all rows of the tile.
#define FFMA_SLICED_K(NAME, BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED)                                       \
    enum : int { NAME##_shared = ffma_gemm::SlicedCopies<BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED>::kSharedBytes }; \
    extern "C" __global__ void __launch_bounds__(                                                                    \
        (ffma_gemm::SlicedCopies<BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED>::kThreads), 1)                   \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap map_a,                       \
             const __grid_constant__ CUtensorMap map_b) {                                                            \
        ffma_gemm::SlicedCopies<BM, BN, STAGES, AHEAD, A_TRANSPOSED, B_TRANSPOSED>::run(args, map_a, map_b);         \
    }

// The same for operands at any alignment, in any layout.
#define FFMA_SLICED_K_BY_WORDS(NAME, BM, BN, STAGES)                                                                 \
    enum : int { NAME##_shared = ffma_gemm::SlicedWords<BM, BN, STAGES>::kSharedBytes };                             \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::SlicedWords<BM, BN, STAGES>::kThreads), 1)              \
        NAME(const __grid_constant__ GemmArgs args) {                                                                \
        ffma_gemm::SlicedWords<BM, BN, STAGES>::run(args);                                                           \
    }

FFMA_SLICED_K(ffma_sliced_k_128x128_nn_sm90, 128, 128, 12, 1, true, false)
FFMA_SLICED_K(ffma_sliced_k_128x128_tn_sm90, 128, 128, 12, 1, false, false)
FFMA_SLICED_K(ffma_sliced_k_64x128_nn_sm90, 64, 128, 16, 3, true, false)
FFMA_SLICED_K(ffma_sliced_k_64x128_tn_sm90, 64, 128, 16, 3, false, false)
FFMA_SLICED_K(ffma_sliced_k_64x64_nn_sm90, 64, 64, 24, 1, true, false)
FFMA_SLICED_K(ffma_sliced_k_64x64_tn_sm90, 64, 64, 24, 1, false, false)

FFMA_SLICED_K_BY_WORDS(ffma_sliced_k_128x128_words_sm90, 128, 128, 12)

#endif  // sm_90a
