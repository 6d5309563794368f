// Few vectors past the lines of a small matrix, or of each matrix of a batch: products that take about as long as a launch. A block has a tile of
// them, and blocks with other vectors past the same lines are its neighbours.
//
// Other kernels for few vectors are made for a stream: dozens of loads a thread, a path for each alignment, sums that meet in pairs. But one step
// of decoding has products such as one row past 98 keys, for each of four heads. Their bytes pass in a tenth of a microsecond, and nearly all of
// the 2.9 µs that such kernels take goes to instructions: to those for k that is not there, to fetching each once, and to all that follows the
// wait for the kernel before. So here
//   - addresses are computed before that wait (PDL), and the next kernel may come in as soon as this one's loads have arrived,
//   - a thread has one line, and asks for STEPS of its elements at once, one by one: any alignment, one path,
//   - the vectors come in once a block, through shared memory, in the same round trip,
//   - lanes, then warps, add their sums, and a bare product is stored without the epilogue's code.
//
//   axpy: the matrix is contiguous along its lines        dot: along k
//
//     lanes  0 … 7    lines 0 … 7 at k                      lanes  0 … 7    k … k + 7 of line 0
//     lanes  8 … 15   lines 0 … 7 at k + 1                  lanes  8 … 15   k … k + 7 of line 1
//     …               (LANES = 8; 32 lanes read one k)      …               (LANES = 4)
//
// Blocks of few lines are for few matrices: more of them, each with more of k under way, and the next turn of it is asked for before this one is
// multiplied. Blocks of many lines are for many matrices. Sums are always added in the same order: a thread's own along k, then lanes, then
// warps.
//
// Where k is so short that lanes would have nothing to share, a thread takes a line with all of its k, and the vectors out of the L1 (BriefLines):
// nothing meets in shared memory, and it is the same to it how the matrix lies.
//
// Where both operands lie along k and start on 16 bytes, a thread reads as much at a time (BriefWide): a quarter of the instructions, or an eighth,
// and it reads the vectors by itself, out of the L1.
#pragma once

#include "../ptx/element.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"
#include "thin.cuh"

namespace brief {

constexpr int kWarps = 8;   // of a block, where lines have no thread each
constexpr int kMostRows = 64;   // of A, of which blocks have M each; columns of B are M at most

// Whether nothing but α is applied to the sums.
__device__ __forceinline__ bool is_bare(const GemmArgs& args) {
    return args.alpha_at == nullptr && args.beta_at == nullptr && args.beta == 0.0f && args.bias == nullptr && args.residual.data == nullptr &&
           args.activation == kIdentity && args.d_type == args.a_type;
}

// Stores the sum of a line and a vector; where that is bare, without the epilogue's code.
template <typename NUMBERS, bool SWAPPED>
__device__ __forceinline__ void store_sum(const GemmArgs& args, bool bare, int batch, int vector, int line, float sum) {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    const int row = SWAPPED ? line : vector, col = SWAPPED ? vector : line;
    if (bare) {
        Stored* const d = static_cast<Stored*>(args.d.data) + batch_offset(args, args.d, batch);
        const float number[1] = {args.alpha * sum};
        Element::store(d + row * args.d.row_stride + col, number);
    } else {
        NUMBERS::store(args, batch, row, col, sum);
    }
}

// Where a block works: the matrix of the batch, and its first line and vector. Blocks of other vectors past the same lines are neighbours.
struct Place {
    int batch, line, vector;

    template <int M, int LINES, bool SWAPPED>
    static __device__ __forceinline__ Place of(const GemmArgs& args) {
        static_assert(SWAPPED || M <= kMostRows, "a tile has no more rows than a product");
        const int across = ((SWAPPED ? args.m : args.n) - 1) / LINES + 1, down = ((SWAPPED ? args.n : args.m) - 1) / M + 1;   // blocks
        const int unit = static_cast<int>(blockIdx.x), strip = down == 1 ? unit : unit / down;
        const int batch = across == 1 ? strip : args.batch == 1 ? 0 : strip / across;
        return {batch, (strip - batch * across) * LINES, (unit - strip * down) * M};
    }

