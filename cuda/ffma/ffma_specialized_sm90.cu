// Strict FP32 GEMM for Hopper: consumer warps that do nothing but FFMA and shared-memory reads.
//
// Eight consumer warps hold a 128 × 256 tile, 8 × 16 outputs a thread, or a 128 × 128 tile, 8 × 8 outputs a thread, and most of
// the registers; four producer warps with the rest bring the operands into a ring of shared-memory stages. Full and empty
// stages are announced through mbarriers, so that no barrier of the whole block is left in the main loop, and the producers
// run ahead over the end of a tile: the next tile's first stages are there when the consumer warps have stored the last.
//
// Arithmetic. An FFMA leaves no issue slot for anything else, so the loop counts instructions: 128 FFMA to 6 16-byte
// reads a step of k, 95.5 % at best (64 to 4, 94.1 %, in the smaller tile). What is then left to lose are register-bank
// conflicts, of which ThreadTile::quad() says how the epilogue keeps them out of the main loop, and reads in clumps.
// Operands. Producers take issue slots, too: a stage of BK = 16 costs a consumer warp 2144 instructions, and two of them share a
// scheduler with a producer warp. Aligned operands are therefore left to TMA (Copied), one instruction a tile; what is contiguous
// along k is then transposed in shared memory. There is a kernel for each of the four layouts. Stages and main loop are those of
// copied_stage.cuh. Operands at any alignment are copied word by word (Words, word_stage.cuh), in one kernel for all layouts; these
// kernels have tiles for narrow results too, 512 × 32 and 256 × 64 and the same across. What has gaps between elements is repacked first.
// Traffic: (BM + BN) · BK · 4 bytes for BM · BN · BK · 2 FLOP, 43 FLOP a byte, so 64 TFLOP/s take 1.5 TB/s of the L2; 32 FLOP
// a byte and 2 TB/s with the smaller tile.
//
// Blocks are persistent, one a multiprocessor, and take every gridDim.x-th tile of the whole waves. The k of all other tiles is
// shared equally among them: scheduler/stream_k.cuh. No second launch, the same bits every time.
#include "../epilogue/epilogue.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/stream_k.cuh"
#include "../scheduler/tiles.cuh"
#include "copied_stage.cuh"
#include "word_stage.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

constexpr int kStageK = 16;   // k of a stage

// ---- how operands come to shared memory -------------------------------------------------------------------------

// By TMA. An operand that is contiguous along k is transposed in shared memory.
template <int BM, int BN, bool A_TRANSPOSED, bool B_TRANSPOSED>
struct Copied : CopiedStage<BM, BN, kStageK, A_TRANSPOSED, B_TRANSPOSED> {
    static constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
    const CUtensorMap& a;
    const CUtensorMap& b;

    __device__ __forceinline__ Copied(const CUtensorMap& a, const CUtensorMap& b) : a(a), b(b) {}
};

// By copies of words, whatever the alignment.
template <int BM, int BN>
struct Words : WordStage<BM, BN, kStageK> {
    static constexpr int kConsumerRegisters = 208, kProducerRegisters = 88;
};

// ---- the kernel -------------------------------------------------------------------------------------------------

template <int BM, int BN, int TM, int TN, typename FEED>
struct Specialized {
    static constexpr int BK = kStageK, STAGES = 4;
    using Consumers = ConsumerWarps<BM, BN, TM, TN>;
    using Thread = typename Consumers::Thread;
    static constexpr int kConsumers = Consumers::kThreads;
    static constexpr int kProducers = 128;
    static constexpr int kThreads = kConsumers + kProducers;
    static constexpr int kConsumerRegisters = FEED::kConsumerRegisters, kProducerRegisters = FEED::kProducerRegisters;
    static constexpr int kLaunchRegisters = registers_at_launch(kThreads);   // of each thread before they are redistributed
    static constexpr int kQuads = Thread::kPieces * kVector;   // of a thread
    static constexpr int kConsumerBarrier = 1;   // the consumer warps' own
    using Finish = stream_k::Finish<kConsumers, kQuads, kVector, kConsumerBarrier>;
    static_assert(!FEED::kWords || FEED::kArrivals == kProducers, "every producer arrives");
    static_assert(Consumers::kGroups == 1, "all consumer warps take every stage");
    static_assert(kConsumerRegisters * kConsumers + kProducerRegisters * kProducers <= kLaunchRegisters * kThreads,
                  "a block can only deal out the registers that it was launched with; with more to ask it waits forever");

    struct Shared {
        typename FEED::Stage stages[STAGES];
        float4 sums[kQuads][kConsumers];
        uint64_t full[STAGES], empty[STAGES], raw[STAGES];   // raw: tiles that are to be transposed have arrived
        int number;                                          // that this block drew

