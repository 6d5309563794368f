// Thin products whose matrix is contiguous along its lines, at any alignment: B as stored past the rows of A, or a transposed A past
// the columns of B.
//
// gemv_axpy reads the matrix 16 bytes at a time. A vocabulary of 51865 words puts every row of it at another multiple of 4 bytes,
// and then gemv_axpy falls back to guarded reads, a few under way. Here a lane reads single elements, its neighbours the next ones.
// That takes as many sectors of memory as 16 bytes at a time and more instructions, for which there is time: at 4.8 TB/s a
// multiprocessor of an H200 gets 128 bytes in 7 clocks.
//
//            lines →      32      64      96      128
//          k ┌───────┬───────┬───────┬───────┐
//          ↓ │ lane  │ lane  │ lane  │ lane  │  kSteps rows: a warp's requests at a time, then the sums with the vectors, which
//            │ 0…31  │ 0…31  │ 0…31  │ 0…31  │  the warp keeps in shared memory for these rows
//            ├───────┴───────┴───────┴───────┤
//            │ the next warp                 │
//
// A lane has EACH lines, 32 apart, and a sum for each of them and each vector. The warps of a block take turns along k, and
// their sums are added in pairs: always in the same order. Where there are few lines, a cluster cuts k. Few lines and a long k want
// few lines a block, many warps and more of k at a time (1 × 32, 8 × 32), many lines the opposite (1 × 128, 8 × 128).
//
// H200, µs, operands cold but for the two TN: the planner's choice before, this kernel, cuBLAS.
//   NN 4×151646×2560    748   369   412        NN 8×51865×1024    146    73    90
//   NN 3×50265×960       92    50    56        NN 12×250002×1536  792   577   669
//   TN 6×1600×12293      76    35    56        TN 4096×13×3661     46    35    37
#include "../ptx/execution.cuh"
#include "thin.cuh"

namespace thin {

template <int M, int EACH, int WARPS, bool SWAPPED>
struct Axpy {
    static constexpr int kThreads = WARPS * kWarp, kLines = EACH * kWarp, kHalf = WARPS / 2;
    static constexpr int kSteps = EACH > 1 ? 8 : M == 1 ? 32 : 16;   // of k that a warp takes at a time
    static constexpr int kPitch = kLines + (SWAPPED ? 1 : 0);   // whoever stores rows of D reads across vectors then
    static constexpr int kItems = M * kSteps;       // elements of the vectors for the steps of a warp
    static constexpr int kVectorsAtOnce = kWarp / kSteps;   // that the lanes of a warp fetch elements of
    static_assert(kThreads * kSteps <= kMaxOvershoot, "k + WARPS · kSteps is an int");
    static_assert(M == 1 || M % kVectorsAtOnce == 0, "of a single vector the first lanes fetch elements, of several all");
    static_assert(M == 1 || M % kVector == 0, "elements of the vectors are read four at a time");

    struct Shared {
        union {
            float vectors[WARPS][kItems];
            float sums[kHalf][M * kPitch];
        };
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ __align__(16) Shared shared;
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        const ThinUnit unit = ThinUnit::of<M, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        const int k_begin = slice_begin(args, unit.slice), k_end = slice_end(args, k_begin);
        const int vector = lane / kSteps, step = lane % kSteps;   // which element of the vectors this lane fetches first
        const bool whole = thin.lines - unit.line >= kLines;
        const int lines_left = thin.lines - unit.line - lane, vectors_left = thin.count - unit.vector - vector;
        const float* matrix = thin.matrix + unit.line + lane;
        const float* vectors = thin.vectors + (unit.vector + vector) * thin.vector_stride + step * thin.vector_k_stride;
        float* mine = shared.vectors[warp];

