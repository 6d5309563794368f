// Strict FP32 GEMM for large problems on Hopper: math warps that do nothing but FFMA and shared-memory reads.
//
// Eight math warps hold a 128 × 256 (or 256 × 128) tile, 8 × 16 outputs a thread, in 216 registers each; four producer
// warps with the rest of the registers bring the operands into a ring of shared-memory stages. Full and empty stages
// are announced through mbarriers, so that no barrier of the whole block is left in the main loop, and the producers
// run ahead over the end of a tile: the next tile's first stages are there when the math warps have stored the last.
//
// A stage of BK = 16 costs the math warps 128 · 16 FFMA each, 4096 clocks of a multiprocessor; the producers need
// some 300 instructions for it, whatever the layout: operands contiguous along k are transposed in their registers
// (tile.cuh), so all four layouts, padded and misaligned views run the same main loop.
// Traffic: (BM + BN) · BK · 4 bytes for BM · BN · BK · 2 FLOP, 43 FLOP a byte, so 64 TFLOP/s take 1.5 TB/s of the L2.
//
// Blocks are persistent, one a multiprocessor, and take every gridDim.x-th unit of tile and slice of k.
#include "ffma_tile.cuh"

namespace ffma_gemm {

template <int BM, int BN, int STAGES>
struct Specialized {
    static constexpr int BK = 16;
    static constexpr int LM = 8, LN = 4, TM = 8, TN = 16;
    using Thread = ThreadTile<LM, LN, TM, TN>;
    static constexpr int kWarpsN = BN / Thread::kWarpN;
    static constexpr int kMathWarps = BM / Thread::kWarpM * kWarpsN;
    static constexpr int kMathThreads = kMathWarps * kWarp;
    static constexpr int kProducers = 128;
    static constexpr int kThreads = kMathThreads + kProducers;
    static constexpr int kMathRegisters = 208, kProducerRegisters = 88;
    static_assert(kMathWarps == 8, "two math warpgroups share the register file with one producer warpgroup");
    static_assert(kMathRegisters * kMathThreads + kProducerRegisters * kProducers <= 65536, "the register file");

    struct Shared {
        float a[STAGES][BK][BM];
        float b[STAGES][BK][BN];
        uint64_t full[STAGES], empty[STAGES];
        int last;
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= 227 * 1024, "what a block may have");

    // A place in the ring and the parity of its current round.
    struct Cursor {
        int stage = 0;
        uint32_t parity = 0;
        __device__ __forceinline__ void advance() {
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    };

    static __device__ __forceinline__ void run(const GemmArgs& args, Shared& shared) {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], kProducers);
                ptx::mbarrier_init(&shared.empty[stage], kMathWarps);
            }
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
        if (threadIdx.x >= kMathThreads) {
            ptx::registers_decrease_to<kProducerRegisters>();
            produce(args, shared, threadIdx.x - kMathThreads);
        } else {
            ptx::registers_increase_to<kMathRegisters>();
            multiply(args, shared, threadIdx.x);
        }
    }

    static __device__ __forceinline__ void produce(const GemmArgs& args, Shared& shared, int thread) {
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const int units = grid.units(args);
        Cursor cursor;
        for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const WorkUnit work = work_unit<BM, BN>(args, grid, unit);
            TileLoader<BM, BK, kProducers> a;
            TileLoader<BN, BK, kProducers> b;
            a.start(Source::of_a(args, work.batch), thread, work.row, work.k_begin);
            b.start(Source::of_b(args, work.batch), thread, work.col, work.k_begin);
            for (int k_left = work.k_end - work.k_begin; k_left > 0; k_left -= BK) {
                a.fetch(k_left);
                b.fetch(k_left);
                ptx::mbarrier_wait(&shared.empty[cursor.stage], cursor.parity ^ 1);   // the first round is free
                a.commit(shared.a[cursor.stage]);
                b.commit(shared.b[cursor.stage]);
                ptx::mbarrier_arrive(&shared.full[cursor.stage]);
                cursor.advance();
            }
        }
    }

    static __device__ __forceinline__ void multiply(const GemmArgs& args, Shared& shared, int thread) {
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        const int units = grid.units(args);
        const int warp = thread / kWarp, lane = thread % kWarp;
        const int row = warp / kWarpsN * Thread::kWarpM + Lanes<LM, LN>::m(lane) * kVec;
        const int col = warp % kWarpsN * Thread::kWarpN + Lanes<LM, LN>::n(lane) * kVec;
        Cursor cursor;
        for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const WorkUnit work = work_unit<BM, BN>(args, grid, unit);
            Thread tile;
            tile.clear();
            ptx::mbarrier_wait(&shared.full[cursor.stage], cursor.parity);
            tile.load(0, shared.a[cursor.stage], shared.b[cursor.stage], 0, row, col);
#pragma unroll 1
            for (int k_left = work.k_end - work.k_begin; k_left > 0; k_left -= BK) {
                const float(*tile_a)[BM] = shared.a[cursor.stage];
                const float(*tile_b)[BN] = shared.b[cursor.stage];
                uint64_t* empty = &shared.empty[cursor.stage];
                cursor.advance();
#pragma unroll
                for (int step = 0; step < BK - 1; ++step) {
                    tile.load((step + 1) % 2, tile_a, tile_b, step + 1, row, col);
                    tile.multiply(step % 2);
                }
                // The last step's operands are in registers already, so the next stage's can be asked for now.
                if (k_left > BK) {
                    ptx::mbarrier_wait(&shared.full[cursor.stage], cursor.parity);
                    tile.load(BK % 2, shared.a[cursor.stage], shared.b[cursor.stage], 0, row, col);
                }
                tile.multiply((BK - 1) % 2);
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(empty);
            }
            if (args.split_k > 1) {
                const SliceSum<kMathThreads> slices(args, work, BM * BN);
                const bool last = slices.add(tile, true, thread, &shared.last, thread == 0,
                                             [] { ptx::named_barrier_sync(1, kMathThreads); });
                if (!last) continue;
            }
            store_tile(tile, args, work.batch, work.row + row, work.col + col);
        }
    }
};

}  // namespace ffma_gemm

#define FFMA_SPECIALIZED(NAME, BM, BN, STAGES)                                                                     \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Specialized<BM, BN, STAGES>::kThreads), 1)            \
        NAME(const __grid_constant__ GemmArgs args) {                                                              \
        extern __shared__ __align__(128) unsigned char shared_bytes[];                                             \
        using Kernel = ffma_gemm::Specialized<BM, BN, STAGES>;                                                     \
        Kernel::run(args, *reinterpret_cast<Kernel::Shared*>(shared_bytes));                                       \
    }

FFMA_SPECIALIZED(ffma_specialized_128x256_sm90, 128, 256, 6)
FFMA_SPECIALIZED(ffma_specialized_256x128_sm90, 256, 128, 6)
