// Matrix times few vectors (m ≤ 8, or n ≤ 16): stream the large operand once, at memory speed.
//
// With m rows of A, each element of the k × n operand takes part in m products: at m = 8 that is 4 FLOP a byte, far
// under the 20 where FFMA would limit an H100. So the kernel is a stream of 16-byte loads straight into registers,
// enough of them in flight to cover the latency of memory, and the few vectors come out of the L1.
//
// The large operand is the *matrix*, its long side the *lines* (n lines for B, m lines for A), the few rows of A or
// columns of B are the *vectors*. Three kernels, the first two by the direction in which the matrix is contiguous:
//   dot   along k: a warp takes a few lines, its lanes neighbouring pieces of k, and the lanes' sums are added at the end
//   axpy  along the lines: a lane takes four neighbouring lines and walks down k
//   panel along k, for 9 to 16 columns of B: every warp has lines of its own, and the vectors pass through shared memory
// In the first two, all warps of a block share its lines and divide k. Sums are always added in the same order: lanes,
// then warps.
//
// A fused dot kernel norms the vectors on their way and gates columns, as those of gemv_stream.cu do: its lines are pairs of gate and up.
#include "../epilogue/epilogue.cuh"
#include "../epilogue/lane_sum.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"

namespace gemv {

struct Gemv {
    const float* matrix;
    const float* vectors;
    int64_t line_stride, matrix_k_stride;     // of the matrix
    int64_t vector_stride, vector_k_stride;   // of the vectors
    int lines, vector_count;
    bool matrix_vector, vectors_vector;       // 16-byte reads are allowed (vectors: along k)
};

// SWAPPED: A is the matrix and the columns of B are the vectors.
template <bool SWAPPED, bool ALONG_K>
__device__ __forceinline__ Gemv gemv_of(const GemmArgs& args, int batch) {
    const float* a = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch);
    const float* b = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch);
    const bool a_vector = args.a_access == (ALONG_K ? kRowVector : kColVector);
    const bool b_vector = args.b_access == (ALONG_K ? kColVector : kRowVector);
    if (SWAPPED)
        return {a, b, args.a.row_stride, args.a.col_stride, args.b.col_stride, args.b.row_stride, args.m, args.n,
                a_vector, args.b_access == kColVector};
    return {b, a, args.b.col_stride, args.b.row_stride, args.a.row_stride, args.a.col_stride, args.n, args.m,
            b_vector, args.a_access == kRowVector};
}

// `sums` has one value for each of a block's LINES × M outputs and warp, warps outermost. Adds them up and stores.
template <int M, int LINES, int WARPS, bool SWAPPED>
__device__ __forceinline__ void finish(const GemmArgs& args, int batch, int first_line, const float* sums) {
    constexpr int kOutputs = M * LINES;
    const int vector_count = SWAPPED ? args.n : args.m;
    const int line_count = SWAPPED ? args.m : args.n;
    const Epilogue epilogue(args, batch);
    for (int output = threadIdx.x; output < kOutputs; output += WARPS * kWarp) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += sums[warp * kOutputs + output];
        const int vector = output / LINES, line = first_line + output % LINES;
        if (vector < vector_count && line < line_count) {
            if (SWAPPED) epilogue.store(args, line, vector, sum);
            else epilogue.store(args, vector, line, sum);
        }
    }
}

// The same of rows whose squares were added up like that, and of pairs of lines where columns are gated.
template <int M, int LINES, int WARPS>
__device__ __forceinline__ void finish_fused(const GemmArgs& args, int batch, int first_line, const float* sums, const float* squares) {
    static_assert(LINES % 2 == 0, "both lines of a pair are in one block");
    constexpr int kOutputs = M * LINES;
    const Epilogue epilogue(args, batch);
    const auto sum_of = [](const float* parts, int count, int place) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += parts[warp * count + place];
        return sum;
    };
    const bool gated = args.gated != 0;
    const int lines = gated ? 2 : 1;   // of an output
    const int output = threadIdx.x * lines;
    if (output >= kOutputs) return;
    const int vector = output / LINES, line = first_line + output % LINES;
    if (vector >= args.m) return;   // the last block may have a line too many, but no pair: store() leaves it out
    float factor = 1.0f;
    if (args.norm != nullptr) factor = 1.0f / sqrtf(sum_of(squares, M, vector) / static_cast<float>(args.k) + args.norm_epsilon);
    const float first = sum_of(sums, kOutputs, output) * factor;
    if (gated) epilogue.store_gated(args, vector, line, first, sum_of(sums, kOutputs, output + 1) * factor);
    else epilogue.store(args, vector, line, first);
}

