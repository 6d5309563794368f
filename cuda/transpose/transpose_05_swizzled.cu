// Transposition 5: 16-byte accesses of global memory, and a swizzled tile in place of the padded one.
//
// A request of 16 bytes a thread keeps four times as many bytes under way per instruction as one of 4 bytes, whatever
// the element size: bytes under way are what hides the latency of memory. A thread therefore copies 16 bytes of a row of
// the source, and gathers 16 bytes of a row of the destination, V = 16 / SIZE elements of a column of the tile. Padding
// would break the 16-byte alignment of shared rows; instead the 16-byte chunk k of row i lies at k XOR (i / V). In a
// column, the V rows that a thread gathers share one chunk position, and the eight threads whose chunks make up 128
// bytes of the destination have eight different ones, so that a warp meets each bank once.
// Needs: unit strides; rows of source and destination that start on 16 bytes. Any number of rows and columns.
// Origin: the 16-byte step of worklogs A and B (their vectorised kernels), applied to the tile of worklog D.
// Traffic: each element is read once and written once, in whole 128-byte lines. Arithmetic: byte permutation only.
#include "../ptx/copies.cuh"
#include "micro_tile.cuh"

namespace {

// Sides of the tile, and threads. Tiles of 8 to 16 KiB and few blocks on a multiprocessor: more requests under way only
// make memory jump between more of its rows.
template <int SIZE> constexpr int kTileRows = SIZE == 1 ? 128 : SIZE == 8 ? 32 : 64;
template <int SIZE> constexpr int kTileCols = kTileRows<SIZE>;
template <int SIZE> constexpr int kThreads = SIZE == 4 ? 512 : 256;

template <int SIZE, int TILE_ROWS = kTileRows<SIZE>, int TILE_COLS = kTileCols<SIZE>, int THREADS = kThreads<SIZE>>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;        // elements in 16 bytes
    constexpr int kRowChunks = TILE_COLS / V;     // 16-byte chunks in a row of the tile
    constexpr int kColChunks = TILE_ROWS / V;     // and in a column, once it has become a row of the destination
    constexpr int kLoads = TILE_ROWS * kRowChunks / THREADS;
    constexpr int kStores = TILE_COLS * kColChunks / THREADS;
    constexpr int kLineChunks = 8;                // chunks of a column that neighbouring lanes store: 128 bytes
    static_assert(kRowChunks >= 8 && (kRowChunks & (kRowChunks - 1)) == 0, "the XOR permutes the chunks of a row");
    static_assert(kColChunks % kLineChunks == 0, "a warp stores whole lines");
    static_assert(kLoads * THREADS == TILE_ROWS * kRowChunks, "every thread loads the same number of chunks");
    static_assert(kStores * THREADS == TILE_COLS * kColChunks, "every thread stores the same number of chunks");

    __shared__ alignas(kVectorBytes) T shared[TILE_ROWS * TILE_COLS];
    const auto at = [](int row, int chunk) { return row * TILE_COLS + (chunk ^ (row / V % kRowChunks)) * V; };
    const Tile<T> tile = Tile<T>::template at<TILE_ROWS, TILE_COLS>(args, tile_index(args, blockIdx.x));

    // Load: asynchronous copies need no registers, so that all of a thread's requests are under way at once.
#pragma unroll
    for (int step = 0; step < kLoads; ++step) {
        const int item = step * THREADS + threadIdx.x;
        const int row = item / kRowChunks, chunk = item % kRowChunks;
        if (row < tile.rows && chunk * V < tile.cols) {
            copy_chunk<SIZE>(reinterpret_cast<Chunk<SIZE>*>(&shared[at(row, chunk)]),
                             tile.src + row * args.src_row_stride + chunk * V, tile.cols - chunk * V);
        }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();

    // Store: eight lanes make up 128 bytes of one row of the destination.
#pragma unroll
    for (int step = 0; step < kStores; ++step) {
        const int item = step * THREADS + threadIdx.x;
        const int line = item / kLineChunks;
        const int chunk = line / TILE_COLS * kLineChunks + item % kLineChunks;
        const int col = line % TILE_COLS, row = chunk * V;
        const Chunk<SIZE> column =
            Chunk<SIZE>::gather([&](int i) { return shared[at(row + i, col / V) + col % V]; });
        if (col < tile.cols) column.store_part(tile.dst + col * args.dst_col_stride + row, 0, tile.rows - row);
    }
}

}  // namespace

TRANSPOSE_KERNEL(transpose_05_swizzled, 1, kThreads<1>)
TRANSPOSE_KERNEL(transpose_05_swizzled, 2, kThreads<2>)
TRANSPOSE_KERNEL(transpose_05_swizzled, 4, kThreads<4>)
TRANSPOSE_KERNEL(transpose_05_swizzled, 8, kThreads<8>)
