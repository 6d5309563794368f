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
// Where 16 bytes fit the rows of the matrix, a lane of thin_wide_… has four neighbouring lines and reads them at once: a quarter of the
// requests, of which eight are under way. It is for some thousand lines and a long k, past up to eight rows (docs/few_vectors.md, "Wide rows").
// H200, µs, B cold: thin_axpy_4x128, thin_wide.
//   NN 1×8192×28672   255   211        NN 3×10752×3584   42.9   40.0
//
// Some hundreds of lines fill few blocks of 32, and then each of the few multiprocessors is at its own limit. Blocks of 16 or 8 lines are two
// or four times as many: a warp reads 2 or 4 rows at once, whose sums meet at the end. They ask for a fifth or a half more sectors, since rows
// that start anywhere touch one more than they fill. An H100, µs, operands cold, in a program of nothing else:
//   lines a block          32      16       8   cuBLAS
//   NN 1×1025×2048        7.5     6.4     6.5      5.6
//   NN 1×513×4096        10.4     8.0     7.5      7.4
//   NN 4×1025×2048        9.8     7.5             14.5
//   NN 8×1025×2048       13.3    11.1    11.6     20.8
//   NN 8×4097×1024       10.6    11.7    21.3     20.7
//
// H200, µs, operands cold but for the two TN: the planner's choice before, this kernel, cuBLAS.
//   NN 4×151646×2560    748   369   412        NN 8×51865×1024    146    73    90
//   NN 3×50265×960       92    50    56        NN 12×250002×1536  792   577   669
//   TN 6×1600×12293      76    35    56        TN 4096×13×3661     46    35    37
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"
#include "thin.cuh"

namespace thin {

// WIDE: lines of a lane are neighbours, which it reads 16 bytes at a time.
template <int M, int LINES, int WARPS, bool SWAPPED, bool WIDE>
struct Axpy {
    static constexpr int kThreads = WARPS * kWarp, kLines = LINES, kHalf = WARPS / 2;
    static constexpr int kLanes = WIDE ? LINES / kVector : LINES < kWarp ? LINES : kWarp;   // neighbours along the lines
    static constexpr int kLaneApart = WIDE ? kVector : 1, kApart = WIDE ? 1 : kLanes;       // first lines of lanes, and lines of a lane
    static constexpr int EACH = LINES / kLanes, ROWS = kWarp / kLanes;   // lines of a lane, and rows of k that a warp reads at once
    static_assert(EACH * kLanes == LINES && ROWS * kLanes == kWarp, "lanes share lines and rows evenly");
    static_assert(!WIDE || EACH == kVector, "a lane of a wide kernel has as many lines as 16 bytes");
    static constexpr int kSteps = EACH > 1 ? 8 : M == 1 ? 32 : 16;   // rows that a lane takes at a time
    static constexpr int kPitch = kLines + (SWAPPED ? 1 : 0);   // whoever stores rows of D reads across vectors then
    static constexpr int kTurn = kSteps * ROWS;     // of k that a warp takes at a time
    static constexpr int kItems = M * kTurn;        // elements of the vectors for a turn
    static constexpr int kFetched = kTurn < kWarp ? kTurn : kWarp;   // elements of a vector that lanes fetch at once
    static constexpr int kVectorsAtOnce = kWarp / kFetched;          // so many vectors
    static_assert(WARPS * kTurn <= kMaxOvershoot, "k + WARPS · kTurn is an int");
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
        const int along = lane % kLanes * kLaneApart, first_step = lane / kLanes * kSteps;
        const int vector = lane / kFetched, step = lane % kFetched;   // which element of the vectors this lane fetches first
        const bool whole = thin.lines - unit.line >= (WIDE ? along + kVector : kLines);
        const int lines_left = thin.lines - unit.line - along, vectors_left = thin.count - unit.vector - vector;
        const float* matrix = thin.matrix + unit.line + along + first_step * thin.matrix_k_stride;
        const float* vectors = thin.vectors + (unit.vector + vector) * thin.vector_stride + step * thin.vector_k_stride;
        float* mine = shared.vectors[warp];

        float acc[M][EACH];
#pragma unroll
        for (int v = 0; v < M; ++v)
#pragma unroll
            for (int i = 0; i < EACH; ++i) acc[v][i] = 0.0f;

#pragma unroll 1
        for (int k = k_begin + warp * kTurn; k < k_end; k += WARPS * kTurn) {
            const int left = k_end - k;
            const float* from = matrix + k * thin.matrix_k_stride;
            float w[kSteps][EACH];
            if (whole && left >= kTurn) {
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
                    read(w[s], from);
                    from += thin.matrix_k_stride;
                }
            } else {
#pragma unroll
                for (int s = 0; s < kSteps; ++s) {
#pragma unroll
                    for (int i = 0; i < EACH; ++i)
                        w[s][i] = s < left - first_step && i * kApart < lines_left ? from[i * kApart] : 0.0f;
                    from += thin.matrix_k_stride;
                }
            }
            const float* x_from = vectors + k * thin.vector_k_stride;
#pragma unroll
            for (int first = 0; first < M; first += kVectorsAtOnce) {
#pragma unroll
                for (int piece = 0; piece < kTurn; piece += kFetched) {
                    const bool inside = first < vectors_left && step + piece < left;
                    if (M > 1 || vector == 0) mine[(step + piece) * M + first + vector] = inside ? x_from[piece * thin.vector_k_stride] : 0.0f;
                }
                x_from += kVectorsAtOnce * thin.vector_stride;
            }
            __syncwarp();
            if constexpr (M == 1) {
#pragma unroll
                for (int s = 0; s < kSteps; s += kVector) {
                    const float4 x = *reinterpret_cast<const float4*>(mine + first_step + s);
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
                        const float4 x = *reinterpret_cast<const float4*>(mine + (first_step + s) * M + v);
                        multiply(acc[v], w[s], x.x);
                        multiply(acc[v + 1], w[s], x.y);
                        multiply(acc[v + 2], w[s], x.z);
                        multiply(acc[v + 3], w[s], x.w);
                    }
                }
            }
            __syncwarp();
        }