    // The operands, from the block's first vector on.
    template <typename STORED, bool SWAPPED>
    __device__ __forceinline__ thin::ThinOf<STORED> operands(const GemmArgs& args) const {
        auto thin = thin::ThinOf<STORED>::template of<SWAPPED>(args, batch);
        thin.vectors += vector * thin.vector_stride;
        thin.count -= vector;
        return thin;
    }
};

// Sums of M vectors and LINES lines, of which GROUPS warps have a part each, of a block of THREADS: sums[group][vector · LINES + line].
template <typename NUMBERS, int M, int LINES, int GROUPS, int THREADS>
struct Sums {
    static constexpr int kSums = M * LINES;
    using Shared = float[GROUPS][kSums];

    // Adds the sums of `lanes` lanes of a line, each `first_apart` from the next one. The first of them speaks and puts them down.
    static __device__ __forceinline__ void gather(float (&sum)[M], int first_apart, int lanes, bool speaks, int mine, float (&group)[kSums]) {
#pragma unroll
        for (int apart = first_apart; apart < first_apart * lanes; apart *= 2) {
#pragma unroll
            for (int v = 0; v < M; ++v) sum[v] += __shfl_xor_sync(kWholeWarp, sum[v], apart);
        }
        if (speaks) {
#pragma unroll
            for (int v = 0; v < M; ++v) group[v * LINES + mine] = sum[v];
        }
    }

    // Adds those of all groups, and stores those of lines and vectors that there are.
    template <bool SWAPPED, typename THIN>
    static __device__ __forceinline__ void store(const GemmArgs& args, const Place& place, const THIN& thin, const Shared& sums) {
        const bool bare = is_bare(args);
#pragma unroll 1
        for (int at = threadIdx.x; at < kSums; at += THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) total += sums[group][at];
            const int vector = at / LINES, line = place.line + at % LINES;
            if (vector >= thin.count || line >= thin.lines) continue;
            store_sum<NUMBERS, SWAPPED>(args, bare, place.batch, place.vector + vector, line, total);
        }
    }
};

// NUMBERS: what the elements are (kType), and the epilogue (store()). At most M vectors; LINES lines a block, LANES of them beside each other in
// a warp; STEPS elements of its line a thread asks for at a time. SWAPPED: A is the matrix, and the vectors are the columns of B. ALONG_K:
// neighbouring lanes have neighbours along k. WARPS: of a block, more of them for a long k.
template <typename NUMBERS, int M, int LINES, int LANES, int STEPS, bool SWAPPED, bool ALONG_K, int WARPS>
struct Brief {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    static constexpr int kThreads = WARPS * kWarp;
    static constexpr int kLanesK = kWarp / LANES;       // lanes that share a line
    static constexpr int kAcross = LINES / LANES;       // warps beside each other
    static constexpr int kGroups = WARPS / kAcross;     // warps that share a line
    static constexpr int kApart = kGroups * kLanesK;    // of k, from one element of a thread to the next
    static constexpr int kTurn = kApart * STEPS;        // of k that the block takes at a time
    // Of the vectors a thread fetches so many at one k, and writes them at once: four, where at least half of the threads get some.
    static constexpr int kPiece = M % kVector == 0 && M / kVector * kTurn >= kThreads / 2 ? kVector : 1;
    static constexpr int kPieces = M / kPiece * kTurn, kFetched = (kPieces - 1) / kThreads + 1;   // of the block, of a thread
    // Blocks of few lines are for a few matrices, whose k can be long: they ask for the next turn before they multiply. Blocks of many lines share
    // a multiprocessor with others, and have no registers to spare.
    static constexpr bool kAhead = LINES <= 8;
    using Meet = Sums<NUMBERS, M, LINES, kGroups, kThreads>;
    static_assert(LANES * kLanesK == kWarp && kAcross * LANES == LINES && kGroups * kAcross == WARPS, "lanes and warps share lines and k evenly");
    static_assert(kTurn <= kMaxOvershoot && LINES <= kMaxOvershoot, "past the end of k and of the lines an index is an int");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ __align__(16) float panel[kTurn][M];   // the vectors
        __shared__ typename Meet::Shared sums;
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
        const int first_k = warp / kAcross * kLanesK + (ALONG_K ? lane % kLanesK : lane / LANES);
        const int mine = warp % kAcross * LANES + (ALONG_K ? lane / kLanesK : lane % LANES);   // this thread's line of the block
        const Place place = Place::of<M, LINES, SWAPPED>(args);
        const auto thin = place.operands<Stored, SWAPPED>(args);
        // A line beyond the last is read as the last one again and not stored.
        const Stored* line =
            thin.matrix + min(place.line + mine, thin.lines - 1) * thin.line_stride + first_k * thin.matrix_k_stride;
        const Stored* vectors = thin.vectors;
        const int64_t apart = kApart * thin.matrix_k_stride;
        const int k_end = args.k;
        ptx::wait_for_previous_kernels();   // all before needs the arguments alone

