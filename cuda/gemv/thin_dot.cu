// Thin products whose matrix is contiguous along k, at any alignment and for any k: A as stored past the columns of B (an image's
// patches past a convolution's few filters), or a transposed B past the rows of A.
//
// gemv_dot gives a line to a warp, whose lanes share k. With a k of 9 most lanes have nothing to do, and off 16 bytes they read
// element by element. Here a thread has whole lines, so that no sums have to be exchanged, however short the lines are. It cannot read
// them itself: its neighbours would read k elements apart. So the block copies tiles of its lines to shared memory, neighbouring
// threads neighbouring elements, several tiles ahead; lines that follow each other without gaps are one run, whatever k is.
//
//        memory: line 0 │ line 1 │ line 2 …          shared memory, DEPTH + 1 floats from line to line: 32 threads that read
//        ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪          the same k of 32 lines meet 32 banks
//        0  1  2  … threads … 31
//
// The vectors come along, k by k, and are read by all threads at once.
//
// H200, µs: the planner's choice before, this kernel, cuBLAS.
//   NT 15 × 262144×1×9   549   100   180       TT 13 × 4×4356×4        29.4    3.5    7.9
//   NT 24 × 1674×2×225    37    16    24       NT 2×51864×128 (cold)   23.0   13.3   16.0
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "thin.cuh"

namespace thin {

constexpr int kThreads = 128;   // of a block

template <int M, int EACH, int DEPTH, int STAGES, bool SWAPPED>
struct Dot {
    static constexpr int kLines = EACH * kThreads, kPitch = DEPTH + 1;
    static constexpr int kVectorPitch = M < 8 ? M : M + kVector;   // 16 bytes of padding: writers along k meet other banks
    static constexpr int kSumPitch = kLines + (SWAPPED ? 1 : 0);   // whoever stores rows of D reads across vectors then
    static constexpr int kLinesAtOnce = kThreads / DEPTH;
    static_assert(kThreads % DEPTH == 0 && kLines % kLinesAtOnce == 0, "threads copy whole lines");
    static_assert(DEPTH * STAGES <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + DEPTH is an int");

    struct Stage {
        float lines[kLines * kPitch];
        float vectors[DEPTH][kVectorPitch];
    };
    union Shared {
        Stage stages[STAGES];
        float sums[M * kSumPitch];
    };
    static_assert(sizeof(Stage) % 16 == 0 && kLines * kPitch % kVector == 0, "vectors are read 16 bytes at a time");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const ThinUnit unit = ThinUnit::of<M, kLines, SWAPPED>(args);
        const Thin thin = Thin::of<SWAPPED>(args, unit.batch);
        const int k_begin = slice_begin(args, unit.slice), k_end = slice_end(args, k_begin);
        const int lines = min(kLines, thin.lines - unit.line), vectors = min(M, thin.count - unit.vector);
        const float* matrix = thin.matrix + unit.line * thin.line_stride;
        const float* from_vectors = thin.vectors + unit.vector * thin.vector_stride;

        const auto copy = [&](int stage, int k) {
            if (k < k_end) {
                const int depth = min(DEPTH, k_end - k);
                copy_lines(shared.stages[stage].lines, matrix + k, thin.line_stride, lines, depth);
                copy_vectors(shared.stages[stage], from_vectors + k * thin.vector_k_stride, thin, vectors, depth);
            }
            ptx::cp_async_commit();   // an empty group past the end keeps the count of groups simple
        };
        float acc[M][EACH];
#pragma unroll
        for (int v = 0; v < M; ++v)
#pragma unroll
            for (int i = 0; i < EACH; ++i) acc[v][i] = 0.0f;

#pragma unroll
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) copy(ahead, k_begin + ahead * DEPTH);
        int stage = 0, next = STAGES - 1;
#pragma unroll 1
        for (int k = k_begin; k < k_end; k += DEPTH) {
            ptx::cp_async_wait<STAGES - 2>();
            __syncthreads();   // everybody's part has arrived, and the oldest stage is free
            copy(next, k + (STAGES - 1) * DEPTH);
            const float* mine = shared.stages[stage].lines + threadIdx.x * kPitch;
            const float* x = shared.stages[stage].vectors[0];
            const int depth = min(DEPTH, k_end - k);
            if (depth == DEPTH) {
#pragma unroll 4
                for (int i = 0; i < DEPTH; ++i) multiply(acc, mine + i, x + i * kVectorPitch);
            } else {
#pragma unroll 1
                for (int i = 0; i < depth; ++i) multiply(acc, mine + i, x + i * kVectorPitch);
            }
            next = stage;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        __syncthreads();   // the stages are done with: nothing is under way, for past the end nothing is copied
        // Lines that there are not were never copied. Whoever stores the last ones reads their sums as well, four at a time.
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int line = threadIdx.x + i * kThreads;
#pragma unroll
            for (int v = 0; v < M; ++v) shared.sums[v * kSumPitch + line] = line < lines ? acc[v][i] : 0.0f;
        }
        __syncthreads();
        store_thin<M, kLines, kSumPitch, kThreads, SWAPPED>(args, unit, shared.sums);
    }

private:
    // `depth` elements of `lines` lines. Elements are counted along k first: neighbouring threads copy neighbours.
    static __device__ __forceinline__ void copy_lines(float* to, const float* from, int64_t stride, int lines, int depth) {
        if (depth == DEPTH) {
            const int line = threadIdx.x / DEPTH, k = threadIdx.x % DEPTH;
            to += line * kPitch + k;
            from += line * stride + k;
            const int64_t step = kLinesAtOnce * stride;
            if (lines == kLines) {
#pragma unroll 8
                for (int i = 0; i < kLines; i += kLinesAtOnce) {
                    ptx::cp_async_4(to + i * kPitch, from);
                    from += step;
                }
            } else {
#pragma unroll 4
                for (int i = line; i < lines; i += kLinesAtOnce) {
                    ptx::cp_async_4(to, from);
                    to += kLinesAtOnce * kPitch;
                    from += step;
                }
            }
        } else {
            int line = threadIdx.x / depth, k = threadIdx.x - line * depth;
            const int more_lines = kThreads / depth, more_k = kThreads - more_lines * depth;
            to += line * kPitch + k;
            from += line * stride + k;
            const int64_t step = more_lines * stride + more_k, wrapped = stride - depth;
#pragma unroll 4
            while (line < lines) {
                ptx::cp_async_4(to, from);
                line += more_lines;
                k += more_k;
                to += more_lines * kPitch + more_k;
                from += step;
                if (k >= depth) {
                    k -= depth;
                    ++line;
                    to += kPitch - depth;
                    from += wrapped;
                }
            }
        }
    }

