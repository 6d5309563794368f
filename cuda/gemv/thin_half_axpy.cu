// Thin products of 16-bit numbers whose matrix is contiguous along its lines, at any alignment: B as stored past few rows of A, or a
// transposed A past few columns of B. A vocabulary of 50257 words puts every row of such a B at another multiple of 2 bytes.
//
//          lines →   lanes 0…3   lanes 4…7      …                     a lane reads 16 bytes of four rows: those of lanes 0 to 3
//   k    4t … 4t+3 ├───────────┼───────────┼───────────┤              lie below each other, eight of them beside each other, 128
//                  │ 8 lines   │ 8 lines   │           │              bytes of 16 rows a warp
//
// An mma wants pairs along k. Two rows make them in registers: the low halves of both words, then the high halves. So the eight lines
// of a lane are eight fragments, of eight mma with up to 16 vectors or of four with up to 8. Which k a register stands for does not
// matter as long as both operands agree: a lane takes four neighbouring k, and reads 8 bytes of a vector where those are aligned.
//
// The matrix passes no shared memory, and the loop has no barrier. Rows that start within 16 bytes are shifted (thin_half.cuh).
//
// H200, µs, of a stand-alone run: the best tile of gemm_half_mma.cu, this kernel, cuBLAS.
//   NN 13×250002×1024   252  225   206   (16×256)   TN 5267×3×1272      33.3  10.6  14.3   (64×8)
//   NN 11×151646×768    120  111   101   (16×64)    NN 16 × 5×48×5       3.1   2.2   2.5   (8×256)
// Tried: vectors in shared memory, a barrier a step; slower by 3 to 9 % but for the smallest products.
#include "thin_half.cuh"

namespace thin_half {

template <Half TYPE, int VECTORS, int LINE_WARPS, int K_WARPS, bool SWAPPED>
struct Axpy {
    static constexpr int kThreads = LINE_WARPS * K_WARPS * kWarp;
    static constexpr int kWarpLines = kGroup * kWindow, kLines = LINE_WARPS * kWarpLines;
    static constexpr int kDepth = K_WARPS * kStepK;
    static constexpr int kSumPitch = kLines + 1;
    static constexpr int kRows = 4;   // of the matrix, that a lane reads a window of, and numbers of a vector
    static constexpr int kVectorsOfLane = VECTORS / kGroup;
    static constexpr bool kFew = VECTORS == kGroup;
    static constexpr int kProducts = kFew ? kWindow / 2 : kWindow;   // mma for the lines of a warp
    static_assert(VECTORS == kGroup || VECTORS == 2 * kGroup, "vectors are one operand of an mma");
    static_assert(2 * kDepth <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + 2 · DEPTH is an int");

    using Parts = float[K_WARPS][VECTORS * kSumPitch];

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const bool aligned = SWAPPED ? args.a_access == kColVector : args.b_access == kRowVector;
        __shared__ Parts parts;
        if (aligned) run<true>(args, parts);
        else run<false>(args, parts);
    }

private:
    template <bool ALIGNED>
    static __device__ __forceinline__ void run(const GemmArgs& args, Parts& parts) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = lane / 4, quad = lane % 4;
        const int line_warp = warp % LINE_WARPS, k_warp = warp / LINE_WARPS;
        const ThinUnit unit = ThinUnit::of<VECTORS, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        const int k_begin = slice_begin(args, unit.slice), k_end = slice_end(args, k_begin);
        const int first_line = unit.line + line_warp * kWarpLines + group * kWindow;
        const int lines_left = thin.lines - first_line;
        const int first_k = k_warp * kStepK + quad * kRows;   // of this lane
        const bool dense = thin.matrix_k_stride == thin.lines;
        const Number* const matrix_end = thin.matrix + args.k * thin.matrix_k_stride;

        const Number* x_line[kVectorsOfLane];
#pragma unroll
        for (int v = 0; v < kVectorsOfLane; ++v)
            x_line[v] = thin.vectors + min(unit.vector + v * kGroup + group, thin.count - 1) * thin.vector_stride;
        const bool fours = thin.vector_k_stride == 1 && thin.vector_stride % kRows == 0 &&
                           reinterpret_cast<uintptr_t>(thin.vectors) % (kRows * sizeof(Number)) == 0;

