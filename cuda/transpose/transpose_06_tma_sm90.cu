// Transposition 6: TMA (Hopper) moves whole tiles, and threads only turn them.
//
// One thread asks for a tile, the engine fetches it into shared memory, swizzled in hardware: of each 128-byte row, the
// 16-byte chunk k lies at k XOR (row % 8). Addresses, bounds and alignment cost the threads nothing. Each thread then
// takes a micro tile of V × V elements (V = 16 / SIZE) as V chunks, turns it in registers, and puts V chunks back. The
// eight threads of a quarter-warp work on a diagonal of micro tiles: then both the chunks that they read and those that
// they write lie in eight different bank groups. The engine stores the turned tile.
// Needs: compute capability 9.0; unit strides; base addresses and all strides multiples of 16 bytes; at most one batch
// dimension. Any number of rows and columns: the engine cuts tiles at the edge.
// Origin: TMA's 128-byte swizzle as PTX describes it; the diagonal is this project's.
// Traffic: each element is read once and written once, in whole lines. Arithmetic: byte permutation only.
#include <cuda.h>

#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "micro_tile.cuh"

namespace {

constexpr int kRowBytes = 128;   // a row of a cell: what the swizzle permutes
constexpr int kSwizzleRows = 8;  // and after how many rows its pattern repeats

// A tile is made of cells, squares of 128-byte rows. The plan reserves more shared memory than a tile needs where data
// streams through memory, so that only three to five blocks share a multiprocessor: more requests under way only make
// memory jump between more of its rows.
template <int SIZE, int CELL_ROWS, int CELL_COLS, int THREADS>
__device__ __forceinline__ void body(const TransposeArgs& args, const CUtensorMap& src_map,
                                     const CUtensorMap& dst_map) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;             // elements in 16 bytes, and along a micro tile
    constexpr int kSide = kRowBytes / SIZE;            // elements along a cell
    constexpr int kChunks = kRowBytes / kVectorBytes;  // chunks in a row of a cell, and micro tiles along it
    constexpr int kCellElements = kSide * kSide;
    constexpr int kMicroTiles = CELL_ROWS * CELL_COLS * kChunks * kChunks;
    static_assert(kMicroTiles == THREADS, "every thread turns one micro tile");
    static_assert(CELL_ROWS * kSide <= 256 && CELL_COLS * kSide <= 256, "the engine's boxes have at most 256 rows");

    extern __shared__ __align__(1024) unsigned char raw[];
    T* shared = reinterpret_cast<T*>(raw);
    __shared__ uint64_t loaded;

    if (args.lets_next) ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    const TileIndex index = tile_index(args, blockIdx.x);
    const int row0 = index.row * CELL_ROWS * kSide, col0 = index.col * CELL_COLS * kSide;

    // Elements of 4 and 8 bytes gain where lines that nobody will find in the L2 leave it first; smaller ones lose.
    const bool evict_first = SIZE >= 4 && args.streaming;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&loaded, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_bytes(&loaded, CELL_ROWS * CELL_COLS * kCellElements * SIZE);
#pragma unroll
        for (int c = 0; c < CELL_COLS; ++c) {
            T* target = shared + c * CELL_ROWS * kCellElements;
            if (evict_first) {
                ptx::tma_load_3d(target, &src_map, &loaded, col0 + c * kSide, row0, index.matrix, ptx::kEvictFirst);
            } else {
                ptx::tma_load_3d(target, &src_map, &loaded, col0 + c * kSide, row0, index.matrix);
            }
        }
    }
    __syncthreads();
    ptx::mbarrier_wait(&loaded, 0);

    // Loaded, the tile lies as columns of cells, each CELL_ROWS cells high; turned, as columns of cells of the destination,
    // each CELL_COLS cells high.
    const int cell = threadIdx.x / (kChunks * kChunks);
    const int cell_row = cell % CELL_ROWS, cell_col = cell / CELL_ROWS;
    const int chunk_col = threadIdx.x % kChunks, chunk_row = (threadIdx.x / kChunks % kChunks) ^ chunk_col;
    T* const loaded_cell = shared + (cell_col * CELL_ROWS + cell_row) * kCellElements;
    T* const turned_cell = shared + (cell_row * CELL_COLS + cell_col) * kCellElements;
    const auto at = [](int row, int chunk) { return row * kSide + (chunk ^ (row % kSwizzleRows)) * V; };

    Chunk<SIZE> micro[V];
#pragma unroll
    for (int i = 0; i < V; ++i) micro[i] = Chunk<SIZE>::load(loaded_cell + at(chunk_row * V + i, chunk_col));
    __syncthreads();
    turn_micro_tile<SIZE>(micro);
#pragma unroll
    for (int j = 0; j < V; ++j) micro[j].store(turned_cell + at(chunk_col * V + j, chunk_row));
    ptx::fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int r = 0; r < CELL_ROWS; ++r) {
            const T* source = shared + r * CELL_COLS * kCellElements;
            if (evict_first) {
                ptx::tma_store_3d(&dst_map, source, row0 + r * kSide, col0, index.matrix, ptx::kEvictFirst);
            } else {
                ptx::tma_store_3d(&dst_map, source, row0 + r * kSide, col0, index.matrix);
            }
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
    }
}

}  // namespace

// Symbol, bytes of an element, cells down and across a tile, threads.
#define TRANSPOSE_TMA_KERNEL(NAME, SIZE, CELL_ROWS, CELL_COLS, THREADS)                          \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(                                  \
        const __grid_constant__ TransposeArgs args, const __grid_constant__ CUtensorMap src_map, \
        const __grid_constant__ CUtensorMap dst_map) {                                           \
        body<SIZE, CELL_ROWS, CELL_COLS, THREADS>(args, src_map, dst_map);                       \
    }
TRANSPOSE_TMA_KERNEL(transpose_06_tma_b1, 1, 1, 1, 64)
TRANSPOSE_TMA_KERNEL(transpose_06_tma_b2, 2, 1, 1, 64)
TRANSPOSE_TMA_KERNEL(transpose_06_tma_b4, 4, 2, 2, 256)
TRANSPOSE_TMA_KERNEL(transpose_06_tma_b8, 8, 2, 2, 256)
