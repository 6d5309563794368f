// A row of A times a matrix of weights that is stored n × k, as linear layers have it, in FP32 or 16 bits (there also two rows):
// D (m ≤ 2) = X · Wᵀ.
//
// What gemv.cu and gemv_half.cu start with, a block for every few lines, loses its time between blocks: each begins with nothing under way.
// Here blocks are persistent (line_stream.cuh). A block has LINES lines at a time and its warps share their k, so that a load of a warp is 512
// neighbouring bytes, and a thread keeps its part of X in registers where k is no longer than a slab; where it is longer, X comes from the L1.
//
// Floor: bytes of W ÷ bandwidth. On an H200, where a copy moves 4.2 TB/s, 14336 × 4096 weights of 16 bits take 28.3 µs, which is 4.15 TB/s. With
// 64 neighbouring bytes a line, as mma.sync wants them, they take 32.5: memory hands out small pieces more slowly. So numbers of 16 bits become FP32
// in registers, which costs as much as to multiply them, or tensor cores take a warp's 512 bytes as eight stretches of the line (Stretches).
//
// Sums are FP32, added in one order, lanes, then warps: results are the same from run to run.
//
// What surrounds a product in a decoder is small beside its weights, and a kernel of its own for each of it is a start and an end at which
// memory idles. Fused kernels have it inside:
//
// - A norm of the rows. A block has the rows anyway, so it has their squares too. Weights of the norm multiply the rows as they come, in
//   FP32, and the root of the mean square divides the finished sums.
// - Gated columns. The lines of gate and up lie in turn, so that one stream reads both, and the two sums of a pair meet in the epilogue.
//
// Launch. One matrix. At most as many blocks as the multiprocessors hold. It may start while the kernel before still runs.

#include <type_traits>

#include "../epilogue/half.cuh"
#include "../epilogue/lane_sum.cuh"
#include "../ptx/mma.cuh"
#include "line_stream.cuh"

namespace {

// What a thread reads at once, as FP32.
struct Single {
    using Element = float;
    using Epilogue = ::Epilogue;
    static constexpr int VECTOR = kVector;
    static constexpr bool STRETCHES = false;
    static __device__ __forceinline__ float widen(float x) { return x; }
    static __device__ __forceinline__ void widen(float4 from, float (&to)[VECTOR]) {
        to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
    }
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        epilogue.store(args, row, col, sum);
    }
};
template <Half TYPE_>
struct HalfPairs {
    static constexpr Half TYPE = TYPE_;
    using Element = uint16_t;
    using Epilogue = HalfEpilogue<TYPE, false>;
    static constexpr int VECTOR = 2 * kVector;
    static constexpr bool STRETCHES = false;
    static __device__ __forceinline__ float widen(uint16_t x) { return ptx::low_to_float<TYPE>(x); }
    static __device__ __forceinline__ void widen(uint4 from, float (&to)[VECTOR]) {
        const uint32_t pairs[] = {from.x, from.y, from.z, from.w};
#pragma unroll
        for (int i = 0; i < VECTOR; i += 2) to[i] = ptx::low_to_float<TYPE>(pairs[i / 2]), to[i + 1] = ptx::high_to_float<TYPE>(pairs[i / 2]);
    }
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        epilogue.store_element(args, row, col, sum);
    }
};
// The same, and tensor cores multiply.
template <Half TYPE>
struct HalfStretches : HalfPairs<TYPE> {
    static constexpr bool STRETCHES = true;
};

