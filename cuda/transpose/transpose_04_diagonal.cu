// Transposition 4: blocks walk the tiles along diagonals, against partition camping.
//
// On early cards a memory channel served addresses of one residue: blocks that wrote one column of tiles met in one
// channel when the row length was a power of two. Diagonal order spreads them. Today addresses are hashed over the
// channels, so this rung is expected to change little; it is here to be measured.
// Origin: worklog D, matrixTranspos_4.
// Traffic: as in transposition 3. Arithmetic: none.
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
    // Blocks that run together take tiles of a diagonal: tile row i starts at tile column i, and wraps around.
    TileIndex index = tile_index(args, blockIdx.x);
    const uint32_t tile_cols = static_cast<uint32_t>((args.cols + kTile - 1) / kTile);
    index.col = (index.col + index.row) % tile_cols;
    const Tile<T> tile = Tile<T>::template at<kTile, kTile>(args, index);
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

TRANSPOSE_KERNELS(transpose_04_diagonal, kThreads)