__device__ __forceinline__ void fma4(float& sum, float4 x, float4 y) {
    sum = fmaf(x.x, y.x, sum);
    sum = fmaf(x.y, y.y, sum);
    sum = fmaf(x.z, y.z, sum);
    sum = fmaf(x.w, y.w, sum);
}

// The usual case: one matrix, all of which can be read 16 bytes along k at a time.
__device__ __forceinline__ bool is_plain(const GemmArgs& args) {
    return args.batch == 1 && args.k % kVector == 0 && args.a_access == kRowVector && args.b_access == kColVector;
}

// Lets the next kernel in, and has the L2 fetch the first AHEAD floats of this block's lines while the kernels before it end. With
// many vectors and lines of this length a block has too little under way at first; elsewhere letting the next kernel in costs more.
constexpr int kLongLine = 2048;
template <int LINES, int AHEAD, bool SWAPPED>
__device__ __forceinline__ void prefetch_lines(const GemmArgs& args) {
    if (args.k < kLongLine) return;
    ptx::let_next_kernel_start();
    const int line = blockIdx.x * LINES + threadIdx.x;
    if (threadIdx.x >= LINES || line >= (SWAPPED ? args.m : args.n)) return;
    const GemmOperand& matrix = SWAPPED ? args.a : args.b;
    const int64_t stride = SWAPPED ? matrix.row_stride : matrix.col_stride;
    ptx::prefetch_l2(static_cast<const float*>(matrix.data) + line * stride, min(args.k, AHEAD) * sizeof(float));
}

