// Thin products of 16-bit numbers whose matrix is contiguous along k, at any alignment: A as stored past up to eight columns of B, or a
// transposed B past up to eight rows of A.
#include "thin_half.cuh"

#ifdef KEEP_NEXT
#define THIN_HALF_LET_NEXT()
#else
#define THIN_HALF_LET_NEXT() ptx::let_next_kernel_start()
#endif

namespace thin_half {

template <Half TYPE, int RUN_WINDOWS, int LINE_WARPS, int K_WARPS, bool SWAPPED>
struct Dot {
    static constexpr int kVectors = kGroup;
    static constexpr int kThreads = LINE_WARPS * K_WARPS * kWarp, kLines = LINE_WARPS * kMatrices;
    static constexpr int kRun = RUN_WINDOWS * kWindow;   // numbers of a line that a lane reads at a time
    static constexpr int kWarpK = 4 * kRun;                               // four lanes share a line
    static constexpr int kDepth = K_WARPS * kWarpK;
    static constexpr int kSumPitch = kLines + 1;
    using Portion = VectorPortion<kVectors, kDepth, kThreads>;
    static_assert(2 * kDepth <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + 2 · DEPTH is an int");

    union Shared {
        Portion vectors[2];
        float parts[K_WARPS][kVectors * kSumPitch];
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const bool aligned = SWAPPED ? args.a_access == kRowVector : args.b_access == kColVector;
        __shared__ __align__(16) Shared shared;
        if (aligned) run<true>(args, shared);
        else run<false>(args, shared);
    }

private:
    template <bool ALIGNED>
    static __device__ __forceinline__ void run(const GemmArgs& args, Shared& shared) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = lane / 4, quad = lane % 4;
        const int line_warp = warp % LINE_WARPS, k_warp = warp / LINE_WARPS;
        const ThinUnit unit = ThinUnit::of<kVectors, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        const int k_begin = unit.slice * args.k_slice;
        const int k_end = args.split_k == 1 ? args.k : min(args.k, k_begin + args.k_slice);
        const int vectors = min(kVectors, thin.count - unit.vector);
        const Number* const from_vectors = thin.vectors + unit.vector * thin.vector_stride;
        const int first_k = k_warp * kWarpK + quad * kRun;   // of this lane

        // Lines beyond the last are read as the last one again and not stored.
        const bool dense = thin.line_stride == args.k;
        const Number* line[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int place = unit.line + line_warp * kMatrices + half * kGroup + group;
            line[half] = thin.matrix + min(place, thin.lines - 1) * thin.line_stride;
        }
        const Number* const matrix_end = thin.matrix + thin.lines * thin.line_stride;

        using Lines = Run<RUN_WINDOWS, ALIGNED>;
        Lines next[2];
        const auto fetch = [&](int k) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                next[half].fetch(line[half] + k + first_k, k_end - k - first_k, dense ? thin.matrix : line[half],
                                 dense ? matrix_end : line[half] + args.k);
        };
        typename Portion::Taken taken;
        const auto fetch_vectors = [&](int k) { taken.fetch(from_vectors + k * thin.vector_k_stride, thin, vectors, k_end - k); };

        ptx::wait_for_previous_kernels();
        fetch_vectors(k_begin);

        float sum[4] = {};
        fetch(k_begin);
        shared.vectors[0].store(taken, thin);
        __syncthreads();
        int stage = 0;
#pragma unroll 1
        for (int k = k_begin; k < k_end; k += kDepth) {
            uint32_t now[2][Lines::kWords];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                next[half].align();
                next[half].cut(k_end - k - first_k);
#pragma unroll
                for (int i = 0; i < Lines::kWords; ++i) now[half][i] = next[half].words[i];
            }
            const bool more = k + kDepth < k_end;
            if (more) fetch(k + kDepth);
            const uint4* const from = reinterpret_cast<const uint4*>(&shared.vectors[stage].numbers[group][first_k]);
#pragma unroll
            for (int window = 0; window < RUN_WINDOWS; ++window) {
                const uint4 x = from[window];
                const int at = window * kWindowWords;
                // Which k a register stands for does not matter as long as both operands agree.
                ptx::mma_half<TYPE>(sum, now[0][at], now[1][at], now[0][at + 1], now[1][at + 1], x.x, x.y);
                ptx::mma_half<TYPE>(sum, now[0][at + 2], now[1][at + 2], now[0][at + 3], now[1][at + 3], x.z, x.w);
            }
            stage ^= 1;
            if (more) {   // while the matrix is on its way
                fetch_vectors(k + kDepth);
                shared.vectors[stage].store(taken, thin);
            }
            __syncthreads();
        }

        float* const mine = shared.parts[k_warp];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            mine[(quad * 2 + e % 2) * kSumPitch + line_warp * kMatrices + e / 2 * kGroup + group] = sum[e];
        store_parts<TYPE, kVectors, kLines, kSumPitch, K_WARPS, kThreads, SWAPPED>(args, unit, shared.parts);
    }
};

}  // namespace thin_half

// Type, blocks a multiprocessor, warps along the lines and along k, whether A is the matrix.
#define THIN_HALF_DOT_OF(NAME, TYPE, BLOCKS, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED)                                                 \
    extern "C" __global__ void __launch_bounds__(LINE_WARPS* K_WARPS* kWarp, BLOCKS)                                       \
        NAME(const __grid_constant__ GemmArgs args) {                                                                      \
        THIN_HALF_LET_NEXT();                                                                                              \
        thin_half::Dot<TYPE, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED>::run(args);                                                     \
    }
#define THIN_HALF_DOT(TILE, ...)                                                                                           \
    THIN_HALF_DOT_OF(thin_dot_f16_##TILE, Half::kF16, __VA_ARGS__)                                                         \
    THIN_HALF_DOT_OF(thin_dot_bf16_##TILE, Half::kBF16, __VA_ARGS__)

THIN_HALF_DOT(16x8, 3, 2, 1, 8, true)
THIN_HALF_DOT(64x8, 3, 2, 4, 2, true)
THIN_HALF_DOT(8x16, 3, 2, 1, 8, false)
THIN_HALF_DOT(8x64, 3, 2, 4, 2, false)
