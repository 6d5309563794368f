// Copy 1: every thread copies elements one by one. The yardstick of the transposition ladder.
//
// A block takes a tile of 32 × 32 elements with 32 × 8 threads, so each thread copies four. A warp reads and writes 32
// neighbours at once: one request of 128 bytes for elements of 4 bytes. No transposition can move fewer bytes.
// Origin: worklog D, matrixCopy_1. There the matrix is a multiple of the tile; here the tile is cut at the edge.
// Traffic: each element is read once and written once. Arithmetic: none.
#include "tile.cuh"

namespace {

constexpr int kTile = 32;        // rows and columns of a tile
constexpr int kBlockRows = 8;    // rows that the block covers at once
constexpr int kThreads = kTile * kBlockRows;
static_assert(kTile % kBlockRows == 0, "a thread takes the same number of elements in every tile");

template <int SIZE>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    const Tile<T> tile = Tile<T>::template at<kTile, kTile>(args, tile_index(args, blockIdx.x));
    const int col = threadIdx.x % kTile;
    if (col >= tile.cols) return;
#pragma unroll
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int row = step + threadIdx.x / kTile;
        if (row < tile.rows) {
            tile.dst[row * args.dst_row_stride + col * args.dst_col_stride] =
                tile.src[row * args.src_row_stride + col * args.src_col_stride];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(copy_01_plain, kThreads)