#pragma unroll
        for (int apart = kLanes; apart < kWarp; apart *= 2)
#pragma unroll
            for (int v = 0; v < M; ++v)
#pragma unroll
                for (int i = 0; i < EACH; ++i) acc[v][i] += __shfl_xor_sync(kWholeWarp, acc[v][i], apart);

        const bool first_of_line = ROWS == 1 || lane < kLanes;   // of the lanes that have its sums now

        // The upper half of the warps gives its sums to the lower half, and so on.
        __syncthreads();   // the vectors are done with
#pragma unroll
        for (int half = kHalf; half > 0; half /= 2) {
            float* place = shared.sums[warp % half] + along;
            if (first_of_line && warp >= half && warp < 2 * half) {
#pragma unroll
                for (int v = 0; v < M; ++v)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) place[v * kPitch + i * kApart] = acc[v][i];
            }
            __syncthreads();
            if (first_of_line && warp < half) {
#pragma unroll
                for (int v = 0; v < M; ++v)
#pragma unroll
                    for (int i = 0; i < EACH; ++i) {
                        float& there = place[v * kPitch + i * kApart];
                        acc[v][i] += there;
                        if (half == 1) there = acc[v][i];
                    }
            }
            __syncthreads();
        }
        store_thin<M, kLines, kPitch, kThreads, SWAPPED>(args, unit, shared.sums[0]);
    }

private:
    static __device__ __forceinline__ void read(float (&w)[EACH], const float* from) {
        if constexpr (WIDE) {
            const float4 four = ptx::load_streaming(from);
            w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i) w[i] = from[i * kApart];
        }
    }
    static __device__ __forceinline__ void multiply(float (&acc)[EACH], const float (&w)[EACH], float x) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) acc[i] = fmaf(w[i], x, acc[i]);
    }
};

}  // namespace thin

// Entries: vectors at a time, lines and warps of a block, blocks a multiprocessor, whether A is the matrix. Names have the tile of D.
#define THIN_AXPY_OF(NAME, M, LINES, WARPS, BLOCKS, SWAPPED, WIDE)                                                  \
    extern "C" __global__ void LAUNCH_BOUNDS_SHARED_BY(BLOCKS, WARPS * kWarp)                                       \
        NAME(const __grid_constant__ GemmArgs args) {                                                               \
        ptx::wait_for_previous_kernels();                                                                           \
        thin::Axpy<M, LINES, WARPS, SWAPPED, WIDE>::run(args);                                                      \
    }
#define THIN_AXPY(NAME, M, LINES, WARPS, BLOCKS, SWAPPED) THIN_AXPY_OF(NAME, M, LINES, WARPS, BLOCKS, SWAPPED, false)
#define THIN_WIDE(NAME, M, LINES, WARPS, BLOCKS) THIN_AXPY_OF(NAME, M, LINES, WARPS, BLOCKS, false, true)

THIN_AXPY(thin_axpy_1x8, 1, 8, 16, 2, false)
THIN_AXPY(thin_axpy_1x16, 1, 16, 16, 2, false)
THIN_AXPY(thin_axpy_1x32, 1, 32, 16, 2, false)
THIN_AXPY(thin_axpy_1x128, 1, 128, 4, 8, false)
THIN_AXPY(thin_axpy_4x16, 4, 16, 16, 2, false)
THIN_AXPY(thin_axpy_4x32, 4, 32, 16, 2, false)
THIN_AXPY(thin_axpy_4x128, 4, 128, 8, 3, false)
THIN_AXPY(thin_axpy_8x16, 8, 16, 16, 2, false)
THIN_AXPY(thin_axpy_8x32, 8, 32, 16, 2, false)
THIN_AXPY(thin_axpy_8x64, 8, 64, 8, 4, false)
THIN_AXPY(thin_axpy_8x128, 8, 128, 4, 5, false)
THIN_AXPY(thin_axpy_16x64, 16, 64, 8, 3, false)
THIN_AXPY(thin_axpy_16x1, 1, 16, 16, 2, true)
THIN_AXPY(thin_axpy_32x1, 1, 32, 16, 2, true)
THIN_AXPY(thin_axpy_128x1, 1, 128, 4, 8, true)
THIN_AXPY(thin_axpy_32x4, 4, 32, 16, 2, true)
THIN_AXPY(thin_axpy_16x8, 8, 16, 16, 2, true)
THIN_AXPY(thin_axpy_32x8, 8, 32, 16, 2, true)

THIN_WIDE(thin_wide_1x64, 1, 64, 8, 4)
THIN_WIDE(thin_wide_4x64, 4, 64, 8, 3)
THIN_WIDE(thin_wide_4x128, 4, 128, 8, 3)
