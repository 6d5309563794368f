// Strict FP32 GEMM for Hopper where A is contiguous along m and B along n, as in the gradient of a weight (Xᵀ·dY): TMA brings both the way
// the multiply-adds want them, [k][row], and threads do nothing but multiply.
//
// Against ffma_unaligned.cu, which has the same tiles: no thread copies anything, computes an address or looks where the matrix ends. What
// is left of the main loop is 32 reads of shared memory beside 512 FFMA, so it needs no more than eight steps of k in a straight line
// to be nearly all FFMA, and these are short enough for the caches of instructions: with four blocks of unequal progress on a multiprocessor
// the longer loop finds none to issue in 6 % of its cycles, and where k is 56, so that start and end are as long as the loop, in 28 %
// (Nsight Compute, H200).
//
// Against ffma_specialized_sm90.cu, which has the same stages: several blocks share a multiprocessor instead of a persistent one, and
// no warps are set aside for copying. While one block starts or stores, the others multiply, so that short k pays.
//
//   stage    BK = 16 steps of k of A's rows and B's columns; zeros where the matrix ends
//   ring     STAGES of them. One thread asks for all at the start; later the warp that is the last to read a stage asks again
//   blocks   four or more a multiprocessor, one tile each
//
// The sums leave as in ffma_unaligned.cu (store_columns.cuh).
//
// H200, stand-alone runs, 40 drawn products with k of 40 to 1500 and at least 200 tiles of 64 × 128, geometric mean of cuBLAS's time over
// this: 64 × 128 1.031 (ffma_unaligned.cu 0.990), 128 × 64 1.010 (0.975). Of single ones, µs: 8192×8192×64 202 (227, cuBLAS 259),
// 4096×11008×128 249 (264, 301), 2048×2048×332 62 (65, 61), 4096×4096×4096 2742 (2790, 2653). Tiles of 128 × 128, of 8 × 8 outputs in 256
// threads or 8 × 16 in 128, take longer than both nearly everywhere.
#include <cuda.h>

#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "copied_tile.cuh"
#include "store_columns.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

// A block's tile: BM × BN, WM × WN of it a warp and TM × TN a thread.
template <int BM, int BN, int WM, int WN, int TM, int TN, int STAGES>
struct DirectTN {
    static constexpr int BK = 16;
    // Steps of k in a straight line: as many as 512 FFMA take, or a stage.
    static constexpr int kPart = TM * TN >= 64 ? 8 : BK, kParts = BK / kPart;
    using Store = ColumnStore<BM, BN, WM, WN, TM, TN>;
    using Thread = typename Store::Thread;
    using A = CopiedTile<BM, BK, false>;
    using B = CopiedTile<BN, BK, false>;
    static constexpr int kWarps = Store::kWarps, kThreads = Store::kThreads;
    static_assert(kParts * kPart == BK && kParts <= 2, "a stage has one part or two");
    static_assert(kPart % 2 == 0, "fragments alternate between two sets of registers");
    static_assert(BM > kWarp && BN > kWarp, "lines of 128 bytes would arrive swizzled");

    struct Stage {
        float a[BK * BM], b[BK * BN];
    };
    struct Shared {
        union {
            Stage stages[STAGES];
            typename Store::Room room;
        };
        uint64_t full[STAGES];
        int readers[STAGES];   // warps that have read the stage, over all rounds
    };

    // ---- load ----

    // The tile's operands, for TMA.
    struct Operands {
        const CUtensorMap& a_map;
        const CUtensorMap& b_map;
        int row, col, k_begin;
        BatchCoordinates a, b;

        // Asks for these BK steps of k.
        __device__ __forceinline__ void ask(Shared& shared, int stage, int step) const {
            uint64_t* full = &shared.full[stage];
            const int k = k_begin + step * BK;
            ptx::mbarrier_arrive_expect_bytes(full, sizeof(Stage));
            A::copy(shared.stages[stage].a, a_map, full, row, k, a);
            B::copy(shared.stages[stage].b, b_map, full, col, k, b);
        }
    };

