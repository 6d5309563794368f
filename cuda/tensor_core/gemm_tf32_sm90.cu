// TF32 GEMM on Hopper's tensor cores: one product a result, for those who ask for TF32 (`Precision::Tf32`).
//
// The frame is the one of the FP32-grade kernel (frame_sm90.cuh) without its splitting. Operands are rounded to TF32
// to nearest by TMA: the tensor maps have the type TFLOAT32, where the FP32-grade kernel has FLOAT32. The
// tensor core alone would truncate, which is biased: rounded products err by 2.9e-4 of a normal sum's size, truncated
// ones by 7e-4, all in one direction.
//
//   NT        R and S are both read from shared memory; no converters
//   TT, NN    R is MN-major, so its fragments pass through registers
//   TN        S is MN-major as well; seven converter warps transpose its tiles
//
// 128 × 256 tiles: 48 KB a stage for 1024 clocks of tensor cores, in which shared memory takes 48 KB from TMA
// and gives 64 KB of S (each consumer reads all of it) and 16 KB of R: 128 KB, exactly what it can move in that time.
// Accumulation stays in the tensor core for all of k: its truncation, 2⁻²⁴ of the sum an addition of 8 products, is far
// below TF32's own rounding.
//
// Non-finite numbers. Inf and NaN pass through the product as IEEE says, but rounding may turn a number near FLT_MAX
// into Inf: sums that are not finite are recomputed in FP32, as in the FP32-grade kernel.

#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/wgmma.cuh"
#include "frame_sm90.cuh"
#include "layout_sm90.cuh"
#include "register_operand_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

template <int BM, int BN, Major MAJOR, Major S_MAJOR, bool SWAPPED, int MULTICAST>
using Tf32 = Config<1, BM, BN, MAJOR, S_MAJOR, SWAPPED, MULTICAST>;

using Fragments = uint32_t[kSteps][4];

template <typename CONFIG>
struct Consumer {
    static constexpr bool kSharedR = CONFIG::MAJOR == Major::kK;   // wgmma reads R from shared memory itself
    static constexpr uint64_t kStep = kStepK * 4 / kChunk;         // of a descriptor, which counts 16 bytes
    const Shared<CONFIG>& shared;
    const Place<CONFIG>& place;
    Ring<CONFIG::STAGES> raw;
    Ring<CONFIG::SLOTS> converted;

    __device__ __forceinline__ Consumer(const Shared<CONFIG>& shared_, const Place<CONFIG>& place_, int)
        : shared(shared_), place(place_) {}

    // Waits for the stage under the cursors.
    __device__ __forceinline__ void wait() const {
        ptx::mbarrier_wait(shared.raw_full(raw.stage), raw.parity);
        if constexpr (CONFIG::HEADS) ptx::mbarrier_wait(shared.converted_full(converted.stage), converted.parity);
    }
    __device__ __forceinline__ uint64_t s() const {
        const char* tile = CONFIG::HEADS ? shared.converted(converted.stage) : shared.s(raw.stage);
        return ptx::wgmma_descriptor_swizzle128(ptx::shared_address(tile));
    }
    __device__ __forceinline__ uint64_t r() const {   // this warpgroup's 64 rows
        constexpr int kWarps = kWarpgroup / kWarp, kHalf = kWgmmaRows * kTileRow;
        return ptx::wgmma_descriptor_swizzle128(ptx::shared_address(shared.r(raw.stage) + place.warp / kWarps * kHalf));
    }
    // Gives a stage back to the feeders.
    __device__ __forceinline__ void release(int raw_slot, int converted_slot) const {
        release_stage<CONFIG::MULTICAST>(shared.raw_empty(raw_slot), place.lane, place.lane);
        if constexpr (CONFIG::HEADS) {
            if (place.lane == 0) ptx::mbarrier_arrive(shared.converted_empty(converted_slot));
        }
    }
    __device__ __forceinline__ void advance() {
        raw.advance();
        if constexpr (CONFIG::HEADS) converted.advance();
    }
    __device__ __forceinline__ void fetch(Fragments& fragments) const {
        visit_fragments<CONFIG>(shared.r(raw.stage), place, [&](int step, int part, float x) {
            fragments[step][part] = __float_as_uint(x);
        });
    }