    // Vectors that there are not become zero.
    static __device__ __forceinline__ void copy_vectors(Stage& stage, const float* from, const Thin& thin, int vectors, int depth) {
        const bool along_k = thin.vector_k_stride == 1;
#pragma unroll 4
        for (int item = threadIdx.x; item < M * DEPTH; item += kThreads) {
            const int v = along_k ? item / DEPTH : item % M, k = along_k ? item % DEPTH : item / M;
            if (k < depth) {
                const bool inside = v < vectors;
                ptx::cp_async_4(&stage.vectors[k][v], inside ? from + v * thin.vector_stride + k * thin.vector_k_stride : from,
                                inside ? sizeof(float) : 0);
            }
        }
    }

    static __device__ __forceinline__ void multiply(float (&acc)[M][EACH], const float* line, const float* vectors) {
        float w[EACH], x[M];
#pragma unroll
        for (int i = 0; i < EACH; ++i) w[i] = line[i * kThreads * kPitch];
        if constexpr (M % kVector == 0) {
#pragma unroll
            for (int v = 0; v < M; v += kVector)
                *reinterpret_cast<float4*>(x + v) = *reinterpret_cast<const float4*>(vectors + v);
        } else {
#pragma unroll
            for (int v = 0; v < M; ++v) x[v] = vectors[v];
        }
#pragma unroll
        for (int v = 0; v < M; ++v)
#pragma unroll
            for (int i = 0; i < EACH; ++i) acc[v][i] = fmaf(w[i], x[v], acc[v][i]);
    }
};

}  // namespace thin

// Entries: blocks a multiprocessor, then vectors at most, lines a thread, k of a stage, stages, whether A is the matrix. Names have
// the tile of D.
#define THIN_DOT(NAME, BLOCKS, M, EACH, DEPTH, STAGES, SWAPPED)                                                      \
    enum : int { NAME##_shared = sizeof(thin::Dot<M, EACH, DEPTH, STAGES, SWAPPED>::Shared) };                      \
    extern "C" __global__ void __launch_bounds__(thin::kThreads, BLOCKS) NAME(const __grid_constant__ GemmArgs args) { \
        ptx::wait_for_previous_kernels();                                                                          \
        thin::Dot<M, EACH, DEPTH, STAGES, SWAPPED>::run(args);                                                     \
    }

THIN_DOT(thin_dot_128x4, 6, 4, 1, 16, 4, true)
THIN_DOT(thin_dot_4x128, 4, 4, 1, 32, 3, false)
