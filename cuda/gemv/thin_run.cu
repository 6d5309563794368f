// Many short lines that follow one another without gaps, past few vectors: rows of A past up to eight columns of B, with k up to about a hundred and of any
// residue, such as an image's patches past the one filter of each channel. Or columns of B past rows of A: a step's scores with keys of 40 numbers.
//
// A tile of such lines is one run of memory, wherever lines begin. So threads copy it 16 bytes at a time, with no thought of lines, and all of
// it at once. Then a thread reads a line of its own. Lines off 16 bytes have an odd k or twice one, so the lines of a warp lie in 32 banks, or in 16:
//
//   memory, k = 5     0 0 0 0│0 1 1 1│1 1 2 2│2 2 2 3│…       16 bytes a copy
//   shared memory     the same, from as many elements on as the run starts past a multiple of 16 bytes
//   thread i          elements 5·i … 5·i + 4
//
// Lines on 16 bytes are also read 16 bytes at a time. An even number of these lies in few banks, and so gets 16 bytes of padding.
//
// thin_dot copies such lines element by element, a portion of k at a time, with a place in shared memory to be found for each. How many blocks a
// multiprocessor holds counts as well, for a block does nothing while its run arrives: so there are kernels for k of 32, 64 and 104.
//
// H100, stand-alone, µs: this kernel before it had room for padding, thin_dot, gemv_short, cuBLAS.
//   163840×1×25    4.5   11.1   12.8   11.4        307200×2×50   24.9   41.3   31.0   51.6
//   200000×1×9     3.9    7.7   15.4    7.6        262144×3×27   11.3   16.8   38.5   23.4
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "thin.cuh"

namespace thin {

// At most M vectors, k of at most MOST_K. A thread has one line. SWAPPED: lines are rows of A, and columns of B otherwise.
template <int M, int MOST_K, bool SWAPPED>
struct Run {
    static constexpr int kLines = 128, kThreads = kLines;
    static_assert(kLines <= kMaxOvershoot, "the line past a matrix's last one is an int");
    static_assert(M == 1 || M == 2 || M % kVector == 0, "the numbers of a k are read at once, or 16 bytes at a time");

    struct Shared {
        float run[kLines * (MOST_K + kVector)];   // with padding, or from up to three elements past the first place on
        float vectors[MOST_K][M];
    };
    static_assert(sizeof(Shared::run) % 16 == 0, "vectors start on 16 bytes");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const int blocks = ((SWAPPED ? args.m : args.n) - 1) / kLines + 1;   // of a matrix
        const int batch = blockIdx.x / blocks, first = (blockIdx.x - batch * blocks) * kLines;
        const Thin thin = Thin::of<SWAPPED>(args, batch);
        const int k = args.k, lines = min(kLines, thin.lines - first);

        const float* const from = thin.matrix + static_cast<int64_t>(first) * k;
        const int past = static_cast<int>(reinterpret_cast<uintptr_t>(from) / sizeof(float) % kVector);   // a multiple of 16 bytes
        const bool vectors = past == 0 && k % kVector == 0;
        const int pitch = vectors && k / kVector % 2 == 0 ? k + kVector : k;
        float* const to = shared.run + past;
        if (pitch > k) copy_padded(to, from, lines * k / kVector, k / kVector);
        else copy_run(to, from, lines * k, past);
        // Vectors that there are not become zero.
        for (int item = threadIdx.x; item < k * M; item += kThreads) {
            const int i = item / M, v = item % M;
            const bool inside = v < thin.count;
            ptx::cp_async_4(&shared.vectors[i][v], inside ? thin.vectors + v * thin.vector_stride + i * thin.vector_k_stride : thin.vectors,
                            inside ? sizeof(float) : 0);
        }
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        __syncthreads();

        // A line that there is not is the last one again, and not stored.
        const float* const mine = to + min(static_cast<int>(threadIdx.x), lines - 1) * pitch;
        float sum[M] = {};
        if (vectors) {
#pragma unroll 2
            for (int i = 0; i < k; i += kVector) {
                const float4 y = *reinterpret_cast<const float4*>(mine + i);
                multiply(sum, y.x, shared.vectors[i]);
                multiply(sum, y.y, shared.vectors[i + 1]);
                multiply(sum, y.z, shared.vectors[i + 2]);
                multiply(sum, y.w, shared.vectors[i + 3]);
            }
        } else {
#pragma unroll 4
            for (int i = 0; i < k; ++i) multiply(sum, mine[i], shared.vectors[i]);
        }