        float acc[M][EACH];
#pragma unroll
        for (int v = 0; v < M; ++v)
#pragma unroll
            for (int i = 0; i < EACH; ++i) acc[v][i] = 0.0f;

#pragma unroll 1
        for (int k = k_begin + warp * kSteps; k < k_end; k += WARPS * kSteps) {
            const int left = k_end - k;
            const float* from = matrix + k * thin.matrix_k_stride;
            float w[kSteps][EACH];
            if (whole && left >= kSteps) {
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                    for (int i = 0; i < EACH; ++i) w[s][i] = from[i * kWarp];
                    from += thin.matrix_k_stride;
                }
            } else {
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                    for (int i = 0; i < EACH; ++i)
                        w[s][i] = s < left && i * kWarp < lines_left ? from[i * kWarp] : 0.0f;
                    from += thin.matrix_k_stride;
                }
            }
            const float* x_from = vectors + k * thin.vector_k_stride;
#pragma unroll
            for (int first = 0; first < M; first += kVectorsAtOnce) {
                const bool inside = first < vectors_left && step < left;
                if (M > 1 || vector == 0) mine[step * M + first + vector] = inside ? *x_from : 0.0f;
                x_from += kVectorsAtOnce * thin.vector_stride;
            }
            __syncwarp();
            if constexpr (M == 1) {
#pragma unroll
                for (int s = 0; s < kSteps; s += kVector) {
                    const float4 x = *reinterpret_cast<const float4*>(mine + s);
                    multiply(acc[0], w[s], x.x);
                    multiply(acc[0], w[s + 1], x.y);
                    multiply(acc[0], w[s + 2], x.z);
                    multiply(acc[0], w[s + 3], x.w);
                }
            } else {
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                    for (int v = 0; v < M; v += kVector) {
                        const float4 x = *reinterpret_cast<const float4*>(mine + s * M + v);
                        multiply(acc[v], w[s], x.x);
                        multiply(acc[v + 1], w[s], x.y);
                        multiply(acc[v + 2], w[s], x.z);
                        multiply(acc[v + 3], w[s], x.w);
                    }
                }
            }
            __syncwarp();
        }

        // The upper half of the warps gives its sums to the lower half, and so on.
        __syncthreads();   // the vectors are done with
#pragma unroll
        for (int half = kHalf; half > 0; half /= 2) {
            float* place = shared.sums[warp % half] + lane;
            if (warp >= half && warp < 2 * half) {
#pragma unroll
                for (int v = 0; v < M; ++v)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) place[v * kPitch + i * kWarp] = acc[v][i];
            }
            __syncthreads();
            if (warp < half) {
#pragma unroll
                for (int v = 0; v < M; ++v)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) {
                        float& there = place[v * kPitch + i * kWarp];
                        acc[v][i] += there;
                        if (half == 1) there = acc[v][i];
                    }
            }
            __syncthreads();
        }
        store_thin<M, kLines, kPitch, kThreads, SWAPPED>(args, unit, shared.sums[0]);
    }

private:
    static __device__ __forceinline__ void multiply(float (&acc)[EACH], const float (&w)[EACH], float x) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) acc[i] = fmaf(w[i], x, acc[i]);
    }
};

}  // namespace thin

// Entries: vectors at a time, lines a lane, warps, blocks a multiprocessor, whether A is the matrix. Names have the tile of D.
#define THIN_AXPY(NAME, M, EACH, WARPS, BLOCKS, SWAPPED)                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * kWarp, BLOCKS - kFewerBlocks)                              \
        NAME(const __grid_constant__ GemmArgs args) {                                                               \
        ptx::wait_for_previous_kernels();                                                                           \
        thin::Axpy<M, EACH, WARPS, SWAPPED>::run(args);                                                             \
    }

THIN_AXPY(thin_axpy_1x32, 1, 1, 16, 2, false)
THIN_AXPY(thin_axpy_1x128, 1, 4, 4, 8, false)
THIN_AXPY(thin_axpy_4x128, 4, 4, 8, 3, false)
THIN_AXPY(thin_axpy_8x32, 8, 1, 16, 2, false)
THIN_AXPY(thin_axpy_8x64, 8, 2, 8, 4, false)
THIN_AXPY(thin_axpy_8x128, 8, 4, 4, 5, false)
THIN_AXPY(thin_axpy_16x64, 16, 2, 8, 3, false)
THIN_AXPY(thin_axpy_32x8, 8, 1, 16, 2, true)
THIN_AXPY(thin_axpy_32x1, 1, 1, 16, 2, true)
THIN_AXPY(thin_axpy_128x1, 1, 4, 4, 8, true)
