// Thin products of 16-bit numbers whose matrix is contiguous along k, at any alignment: A as stored past few columns of B, or a
// transposed B past few rows of A.
//
// The other kernels want rows on 16 bytes, so operands with an odd k were repacked first, or went number by number to a tile of 64
// columns of which few were there. Here the matrix goes from memory straight to registers, each number once, as the operand of an mma
// with 16 lines; eight vectors are the other one:
//
//          k →   lane 0      lane 1      lane 2      lane 3            windows of 16 bytes; see thin_half.cuh for lines that start
//   line 0     ├─────┬─────┼─────┬─────┼─────┬─────┼─────┬─────┤       within one. A lane has a run of 16 numbers of lines g and
//   line 1     │ lane 4    │           │           │           │       g + 8, so a load of a warp takes 128 neighbouring bytes of
//      …       │           │           │           │           │       eight lines
//
// A lane's run serves it as fragments of several mma. Which k a register stands for does not matter as long as both operands agree.
// Vectors come the same way, from the L1, so that the loop has no barrier.
// Warps of a block that share k add up in shared memory, in their order; where there are few lines, a cluster cuts k.
//
// H200, µs, of a stand-alone run: the best tile of gemm_half_mma.cu, this kernel, cuBLAS.
//   NT 28854×2×4544     161   79   108        NN 56 × 1×6×22         4.1   2.7   2.0   (16×8)
//   NT 5 × 2080×2×9216  126   57   103        NT 3×192×194           8.1   2.5   3.8   (8×16)
//   NN 128 × 718×2×32  21.8  9.3   7.0        NT 729×16×196          8.3   3.5   3.3   (16×8)
// Vectors in shared memory, with a barrier a step, were an eighth faster off 16 bytes, and a little slower or equal on 16 bytes: there they
// are shifted once a block. A run of 32 numbers spills.
#include "thin_half.cuh"

namespace thin_half {

template <Half TYPE, int RUN_WINDOWS, int LINE_WARPS, int K_WARPS, bool SWAPPED>
struct Dot {
    static constexpr int kVectors = kGroup;
    static constexpr int kThreads = LINE_WARPS * K_WARPS * kWarp, kLines = LINE_WARPS * kMatrices;
    static constexpr int kRun = RUN_WINDOWS * kWindow;   // numbers of a line that a lane reads at a time
    static constexpr int kWarpK = 4 * kRun;                               // four lanes share a line
    static constexpr int kDepth = K_WARPS * kWarpK;
    static constexpr int kSumPitch = kLines + 1;
    static_assert(2 * kDepth <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + 2 · DEPTH is an int");

    using Parts = float[K_WARPS][kVectors * kSumPitch];

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const bool aligned = SWAPPED ? args.a_access == kRowVector : args.b_access == kColVector;
        __shared__ Parts parts;
        if (aligned) run<true>(args, parts);
        else run<false>(args, parts);
    }

private:
    template <bool ALIGNED>
    static __device__ __forceinline__ void run(const GemmArgs& args, Parts& parts) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = lane / 4, quad = lane % 4;
        const int line_warp = warp % LINE_WARPS, k_warp = warp / LINE_WARPS;
        const ThinUnit unit = ThinUnit::of<kVectors, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        // Slices are blocks of a cluster alone: slice_begin() would also count those along y of the grid, which this kernel does not have.
        const int k_begin = unit.slice * args.k_slice;
        const int k_end = args.split_k == 1 ? args.k : min(args.k, k_begin + args.k_slice);
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

        const int vector = unit.vector + group;
        const Number* const x_line = thin.vectors + min(vector, thin.count - 1) * thin.vector_stride;
        const bool along_k = thin.vector_k_stride == 1, vectors_dense = thin.vector_stride == args.k;
        const Number* const vectors_end = thin.vectors + thin.count * thin.vector_stride;

        using Lines = Run<RUN_WINDOWS, ALIGNED>;
        using Vector = Run<RUN_WINDOWS, false>;
        uint32_t now[2][Lines::kWords], x_now[Vector::kWords];
        float sum[4] = {};
        ptx::wait_for_previous_kernels();
        // A step is fetched while the one before it is multiplied.
#pragma unroll 1
        for (int k = k_begin;; k += kDepth) {
            Lines next[2];
            Vector x;
            const int first = k + first_k, left = k_end - first;
            if (k < k_end) {
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    next[half].fetch(line[half] + first, left, dense ? thin.matrix : line[half],
                                     dense ? matrix_end : line[half] + args.k);
                if (along_k) x.fetch(x_line + first, left, vectors_dense ? thin.vectors : x_line, vectors_dense ? vectors_end : x_line + args.k);
                else x.gather(x_line + first * thin.vector_k_stride, thin.vector_k_stride, left);
            }
            if (k > k_begin) {
                // Which k a register stands for does not matter as long as both operands agree.
#pragma unroll
                for (int i = 0; i < Lines::kWords; i += 2)
                    ptx::mma_half<TYPE>(sum, now[0][i], now[1][i], now[0][i + 1], now[1][i + 1], x_now[i], x_now[i + 1]);
            }
            if (k >= k_end) break;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                next[half].align();
                next[half].cut(left);
#pragma unroll
                for (int i = 0; i < Lines::kWords; ++i) now[half][i] = next[half].words[i];
            }
            x.align();
            x.cut(left);
#pragma unroll
            for (int i = 0; i < Vector::kWords; ++i) x_now[i] = x.words[i];
        }

        float* const mine = parts[k_warp];
#pragma unroll
        for (int e = 0; e < 4; ++e)
            mine[(quad * 2 + e % 2) * kSumPitch + line_warp * kMatrices + e / 2 * kGroup + group] = sum[e];
        store_parts<TYPE, kVectors, kLines, kSumPitch, K_WARPS, kThreads, SWAPPED>(args, unit, parts);
    }
};

}  // namespace thin_half

// Type, blocks a multiprocessor, windows of a run, warps along the lines and along k, whether A is the matrix.
#define THIN_HALF_DOT_OF(NAME, TYPE, BLOCKS, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED)                                \
    extern "C" __global__ void LAUNCH_BOUNDS_SHARED_BY(BLOCKS, LINE_WARPS* K_WARPS* kWarp)                             \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        if (K_WARPS > 1 || gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                      \
        thin_half::Dot<TYPE, RUN_WINDOWS, LINE_WARPS, K_WARPS, SWAPPED>::run(args);                                    \
    }
#define THIN_HALF_DOT(TILE, ...)                                                                                       \
    THIN_HALF_DOT_OF(thin_dot_f16_##TILE, Half::kF16, __VA_ARGS__)                                                     \
    THIN_HALF_DOT_OF(thin_dot_bf16_##TILE, Half::kBF16, __VA_ARGS__)

THIN_HALF_DOT(16x8, 5, 1, 1, 4, true)
THIN_HALF_DOT(16x8_deep, 2, 2, 1, 8, true)
THIN_HALF_DOT(64x8, 5, 2, 4, 1, true)
THIN_HALF_DOT(8x16, 5, 2, 1, 4, false)
THIN_HALF_DOT(8x16_deep, 2, 2, 1, 8, false)
THIN_HALF_DOT(8x64, 5, 2, 4, 1, false)