// The matrix is contiguous along k (or not at all). PLAIN: is_plain(), without the code for everything else: a launch is short
// enough for the fetching of instructions to count, and to jump over some takes longer than to execute them.
template <int M, int LINES, int WARPS, int UNROLL, bool SWAPPED, bool PLAIN, bool FUSED = false>
__device__ __forceinline__ void gemv_dot(const GemmArgs& args) {
    constexpr int kSum = M * LINES;
    static_assert((kSum & (kSum - 1)) == 0 && kSum <= kWarp, "the lanes' sums halve evenly");
    static_assert(!FUSED || !SWAPPED, "rows of A are normed, and columns of B gated");
    static_assert(!FUSED || kSum <= WARPS * kWarp, "a thread finishes one output at most");
    __shared__ float sums[WARPS * kSum];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int line_count = SWAPPED ? args.m : args.n;
    const int line_blocks = (line_count - 1) / LINES + 1;
    const int batch = PLAIN ? 0 : blockIdx.x / line_blocks;
    const int first_line = (blockIdx.x - batch * line_blocks) * LINES;
    const Gemv g = gemv_of<SWAPPED, true>(args, batch);

    // Lines and vectors beyond the last are read as the last one again and not stored.
    const float* line[LINES];
#pragma unroll
    for (int i = 0; i < LINES; ++i) line[i] = g.matrix + min(first_line + i, g.lines - 1) * g.line_stride;
    const float* vector[M];
#pragma unroll
    for (int i = 0; i < M; ++i) vector[i] = g.vectors + min(i, g.vector_count - 1) * g.vector_stride;

    float acc[kSum];
#pragma unroll
    for (int i = 0; i < kSum; ++i) acc[i] = 0.0f;
    [[maybe_unused]] const float* const norm = FUSED ? static_cast<const float*>(args.norm) : nullptr;
    [[maybe_unused]] float square[M] = {};

    constexpr int kStep = WARPS * kWarp * kVector;   // k that the block takes at once
    static_assert(UNROLL * kStep <= kMaxOvershoot, "k + UNROLL · kStep is an int");
    const int k_end = args.k;
    int k = threadIdx.x * kVector;
    const bool vectors = PLAIN || (g.matrix_vector && g.vectors_vector);
    if (vectors) {
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        [[maybe_unused]] const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
#pragma unroll 1
        for (; k + kVector <= k_end; k += UNROLL * kStep) {
            float4 w[UNROLL][LINES];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < LINES; ++i)
                    w[u][i] = k + u * kStep + kVector <= k_end ? ptx::load_streaming(line[i] + k + u * kStep) : zero;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int v = 0; v < M; ++v) {
                    // In the smallest kernel loads stay ahead of the multiplications only if the compiler may not move them.
                    const auto fetch = [&](const float* from) { return M == 1 && !FUSED ? ptx::load_global(from) : load_vector(from); };
                    const float4 x = k + u * kStep + kVector <= k_end ? fetch(vector[v] + k + u * kStep) : zero;
                    if constexpr (FUSED) {
                        // Without branches, so that all loads go ahead of the multiplications.
                        const bool inside = norm != nullptr && k + u * kStep + kVector <= k_end;
                        const float4 weight = inside ? load_vector(norm + k + u * kStep) : one;
                        const float4 weighted = make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
                        fma4(square[v], x, x);
#pragma unroll
                        for (int i = 0; i < LINES; ++i) fma4(acc[v * LINES + i], w[u][i], weighted);
                    } else {
#pragma unroll
                        for (int i = 0; i < LINES; ++i) fma4(acc[v * LINES + i], w[u][i], x);
                    }
                }
        }
    }
    if constexpr (!PLAIN) {
        // Element by element the last k mod 4, or everything: then several steps of all lines are under way at once, as registers
        // allow.
        constexpr int kSteps = kSum <= kVector ? 8 : SWAPPED ? 4 : 2, kThreads = WARPS * kWarp;
        static_assert(kSteps * kThreads <= kMaxOvershoot, "k + kSteps · kThreads is an int");
#pragma unroll 1
        for (k = (vectors ? k_end - k_end % kVector : 0) + threadIdx.x; k < k_end; k += kSteps * kThreads) {
            float w[kSteps][LINES];
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const int at = k + s * kThreads;
#pragma unroll
                for (int i = 0; i < LINES; ++i) w[s][i] = ptx::load_or_zero(line[i] + at * g.matrix_k_stride, at < k_end);
            }
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                const int at = k + s * kThreads;
#pragma unroll
                for (int v = 0; v < M; ++v) {
                    const float x = ptx::load_or_zero(vector[v] + at * g.vector_k_stride, at < k_end);
                    if constexpr (FUSED) {
                        const float weighted = norm != nullptr ? x * ptx::load_or_zero(norm + at, at < k_end) : x;
                        square[v] = fmaf(x, x, square[v]);
#pragma unroll
                        for (int i = 0; i < LINES; ++i) acc[v * LINES + i] = fmaf(w[s][i], weighted, acc[v * LINES + i]);
                    } else {
#pragma unroll
                        for (int i = 0; i < LINES; ++i) acc[v * LINES + i] = fmaf(w[s][i], x, acc[v * LINES + i]);
                    }
                }
            }
        }
    }

    using Sum = LaneSum<kSum, kWarp / 2>;
    Sum::add(acc, lane);
    if (Sum::speaks(lane)) sums[warp * kSum + Sum::owned(lane)] = acc[0];
    if constexpr (FUSED) {
        __shared__ float squares[WARPS * M];
        if (norm != nullptr) {
#pragma unroll
            for (int v = 0; v < M; ++v) {
                LaneSum<1, kWarp / 2>::add(&square[v], lane);
                if (lane == 0) squares[warp * M + v] = square[v];
            }
        }
        __syncthreads();
        finish_fused<M, LINES, WARPS>(args, batch, first_line, sums, squares);
    } else {
        __syncthreads();
        finish<M, LINES, WARPS, SWAPPED>(args, batch, first_line, sums);
    }
}

