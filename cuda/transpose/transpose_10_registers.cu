// Transposition 10: micro tiles turned in registers, without shared memory and without a barrier.
//
// What the L2 holds is moved in a few microseconds, of which a block of transposition 5 or 6 spends a good part waiting
// for its slowest load before anybody may store. Here every thread works for itself: it loads a micro tile of V × V
// elements (V = 16 / SIZE) as V chunks of 16 bytes, turns it in registers, and stores V chunks. The lanes of a warp form
// a grid of 8 × 4 micro tiles: an access of the warp reads 64 bytes from each of eight rows of the source and writes 128
// bytes to each of four rows of the destination. Sectors of 32 bytes are whole both ways, which is all that the L2 asks
// for; memory behind it prefers the longer rows of transposition 6.
// Needs: unit strides; rows of source and destination that start on 16 bytes. Any number of rows and columns.
// Origin: this project.
// Traffic: each element is read once and written once, in whole sectors. Arithmetic: byte permutation only.
#include "../ptx/execution.cuh"
#include "micro_tile.cuh"

namespace {

constexpr int kLaneRows = 8, kLaneCols = 4;   // micro tiles of a warp, down and across
static_assert(kLaneRows * kLaneCols == 32, "every lane has a micro tile");

// A thread has MICRO_TILES micro tiles, `step` columns apart, the first at (row, col) of the tile. WHOLE: the tile does not
// reach over the edge of the matrix.
template <int SIZE, int MICRO_TILES, bool WHOLE, typename T = typename Bits<SIZE>::Type>
__device__ __forceinline__ void turn(const TransposeArgs& args, const Tile<T>& tile, int row, int col, int step) {
    constexpr int V = kVectorBytes / SIZE;   // elements in 16 bytes, and along a micro tile
    const T* src = tile.src + row * args.src_row_stride + col;
    T* dst = tile.dst + col * args.dst_col_stride + row;
    const auto whole = [&](int m) {
        return WHOLE || (row + V <= tile.rows && col + m * step + V <= tile.cols);
    };

    // Load: everything is under way before anything is stored.
    Chunk<SIZE> micro[MICRO_TILES][V];
#pragma unroll
    for (int m = 0; m < MICRO_TILES; ++m) {
        if (whole(m)) {
#pragma unroll
            for (int i = 0; i < V; ++i) micro[m][i] = Chunk<SIZE>::load(src + i * args.src_row_stride + m * step);
        }
    }

#pragma unroll
    for (int m = 0; m < MICRO_TILES; ++m) {
        if (whole(m)) {
            turn_micro_tile<SIZE>(micro[m]);
#pragma unroll
            for (int j = 0; j < V; ++j) micro[m][j].store_global(dst + (m * step + j) * args.dst_col_stride);
        } else {
            // At the edge, element by element.
            const int rows = min(tile.rows - row, V), cols = min(tile.cols - col - m * step, V);
#pragma unroll 1
            for (int j = 0; j < cols; ++j) {
#pragma unroll 1
                for (int i = 0; i < rows; ++i) {
                    dst[(m * step + j) * args.dst_col_stride + i] = src[i * args.src_row_stride + m * step + j];
                }
            }
        }
    }
}

// A block has WARP_ROWS × WARP_COLS warps; the micro tiles of a thread are WARP_COLS warps apart.
template <int SIZE, int WARP_ROWS, int WARP_COLS, int MICRO_TILES>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;
    constexpr int kRows = WARP_ROWS * kLaneRows * V;
    constexpr int kStep = WARP_COLS * kLaneCols * V;
    constexpr int kCols = MICRO_TILES * kStep;
    if (args.lets_next) ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    const Tile<T> tile = Tile<T>::template at<kRows, kCols>(args, tile_index(args, blockIdx.x));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = (warp % WARP_ROWS * kLaneRows + lane / kLaneCols) * V;
    const int col = (warp / WARP_ROWS * kLaneCols + lane % kLaneCols) * V;
    if (tile.rows == kRows && tile.cols == kCols) {
        turn<SIZE, MICRO_TILES, true>(args, tile, row, col, kStep);
    } else {
        turn<SIZE, MICRO_TILES, false>(args, tile, row, col, kStep);
    }
}

// Blocks that a multiprocessor shall hold at least; 0 is the compiler's choice. For compute capability 12.0 that is more
// than there are registers for.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kLeastBlocks = 8;
#else
constexpr int kLeastBlocks = 0;
#endif

}  // namespace

// Bytes of an element, warps down and across, micro tiles of a thread. Two warps a block: blocks that start and end at
// different times keep loads and stores under way together. Elements of 8 bytes take them below each other, for longer rows
// of the destination.
#define TRANSPOSE_REGISTERS_KERNEL(SIZE, WARP_ROWS, WARP_COLS, MICRO_TILES)                 \
    extern "C" __global__ void __launch_bounds__(WARP_ROWS * WARP_COLS * 32, kLeastBlocks)  \
        transpose_10_registers_b##SIZE(const __grid_constant__ TransposeArgs args) {        \
        body<SIZE, WARP_ROWS, WARP_COLS, MICRO_TILES>(args);                                \
    }
TRANSPOSE_REGISTERS_KERNEL(1, 1, 2, 1)
TRANSPOSE_REGISTERS_KERNEL(2, 1, 2, 1)
TRANSPOSE_REGISTERS_KERNEL(4, 1, 2, 2)
TRANSPOSE_REGISTERS_KERNEL(8, 2, 1, 2)
