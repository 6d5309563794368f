// Thin products of 16-bit numbers whose matrix is contiguous along its lines, at any alignment: B as stored past up to 16 rows of A, or a
// transposed A past up to 16 columns of B.
#include "thin_half.cuh"

#ifdef KEEP_NEXT
#define THIN_HALF_LET_NEXT()
#else
#define THIN_HALF_LET_NEXT() ptx::let_next_kernel_start()
#endif

namespace thin_half {

template <Half TYPE, int VECTORS, int LINE_WARPS, int K_WARPS, bool SWAPPED>
struct Axpy {
    static constexpr int kThreads = LINE_WARPS * K_WARPS * kWarp;
    static constexpr int kWarpLines = kGroup * kWindow, kLines = LINE_WARPS * kWarpLines;
    static constexpr int kDepth = K_WARPS * kStepK;
    static constexpr int kSumPitch = kLines + 1;
    static constexpr int kRows = 4;   // of the matrix, that a lane reads a window of: 2t, 2t + 1, 2t + 8, 2t + 9
    static constexpr bool kFew = VECTORS == kGroup;
    static constexpr int kProducts = kFew ? kWindow / 2 : kWindow;   // mma for the lines of a warp
    using Portion = VectorPortion<VECTORS, kDepth, kThreads>;
    static_assert(VECTORS == kGroup || VECTORS == 2 * kGroup, "vectors are one operand of an mma");
    static_assert(2 * kDepth <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + 2 · DEPTH is an int");

    union Shared {
        Portion vectors[2];
        float parts[K_WARPS][VECTORS * kSumPitch];
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const bool aligned = SWAPPED ? args.a_access == kColVector : args.b_access == kRowVector;
        __shared__ __align__(16) Shared shared;
        if (aligned) run<true>(args, shared);
        else run<false>(args, shared);
    }

private:
    template <bool ALIGNED>
    static __device__ __forceinline__ void run(const GemmArgs& args, Shared& shared) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = lane / 4, quad = lane % 4;
        const int line_warp = warp % LINE_WARPS, k_warp = warp / LINE_WARPS;
        const ThinUnit unit = ThinUnit::of<VECTORS, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        const int k_begin = unit.slice * args.k_slice;
        const int k_end = args.split_k == 1 ? args.k : min(args.k, k_begin + args.k_slice);
        const int vectors = min(VECTORS, thin.count - unit.vector);
        const Number* const from_vectors = thin.vectors + unit.vector * thin.vector_stride;
        const int first_line = unit.line + line_warp * kWarpLines + group * kWindow;
        const int lines_left = thin.lines - first_line;
        const int first_k = k_warp * kStepK + quad * 2;   // of this lane
        const bool dense = thin.matrix_k_stride == thin.lines;
        const Number* const matrix_end = thin.matrix + args.k * thin.matrix_k_stride;

        using Row = Run<1, ALIGNED>;
        Row next[kRows];
        const auto fetch = [&](int k) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const int row = k + first_k + i / 2 * kGroup + i % 2;
                const Number* const line = thin.matrix + row * thin.matrix_k_stride;
                next[i].fetch(line + first_line, row < k_end ? lines_left : 0, dense ? thin.matrix : line,
                              dense ? matrix_end : line + thin.lines);
            }
        };
        typename Portion::Taken taken;
        const auto fetch_vectors = [&](int k) { taken.fetch(from_vectors + k * thin.vector_k_stride, thin, vectors, k_end - k); };

        ptx::wait_for_previous_kernels();
        fetch_vectors(k_begin);

        float sum[kProducts][4];
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][e] = 0.0f;
        fetch(k_begin);
        shared.vectors[0].store(taken, thin);
        __syncthreads();
        int stage = 0;