// Whether norm and gated columns are inside, rows of X, warps, lines of W at a time, 16-byte loads of a thread a line and slab, blocks of a
// multiprocessor.
template <typename TYPE_, bool FUSED_, int ROWS_, int WARPS_, int LINES_, int LOADS_, int BLOCKS_>
struct Shape {
    using Type = TYPE_;
    static constexpr bool FUSED = FUSED_;
    static constexpr int ROWS = ROWS_, WARPS = WARPS_, LINES = LINES_, LOADS = LOADS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = WARPS * kWarp, SUMS = ROWS * LINES;
    static constexpr int LOAD_K = THREADS * Type::VECTOR;   // k of a load of all threads
    static constexpr int SLAB_K = LOADS * LOAD_K;
    static constexpr int GATHERED = line_stream::kGatheredLines;
    static_assert((SUMS & (SUMS - 1)) == 0 && SUMS <= kWarp, "the lanes' sums halve evenly");
    static_assert(SLAB_K <= kMaxOvershoot && LINES <= kMaxOvershoot, "k + SLAB_K is an int");
    static_assert(GATHERED % LINES == 0, "whole groups gather");
    static_assert(!FUSED || LINES % 2 == 0, "both lines of a pair are in one group");
    static_assert(!Type::STRETCHES || LINES % 2 == 0, "a multiplication takes two lines");
    static_assert(!Type::STRETCHES || !FUSED, "a norm multiplies the rows in FP32");
    using Vector = decltype(ptx::load_streaming(static_cast<const typename Type::Element*>(nullptr)));
    using Weights = Vector[LINES][LOADS];
    // What a thread has of the rows: as they lie in memory, or as the norm makes them.
    using Rows = std::conditional_t<FUSED, float[ROWS][LOADS][Type::VECTOR], Vector[ROWS][LOADS]>;
    using Sums = float[WARPS][ROWS][GATHERED + 1];   // a column of padding: warps write to different banks
    using Squares = float[WARPS][ROWS];              // of the rows, for a norm
};

// Sums of a thread's products, by multiply-adds.
template <typename SHAPE>
struct MultiplyAdds {
    float sum[SHAPE::SUMS];   // [row · LINES + line]

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < SHAPE::SUMS; ++i) sum[i] = 0.0f;
    }
    __device__ __forceinline__ void add(const typename SHAPE::Rows& x, const typename SHAPE::Weights& weights) {
        using Type = typename SHAPE::Type;
        constexpr int ROWS = SHAPE::ROWS, LINES = SHAPE::LINES, VECTOR = Type::VECTOR;
#pragma unroll
        for (int j = 0; j < SHAPE::LOADS; ++j) {
            float a[ROWS][VECTOR];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                if constexpr (SHAPE::FUSED) {
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e) a[row][e] = x[row][j][e];
                } else {
                    Type::widen(x[row][j], a[row]);
                }
            }
#pragma unroll
            for (int i = 0; i < LINES; ++i) {
                float b[VECTOR];
                Type::widen(weights[i][j], b);
#pragma unroll
                for (int row = 0; row < ROWS; ++row)
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e) sum[row * LINES + i] = fmaf(a[row][e], b[e], sum[row * LINES + i]);
            }
        }
    }
    // Nothing more comes.
    __device__ __forceinline__ void finish(int) {}
};

// The same on tensor cores. Lanes 4g to 4g + 3 have a stretch of 32 neighbouring elements of a line, and the same stretch of X: a quarter of each is as
// much as mma wants of a lane, whose k may be in any order if both factors have the same. So what eight lines of 32 elements and eight columns would be
// are the eight stretches of one line and of one row. What belongs together is on the diagonal of their product, and all else is not looked at: tensor
// cores have nothing else to do. The second eight lines of mma are the stretches of the next line.
template <typename SHAPE>
struct Stretches {
    static constexpr int LINES = SHAPE::LINES, ROWS = SHAPE::ROWS;
    float products[ROWS][LINES / 2][4];
    float sum[SHAPE::SUMS];   // [row · LINES + line], when finished

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
            for (int pair = 0; pair < LINES / 2; ++pair)
#pragma unroll
                for (int i = 0; i < 4; ++i) products[row][pair][i] = 0.0f;
    }
    __device__ __forceinline__ void add(const typename SHAPE::Rows& x, const typename SHAPE::Weights& weights) {
#pragma unroll
        for (int j = 0; j < SHAPE::LOADS; ++j)
#pragma unroll
            for (int pair = 0; pair < LINES / 2; ++pair)
#pragma unroll
                for (int row = 0; row < ROWS; ++row) {
                    const uint4 line = weights[2 * pair][j], next = weights[2 * pair + 1][j], own = x[row][j];
                    float (&d)[4] = products[row][pair];
                    ptx::mma_half<SHAPE::Type::TYPE>(d, line.x, next.x, line.y, next.y, own.x, own.y);
                    ptx::mma_half<SHAPE::Type::TYPE>(d, line.z, next.z, line.w, next.w, own.z, own.w);
                }
    }
    // Lane 4g + t has columns 2t and 2t + 1 of rows g and g + 8 of the product: one of each four lanes has a place of the diagonal.
    __device__ __forceinline__ void finish(int lane) {
        const int stretch = lane / 4;
        const bool here = lane % 4 == stretch / 2, second = stretch % 2 != 0;
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
#pragma unroll
            for (int line = 0; line < LINES; ++line) {
                const float (&d)[4] = products[row][line / 2];
                const float on_diagonal = second ? d[line % 2 * 2 + 1] : d[line % 2 * 2];
                sum[row * LINES + line] = here ? on_diagonal : 0.0f;
            }
    }
};

