// Thin products whose matrix is contiguous along its lines, at any alignment: B as stored past up to 32 rows of A, or a
// transposed A past up to 32 columns of B.
//
// The matrix is read once, and a row of it may begin anywhere: 51865 words of a vocabulary put every row at another multiple of
// 4 bytes. So a lane reads single elements, its neighbours the next ones, which takes as many sectors of memory as reading 16
// bytes at a time and more instructions, of which there is time for: at 4.8 TB/s a multiprocessor gets 128 bytes in 7 clocks.
//
//            lines →      32      64      96      128
//          k ┌───────┬───────┬───────┬───────┐
//          ↓ │ lane  │ lane  │ lane  │ lane  │  kSteps rows: a warp's requests at a time, then the sums with the vectors, which
//            │ 0…31  │ 0…31  │ 0…31  │ 0…31  │  the warp keeps in shared memory for these rows
//            ├───────┴───────┴───────┴───────┤
//            │ the next warp                 │
//
// A lane has EACH lines, 32 apart, and a sum for each of them and each vector. The warps of a block take turns along k, and
// their sums are added in pairs: always in the same order. Where there are few lines, a cluster cuts k.
#include "../ptx/execution.cuh"
#include "thin.cuh"

namespace thin {

constexpr int kSteps = 8;   // of k that a warp takes at a time

template <int M, int EACH, int WARPS, bool SWAPPED>
struct Axpy {
    static constexpr int kThreads = WARPS * kWarp, kLines = EACH * kWarp, kHalf = WARPS / 2;
    static constexpr int kPitch = kLines + (SWAPPED ? 1 : 0);   // whoever stores rows of D reads across vectors then
    static constexpr int kItems = M * kSteps;       // elements of the vectors for the steps of a warp
    static_assert(kThreads * kSteps <= kMaxOvershoot && kItems % kVector == 0, "k + WARPS · kSteps is an int");

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
        const int k_begin = unit.slice * args.k_slice;
        const int k_end = args.split_k == 1 ? args.k : min(args.k, k_begin + args.k_slice);
        const int lines_left = thin.lines - unit.line, vectors_left = thin.count - unit.vector;
        const float* matrix = thin.matrix + unit.line + lane;
        const float* vectors = thin.vectors + unit.vector * thin.vector_stride;
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
            if (left >= kSteps && lines_left >= kLines) {
#pragma unroll
                for (int s = 0; s < kSteps; ++s)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) w[s][i] = __ldg(from + s * thin.matrix_k_stride + i * kWarp);
            } else {
#pragma unroll
                for (int s = 0; s < kSteps; ++s)
#pragma unroll
                    for (int i = 0; i < EACH; ++i)
                        w[s][i] = s < left && lane + i * kWarp < lines_left
                                      ? __ldg(from + s * thin.matrix_k_stride + i * kWarp)
                                      : 0.0f;
            }
#pragma unroll
            for (int first = 0; first < kItems; first += kWarp) {
                const int item = first + lane, v = item / kSteps, s = item % kSteps;
                const bool inside = v < vectors_left && s < left;
                if (kItems % kWarp == 0 || item < kItems)
                    mine[s * M + v] = inside ? __ldg(vectors + v * thin.vector_stride + (k + s) * thin.vector_k_stride) : 0.0f;
            }
            __syncwarp();
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                float x[M];
                read_vectors(x, mine + s * M);
#pragma unroll
                for (int v = 0; v < M; ++v)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) acc[v][i] = fmaf(w[s][i], x[v], acc[v][i]);
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
    static __device__ __forceinline__ void read_vectors(float (&x)[M], const float* from) {
        if constexpr (M % kVector == 0) {
#pragma unroll
            for (int v = 0; v < M; v += kVector)
                *reinterpret_cast<float4*>(x + v) = *reinterpret_cast<const float4*>(from + v);
        } else {
#pragma unroll
            for (int v = 0; v < M; ++v) x[v] = from[v];
        }
    }
};

}  // namespace thin

// Entries: vectors at most, lines a lane, warps, blocks a multiprocessor, whether A is the matrix. Names have the tile of D.
#define THIN_AXPY(NAME, M, EACH, WARPS, BLOCKS, SWAPPED)                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {  \
        ptx::wait_for_previous_kernels();                                                                          \
        thin::Axpy<M, EACH, WARPS, SWAPPED>::run(args);                                                        \
    }

THIN_AXPY(thin_axpy_4x128, 4, 4, 8, 3, false)
THIN_AXPY(thin_axpy_8x32, 8, 1, 16, 2, false)
THIN_AXPY(thin_axpy_8x64, 8, 2, 8, 4, false)
THIN_AXPY(thin_axpy_8x128, 8, 4, 4, 5, false)
THIN_AXPY(thin_axpy_16x64, 16, 2, 8, 3, false)
THIN_AXPY(thin_axpy_32x8, 8, 1, 16, 2, true)