// The same for matrices that are contiguous along the lines. Up to four vectors leave registers for more than one matrix.
template <bool SWAPPED, int M>
__device__ __forceinline__ bool is_plain_along_lines(const GemmArgs& args) {
    const int access = SWAPPED ? kColVector : kRowVector, lines = SWAPPED ? args.m : args.n;
    return (args.batch == 1 || M <= kVector) && args.k % kVector == 0 && lines % kVector == 0 && args.a_access == access && args.b_access == access;
}

// Rows off 16 bytes, of lines that lie beside each other: a lane has one of a warp's 32 lines, so that a warp reads 128 neighbouring bytes
// of a row, and as many steps of k at once as there are registers for. Of the vectors a lane fetches one of these steps, and hands it to all.
template <int M, int WARPS>
__device__ __forceinline__ void along_words(const Gemv& g, const float* const (&vector)[M], int line, int warp, int lane, int k_end,
                                            float (&sum)[M]) {
    constexpr int kSteps = M <= kVector ? kWarp : kWarp / 2;   // of a warp, at once
    constexpr int kDepth = WARPS * kSteps;                     // k that the block takes at once
    static_assert(kDepth <= kMaxOvershoot, "k + kDepth is an int");
    const float* const column = g.matrix + min(line, g.lines - 1);
#pragma unroll 1
    for (int k = warp; k < k_end; k += kDepth) {   // and every WARPS-th after it
        float w[kSteps], x[M];
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            const int at = k + i * WARPS;
            w[i] = ptx::load_or_zero(column + at * g.matrix_k_stride, at < k_end);
        }
#pragma unroll
        for (int v = 0; v < M; ++v) {
            const int at = k + lane * WARPS;
            x[v] = ptx::load_or_zero(vector[v] + at * g.vector_k_stride, lane < kSteps && at < k_end);
        }
#pragma unroll
        for (int i = 0; i < kSteps; ++i)
#pragma unroll
            for (int v = 0; v < M; ++v) sum[v] = fmaf(w[i], __shfl_sync(kWholeWarp, x[v], i), sum[v]);
    }
}