        Stored w[STEPS], x[kFetched][kPiece];
        const auto ask = [&](int k) {   // for this thread's elements of the turn that begins at k
#pragma unroll
            for (int i = 0; i < kFetched; ++i) {
                const Stored* const at = vectors + vector_of(i) * thin.vector_stride + step_of(i) * thin.vector_k_stride;
                const bool inside = k + step_of(i) < k_end;
#pragma unroll
                for (int p = 0; p < kPiece; ++p)
                    x[i][p] = ptx::load_or_zero(at + p * thin.vector_stride, inside && vector_of(i) + p < thin.count);
            }
            vectors += kTurn * thin.vector_k_stride;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                w[s] = ptx::load_or_zero(line, k + first_k + s * kApart < k_end);
                line += apart;
            }
        };
        if (kAhead) ask(0);
        float sum[M] = {};
#pragma unroll 1
        for (int k = 0; k < k_end; k += kTurn) {
            if (!kAhead) ask(k);
            if (k > 0) __syncthreads();   // the vectors of the turn before are done with
#pragma unroll
            for (int i = 0; i < kFetched; ++i) {
                if (vector_of(i) >= M) continue;
                float* const at = &panel[step_of(i)][vector_of(i)];
                if constexpr (kPiece == kVector) {
                    const Stored(&four)[kVector] = x[i];
                    *reinterpret_cast<float4*>(at) =
                        make_float4(Element::load(&four[0]), Element::load(&four[1]), Element::load(&four[2]), Element::load(&four[3]));
                } else {
                    *at = Element::load(&x[i][0]);
                }
            }
            __syncthreads();
            Stored here[STEPS];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) here[s] = w[s];
            if (kAhead && k + kTurn < k_end) ask(k + kTurn);
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
#pragma unroll
                for (int v = 0; v < M; ++v) sum[v] = fmaf(Element::load(&here[s]), panel[first_k + s * kApart][v], sum[v]);
            }
        }
        ptx::let_next_kernel_start();
        Meet::gather(sum, ALONG_K ? 1 : LANES, kLanesK, ALONG_K ? lane % kLanesK == 0 : lane < LANES, mine, sums[warp / kAcross]);
        __syncthreads();
        Meet::template store<SWAPPED>(args, place, thin, sums);
    }

private:
    // The first vector and the k of the turn that piece i of those that this thread fetches belongs to: neighbours fetch neighbours along k.
    static __device__ __forceinline__ int vector_of(int i) { return (threadIdx.x + i * kThreads) / kTurn * kPiece; }
    static __device__ __forceinline__ int step_of(int i) { return (threadIdx.x + i * kThreads) % kTurn; }
};

// The same of rows of A and columns of B that lie along k and start on 16 bytes; four lines a warp, STEPS times 16 bytes of its line a thread at a
// time. EARLY: the next kernel may come in when these are asked for, and not when they have arrived: good for one matrix of 16-bit numbers.
template <typename NUMBERS, int M, int LINES, int STEPS, bool EARLY>
struct BriefWide {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    static constexpr int kElements = Element::kVectorElements;   // of 16 bytes
    static constexpr int kLanes = 4, kLanesK = kWarp / kLanes;   // lines of a warp beside each other, lanes that share a line
    static constexpr int kAcross = LINES / kLanes, kGroups = kWarps / kAcross;   // warps beside each other, warps that share a line
    static constexpr int kApart = kGroups * kLanesK * kElements;   // of k, from 16 bytes of a thread to the next
    static constexpr int kTurn = kApart * STEPS, kThreads = kWarps * kWarp;
    using Meet = Sums<NUMBERS, M, LINES, kGroups, kThreads>;
    static_assert(kAcross * kLanes == LINES && kGroups * kAcross == kWarps, "warps share lines and k evenly");
    static_assert(kTurn <= kMaxOvershoot && LINES <= kMaxOvershoot, "past the end of k and of the lines an index is an int");
    static_assert(kElements <= kLanesK, "each lane of a line has one element of the last k at most");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ typename Meet::Shared sums;
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, group = warp / kAcross;
        const int first_k = (group * kLanesK + lane % kLanesK) * kElements;
        const int mine = warp % kAcross * kLanes + lane / kLanesK;   // this thread's line of the block
        const Place place = Place::of<M, LINES, false>(args);
        const auto thin = place.operands<Stored, false>(args);
        const Stored* const line = thin.matrix + min(place.line + mine, thin.lines - 1) * thin.line_stride;
        const int in_vectors = args.k - args.k % kElements;
        ptx::wait_for_previous_kernels();   // all before needs the arguments alone