        const Epilogue epilogue(args, batch);
        if constexpr (M > kVector) {
            store_in_turn(epilogue, args, shared, sum, first, lines, thin.count);
        } else {
            const int line = first + threadIdx.x;
            if (SWAPPED && M == kVector && args.d_access == kRowVector) {
                if (line < args.m) epilogue.store_vector(args, line, 0, make_float4(sum[0], sum[1 % M], sum[2 % M], sum[3 % M]));
            } else {
#pragma unroll
                for (int v = 0; v < M; ++v) epilogue.store(args, SWAPPED ? line : v, SWAPPED ? v : line, sum[v]);
            }
        }
    }

private:
    // Where a line has many results: neighbours of D by neighbouring threads, and one copy of the epilogue's code. With one for each result
    // a block waits for instructions longer than for its run.
    static __device__ __forceinline__ void store_in_turn(const Epilogue& epilogue, const GemmArgs& args, Shared& shared, const float (&sum)[M],
                                                         int first, int lines, int count) {
        static_assert(SWAPPED && M % kVector == 0 && kLines * M <= sizeof(Shared::run) / sizeof(float), "sums take the place of the run");
        __syncthreads();   // all have read the run
#pragma unroll
        for (int v = 0; v < M; v += kVector)
            *reinterpret_cast<float4*>(shared.run + threadIdx.x * M + v) = make_float4(sum[v], sum[v + 1], sum[v + 2], sum[v + 3]);
        __syncthreads();
#pragma unroll 1
        for (int item = threadIdx.x; item < lines * count; item += kThreads) {
            const int line = item / count, v = item - line * count;
            epilogue.store(args, first + line, v, shared.run[line * M + v]);
        }
    }

    static __device__ __forceinline__ void multiply(float (&sum)[M], float y, const float (&x)[M]) {
#pragma unroll
        for (int v = 0; v < M; ++v) sum[v] = fmaf(y, x[v], sum[v]);
    }

    // So many elements; both start `past` elements past a multiple of 16 bytes.
    static __device__ __forceinline__ void copy_run(float* to, const float* from, int count, int past) {
        const int head = min((kVector - past) % kVector, count), vectors = (count - head) / kVector, tail = head + vectors * kVector;
        const int thread = threadIdx.x;
        if (thread < head) ptx::cp_async_4(to + thread, from + thread);
#pragma unroll 8
        for (int i = thread; i < vectors; i += kThreads) ptx::cp_async_16(to + head + i * kVector, from + head + i * kVector);
        if (tail + thread < count) ptx::cp_async_4(to + tail + thread, from + tail + thread);
    }

    // So many vectors, with another one left out behind each line of `of_line`.
    static __device__ __forceinline__ void copy_padded(float* to, const float* from, int vectors, int of_line) {
#pragma unroll 4
        for (int i = threadIdx.x; i < vectors; i += kThreads) ptx::cp_async_16(to + (i + i / of_line) * kVector, from + i * kVector);
    }
};

}  // namespace thin

// NAME, vectors at most, k at most, whether lines are rows of A.
#define THIN_RUN(NAME, ...)                                                                              \
    enum : int { NAME##_shared = sizeof(thin::Run<__VA_ARGS__>::Shared) };                               \
    extern "C" __global__ void __launch_bounds__((thin::Run<__VA_ARGS__>::kThreads))                     \
        NAME(const __grid_constant__ GemmArgs args) {                                                    \
        ptx::wait_for_previous_kernels();                                                                \
        thin::Run<__VA_ARGS__>::run(args);                                                               \
    }

THIN_RUN(thin_run_128x1, 1, 32, true)
THIN_RUN(thin_run_128x2, 2, 64, true)
THIN_RUN(thin_run_128x4, 4, 64, true)
THIN_RUN(thin_run_128x4_deep, 4, 104, true)
THIN_RUN(thin_run_128x8, 8, 64, true)
THIN_RUN(thin_run_1x128, 1, 32, false)
THIN_RUN(thin_run_2x128, 2, 64, false)
THIN_RUN(thin_run_4x128, 4, 64, false)
THIN_RUN(thin_run_4x128_deep, 4, 104, false)