// The matrix is contiguous along the lines. LANES lanes cover 4·LANES lines; the warp's other lanes and the other warps
// take other pieces of k, four steps of k a lane at a time, UNROLL of them under way. PLAIN: is_plain_along_lines().
template <int M, int LANES, int WARPS, int UNROLL, bool SWAPPED, bool PLAIN>
__device__ __forceinline__ void gemv_axpy(const GemmArgs& args) {
    constexpr int kLines = LANES * kVector;
    constexpr int kStep = WARPS * (kWarp / LANES) * kVector;   // k that the block takes at once
    static_assert(kLines == kWarp, "a lane has a line where rows are read by words");
    static_assert(UNROLL * kStep <= kMaxOvershoot && kLines <= kMaxOvershoot, "k + UNROLL · kStep is an int");
    __shared__ float sums[WARPS * M * kLines];
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int line_count = SWAPPED ? args.m : args.n;
    const int line_blocks = (line_count - 1) / kLines + 1;
    const int batch = args.batch == 1 || (PLAIN && M > kVector) ? 0 : blockIdx.x / line_blocks;
    const int first_line = (blockIdx.x - batch * line_blocks) * kLines;
    const Gemv g = gemv_of<SWAPPED, false>(args, batch);
    // Lines beyond the last are read as the last ones again and not stored.
    const int lane_line = first_line + lane % LANES * kVector, my_line = PLAIN ? min(lane_line, g.lines - kVector) : lane_line;
    const int lines_left = g.lines - my_line;
    const bool whole = g.matrix_vector && lines_left >= kVector;
    const float* column = g.matrix + my_line * g.line_stride;
    const float* vector[M];
#pragma unroll
    for (int i = 0; i < M; ++i) vector[i] = g.vectors + min(i, g.vector_count - 1) * g.vector_stride;

    float acc[M][kVector];
#pragma unroll
    for (int v = 0; v < M; ++v)
#pragma unroll
        for (int i = 0; i < kVector; ++i) acc[v][i] = 0.0f;

    const auto multiply = [&](const float4 (&w)[kVector], int v, float4 x) {
        const float xs[kVector] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            acc[v][0] = fmaf(w[i].x, xs[i], acc[v][0]);
            acc[v][1] = fmaf(w[i].y, xs[i], acc[v][1]);
            acc[v][2] = fmaf(w[i].z, xs[i], acc[v][2]);
            acc[v][3] = fmaf(w[i].w, xs[i], acc[v][3]);
        }
    };
    const int k_end = args.k;
    int k = (warp * (kWarp / LANES) + lane / LANES) * kVector;
    if constexpr (PLAIN) {
#pragma unroll 1
        for (; k < k_end; k += UNROLL * kStep) {
            float4 w[UNROLL][kVector];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < kVector; ++i)
                    w[u][i] = ptx::load_streaming(column + (min(k + u * kStep, k_end - kVector) + i) * g.matrix_k_stride);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (k + u * kStep < k_end) {
#pragma unroll
                    for (int v = 0; v < M; ++v) multiply(w[u], v, load_vector(vector[v] + k + u * kStep));
                }
            }
        }
    } else if (!g.matrix_vector && g.line_stride == 1) {
        float sum[M] = {};
        along_words<M, WARPS>(g, vector, first_line + lane, warp, lane, k_end, sum);
#pragma unroll
        for (int v = 0; v < M; ++v) sums[(warp * M + v) * kLines + lane] = sum[v];
        __syncthreads();
        finish<M, kLines, WARPS, SWAPPED>(args, batch, first_line, sums);
        return;
    } else {
        constexpr int kUnroll = M <= kVector ? 2 : 1;   // as registers allow
#pragma unroll kUnroll
        for (; k < k_end; k += kStep) {
            float4 w[kVector];
            const float* from = column + k * g.matrix_k_stride;
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                const bool inside = k + i < k_end;
                if (whole && inside) w[i] = ptx::load_streaming(from + i * g.matrix_k_stride);
                else w[i] = load_guarded(from + i * g.matrix_k_stride, g.line_stride, inside ? lines_left : 0);
            }
#pragma unroll
            for (int v = 0; v < M; ++v)
                multiply(w, v, g.vectors_vector && k + kVector <= k_end
                                   ? load_vector(vector[v] + k)
                                   : load_guarded(vector[v] + k * g.vector_k_stride, g.vector_k_stride, k_end - k));
        }
    }

#pragma unroll
    for (int v = 0; v < M; ++v)
#pragma unroll
        for (int i = 0; i < kVector; ++i)
#pragma unroll
            for (int bit = LANES; bit < kWarp; bit *= 2)
                acc[v][i] += __shfl_xor_sync(kWholeWarp, acc[v][i], bit);
    if (lane < LANES) {
#pragma unroll
        for (int v = 0; v < M; ++v)
#pragma unroll
            for (int i = 0; i < kVector; ++i) sums[(warp * M + v) * kLines + lane * kVector + i] = acc[v][i];
    }
    __syncthreads();
    finish<M, kLines, WARPS, SWAPPED>(args, batch, first_line, sums);
}