        using Row = Run<1, ALIGNED>;
        uint32_t low[kWindow], high[kWindow], x_now[kVectorsOfLane][2];
        float sum[kProducts][4];
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[i][e] = 0.0f;
        ptx::wait_for_previous_kernels();
        // A step is fetched while the one before it is multiplied.
#pragma unroll 1
        for (int k = k_begin;; k += kDepth) {
            Row next[kRows];
            uint32_t x[kVectorsOfLane][2];
            const int first = k + first_k, left = k_end - first;
            if (k < k_end) {
#pragma unroll
                for (int i = 0; i < kRows; ++i) {
                    const Number* const line = thin.matrix + (first + i) * thin.matrix_k_stride;
                    next[i].fetch(line + first_line, i < left ? lines_left : 0, dense ? thin.matrix : line,
                                  dense ? matrix_end : line + thin.lines);
                }
#pragma unroll
                for (int v = 0; v < kVectorsOfLane; ++v) {
                    x[v][0] = x[v][1] = 0;
                    if (fours && left >= kRows) {
                        const uint2 four = *reinterpret_cast<const uint2*>(x_line[v] + first);
                        x[v][0] = four.x;
                        x[v][1] = four.y;
                    } else if (left > 0) {
                        gather_numbers<kRows>(x_line[v] + first * thin.vector_k_stride, thin.vector_k_stride, left, x[v]);
                    }
                }
            }
            if (k > k_begin) {
#pragma unroll
                for (int i = 0; i < kProducts; ++i) {
                    if constexpr (kFew)
                        ptx::mma_half<TYPE>(sum[i], low[i], low[i + kProducts], high[i], high[i + kProducts], x_now[0][0], x_now[0][1]);
                    else
                        ptx::mma_half<TYPE>(sum[i], x_now[0][0], x_now[kVectorsOfLane - 1][0], x_now[0][1],
                                            x_now[kVectorsOfLane - 1][1], low[i], high[i]);
                }
            }
            if (k >= k_end) break;
            // Pairs along k of each of a lane's lines. Which k a register stands for does not matter as long as both operands agree.
#pragma unroll
            for (int i = 0; i < kRows; ++i) next[i].align();
#pragma unroll
            for (int i = 0; i < kWindowWords; ++i) {
                low[2 * i] = pair_of(next[0].words[i], next[1].words[i]);
                low[2 * i + 1] = pair_of_high(next[0].words[i], next[1].words[i]);
                high[2 * i] = pair_of(next[2].words[i], next[3].words[i]);
                high[2 * i + 1] = pair_of_high(next[2].words[i], next[3].words[i]);
            }
#pragma unroll
            for (int v = 0; v < kVectorsOfLane; ++v) x_now[v][0] = x[v][0], x_now[v][1] = x[v][1];
        }

        float* const mine = parts[k_warp] + line_warp * kWarpLines;
#pragma unroll
        for (int i = 0; i < kProducts; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int vector = kFew ? quad * 2 + e % 2 : group + e / 2 * kGroup;
                const int line = kFew ? group * kWindow + i + e / 2 * kProducts : (quad * 2 + e % 2) * kWindow + i;
                mine[vector * kSumPitch + line] = sum[i][e];
            }
        store_parts<TYPE, VECTORS, kLines, kSumPitch, K_WARPS, kThreads, SWAPPED>(args, unit, parts);
    }
};

}  // namespace thin_half

// Type, blocks a multiprocessor, vectors at most, warps along the lines and along k, whether A is the matrix.
#define THIN_HALF_AXPY_OF(NAME, TYPE, BLOCKS, VECTORS, LINE_WARPS, K_WARPS, SWAPPED)                                   \
    extern "C" __global__ void LAUNCH_BOUNDS_SHARED_BY(BLOCKS, LINE_WARPS* K_WARPS* kWarp)                             \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        if (K_WARPS > 1 || gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                      \
        thin_half::Axpy<TYPE, VECTORS, LINE_WARPS, K_WARPS, SWAPPED>::run(args);                                       \
    }
#define THIN_HALF_AXPY(TILE, ...)                                                                                      \
    THIN_HALF_AXPY_OF(thin_axpy_f16_##TILE, Half::kF16, __VA_ARGS__)                                                   \
    THIN_HALF_AXPY_OF(thin_axpy_bf16_##TILE, Half::kBF16, __VA_ARGS__)

THIN_HALF_AXPY(8x64, 2, 8, 1, 8, false)
THIN_HALF_AXPY(8x256, 5, 8, 4, 1, false)
THIN_HALF_AXPY(16x64, 2, 16, 1, 8, false)
THIN_HALF_AXPY(16x256, 4, 16, 4, 1, false)
THIN_HALF_AXPY(64x8, 2, 8, 1, 8, true)
THIN_HALF_AXPY(256x8, 4, 8, 4, 1, true)
