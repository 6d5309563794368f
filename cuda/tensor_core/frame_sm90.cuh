// The frame of the warp-specialized tensor-core kernels for Hopper: what surrounds their arithmetic.
//
// Of the two operands one is the *register operand* R (BM rows a block) and the other the *shared operand* S (BN rows
// a block). The tensor core reads S from shared memory, where it must lie K-major, and R from registers, which a
// consumer warp can fill from a tile of either orientation. So with
//
//   R = A, S = B:  NT and TT            R = B, S = A ("swapped", the block computes Dᵀ):  NT and NN
//
// nothing is transposed. Where S is MN-major too (TN; NN without the swap), converter warps transpose its tiles to K-major.
//
//   feeders     one warp issues the copies (TMA); the others, if there is something to convert, are converters
//   consumers   one warpgroup for each 64 rows of R, by all rows of S
//
// A kernel's own file has the consumers' arithmetic: a class with `accumulate(sum, stages)`. The ring of stages, the order of tiles,
// the copies and the stores are those of pipeline/, scheduler/ and epilogue/; the converters and the register operand have files of
// their own beside this one.
//
// Launch. One dimension of blocks, `threads` and dynamic shared memory as each kernel's row of the table says.
//   2cta kernels    clusters of 2; blocks a multiple of 2, any number (persistent): the plan has as many as keep in step
//   others          split_k 1: clusters of 1, any number of blocks; split_k > 1: clusters of split_k and exactly one
//                   cluster a tile; or slices along y of the grid (scheduler/slices.cuh)
// Tensor maps. Rank 5: x, y, then three batch dimensions (args.batch_dims[3], [2], [1]; extent 1 where the operand's
// stride is 0; args.batch_dims[0] must be 1), 128-byte swizzle, zero fill, box 32 floats wide by
//   R: BM rows if K-major, 32 (of k) if MN-major        S: BN / MULTICAST rows if K-major, 32 (of k) if MN-major
#pragma once

#include <cuda.h>

#include "../epilogue/wgmma_store.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "converters_sm90.cuh"
#include "exact.cuh"
#include "layout_sm90.cuh"
#include "register_operand_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int kStartBarrier = 2;   // named barrier of the whole block, once

// ---- load ------------------------------------------------------------------------------------------------------

template <typename CONFIG>
__device__ __forceinline__ void produce(const GemmArgs& args, const CUtensorMap& r_map, const CUtensorMap& s_map,
                                        const Shared<CONFIG>& shared, Work<CONFIG> work) {
    constexpr int kShare = CONFIG::BN / CONFIG::MULTICAST;
    constexpr uint16_t kAll = (1 << CONFIG::MULTICAST) - 1;   // blocks of the cluster
    const int share = CONFIG::MULTICAST > 1 ? work.along_r() * kShare : 0;
    const GemmOperand& r = CONFIG::SWAPPED ? args.b : args.a;
    const GemmOperand& s = CONFIG::SWAPPED ? args.a : args.b;
    Ring<CONFIG::STAGES> ring;
    for (; work.more(); work.next()) {
        int row_r, row_s, batch;
        work.locate(row_r, row_s, batch);
        const BatchCoordinates br(args, r, batch), bs(args, s, batch);
        for (int k = work.k_begin; k < work.k_end; k += BK) {
            ptx::mbarrier_wait(shared.raw_empty(ring.stage), ring.parity ^ 1);
            uint64_t* full = shared.raw_full(ring.stage);
            ptx::mbarrier_arrive_expect_bytes(full, CONFIG::RAW_BYTES);
            load_tile<float, CONFIG::MAJOR, CONFIG::BM, false>(shared.r(ring.stage), r_map, full, kAll, row_r, k, br);
            load_tile<float, CONFIG::S_MAJOR, kShare, (CONFIG::MULTICAST > 1)>(shared.s(ring.stage) + share * kTileRow, s_map, full,
                                                                              kAll, row_s + share, k, bs);
            ring.advance();
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

// ---- the kernel ------------------------------------------------------------------------------------------------

// CONSUMER is constructed from (shared, place, length of the sums) and adds the next `stages` stages of the rings to the sums.
template <typename CONFIG, typename CONSUMER>
__device__ __forceinline__ void gemm(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
    extern __shared__ __align__(kTileAlign) char memory[];
    const Shared<CONFIG> shared{memory};
    const Work<CONFIG> work(args);
    const CUtensorMap& r_map = CONFIG::SWAPPED ? b_map : a_map;
    const CUtensorMap& s_map = CONFIG::SWAPPED ? a_map : b_map;
    const int warp = __shfl_sync(kWholeWarp, threadIdx.x / kWarp, 0);   // uniform, and known to be
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
                reduce_and_store<CONFIG::SWAPPED, CONFIG::CONSUMERS>(args, shared.base, place, mine.slice(), thread, row_r, row_s,
                                                                     batch, sum);
            } else {
                finish<CONFIG::SWAPPED, CONFIG::STAGED>(args, place, row_r, row_s, batch, shared.staging(), sum);
            }
        }
    }
    ptx::cluster_sync();   // no block leaves while another may still write to its shared memory or read it
}

}  // namespace

#endif  // sm_90a
