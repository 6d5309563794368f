// Which part of a copy or transposition a block has: a tile of a matrix of the batch, of elements of any size.
#pragma once

#include "../abi/transpose_args.cuh"

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
