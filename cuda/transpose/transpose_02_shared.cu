// Transposition 2: the tile turns in shared memory, so that reads and writes of global memory are both neighbours.
//
// A warp writes a row of the tile to shared memory and reads a column of it back. Global memory sees whole sectors both
// ways. In shared memory the column is the trouble: with elements of 4 bytes all 32 lanes hit one bank and queue.
// Origin: worklog D, matrixTranspos_2.
// Traffic: each element is read once and written once; the shared read takes up to 32 turns. Arithmetic: none.
#include "tile.cuh"

namespace {

constexpr int kTile = 32;        // rows and columns of a tile
constexpr int kBlockRows = 8;    // rows that the block covers at once
constexpr int kThreads = kTile * kBlockRows;
static_assert(kTile % kBlockRows == 0, "a thread takes the same number of elements in every tile");

template <int SIZE>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    __shared__ T shared[kTile][kTile];
    const Tile<T> tile = Tile<T>::template at<kTile, kTile>(args, tile_index(args, blockIdx.x));
    const int lane = threadIdx.x % kTile;
    const int first = threadIdx.x / kTile;

    // Load: the lanes of a warp are neighbours in a row of the source.
#pragma unroll
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int row = step + first;
        if (row < tile.rows && lane < tile.cols) {
            shared[row][lane] = tile.src[row * args.src_row_stride + lane * args.src_col_stride];
        }
    }
    __syncthreads();

    // Store: the lanes are neighbours in a row of the destination, which is a column of the tile.
#pragma unroll
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int col = step + first;
        if (lane < tile.rows && col < tile.cols) {
            tile.dst[lane * args.dst_row_stride + col * args.dst_col_stride] = shared[lane][col];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(transpose_02_shared, kThreads)