    // ---- compute ----

    static __device__ __forceinline__ void run(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
        extern __shared__ __align__(128) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
        const Operands operands{a_map, b_map, work.row, work.col, work.k_begin, BatchCoordinates(args, args.a, work.batch),
                                BatchCoordinates(args, args.b, work.batch)};
        const int steps = (work.k_end - work.k_begin - 1) / BK + 1;
        if (threadIdx.x < kWarp && ptx::elect_lane()) {
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], 1);
                shared.readers[stage] = 0;
            }
            ptx::fence_mbarrier_init();
            ptx::wait_for_previous_kernels();
            for (int step = 0; step < STAGES && step < steps; ++step) operands.ask(shared, step, step);
        }
        __syncthreads();
        Thread tile;
        tile.clear();
        multiply(tile, operands, shared, work.k_end - work.k_begin, Store::first_row(warp, lane), Store::first_col(warp, lane), lane);
        __syncthreads();   // nobody reads the ring any more, and all that was asked for has arrived
        Store::store(tile, args, work, shared.room, warp, lane);
    }

private:
    static __device__ __forceinline__ void multiply(Thread& tile, const Operands& operands, Shared& shared, int k, int row, int col, int lane) {
        const int steps = (k - 1) / BK + 1;
        int step = 0, stage = 0;
        uint32_t parity = 0;
        const float *a = shared.stages[0].a + row, *b = shared.stages[0].b + col;
        const auto load = [&](int buffer, int line) { tile.template load<A, B>(buffer, a, b, line); };
        ptx::mbarrier_wait(&shared.full[0], 0);
        load(0, 0);
        bool second = false;   // part of the stage
        // Where stages have two parts, the last one has one where that is enough.
#pragma unroll 1
        for (int parts = (k - 1) / kPart + 1; parts > 0; --parts) {
#pragma unroll
            for (int line = 0; line < kPart - 1; ++line) {
                load((line + 1) % 2, line + 1);
                tile.multiply(line % 2);
            }
            // The last line's operands are read already, so now the next part's can be.
            if (kParts == 1 || second) {
                if (step + STAGES < steps) {
                    __syncwarp();
                    if (ptx::elect_lane() && is_last_reader<kWarps>(shared.readers[stage])) {
                        ptx::fence_async_proxy();   // TMA has to be told of reads through the generic proxy
                        operands.ask(shared, stage, step + STAGES);
                    }
                }
                ++step;
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
                if (parts > 1) ptx::mbarrier_wait(&shared.full[stage], parity);
                a = shared.stages[stage].a + row;
                b = shared.stages[stage].b + col;
            } else {
                a += A::offset(kPart, 0);
                b += B::offset(kPart, 0);
            }
            second = !second;
            if (parts > 1) load(kPart % 2, 0);
            tile.multiply((kPart - 1) % 2);
        }
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, then BM, BN, WM, WN, TM, TN, stages.
#define FFMA_DIRECT_TN(NAME, BLOCKS, ...)                                                                   \
    enum : int { NAME##_shared = sizeof(ffma_gemm::DirectTN<__VA_ARGS__>::Shared) };                        \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::DirectTN<__VA_ARGS__>::kThreads), BLOCKS)      \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,              \
             const __grid_constant__ CUtensorMap b_map) {                                                   \
        ffma_gemm::DirectTN<__VA_ARGS__>::run(args, a_map, b_map);                                          \
    }

FFMA_DIRECT_TN(ffma_direct_64x128_tn_sm90, 4, 64, 128, 32, 64, 8, 8, 4)
FFMA_DIRECT_TN(ffma_direct_128x64_tn_sm90, 4, 128, 64, 64, 32, 8, 8, 4)
FFMA_DIRECT_TN(ffma_direct_64x64_tn_sm90, 6, 64, 64, 32, 32, 4, 8, 4)

#endif  // sm_90a