        // After the last tile the stages are free.
        __device__ __forceinline__ typename Finish::Ahead& parts() {
            static_assert(sizeof(stages) >= sizeof(typename Finish::Ahead), "parts of a tile take the room of the stages");
            return *reinterpret_cast<typename Finish::Ahead*>(stages);
        }
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= kSharedLimit, "what a block may have");

    static __device__ __forceinline__ void run(const GemmArgs& args, Shared& shared, const FEED& feed) {
        if (threadIdx.x == 0) {
            shared.number = stream_k::draw_number(args);
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], FEED::kArrivals);
                if (!FEED::kWords) ptx::mbarrier_init(&shared.raw[stage], 1);
                ptx::mbarrier_init(&shared.empty[stage], Consumers::kWarps);
            }
            if (!FEED::kWords) ptx::fence_mbarrier_init();   // for TMA
        }
        __syncthreads();
        ptx::wait_for_previous_kernels();   // one of them may repack an operand
        if (threadIdx.x >= kConsumers) {
            ptx::registers_decrease_to<kProducerRegisters>();
            if constexpr (FEED::kWords) copy_words(args, shared, threadIdx.x - kConsumers);
            else copy(args, shared, threadIdx.x - kConsumers, feed);
        } else {
            ptx::registers_increase_to<kConsumerRegisters>();
            multiply(args, shared, threadIdx.x);
        }
    }

    // ---- load ----

    // Each producer warp has a stage of the ring for itself.
    static __device__ __forceinline__ void copy(const GemmArgs& args, Shared& shared, int thread, const FEED& feed) {
        static_assert(STAGES == kProducers / kWarp, "a warp a stage");
        const int stage = thread / kWarp, lane = thread % kWarp;
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const stream_k::Schedule schedule = schedule_of(args, shared, grid);
        Stage<BM, BN, BK>& tiles = shared.stages[stage];
        uint64_t* full = &shared.full[stage];
        uint64_t* raw = &shared.raw[stage];
        stream_k::Piece piece;
        uint32_t parity = 0;
        int skip = stage;   // steps of the piece that are other warps'
        for (int number = 0; schedule.take(number, piece); ++number) {
            const WorkUnit work = work_unit<BM, BN>(args, grid, piece.tile);
            int step = piece.begin + skip;
#pragma unroll 1
            for (; step < piece.end; step += STAGES) {
                ptx::mbarrier_wait(&shared.empty[stage], parity ^ 1);   // the first round is free
                if (lane == 0) {
                    FEED::expect(full, raw);
                    FEED::copy_a(tiles, feed.a, full, raw, work.row, step * BK, BatchCoordinates(args, args.a, work.batch));
                    FEED::copy_b(tiles, feed.b, full, raw, work.col, step * BK, BatchCoordinates(args, args.b, work.batch));
                }
                if (FEED::kTransposes) {
                    ptx::mbarrier_wait(raw, parity);
                    FEED::transpose(tiles, full, lane);
                }
                parity ^= 1;
            }
            skip = step - piece.end;
        }
    }

    static __device__ __forceinline__ void copy_words(const GemmArgs& args, Shared& shared, int thread) {
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const stream_k::Schedule schedule = schedule_of(args, shared, grid);
        stream_k::Piece piece;
        Ring<STAGES> cursor;
        for (int number = 0; schedule.take(number, piece); ++number) {
            const WorkUnit work = work_unit<BM, BN>(args, grid, piece.tile);
            FEED::produce(args, shared, cursor, work, piece.begin * BK, min(args.k, piece.end * BK), thread);
        }
    }

    // ---- compute ----

    static __device__ __forceinline__ void multiply(const GemmArgs& args, Shared& shared, int thread) {
        const int warp = thread / kWarp, lane = thread % kWarp;
        const int row = Consumers::first_row(warp, lane), col = Consumers::first_col(warp, lane);
        Ring<STAGES> cursor;
        for (int number = 0;; number = ptx::recompute(number + 1)) {   // all registers but its own are the tile's
            const TileGrid grid = TileGrid::of<BM, BN>(args);
            stream_k::Piece piece;
            if (!schedule_of(args, shared, grid).take(number, piece)) break;
            Thread tile;
            tile.clear();
            const int steps = piece.end - piece.begin;
            FEED::multiply(tile, shared, cursor, steps, row, col, lane, [](Ring<STAGES>& cursor) { cursor.advance(); });
            store(tile, args, shared, ptx::recompute(number), ptx::recompute(thread));
        }
    }

    static __device__ __forceinline__ stream_k::Schedule schedule_of(const GemmArgs& args, const Shared& shared,
                                                                     const TileGrid& grid) {
        return {args, shared.number, grid.units(args), (args.k - 1) / BK + 1};
    }

    // ---- store ----

    static __device__ __forceinline__ void store(const Thread& tile, const GemmArgs& args, Shared& shared, int number,
                                                 int thread) {
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const stream_k::Schedule schedule = schedule_of(args, shared, grid);
        stream_k::Piece piece;
        schedule.take(number, piece);
        const Finish finish(args, schedule, piece, shared.sums, thread);
#pragma unroll
        for (int group = 0; group < Thread::kPieces; ++group) {
            float4* place = finish.place(group);
#pragma unroll
            for (int i = 0; i < kVector; ++i) place[i * kConsumers] = tile.quad_of_piece(group, i);
        }
        const WorkUnit work = work_unit<BM, BN>(args, grid, piece.tile);
        const Epilogue epilogue(args, work.batch);
        const int lane = thread % kWarp;
        finish.run(shared.parts(), [&](int group, int warp, const float4 (&q)[kVector]) {
            const int row = Consumers::first_row(warp, lane) + Thread::piece_row(group);
            const int col = Consumers::first_col(warp, lane) + Thread::piece_col(group);
            float4 rows[kVector];
            FEED::rows_of(q, row, col, rows);
            epilogue.template store_rows<typename Consumers::Lanes>(args, work.row + row, work.col + col, rows);
        });
    }
};

}  // namespace ffma_gemm