        // Vectors beyond the last are read as the last one again and not stored.
        const auto vector = [&](int v) { return thin.vectors + min(v, thin.count - 1) * thin.vector_stride; };
        float sum[M] = {};
#pragma unroll 1
        for (int k = first_k; k < in_vectors; k += kTurn) {
            uint4 w[STEPS], x[STEPS][M];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) w[s] = ptx::load_or_zeros(line + k + s * kApart, k + s * kApart < in_vectors);
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
#pragma unroll
                for (int v = 0; v < M; ++v) x[s][v] = ptx::load_or_zeros(vector(v) + k + s * kApart, k + s * kApart < in_vectors);
            }
            if (EARLY && k + kTurn >= in_vectors) ptx::let_next_kernel_start();
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                float of_line[kElements];
                Element::unpack(w[s], of_line);
#pragma unroll
                for (int v = 0; v < M; ++v) {
                    float of_vector[kElements];
                    Element::unpack(x[s][v], of_vector);
#pragma unroll
                    for (int i = 0; i < kElements; ++i) sum[v] = fmaf(of_line[i], of_vector[i], sum[v]);
                }
            }
        }
        if (in_vectors < args.k && group == 0) {
            const int k = in_vectors + lane % kLanesK;
            const Stored w = ptx::load_or_zero(line + k, k < args.k);
#pragma unroll
            for (int v = 0; v < M; ++v) {
                const Stored x = ptx::load_or_zero(vector(v) + k, k < args.k);
                sum[v] = fmaf(Element::load(&w), Element::load(&x), sum[v]);
            }
        }
        if (!EARLY) ptx::let_next_kernel_start();
        Meet::gather(sum, 1, kLanesK, lane % kLanesK == 0, mine, sums[group]);
        __syncthreads();
        Meet::template store<false>(args, place, thin, sums);
    }
};

// The same for a short k: a thread has a line, and asks for STEPS of k of it and of the vectors at a time. The latter are the same to a whole warp.
template <typename NUMBERS, int M, int LINES, int STEPS, bool SWAPPED>
struct BriefLines {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    static_assert(LINES % kWarp == 0, "a block has whole warps");
    static_assert(LINES <= kMaxOvershoot && STEPS <= kMaxOvershoot, "past the end of the lines and of k an index is an int");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const Place place = Place::of<M, LINES, SWAPPED>(args);
        const auto thin = place.operands<Stored, SWAPPED>(args);
        const int mine = place.line + static_cast<int>(threadIdx.x);
        const Stored* line = thin.matrix + min(mine, thin.lines - 1) * thin.line_stride;
        const Stored* vectors = thin.vectors;
        const bool bare = is_bare(args);
        ptx::wait_for_previous_kernels();   // all before needs the arguments alone

        float sum[M] = {};
#pragma unroll 1
        for (int k = 0; k < args.k; k += STEPS) {
            Stored w[STEPS], x[STEPS][M];
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const bool inside = k + s < args.k;
                w[s] = ptx::load_or_zero(line + s * thin.matrix_k_stride, inside);
#pragma unroll
                for (int v = 0; v < M; ++v)
                    x[s][v] = ptx::load_or_zero(vectors + s * thin.vector_k_stride + v * thin.vector_stride, inside && v < thin.count);
            }
            line += STEPS * thin.matrix_k_stride;
            vectors += STEPS * thin.vector_k_stride;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
#pragma unroll
                for (int v = 0; v < M; ++v) sum[v] = fmaf(Element::load(&w[s]), Element::load(&x[s][v]), sum[v]);
            }
        }
        ptx::let_next_kernel_start();
        if (mine >= thin.lines) return;
#pragma unroll
        for (int v = 0; v < M; ++v) {
            if (v < thin.count) store_sum<NUMBERS, SWAPPED>(args, bare, place.batch, place.vector + v, mine, sum[v]);
        }
    }
};

}  // namespace brief
