// What the row-wise kernels share: a row in registers, and sums and maxima over it.
//
// THREADS threads have a row: a warp, or all of a block. Each has PIECES pieces of it, of 16 bytes or of one element, and all that it
// reads is under way at once. So a row makes one trip from memory and one back, whatever is computed in between.
#pragma once

#include "../abi/rowwise_args.cuh"
#include "../ptx/element.cuh"
#include "../ptx/execution.cuh"

namespace rowwise {

using element::Type;

constexpr int kSmallBlock = 128;   // threads of a block whose warps have a row each

// What a piece is.
enum class Piece { kVector, kElement };

template <Type TYPE, int THREADS_, int PIECES_, Piece PIECE>
struct Shape {
    using Element = element::Element<TYPE>;
    using Stored = typename Element::Stored;
    static constexpr int THREADS = THREADS_, PIECES = PIECES_;
    static constexpr int WIDTH = PIECE == Piece::kVector ? Element::kVectorElements : 1;   // of a piece
    static constexpr int WARPS = THREADS / kWarp;
    static constexpr int ROWS = THREADS == kWarp ? kSmallBlock / kWarp : 1;                // of a block
    static constexpr int BLOCK = ROWS * THREADS;
    static_assert(THREADS % kWarp == 0 && WARPS <= kWarp, "a warp adds up the sums of all warps");
};

// What a thread has of a row.
template <typename SHAPE>
using Values = float[SHAPE::PIECES][SHAPE::WIDTH];

// A thread's place in its row.
template <typename SHAPE>
struct Place {
    int64_t row;
    int width;

    __device__ __forceinline__ explicit Place(const RowwiseArgs& args)
        : row(static_cast<int64_t>(blockIdx.x) * SHAPE::ROWS + threadIdx.x / SHAPE::THREADS), width(args.width) {}

    __device__ __forceinline__ int column(int piece) const {
        return (piece * SHAPE::THREADS + static_cast<int>(threadIdx.x % SHAPE::THREADS)) * SHAPE::WIDTH;
    }
    // A row is a whole number of pieces.
    __device__ __forceinline__ bool inside(int piece) const { return column(piece) < width; }

    // What is outside becomes `otherwise`.
    __device__ __forceinline__ void load(const void* data, int64_t stride, float otherwise, Values<SHAPE>& to) const {
        const auto* const from = static_cast<const typename SHAPE::Stored*>(data) + row * stride;
#pragma unroll
        for (int piece = 0; piece < SHAPE::PIECES; ++piece) {
            if (inside(piece)) {
                if constexpr (SHAPE::WIDTH == 1) {
                    to[piece][0] = SHAPE::Element::load(from + column(piece));
                } else {
                    SHAPE::Element::unpack(*reinterpret_cast<const uint4*>(from + column(piece)), to[piece]);
                }
            } else {
#pragma unroll
                for (float& x : to[piece]) x = otherwise;
            }
        }
    }

    __device__ __forceinline__ void store(void* data, int64_t stride, const Values<SHAPE>& from) const {
        auto* const to = static_cast<typename SHAPE::Stored*>(data) + row * stride;
#pragma unroll
        for (int piece = 0; piece < SHAPE::PIECES; ++piece) {
            if (inside(piece)) SHAPE::Element::store(to + column(piece), from[piece]);
        }
    }
};

struct Sum {
    static constexpr float kNothing = 0.0f;
    static __device__ __forceinline__ float of(float x, float y) { return x + y; }
};

struct Maximum {
    static constexpr float kNothing = -INFINITY;
    // NaN if one of them is: fmaxf would drop it.
    static __device__ __forceinline__ float of(float x, float y) { return x > y || x != x ? x : y; }
};

// A thread's own values, in pairs, pairs of pairs and so on: chains of additions are short.
template <typename OF, typename SHAPE>
__device__ __forceinline__ float over_own(const Values<SHAPE>& values) {
    float result = OF::kNothing;
#pragma unroll
    for (int piece = 0; piece < SHAPE::PIECES; ++piece) {
        float part[SHAPE::WIDTH];
#pragma unroll
        for (int i = 0; i < SHAPE::WIDTH; ++i) part[i] = values[piece][i];
#pragma unroll
        for (int step = SHAPE::WIDTH / 2; step >= 1; step /= 2) {
#pragma unroll
            for (int i = 0; i < step; ++i) part[i] = OF::of(part[i], part[i + step]);
        }
        result = OF::of(result, part[0]);
    }
    return result;
}

// Every thread of a row gets the result over all of them, in an order that is the same from run to run. `shared` is used once in a
// kernel, so nobody waits for those who read it.
template <typename OF, typename SHAPE>
__device__ __forceinline__ float over_row(float own, float (&shared)[SHAPE::WARPS]) {
#pragma unroll
    for (int bit = kWarp / 2; bit >= 1; bit /= 2) own = OF::of(own, __shfl_xor_sync(kWholeWarp, own, bit));
    if constexpr (SHAPE::WARPS > 1) {
        if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
        __syncthreads();
        own = OF::kNothing;
#pragma unroll
        for (int warp = 0; warp < SHAPE::WARPS; ++warp) own = OF::of(own, shared[warp]);
    }
    return own;
}

}  // namespace rowwise

// Every instance of a kernel for one type: a warp or a block has a row, in pieces of 16 bytes or of one element. OPERATION is the
// template, NAME the start of the symbols.
#define ROWWISE(OPERATION, NAME, THREADS, PIECES, SUFFIX, TYPE, PIECE)                                                  \
    extern "C" __global__ void __launch_bounds__(rowwise::Shape<TYPE, THREADS, PIECES, PIECE>::BLOCK)                   \
    NAME##_##THREADS##x##PIECES##SUFFIX(const __grid_constant__ RowwiseArgs args) {                                     \
        OPERATION<rowwise::Shape<TYPE, THREADS, PIECES, PIECE>>(args);                                                  \
    }

#define ROWWISE_SHAPES(OPERATION, NAME, TYPE)                                                                           \
    ROWWISE(OPERATION, NAME, 32, 4, , TYPE, rowwise::Piece::kVector)                                                    \
    ROWWISE(OPERATION, NAME, 128, 4, , TYPE, rowwise::Piece::kVector)                                                   \
    ROWWISE(OPERATION, NAME, 512, 1, , TYPE, rowwise::Piece::kVector)                                                   \
    ROWWISE(OPERATION, NAME, 512, 4, , TYPE, rowwise::Piece::kVector)                                                   \
    ROWWISE(OPERATION, NAME, 32, 8, _elements, TYPE, rowwise::Piece::kElement)                                          \
    ROWWISE(OPERATION, NAME, 128, 8, _elements, TYPE, rowwise::Piece::kElement)                                         \
    ROWWISE(OPERATION, NAME, 512, 8, _elements, TYPE, rowwise::Piece::kElement)