template <typename SHAPE>
__device__ __forceinline__ void stream(const GemmArgs& args, typename SHAPE::Sums& sums, typename SHAPE::Squares& squares) {
    using Type = typename SHAPE::Type;
    using Element = typename Type::Element;
    using Vector = typename SHAPE::Vector;
    constexpr int ROWS = SHAPE::ROWS, LINES = SHAPE::LINES, LOADS = SHAPE::LOADS, VECTOR = Type::VECTOR, GATHERED = SHAPE::GATHERED;
    constexpr bool FUSED = SHAPE::FUSED;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int slabs = (args.k - 1) / SHAPE::SLAB_K + 1;
    const int whole_k = args.k / VECTOR * VECTOR;   // what is left is added at the end, element by element
    const int thread_k = static_cast<int>(threadIdx.x) * VECTOR;

    const line_stream::Share share(args.n, LINES);
    ptx::let_next_kernel_start();
    line_stream::fetch_ahead<SHAPE::BLOCKS, Element>(args, share.first * LINES, share.end * LINES);
    ptx::wait_for_previous_kernels();
    const auto fetch = [&](const line_stream::Place& place, typename SHAPE::Weights& to) {
#pragma unroll
        for (int i = 0; i < LINES; ++i) {
            const Element* const line = line_stream::line_of<Element>(args, place.group * LINES + i);
#pragma unroll
            for (int j = 0; j < LOADS; ++j) {
                const int k = place.slab * SHAPE::SLAB_K + thread_k + j * SHAPE::LOAD_K;
                to[i][j] = k < whole_k ? ptx::load_streaming(line + k) : Vector{};
            }
        }
    };
    const Element* const norm = FUSED ? static_cast<const Element*>(args.norm) : nullptr;
    typename SHAPE::Rows x;
    float square[ROWS] = {};
    std::conditional_t<Type::STRETCHES, Stretches<SHAPE>, MultiplyAdds<SHAPE>> sums_of_thread;
    const auto use = [&](const line_stream::Place& place, const typename SHAPE::Weights& weights) {
        if (slabs > 1 || place.group == share.first) {
            // Without branches between them, all loads go ahead of what is made of them.
            [[maybe_unused]] Vector norm_weight[LOADS];
            if constexpr (FUSED) {
#pragma unroll
                for (int j = 0; j < LOADS; ++j) {
                    const int k = place.slab * SHAPE::SLAB_K + thread_k + j * SHAPE::LOAD_K;
                    norm_weight[j] = norm != nullptr && k < whole_k ? *reinterpret_cast<const Vector*>(norm + k) : Vector{};
                }
            }
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int j = 0; j < LOADS; ++j) {
                    const int k = place.slab * SHAPE::SLAB_K + thread_k + j * SHAPE::LOAD_K;
                    const Vector own = k < whole_k ? *reinterpret_cast<const Vector*>(line_stream::row_of<Element>(args, row) + k) : Vector{};
                    if constexpr (FUSED) Type::widen(own, x[row][j]);
                    else x[row][j] = own;
                }
            if constexpr (FUSED) {
                if (norm != nullptr) {
#pragma unroll
                    for (int j = 0; j < LOADS; ++j) {
                        float weight[VECTOR];
                        Type::widen(norm_weight[j], weight);
#pragma unroll
                        for (int row = 0; row < ROWS; ++row)
#pragma unroll
                            for (int e = 0; e < VECTOR; ++e) {
                                float& element = x[row][j][e];
                                if (place.group == share.first) square[row] = fmaf(element, element, square[row]);
                                element *= weight[e];
                            }
                    }
                }
            }
        }
        if (place.slab == 0) sums_of_thread.clear();
        sums_of_thread.add(x, weights);
        if (place.slab < slabs - 1) return;
        // The lines are complete.
        sums_of_thread.finish(lane);
        float (&sum)[SHAPE::SUMS] = sums_of_thread.sum;
        using Sum = LaneSum<SHAPE::SUMS, kWarp / 2>;
        Sum::add(sum, lane);
        const int own = Sum::owned(lane);
        if (Sum::speaks(lane)) sums[warp][own / LINES][(place.group * LINES + own % LINES) % GATHERED] = sum[0];
        if constexpr (FUSED) {
            if (norm == nullptr || place.group != share.first) return;
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                LaneSum<1, kWarp / 2>::add(&square[row], lane);
                if (lane == 0) squares[warp][row] = square[row];
            }
        }
    };
    // What the sums of a row are multiplied with: what its norm divides by, inverted.
    const auto factor = [&](int row) {
        if (norm == nullptr) return 1.0f;
        float total = 0.0f;
#pragma unroll
        for (int part = 0; part < SHAPE::WARPS; ++part) total += squares[part][row];
        for (int k = whole_k; k < args.k; ++k) {
            const float own = Type::widen(line_stream::row_of<Element>(args, row)[k]);
            total = fmaf(own, own, total);
        }
        return 1.0f / sqrtf(total / static_cast<float>(args.k) + args.norm_epsilon);
    };
    const auto finished = [&](int row, int line) {
        float total = 0.0f;
#pragma unroll
        for (int part = 0; part < SHAPE::WARPS; ++part) total += sums[part][row][line % GATHERED];
        const auto of_row = [&](int k) {
            const float own = Type::widen(line_stream::row_of<Element>(args, row)[k]);
            return norm != nullptr ? own * Type::widen(norm[k]) : own;
        };
        for (int k = whole_k; k < args.k; ++k) total = fmaf(Type::widen(line_stream::line_of<Element>(args, line)[k]), of_row(k), total);
        return total;
    };
    const auto store = [&](int from, int to) {
        const typename Type::Epilogue epilogue(args, 0);
        const int end = min(to * LINES, args.n);
        if (FUSED && args.gated != 0) {
            constexpr int PAIRS = GATHERED / 2;
            for (int i = threadIdx.x; i < ROWS * PAIRS; i += SHAPE::THREADS) {
                const int row = i / PAIRS, line = from * LINES + i % PAIRS * 2;
                if (row >= args.m || line >= end) continue;
                const float by = factor(row);
                epilogue.store_gated(args, row, line, finished(row, line) * by, finished(row, line + 1) * by);
            }
            return;
        }
        for (int i = threadIdx.x; i < ROWS * GATHERED; i += SHAPE::THREADS) {
            const int row = i / GATHERED, line = from * LINES + i % GATHERED;
            if (row >= args.m || line >= end) continue;
            float total = finished(row, line);
            if constexpr (FUSED) total *= factor(row);
            Type::store(epilogue, args, row, line, total);
        }
    };
    line_stream::walk<GATHERED / LINES, typename SHAPE::Weights>(share.first, share.end, slabs, fetch, use, store);
}

}  // namespace

