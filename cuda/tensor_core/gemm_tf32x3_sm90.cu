// FP32-grade GEMM on Hopper's tensor cores: three TF32 products a result, promoted to FP32 every 32 of k.
//
// Every FP32 operand is split into a TF32 head and a TF32 tail (11 bits each), and
//
//   a·b ≈ tail(a)·head(b) + head(a)·tail(b) + head(a)·head(b)
//
// (tail·tail, about 2⁻²³ of a·b, is taken only in short sums, where nothing larger hides what it leaves out) is summed in the tensor core, small terms first. The tensor core truncates when it adds, so a sum never stays in it
// for longer than one stage of k: after 32 steps of k it is added to FP32 registers with round to nearest.
//
// The roles of the warps, the rings and the stores are frame_sm90.cuh's. R's fragments are split on their way into
// registers. For a K-major S the tile that TMA brings is already its head, because wgmma ignores the low 13
// bits of a word, and seven converter warps write the tail beside it; an MN-major S (TN, and NN with few columns) they
// transpose as well.
//
//   warpgroups 0, 1   one warp issues the copies (TMA), seven warps write S's tails         40 registers
//   warpgroups 2, 3   consumers of 64 × BN each: split R, 12 wgmma a stage, promote, store  216 registers
//
// Per stage of 32 k, 128 × 128: 32 KB come in; shared memory moves 96 KB for wgmma's reads of S (64 rows use 4 KB a
// k8 step), 16 KB of fragments, 32 KB of splitting, 32 KB from TMA, while the tensor cores need 1536
// clocks: 176 KB of the 192 KB that shared memory can move in that time, and all of it where S is transposed.
//
// Non-finite numbers. The split turns Inf into Inf + NaN, so sums that see one may be NaN where IEEE says Inf; but a
// sum that saw a non-finite operand, or one that overflowed in the split, is never finite. So a consumer recomputes
// exactly those elements whose sum is not finite, with FFMA from global memory.
//
// Where k is cut (`split_k` > 1) the slices of one tile are the blocks of a cluster and add their sums through
// distributed shared memory in the order of the slices: no workspace, no second launch, the same bits every time.

#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/wgmma.cuh"
#include "frame_sm90.cuh"
#include "layout_sm90.cuh"
#include "register_operand_sm90.cuh"
#include "split.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

template <int BM, int BN, Major MAJOR, Major S_MAJOR, bool SWAPPED, int MULTICAST>
using Tf32x3 = Config<3, BM, BN, MAJOR, S_MAJOR, SWAPPED, MULTICAST>;

struct Fragments {
    uint32_t head[kSteps][4], tail[kSteps][4];
};

// Reads this thread's part of a raw tile of R and splits it.
template <typename CONFIG>
__device__ __forceinline__ void load_fragments(const char* tile, const Place<CONFIG>& place, Fragments& fragments) {
    visit_fragments<CONFIG>(tile, place, [&](int step, int part, float x) {
        float tail;
        split_rounded(x, fragments.head[step][part], tail);
        fragments.tail[step][part] = __float_as_uint(nearly_rounded(tail));
    });
}

