// What a block of the ladder does around its arithmetic: it walks the tiles of D and fills tiles of shared memory.
#pragma once

#include "batch_member.cuh"

// Threads that one SM holds, for launch bounds that ask for so many blocks an SM: CUDA C++ Programming Guide, technical
// specifications per compute capability.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kThreadsPerSm = 1536;
#else
constexpr int kThreadsPerSm = 2048;
#endif

// The tiles of D that one block computes, one after another. Every rung has one-dimensional blocks and the grid
//
//   ( ⌈n / BN⌉, min(⌈m / BM⌉, 65535), min(batch, 65535) )
//
// x counts tile columns, so blocks that start together share rows of A and lie side by side in B. A grid's y and z end
// at 65535, so a block goes on to further tile rows and further members of the batch where there are more:
//
//   for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) { … tile.batch, tile.row(), tile.col() … }
constexpr int kMaxGridZ = 65535;
static_assert(kMaxGridZ <= kMaxOvershoot, "the number of a block's next matrix is an int");

template <int BM, int BN>
struct TileWalk {
    static_assert(BM <= kMaxOvershoot && BN <= kMaxOvershoot, "rows and columns of the last tile are ints");
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

// Which way neighbouring threads lie when they load a tile. Their reads are coalesced where that way has stride 1.
enum class Neighbours {
    kAlongRow,      // row-major operands
    kAlongColumn,   // operands that are stored transposed
};

// One thread's share of a ROWS × COLS tile of an operand, on its way along k. It is little more than the address of the
// thread's first element: the other elements lie at fixed distances, and a step is one 64-bit addition.
template <int ROWS, int COLS, int THREADS, Neighbours NEIGHBOURS = Neighbours::kAlongRow>
struct TileLoader {
    static constexpr int LINE = NEIGHBOURS == Neighbours::kAlongRow ? COLS : ROWS;
    static constexpr int LINES_A_PASS = THREADS / LINE;
    static constexpr int PASSES = ROWS * COLS / THREADS;   // elements of a thread
    static_assert(THREADS % LINE == 0, "the threads fill whole rows, or columns, of the tile in each pass");
    static_assert(ROWS * COLS % THREADS == 0, "every thread loads the same number of elements");

    const float* next;
    int64_t row_stride, col_stride;

    // For the tile whose first element is (row, col), in the `batch`-th matrix of `operand`.
    __device__ __forceinline__ TileLoader(const GemmArgs& args, const GemmOperand& operand, int batch, int row, int col)
        : next(static_cast<const float*>(operand.data) + batch_offset(args, operand, batch) +
               (row + first_row()) * operand.row_stride + (col + first_col()) * operand.col_stride),
          row_stride(operand.row_stride),
          col_stride(operand.col_stride) {}

    // Calls put(row, col, value), place inside the tile and value, for each of the thread's elements. From the tile's
    // first element on, the matrix has rows_left × cols_left; what lies behind them reads as zero. All loads are issued
    // before the first value is put, so that they are in flight together.
    template <typename Put>
    __device__ __forceinline__ void load(int rows_left, int cols_left, Put put) const {
        float value[PASSES];
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const bool inside = first_row() + pass_row(pass) < rows_left && first_col() + pass_col(pass) < cols_left;
            value[pass] = inside ? next[pass_row(pass) * row_stride + pass_col(pass) * col_stride] : 0.0f;
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            put(first_row() + pass_row(pass), first_col() + pass_col(pass), value[pass]);
        }
    }
    __device__ __forceinline__ void step_rows() { next += ROWS * row_stride; }
    __device__ __forceinline__ void step_cols() { next += COLS * col_stride; }

    static __device__ __forceinline__ int first_row() {
        return static_cast<int>(NEIGHBOURS == Neighbours::kAlongRow ? threadIdx.x / LINE : threadIdx.x % LINE);
    }
    static __device__ __forceinline__ int first_col() {
        return static_cast<int>(NEIGHBOURS == Neighbours::kAlongRow ? threadIdx.x % LINE : threadIdx.x / LINE);
    }
    static __device__ constexpr int pass_row(int pass) {
        return NEIGHBOURS == Neighbours::kAlongRow ? pass * LINES_A_PASS : 0;
    }
    static __device__ constexpr int pass_col(int pass) {
        return NEIGHBOURS == Neighbours::kAlongRow ? 0 : pass * LINES_A_PASS;
    }
};

// A thread's TM × TN elements of D, the first at (row, col), ROW_STEP rows and COL_STEP columns apart:
// D ← alpha·acc + beta·C, where they lie inside the matrix. C is not read where beta is 0.
template <int ROW_STEP, int COL_STEP, typename T, int TM, int TN>
__device__ __forceinline__ void store_tile(const GemmArgs& args, float alpha, float beta, int batch, int row, int col,
                                           const T (&acc)[TM][TN]) {
    const BatchMember<T> member(args, batch);
    const T* c = member.c + row * args.c.row_stride + col * args.c.col_stride;
    T* d = member.d + row * args.d.row_stride + col;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            if (row + i * ROW_STEP < args.m && col + j * COL_STEP < args.n) {
                T value = T(alpha) * acc[i][j];
                if (beta != 0.0f) value += T(beta) * c[j * COL_STEP * args.c.col_stride];
                d[j * COL_STEP] = value;
            }
        }
        c += ROW_STEP * args.c.row_stride;
        d += ROW_STEP * args.d.row_stride;
    }
}

// The same with the problem's own α and β.
template <int ROW_STEP, int COL_STEP, typename T, int TM, int TN>
__device__ __forceinline__ void store_tile(const GemmArgs& args, int batch, int row, int col, const T (&acc)[TM][TN]) {
    store_tile<ROW_STEP, COL_STEP>(args, args.alpha, args.beta, batch, row, col, acc);
}