// Name, type, whether norm and gated columns are inside, rows, warps, lines at a time, loads of a line, blocks a multiprocessor.
#define GEMV_STREAM(NAME, TYPE, FUSED, ROWS, WARPS, LINES, LOADS, BLOCKS)                                              \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {     \
        using SHAPE = Shape<TYPE, FUSED, ROWS, WARPS, LINES, LOADS, BLOCKS>;                                           \
        __shared__ SHAPE::Sums sums;                                                                                   \
        __shared__ SHAPE::Squares squares;                                                                             \
        stream<SHAPE>(args, sums, squares);                                                                            \
    }
#define GEMV_STREAM_HALF(TILE, ...)                                                                                    \
    GEMV_STREAM(gemv_stream_f16_##TILE, HalfPairs<Half::kF16>, false, __VA_ARGS__)                                     \
    GEMV_STREAM(gemv_stream_bf16_##TILE, HalfPairs<Half::kBF16>, false, __VA_ARGS__)
#define GEMV_STREAM_STRETCHES(TILE, ...)                                                                               \
    GEMV_STREAM(gemv_stream_f16_##TILE, HalfStretches<Half::kF16>, false, __VA_ARGS__)                                 \
    GEMV_STREAM(gemv_stream_bf16_##TILE, HalfStretches<Half::kBF16>, false, __VA_ARGS__)
#define GEMV_FUSED_HALF(TILE, ...)                                                                                     \
    GEMV_STREAM(gemv_fused_f16_##TILE, HalfPairs<Half::kF16>, true, __VA_ARGS__)                                       \
    GEMV_STREAM(gemv_fused_bf16_##TILE, HalfPairs<Half::kBF16>, true, __VA_ARGS__)

// Slabs of 384 to 640 have twice as many lines at a time: for k up to their length as many bytes are under way as with the others.
GEMV_STREAM(gemv_stream_m1_k384, Single, false, 1, 3, 8, 1, 5)
GEMV_STREAM(gemv_stream_m1_k512, Single, false, 1, 4, 8, 1, 4)
GEMV_STREAM(gemv_stream_m1_k640, Single, false, 1, 5, 8, 1, 3)
GEMV_STREAM(gemv_stream_m1_k1024, Single, false, 1, 4, 4, 2, 4)
GEMV_STREAM(gemv_stream_m1_k2048, Single, false, 1, 8, 4, 2, 2)
GEMV_STREAM_HALF(m1_k1024, 1, 4, 4, 1, 5)
// FP16 takes longer than BF16 to become FP32, and here that shows.
GEMV_STREAM(gemv_stream_f16_m1_k2048, HalfStretches<Half::kF16>, false, 1, 4, 4, 2, 4)
GEMV_STREAM(gemv_stream_bf16_m1_k2048, HalfPairs<Half::kBF16>, false, 1, 4, 4, 2, 4)
GEMV_STREAM_STRETCHES(m1_k2048_6blocks, 1, 4, 2, 2, 6)
GEMV_STREAM_STRETCHES(m1_k3072, 1, 6, 2, 2, 4)
GEMV_STREAM_STRETCHES(m1_k4096, 1, 4, 2, 4, 4)
GEMV_STREAM_STRETCHES(m1_k4096_3blocks, 1, 8, 2, 2, 3)
GEMV_STREAM_STRETCHES(m2_k2048, 2, 2, 2, 4, 8)
GEMV_STREAM_STRETCHES(m2_k4096, 2, 4, 2, 4, 4)
GEMV_STREAM(gemv_fused_m1_k1024, Single, true, 1, 4, 4, 2, 4)
GEMV_STREAM(gemv_fused_m1_k2048, Single, true, 1, 8, 4, 2, 2)
GEMV_FUSED_HALF(m1_k1024, 1, 4, 4, 1, 5)
GEMV_FUSED_HALF(m1_k2048, 1, 4, 4, 2, 4)
GEMV_FUSED_HALF(m1_k4096, 1, 8, 2, 2, 3)
GEMV_FUSED_HALF(m2_k2048, 2, 4, 4, 2, 3)