#define FFMA_BY_WORDS(NAME, BM, BN, TM, TN)                                                                        \
    enum : int { NAME##_shared = ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Words<BM, BN>>::kSharedBytes }; \
    extern "C" __global__ void __launch_bounds__(                                                                  \
        (ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Words<BM, BN>>::kThreads), 1)                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                              \
        extern __shared__ __align__(1024) unsigned char shared_bytes[];                                            \
        using Kernel = ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Words<BM, BN>>;                           \
        Kernel::run(args, *reinterpret_cast<Kernel::Shared*>(shared_bytes), {});                                   \
    }

// By TMA. The tensor maps are of rank 5: the contiguous dimension, the other one, and three of the batch. A box has BK elements of
// k, and all rows of the tile.
#define FFMA_COPIED(NAME, BM, BN, TM, TN, A_TRANSPOSED, B_TRANSPOSED)                                               \
    enum : int {                                                                                                    \
        NAME##_shared =                                                                                             \
            ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Copied<BM, BN, A_TRANSPOSED, B_TRANSPOSED>>::kSharedBytes \
    };                                                                                                              \
    extern "C" __global__ void __launch_bounds__(                                                                   \
        (ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Copied<BM, BN, A_TRANSPOSED, B_TRANSPOSED>>::kThreads), 1) \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap map_a,                      \
             const __grid_constant__ CUtensorMap map_b) {                                                           \
        extern __shared__ __align__(1024) unsigned char shared_bytes[];                                             \
        using Kernel = ffma_gemm::Specialized<BM, BN, TM, TN, ffma_gemm::Copied<BM, BN, A_TRANSPOSED, B_TRANSPOSED>>; \
        Kernel::run(args, *reinterpret_cast<Kernel::Shared*>(shared_bytes), {map_a, map_b});                        \
    }

FFMA_COPIED(ffma_specialized_128x256_nn_sm90, 128, 256, 8, 16, true, false)
FFMA_COPIED(ffma_specialized_128x256_nt_sm90, 128, 256, 8, 16, true, true)
FFMA_COPIED(ffma_specialized_128x256_tn_sm90, 128, 256, 8, 16, false, false)
FFMA_COPIED(ffma_specialized_128x256_tt_sm90, 128, 256, 8, 16, false, true)
FFMA_COPIED(ffma_specialized_128x128_tn_sm90, 128, 128, 8, 8, false, false)
FFMA_COPIED(ffma_specialized_128x128_tt_sm90, 128, 128, 8, 8, false, true)
FFMA_BY_WORDS(ffma_specialized_128x256_words_sm90, 128, 256, 8, 16)
FFMA_BY_WORDS(ffma_specialized_128x128_words_sm90, 128, 128, 8, 8)
FFMA_BY_WORDS(ffma_specialized_512x32_words_sm90, 512, 32, 8, 8)
FFMA_BY_WORDS(ffma_specialized_32x512_words_sm90, 32, 512, 8, 8)
FFMA_BY_WORDS(ffma_specialized_256x64_words_sm90, 256, 64, 8, 8)
FFMA_BY_WORDS(ffma_specialized_64x256_words_sm90, 64, 256, 8, 8)

#endif  // sm_90a
