// The one argument that every copy and transposition kernel of this crate takes, by value.
//
// A launch moves a batch of matrices: element (i, j) of each, for 0 ≤ i < rows and 0 ≤ j < cols, goes from
// src + i·src_row_stride + j·src_col_stride to dst + i·dst_row_stride + j·dst_col_stride. In a transposition the matrix
// is read along its rows (src_col_stride = 1) and written along its columns (dst_row_stride = 1); in a copy both
// column strides are 1. Every other permutation is one of the two, with the remaining dimensions as batch.
// Strides count elements, not bytes, and are 64-bit. `src/transpose/args.rs` is the mirror of this file on the Rust
// side: the assertions below and the ones there fail to compile when the two drift apart.
#pragma once

#include <cstddef>
#include <cstdint>

// Batch dimensions of one launch, after the problem has merged those that can be walked with one stride.
constexpr int kMaxOuterDims = 6;

// Division of a number below 2^31 by a number fixed on the host: one multiplication and one shift.
// quotient = (2n · multiplier) >> 32 >> shift; the host picks multiplier and shift so that this is exact.
struct Divisor {
    uint32_t value;        // what to divide by, ≥ 1 and < 2^31
    uint32_t multiplier;   // ≥ 2^31
    uint32_t shift;
};

// A batch dimension of a launch.
struct OuterDim {
    int64_t src_stride;   // elements between neighbouring matrices in the source; 0 broadcasts
    int64_t dst_stride;
    Divisor extent;
    uint32_t reserved;    // 0
};

// What every block reads comes first and close together: at the start of a kernel each 64 bytes of arguments that it
// touches are a miss of the constant cache, one after the other, and for what the L2 holds those are a good part of the
// whole time. Batch dimensions are read only as far as there are any.
struct TransposeArgs {
    const void* src;          // device address of element (0, 0) of the first matrix
    void* dst;                // likewise
    int64_t src_row_stride;   // elements between (i, j) and (i + 1, j)
    int64_t dst_col_stride;   // elements between (i, j) and (i, j + 1)
    int64_t src_col_stride;
    int64_t dst_row_stride;
    int64_t rows, cols;       // each ≥ 1
    Divisor tiles_inner;      // tiles of a matrix along the direction that is walked first
    Divisor tiles_matrix;     // tiles of a matrix
    uint16_t walk_rows;       // 1: neighbouring blocks take neighbouring tiles of a column; 0: of a row
    uint16_t streaming;       // 1: more than the L2 holds, so that nobody will find it there
    uint16_t outer_dims;      // batch dimensions in use
    uint16_t lets_next;       // 1: the next kernel, which reads what is written here, may get ready meanwhile
    uint32_t outer_count;     // matrices of this launch, the product of their extents
    uint32_t gaps;            // 1: rows or matrices of the destination do not follow one another without gaps
    OuterDim outer[kMaxOuterDims];   // innermost first
};

static_assert(sizeof(Divisor) == 12, "src/transpose/args.rs mirrors this layout");
static_assert(sizeof(OuterDim) == 32, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(OuterDim, extent) == 16, "src/transpose/args.rs mirrors this layout");
static_assert(sizeof(TransposeArgs) == 296, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, rows) == 48, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, tiles_inner) == 64, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, walk_rows) == 88, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, streaming) == 90, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, outer_dims) == 92, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, lets_next) == 94, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, outer) == 104, "src/transpose/args.rs mirrors this layout");

__device__ __forceinline__ uint32_t quotient(uint32_t number, const Divisor& divisor) {
    return __umulhi(2 * number, divisor.multiplier) >> divisor.shift;
}

// The unsigned integer of SIZE bytes: kernels move bits, so one instance serves every dtype of that size.
template <int SIZE> struct Bits;
template <> struct Bits<1> { using Type = uint8_t; };
template <> struct Bits<2> { using Type = uint16_t; };
template <> struct Bits<4> { using Type = uint32_t; };
template <> struct Bits<8> { using Type = uint64_t; };
template <> struct Bits<16> { using Type = uint4; };

// Elements from the first matrix to the `matrix`-th one, in the source and in the destination.
struct OuterOffset {
    int64_t src, dst;
};

__device__ __forceinline__ OuterOffset outer_offset(const TransposeArgs& args, uint32_t matrix) {
    OuterOffset offset{0, 0};
#pragma unroll 1   // every instruction has to be fetched when a kernel starts
    for (uint32_t dim = 0; dim < args.outer_dims; ++dim) {
        const OuterDim& outer = args.outer[dim];
        const uint32_t next = quotient(matrix, outer.extent);
        const int64_t index = matrix - next * outer.extent.value;
        offset.src += index * outer.src_stride;
        offset.dst += index * outer.dst_stride;
        matrix = next;
    }
    return offset;
}

// Which tile of which matrix a block works on.
struct TileIndex {
    uint32_t row, col, matrix;
};

__device__ __forceinline__ TileIndex tile_index(const TransposeArgs& args, uint32_t block) {
    const uint32_t matrix = quotient(block, args.tiles_matrix);
    const uint32_t tile = block - matrix * args.tiles_matrix.value;
    const uint32_t outer = quotient(tile, args.tiles_inner);
    const uint32_t inner = tile - outer * args.tiles_inner.value;
    return args.walk_rows ? TileIndex{inner, outer, matrix} : TileIndex{outer, inner, matrix};
}

// A tile's corner in both tensors, and how much of the tile lies inside the matrix.
template <typename T>
struct Tile {
    const T* src;
    T* dst;
    int rows, cols;

    template <int TILE_ROWS, int TILE_COLS>
    static __device__ __forceinline__ Tile at(const TransposeArgs& args, TileIndex index) {
        const OuterOffset offset = outer_offset(args, index.matrix);
        const int64_t row = static_cast<int64_t>(index.row) * TILE_ROWS;
        const int64_t col = static_cast<int64_t>(index.col) * TILE_COLS;
        const T* src = static_cast<const T*>(args.src) + offset.src;
        T* dst = static_cast<T*>(args.dst) + offset.dst;
        return Tile{src + row * args.src_row_stride + col * args.src_col_stride,
                    dst + row * args.dst_row_stride + col * args.dst_col_stride,
                    static_cast<int>(min(args.rows - row, static_cast<int64_t>(TILE_ROWS))),
                    static_cast<int>(min(args.cols - col, static_cast<int64_t>(TILE_COLS)))};
    }
};

// Defines the kernels NAME_b1, NAME_b2, NAME_b4 and NAME_b8: `body<SIZE>(args)` for elements of 1, 2, 4 and 8 bytes.
#define TRANSPOSE_KERNEL(NAME, SIZE, THREADS)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                          \
        NAME##_b##SIZE(const __grid_constant__ TransposeArgs args) {                               \
        body<SIZE>(args);                                                                          \
    }
#define TRANSPOSE_KERNELS(NAME, THREADS) \
    TRANSPOSE_KERNEL(NAME, 1, THREADS)   \
    TRANSPOSE_KERNEL(NAME, 2, THREADS)   \
    TRANSPOSE_KERNEL(NAME, 4, THREADS)   \
    TRANSPOSE_KERNEL(NAME, 8, THREADS)