// Issues the products of one stage, small ones first, into `acc`, which starts from zero.
template <typename CONFIG, bool SHORT_SUM>
__device__ __forceinline__ void multiply(float (&acc)[CONFIG::ACCUMULATORS], const Fragments& r, uint64_t s_head,
                                         uint64_t s_tail) {
    constexpr uint64_t kStep = kStepK * 4 / 16;   // a descriptor counts 16 bytes
    ptx::wgmma_fence();
    if constexpr (SHORT_SUM) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) ptx::wgmma_tf32(acc, r.tail[step], s_tail + step * kStep, step > 0);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_tf32(acc, r.tail[step], s_head + step * kStep, SHORT_SUM || step > 0);
    }
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
    static_assert(CONFIG::ACCUMULATORS <= 64, "a consumer holds two sets of accumulators");
    const Shared<CONFIG>& shared;
    const Place<CONFIG>& place;
    Ring<CONFIG::STAGES> raw;
    Ring<CONFIG::SLOTS> converted;
    uint64_t s_head, s_tail;   // descriptors of the tiles of S under the cursors, moved along rather than computed
    const bool short_sum;

    __device__ __forceinline__ Consumer(const Shared<CONFIG>& shared_, const Place<CONFIG>& place_, int k)
        : shared(shared_), place(place_), short_sum(k < kShortSum) {
        const char* tail = shared.converted(0) + CONFIG::HEADS * CONFIG::S_BYTES;
        s_head = ptx::wgmma_descriptor_swizzle128(
            ptx::shared_address(CONFIG::HEADS ? shared.converted(0) : shared.s(0)));
        s_tail = ptx::wgmma_descriptor_swizzle128(ptx::shared_address(tail));
    }

    __device__ __forceinline__ void advance() {
        raw.advance();
        converted.advance();
        constexpr int64_t kRaw = CONFIG::RAW_BYTES / 16, kConverted = CONFIG::CONVERTED_BYTES / 16;
        const int64_t next = converted.stage == 0 ? -(CONFIG::SLOTS - 1) * kConverted : kConverted;
        s_tail += next;
        s_head += CONFIG::HEADS ? next : raw.stage == 0 ? -(CONFIG::STAGES - 1) * kRaw : kRaw;
    }

    // Waits for the stage under the cursors and reads this thread's fragments of R.
    __device__ __forceinline__ void fetch(Fragments& fragments) {
        ptx::mbarrier_wait(shared.raw_full(raw.stage), raw.parity);
        load_fragments<CONFIG>(shared.r(raw.stage), place, fragments);
        ptx::mbarrier_wait(shared.converted_full(converted.stage), converted.parity);
    }

    // Multiplies the stage whose fragments are in `now`, and fetches the next.
    __device__ __forceinline__ void step(float (&sum)[CONFIG::ACCUMULATORS], const Fragments& now, Fragments& next,
                                         bool more) {
        float acc[CONFIG::ACCUMULATORS];
        multiply<CONFIG, false>(acc, now, s_head, s_tail);
        uint64_t* raw_empty = shared.raw_empty(raw.stage);
        uint64_t* converted_empty = shared.converted_empty(converted.stage);
        advance();
        if (more) fetch(next);
        promote(sum, acc, raw_empty, converted_empty);
    }

    // Waits for the products, gives their stage back and adds them to the sums.
    __device__ __forceinline__ void promote(float (&sum)[CONFIG::ACCUMULATORS], float (&acc)[CONFIG::ACCUMULATORS],
                                            uint64_t* raw_empty, uint64_t* converted_empty) const {
        ptx::wgmma_wait<0>();
        ptx::settle(acc);
        release_stage<CONFIG::MULTICAST>(raw_empty, place.lane, place.lane);
        if (place.lane == 0) ptx::mbarrier_arrive(converted_empty);
#pragma unroll
        for (int i = 0; i < CONFIG::ACCUMULATORS; ++i) sum[i] += acc[i];
        ptx::settle(sum);
    }

    // The same for a short sum, with all four products, one stage after the other.
    __device__ __forceinline__ void accumulate_short(float (&sum)[CONFIG::ACCUMULATORS], int stages) {
        Fragments now;
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage) {
            float acc[CONFIG::ACCUMULATORS];
            fetch(now);
            multiply<CONFIG, true>(acc, now, s_head, s_tail);
            uint64_t* raw_empty = shared.raw_empty(raw.stage);
            uint64_t* converted_empty = shared.converted_empty(converted.stage);
            advance();
            promote(sum, acc, raw_empty, converted_empty);
        }
    }

    // Adds `stages` stages of k to `sum`.
    __device__ __forceinline__ void accumulate(float (&sum)[CONFIG::ACCUMULATORS], int stages) {
        if (stages == 0) return;
        if (short_sum) return accumulate_short(sum, stages);
        Fragments even, odd;
        fetch(even);
        for (int stage = 0; stage < stages; stage += 2) {
            step(sum, even, odd, stage + 1 < stages);
            if (stage + 1 == stages) break;
            step(sum, odd, even, stage + 2 < stages);
        }
    }
};

}  // namespace

// NAME, rows of R, rows of S, orientation of R and of S, swapped, multicast.
#define GEMM_TF32X3_SM90(NAME, ...)                                                                                    \
    enum : int { NAME##_shared = Tf32x3<__VA_ARGS__>::SHARED_BYTES };                                                  \
    extern "C" __global__ void __launch_bounds__(Tf32x3<__VA_ARGS__>::THREADS, 1)                                      \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,                         \
             const __grid_constant__ CUtensorMap b_map) {                                                              \
        gemm<Tf32x3<__VA_ARGS__>, Consumer<Tf32x3<__VA_ARGS__>>>(args, a_map, b_map);                                  \
    }

// Large problems: clusters of two blocks, neighbours along R, that share each tile of S. Names give the tile of D, m × n.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_2cta_nt, 128, 128, Major::kK, Major::kK, false, 2)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_2cta_tt, 128, 128, Major::kRows, Major::kK, false, 2)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_2cta_nn, 128, 128, Major::kRows, Major::kK, true, 2)

// Problems with few tiles: a cluster of split_k blocks (1 to 6 or 8) cuts k.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_nt, 128, 128, Major::kK, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_tt, 128, 128, Major::kRows, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_nn, 128, 128, Major::kRows, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x128_tn, 128, 128, Major::kRows, Major::kRows, false, 1)

// Narrow n: a few columns of B beside 128 rows of A.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_nt, 128, 64, Major::kK, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x32_nt, 128, 32, Major::kK, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x16_nt, 128, 16, Major::kK, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_tt, 128, 64, Major::kRows, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x32_tt, 128, 32, Major::kRows, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x16_tt, 128, 16, Major::kRows, Major::kK, false, 1)

GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_nn, 128, 64, Major::kK, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x64_tn, 128, 64, Major::kRows, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_128x32_tn, 128, 32, Major::kRows, Major::kRows, false, 1)

// Small m: the weights are the register operand and stream past a few rows of activations.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x128_nt, 128, 64, Major::kK, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x128_nt, 128, 32, Major::kK, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x128_nt, 128, 16, Major::kK, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x128_nn, 128, 64, Major::kRows, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x128_nn, 128, 32, Major::kRows, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x128_nn, 128, 16, Major::kRows, Major::kK, true, 1)

// Few tiles and little arithmetic: half the rows of R, so twice as many blocks to fetch them.
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x64_nt, 64, 64, Major::kK, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x64_tt, 64, 64, Major::kRows, Major::kK, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_64x64_tn, 64, 64, Major::kRows, Major::kRows, false, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x64_nt, 64, 32, Major::kK, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x64_nt, 64, 16, Major::kK, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_32x64_nn, 64, 32, Major::kRows, Major::kK, true, 1)
GEMM_TF32X3_SM90(gemm_tf32x3_sm90_16x64_nn, 64, 16, Major::kRows, Major::kK, true, 1)

#endif  // sm_90a
