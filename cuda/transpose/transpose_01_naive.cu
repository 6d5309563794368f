// Transposition 1: every thread reads along a row and writes along a column.
//
// The reads of a warp are neighbours, as in the copy. Its writes are a whole row of the output apart: 32 requests of
// one element each, of which the memory system moves a 32-byte sector. Caches mend part of it.
// Origin: worklog D, matrixTranspos_1.
// Traffic: each element is read once; a write of SIZE bytes occupies a sector of 32 bytes. Arithmetic: none.
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

TRANSPOSE_KERNELS(transpose_01_naive, kThreads)