// A is the matrix, contiguous along k, and B has at most N columns. From some nine vectors on, fetching every piece of them
// from the L1 takes longer than multiplying: here a block keeps DEPTH of their k in shared memory, as [vector][k] whatever
// the layout of B, and a warp uses each piece for LINES lines of A. What a warp will need of A for all of DEPTH is under way
// before the block fetches its piece of B, and the next as soon as registers are free.
template <int N, int LINES, int WARPS, int STEPS>
__device__ __forceinline__ void gemv_panel(const GemmArgs& args) {
    constexpr int kThreads = WARPS * kWarp;
    constexpr int kStep = kWarp * kVector;          // k that a warp takes at once
    constexpr int kDepth = STEPS * kStep;        // k in shared memory
    constexpr int kPitch = kDepth + kVector;        // 16 bytes of padding: writers along the vectors meet different banks
    constexpr int kBlockLines = LINES * WARPS;
    constexpr int kPieces = kDepth / kVector;
    static_assert(kDepth <= kMaxOvershoot && kBlockLines <= kMaxOvershoot, "k + kDepth is an int");
    static_assert(kThreads % N == 0 && kDepth % (kThreads / N) == 0, "threads fill whole rows of B");
    static_assert(N * LINES % kWarp == 0, "every lane ends up with as many sums as any other");
    __shared__ __align__(16) float panel[N][kPitch];

    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int line_blocks = (args.m - 1) / kBlockLines + 1;
    const int batch = blockIdx.x / line_blocks;
    const int first_line = (blockIdx.x - batch * line_blocks) * kBlockLines + warp * LINES;
    const float* a = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch);
    const float* b = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch);

    // Lines beyond the last are read as the last one again and not stored.
    const bool a_vectors = args.a_access == kRowVector;
    const float* line[LINES];
#pragma unroll
    for (int i = 0; i < LINES; ++i) line[i] = a + min(first_line + i, args.m - 1) * args.a.row_stride;
    float4 w[STEPS][LINES];
    const auto fetch = [&](int step, int first_k) {
        const int k = first_k + step * kStep + lane * kVector;
#pragma unroll
        for (int i = 0; i < LINES; ++i)
            w[step][i] = a_vectors && k + kVector <= args.k
                             ? ptx::load_streaming(line[i] + k)
                             : load_guarded(line[i] + k * args.a.col_stride, args.a.col_stride, args.k - k);
    };
    // What lies outside B becomes zero.
    const auto fill = [&](int first_k) {
        const int depth = args.k - first_k;
        const float* from = b + first_k * args.b.row_stride;
        if (args.b_access == kColVector) {
#pragma unroll
            for (int item = threadIdx.x; item < N * kPieces; item += kThreads) {
                const int vector = item / kPieces, k = item % kPieces * kVector;
                const float* piece = from + vector * args.b.col_stride + k;
                *reinterpret_cast<float4*>(&panel[vector][k]) =
                    vector < args.n && k + kVector <= depth ? load_vector(piece)
                                                         : load_guarded(piece, 1, vector < args.n ? depth - k : 0);
            }
        } else {
            const int vector = threadIdx.x % N;
            from += vector * args.b.col_stride;
#pragma unroll 8
            for (int k = threadIdx.x / N; k < kDepth; k += kThreads / N)
                panel[vector][k] = vector < args.n && k < depth ? from[k * args.b.row_stride] : 0.0f;
        }
    };

    float acc[N * LINES];
#pragma unroll
    for (int i = 0; i < N * LINES; ++i) acc[i] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) fetch(step, 0);
#pragma unroll 1
    for (int k = 0; k < args.k; k += kDepth) {
        fill(k);
        __syncthreads();
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int v = 0; v < N; ++v) {
                const float4 x = *reinterpret_cast<const float4*>(&panel[v][step * kStep + lane * kVector]);
#pragma unroll
                for (int i = 0; i < LINES; ++i) fma4(acc[v * LINES + i], w[step][i], x);
            }
            if (k + kDepth < args.k) fetch(step, k + kDepth);
        }
        __syncthreads();
    }

    // A lane ends up with one sum of every 32.
    using Sum = LaneSum<kWarp, kWarp / 2>;
    float sum[N * LINES / kWarp];
#pragma unroll
    for (int i = 0; i < N * LINES / kWarp; ++i) {
        Sum::add(acc + i * kWarp, lane);
        sum[i] = acc[i * kWarp];
    }
    const Epilogue epilogue(args, batch);
#pragma unroll
    for (int i = 0; i < N * LINES / kWarp; ++i) {
        const int output = i * kWarp + Sum::owned(lane);
        const int row = first_line + output % LINES, col = output / LINES;
        if (row < args.m && col < args.n) epilogue.store(args, row, col, sum[i]);
    }
}

}  // namespace gemv