    // Multiplies the stage whose fragments are in `now`, and fetches the next.
    __device__ __forceinline__ void step(float (&sum)[CONFIG::ACCUMULATORS], const Fragments& now, Fragments& next,
                                         bool more) {
        const uint64_t s_tile = s();
        const int raw_slot = raw.stage, converted_slot = converted.stage;
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) ptx::wgmma_tf32(sum, now[step], s_tile + step * kStep, true);
        ptx::wgmma_commit();
        advance();
        if (more) {
            wait();
            fetch(next);
        }
        ptx::wgmma_wait<0>();
        ptx::settle(sum);
        release(raw_slot, converted_slot);
    }

    // Adds `stages` stages of k to `sum`.
    __device__ __forceinline__ void accumulate(float (&sum)[CONFIG::ACCUMULATORS], int stages) {
        if (stages == 0) return;
        if constexpr (kSharedR) {
            int raw_before = 0, converted_before = 0;
            ptx::settle(sum);
            for (int stage = 0; stage < stages; ++stage) {
                wait();
                const uint64_t r_tile = r(), s_tile = s();
                ptx::wgmma_fence();
#pragma unroll
                for (int step = 0; step < kSteps; ++step) {
                    ptx::wgmma_tf32(sum, r_tile + step * kStep, s_tile + step * kStep, true);
                }
                ptx::wgmma_commit();
                ptx::wgmma_wait<1>();
                if (stage > 0) release(raw_before, converted_before);
                raw_before = raw.stage;
                converted_before = converted.stage;
                advance();
            }
            ptx::wgmma_wait<0>();
            ptx::settle(sum);
            release(raw_before, converted_before);
        } else {
            Fragments even, odd;
            wait();
            fetch(even);
            for (int stage = 0; stage < stages; stage += 2) {
                step(sum, even, odd, stage + 1 < stages);
                if (stage + 1 == stages) break;
                step(sum, odd, even, stage + 2 < stages);
            }
        }
    }
};

}  // namespace

// NAME, rows of R, rows of S, orientation of R and of S, swapped, multicast.
#define GEMM_TF32_SM90(NAME, ...)                                                                                      \
    enum : int { NAME##_shared = Tf32<__VA_ARGS__>::SHARED_BYTES };                                                    \
    extern "C" __global__ void __launch_bounds__(Tf32<__VA_ARGS__>::THREADS, 1)                                        \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,                         \
             const __grid_constant__ CUtensorMap b_map) {                                                              \
        gemm<Tf32<__VA_ARGS__>, Consumer<Tf32<__VA_ARGS__>>>(args, a_map, b_map);                                      \
    }

// Large problems: clusters of two blocks, neighbours along R, that share each tile of S. Names give the tile of D, m × n.
GEMM_TF32_SM90(gemm_tf32_sm90_128x256_2cta_nt, 128, 256, Major::kK, Major::kK, false, 2)
GEMM_TF32_SM90(gemm_tf32_sm90_128x256_2cta_tt, 128, 256, Major::kRows, Major::kK, false, 2)
GEMM_TF32_SM90(gemm_tf32_sm90_256x128_2cta_nn, 128, 256, Major::kRows, Major::kK, true, 2)

// Problems with few tiles: a cluster of split_k blocks cuts k.
GEMM_TF32_SM90(gemm_tf32_sm90_128x128_nt, 128, 128, Major::kK, Major::kK, false, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x128_tt, 128, 128, Major::kRows, Major::kK, false, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x128_nn, 128, 128, Major::kRows, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x128_tn, 128, 128, Major::kRows, Major::kRows, false, 1)

// Few columns.
GEMM_TF32_SM90(gemm_tf32_sm90_128x64_nt, 128, 64, Major::kK, Major::kK, false, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x64_tt, 128, 64, Major::kRows, Major::kK, false, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x64_nn, 128, 64, Major::kK, Major::kRows, false, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_128x64_tn, 128, 64, Major::kRows, Major::kRows, false, 1)

// Few rows: the weights are R.
GEMM_TF32_SM90(gemm_tf32_sm90_64x128_nt, 128, 64, Major::kK, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_32x128_nt, 128, 32, Major::kK, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_16x128_nt, 128, 16, Major::kK, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_64x128_nn, 128, 64, Major::kRows, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_32x128_nn, 128, 32, Major::kRows, Major::kK, true, 1)
GEMM_TF32_SM90(gemm_tf32_sm90_16x128_nn, 128, 16, Major::kRows, Major::kK, true, 1)

#endif  // sm_90a