#pragma unroll 1
        for (int k = k_begin; k < k_end; k += kDepth) {
            // Pairs along k of each of a lane's lines: from the first eight k of the mma, and from the others.
            uint32_t low[kWindow], high[kWindow];
#pragma unroll
            for (int i = 0; i < kRows; ++i) next[i].align();
#pragma unroll
            for (int i = 0; i < kWindowWords; ++i) {
                low[2 * i] = __byte_perm(next[0].words[i], next[1].words[i], 0x5410);
                low[2 * i + 1] = __byte_perm(next[0].words[i], next[1].words[i], 0x7632);
                high[2 * i] = __byte_perm(next[2].words[i], next[3].words[i], 0x5410);
                high[2 * i + 1] = __byte_perm(next[2].words[i], next[3].words[i], 0x7632);
            }
            const bool more = k + kDepth < k_end;
            if (more) fetch(k + kDepth);
            const auto vector_pair = [&](int vector, int k) {
                return *reinterpret_cast<const uint32_t*>(&shared.vectors[stage].numbers[vector][k_warp * kStepK + quad * 2 + k]);
            };
            const uint32_t x[2] = {vector_pair(group, 0), vector_pair(group, kGroup)};
            if constexpr (kFew) {
#pragma unroll
                for (int i = 0; i < kProducts; ++i)
                    ptx::mma_half<TYPE>(sum[i], low[i], low[i + kProducts], high[i], high[i + kProducts], x[0], x[1]);
            } else {
                const uint32_t y[2] = {vector_pair(group + kGroup, 0), vector_pair(group + kGroup, kGroup)};
#pragma unroll
                for (int i = 0; i < kProducts; ++i) ptx::mma_half<TYPE>(sum[i], x[0], y[0], x[1], y[1], low[i], high[i]);
            }
            stage ^= 1;
            if (more) {   // while the matrix is on its way
                fetch_vectors(k + kDepth);
                shared.vectors[stage].store(taken, thin);
            }
            __syncthreads();
        }

        float* const mine = shared.parts[k_warp] + line_warp * kWarpLines;
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int vector = kFew ? quad * 2 + e % 2 : group + e / 2 * kGroup;
                const int line = kFew ? group * kWindow + i + e / 2 * kProducts : (quad * 2 + e % 2) * kWindow + i;
                mine[vector * kSumPitch + line] = sum[i][e];
            }
        store_parts<TYPE, VECTORS, kLines, kSumPitch, K_WARPS, kThreads, SWAPPED>(args, unit, shared.parts);
    }
};

}  // namespace thin_half

// Type, blocks a multiprocessor, vectors at most, warps along the lines and along k, whether A is the matrix.
#define THIN_HALF_AXPY_OF(NAME, TYPE, BLOCKS, VECTORS, LINE_WARPS, K_WARPS, SWAPPED)                                       \
    extern "C" __global__ void __launch_bounds__(LINE_WARPS* K_WARPS* kWarp, BLOCKS)                                       \
        NAME(const __grid_constant__ GemmArgs args) {                                                                      \
        THIN_HALF_LET_NEXT();                                                                                              \
        thin_half::Axpy<TYPE, VECTORS, LINE_WARPS, K_WARPS, SWAPPED>::run(args);                                           \
    }
#define THIN_HALF_AXPY(TILE, ...)                                                                                          \
    THIN_HALF_AXPY_OF(thin_axpy_f16_##TILE, Half::kF16, __VA_ARGS__)                                                       \
    THIN_HALF_AXPY_OF(thin_axpy_bf16_##TILE, Half::kBF16, __VA_ARGS__)

THIN_HALF_AXPY(8x64, 3, 8, 1, 8, false)
THIN_HALF_AXPY(8x256, 3, 8, 4, 2, false)
THIN_HALF_AXPY(16x64, 2, 16, 1, 8, false)
THIN_HALF_AXPY(16x256, 2, 16, 4, 2, false)
THIN_HALF_AXPY(64x8, 3, 8, 1, 8, true)
THIN_HALF_AXPY(256x8, 3, 8, 4, 2, true)
