// Transposition 3: rows of the tile are one element longer in shared memory, against bank conflicts.
//
// With 33 elements a row, the elements of a column lie 33 words apart: 32 lanes, 32 banks. (With elements of 1 and 2
// bytes, an odd row length spreads a column over all banks as well.) Nothing else changes.
// (Also instantiated for 16 bytes: whole short rows that the plan has widened to one element.)
// Origin: worklog D, matrixTranspos_3.
// Traffic: each element is read once and written once, in one turn of shared memory each way. Arithmetic: none.
#include "tile.cuh"

namespace {

constexpr int kTile = 32;        // rows and columns of a tile
constexpr int kBlockRows = 8;    // rows that the block covers at once
constexpr int kThreads = kTile * kBlockRows;
constexpr int kPad = 1;          // an element more a row: neighbours in a column fall into different banks
static_assert(kTile % kBlockRows == 0, "a thread takes the same number of elements in every tile");

template <int SIZE>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    __shared__ T shared[kTile][kTile + kPad];
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

TRANSPOSE_KERNELS(transpose_03_padded, kThreads)
TRANSPOSE_KERNEL(transpose_03_padded, 16, kThreads)