// Entries: vectors at most, lines a block (dot), lanes along the lines (axpy) or lines a warp (panel), warps, unrolling. For dot
// kernels also blocks a multiprocessor, whether A is the matrix, and floats of a line that are fetched ahead.
#define GEMV_DOT(NAME, M, LINES, WARPS, UNROLL, BLOCKS, SWAPPED, AHEAD)                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {       \
        if (AHEAD > 0 && gemv::is_plain(args)) gemv::prefetch_lines<LINES, AHEAD, SWAPPED>(args);          \
        ptx::wait_for_previous_kernels();                                                                            \
        if (gemv::is_plain(args)) gemv::gemv_dot<M, LINES, WARPS, UNROLL, SWAPPED, true>(args);           \
        else gemv::gemv_dot<M, LINES, WARPS, UNROLL, SWAPPED, false>(args);                                    \
    }
#define GEMV_FUSED_DOT(NAME, M, LINES, WARPS, UNROLL, BLOCKS)                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {       \
        ptx::wait_for_previous_kernels();                                                                            \
        if (gemv::is_plain(args)) gemv::gemv_dot<M, LINES, WARPS, UNROLL, false, true, true>(args);                   \
        else gemv::gemv_dot<M, LINES, WARPS, UNROLL, false, false, true>(args);                                        \
    }
#define GEMV_AXPY(NAME, M, LANES, WARPS, UNROLL, SWAPPED)                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) NAME(const __grid_constant__ GemmArgs args) {          \
        ptx::wait_for_previous_kernels();                                                                            \
        if (gemv::is_plain_along_lines<SWAPPED, M>(args))                                                         \
            gemv::gemv_axpy<M, LANES, WARPS, UNROLL, SWAPPED, true>(args);                                     \
        else                                                                                                        \
            gemv::gemv_axpy<M, LANES, WARPS, UNROLL, SWAPPED, false>(args);                                    \
    }
#define GEMV_PANEL(NAME, N, LINES, WARPS, STEPS)                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) NAME(const __grid_constant__ GemmArgs args) {          \
        ptx::wait_for_previous_kernels();                                                                            \
        gemv::gemv_panel<N, LINES, WARPS, STEPS>(args);                                                        \
    }

GEMV_DOT(gemv_dot_m1, 1, 2, 6, 2, 8, false, 0)
GEMV_DOT(gemv_dot_m1_deep, 1, 2, 4, 4, 8, false, 0)
GEMV_DOT(gemv_dot_m2, 2, 2, 4, 2, 8, false, 0)
GEMV_DOT(gemv_dot_m4, 4, 4, 8, 1, 3, false, 0)
GEMV_DOT(gemv_dot_m8, 8, 4, 2, 1, 8, false, 0)
GEMV_DOT(gemv_dot_m8_deep, 8, 2, 8, 1, 3, false, 1280)
GEMV_DOT(gemv_dot_n1, 1, 4, 4, 4, 4, true, 0)
GEMV_DOT(gemv_dot_n2, 2, 4, 4, 4, 4, true, 0)
GEMV_DOT(gemv_dot_n4, 4, 4, 4, 2, 4, true, 0)
GEMV_DOT(gemv_dot_n8, 8, 4, 4, 2, 3, true, 0)
GEMV_FUSED_DOT(gemv_fused_dot_m1, 1, 2, 4, 4, 8)
GEMV_FUSED_DOT(gemv_fused_dot_m2, 2, 2, 4, 2, 8)
GEMV_AXPY(gemv_axpy_m1, 1, 8, 16, 4, false)
GEMV_AXPY(gemv_axpy_m2, 2, 8, 16, 4, false)
GEMV_AXPY(gemv_axpy_m4, 4, 8, 16, 2, false)
GEMV_AXPY(gemv_axpy_m8, 8, 8, 16, 2, false)
GEMV_AXPY(gemv_axpy_n4, 4, 8, 16, 2, true)
GEMV_PANEL(gemv_panel_n16, 16, 2, 16, 4)
