// What a block of the ladder does around its arithmetic: it walks the tiles of D and fills tiles of shared memory.
#pragma once

#include "tile.cuh"

// The tiles of D that one block computes, one after another. Every rung has one-dimensional blocks and the grid
//
//   ( ⌈n / BN⌉, min(⌈m / BM⌉, 65535), min(batch, 65535) )
//
// x counts tile columns, so blocks that start together share rows of A and lie side by side in B. A grid's y and z end
// at 65535, so a block goes on to further tile rows and further members of the batch where there are more:
//
//   for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) { … tile.batch, tile.row(), tile.col() … }
template <int BM, int BN>
struct TileWalk {
    int batch = blockIdx.z;
    int tile_row = blockIdx.y;

    __device__ __forceinline__ int row() const { return tile_row * BM; }
    __device__ __forceinline__ int col() const { return blockIdx.x * BN; }
    __device__ __forceinline__ bool inside(const GemmArgs& args) const { return batch < args.batch; }
    __device__ __forceinline__ void next(const GemmArgs& args) {
        tile_row += gridDim.y;
        if (tile_row > (args.m - 1) / BM) {
            tile_row = blockIdx.y;
            batch += gridDim.z;
        }
    }
};

// A tile of an operand on its way along k: where it starts and how much of the matrix lies at and behind that point.
// Counting what is left keeps guards and offsets inside a tile small: the one 64-bit addition is that of `step_*`.
struct TileSource {
    const float* origin;
    int64_t row_stride, col_stride;
    int rows_left, cols_left;   // may be smaller than the tile, or negative behind the matrix

    // The tile of `operand`, a rows × cols matrix at `base`, whose first element is (row, col).
    __device__ __forceinline__ TileSource(const GemmOperand& operand, const float* base, int row, int col, int rows,
                                          int cols)
        : origin(base + row * operand.row_stride + col * operand.col_stride),
          row_stride(operand.row_stride),
          col_stride(operand.col_stride),
          rows_left(rows - row),
          cols_left(cols - col) {}

    __device__ __forceinline__ float at(int row, int col) const {
        return row < rows_left && col < cols_left ? origin[row * row_stride + col * col_stride] : 0.0f;
    }
    __device__ __forceinline__ void step_rows(int count) {
        origin += count * row_stride;
        rows_left -= count;
    }
    __device__ __forceinline__ void step_cols(int count) {
        origin += count * col_stride;
        cols_left -= count;
    }
};

// Calls put(row, col, value) once for each element of a ROWS × COLS tile, shared out among THREADS threads so that
// neighbouring threads read neighbouring columns: coalesced where the column stride is 1. All loads are issued before
// the first value is put, so that they are in flight together.
template <int ROWS, int COLS, int THREADS, typename Put>
__device__ __forceinline__ void load_tile(const TileSource& source, Put put) {
    static_assert(THREADS % COLS == 0, "the threads fill whole rows of the tile in each pass");
    static_assert(ROWS * COLS % THREADS == 0, "every thread loads the same number of elements");
    constexpr int PASSES = ROWS * COLS / THREADS;
    constexpr int ROWS_A_PASS = THREADS / COLS;
    const int row = threadIdx.x / COLS;
    const int col = threadIdx.x % COLS;
    float value[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) value[pass] = source.at(row + pass * ROWS_A_PASS, col);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) put(row + pass * ROWS_A_PASS, col, value[pass]);
}

// The same with neighbouring threads on neighbouring rows: coalesced where the row stride is 1 (stored transposed).
template <int ROWS, int COLS, int THREADS, typename Put>
__device__ __forceinline__ void load_tile_by_columns(const TileSource& source, Put put) {
    static_assert(THREADS % ROWS == 0, "the threads fill whole columns of the tile in each pass");
    static_assert(ROWS * COLS % THREADS == 0, "every thread loads the same number of elements");
    constexpr int PASSES = ROWS * COLS / THREADS;
    constexpr int COLS_A_PASS = THREADS / ROWS;
    const int row = threadIdx.x % ROWS;
    const int col = threadIdx.x / ROWS;
    float value[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) value[pass] = source.at(row, col + pass * COLS_A_PASS);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) put(row, col + pass * COLS_A_PASS, value[pass]);
}
