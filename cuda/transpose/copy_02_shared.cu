// Copy 2: the same copy by way of shared memory. What the detour itself costs, before anything is transposed.
//
// A tile goes from global to shared memory and, after a barrier, from shared to global memory in the same order. The
// difference to copy 1 is the price of the barrier and of two more accesses an element; a transposition through shared
// memory pays it too.
// Origin: worklog D, matrixCopy_2.
// Traffic: each element is read once and written once, and once each way in shared memory. Arithmetic: none.
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
    const int col = threadIdx.x % kTile;
    const int first_row = threadIdx.x / kTile;

#pragma unroll
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int row = step + first_row;
        if (row < tile.rows && col < tile.cols) {
            shared[row][col] = tile.src[row * args.src_row_stride + col * args.src_col_stride];
        }
    }
    __syncthreads();

#pragma unroll
    for (int step = 0; step < kTile; step += kBlockRows) {
        const int row = step + first_row;
        if (row < tile.rows && col < tile.cols) {
            tile.dst[row * args.dst_row_stride + col * args.dst_col_stride] = shared[row][col];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(copy_02_shared, kThreads)
