// Transposition 6: the copy engine of Hopper (TMA) moves whole tiles, and threads only turn them.
//
// One thread asks for a tile, the engine fetches it into shared memory, swizzled in hardware: of each 128-byte row, the
// 16-byte chunk k lies at k XOR (row % 8). Addresses, bounds and alignment cost the threads nothing. Each thread then
// takes a micro tile of V × V elements (V = 16 / SIZE) as V chunks, turns it in registers, and puts V chunks back. The
// eight threads of a quarter-warp work on a diagonal of micro tiles: then both the chunks that they read and those that
// they write lie in eight different bank groups. The engine stores the turned tile.
// Needs: compute capability 9.0; unit strides; base addresses and all strides multiples of 16 bytes; at most one batch
// dimension. Any number of rows and columns: the engine cuts tiles at the edge.
// Origin: the copy engine's 128-byte swizzle as PTX describes it; the diagonal is this project's.
// Traffic: each element is read once and written once, in whole lines. Arithmetic: byte permutation only.
#include <cuda.h>

#include "../common/ptx.cuh"
#include "../common/transpose_args.cuh"
#include "../common/transpose_tile.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kRowBytes = 128;   // a row of a cell: what the swizzle permutes

// Cells (squares of 128-byte rows) in a tile, down and across.
template <int SIZE> constexpr int kCellRows = SIZE == 1 ? 1 : 2;
template <int SIZE> constexpr int kCellCols = SIZE == 1 ? 1 : 2;

template <int SIZE, int CELL_ROWS = kCellRows<SIZE>, int CELL_COLS = kCellCols<SIZE>, int THREADS = kThreads>
__device__ __forceinline__ void body(const TransposeArgs& args, const CUtensorMap& src_map,
                                     const CUtensorMap& dst_map) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;
    constexpr int kSide = kRowBytes / SIZE;            // elements along a cell
    constexpr int kChunks = kRowBytes / kVectorBytes;  // chunks in a row of a cell, and micro tiles along it
    constexpr int kCells = CELL_ROWS * CELL_COLS;
    constexpr int kMicroTiles = kCells * kChunks * kChunks;
    constexpr int kTurns = kMicroTiles < THREADS ? 1 : kMicroTiles / THREADS;
    constexpr int kCellElements = kSide * kSide;
    static_assert(kMicroTiles % THREADS == 0 || kMicroTiles < THREADS, "every thread turns the same number");

    extern __shared__ __align__(1024) unsigned char raw[];
    T* shared = reinterpret_cast<T*>(raw);
    __shared__ uint64_t loaded;

    const TileIndex index = tile_index(args, blockIdx.x);
    const int row0 = index.row * CELL_ROWS * kSide, col0 = index.col * CELL_COLS * kSide;

    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&loaded, 1);
        ptx::fence_mbarrier_init();
        ptx::mbarrier_arrive_expect_bytes(&loaded, kCells * kCellElements * SIZE);
#pragma unroll
        for (int c = 0; c < CELL_COLS; ++c) {
            ptx::tma_load_3d(shared + c * CELL_ROWS * kCellElements, &src_map, &loaded, col0 + c * kSide, row0,
                             index.matrix);
        }
    }
    __syncthreads();
    ptx::mbarrier_wait(&loaded, 0);

    Chunk<SIZE> micro[kTurns][V];
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int item = turn * THREADS + threadIdx.x;
        const int cell = item / (kChunks * kChunks);
        const int chunk_col = item % kChunks, chunk_row = (item / kChunks % kChunks) ^ chunk_col;
        const int cell_row = cell % CELL_ROWS, cell_col = cell / CELL_ROWS;
        if (item < kMicroTiles) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const int row = chunk_row * V + i;
                micro[turn][i] = Chunk<SIZE>::load(
                    shared + (cell_col * CELL_ROWS + cell_row) * kCellElements + row * kSide + (chunk_col ^ (row % 8)) * V);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
        const int item = turn * THREADS + threadIdx.x;
        const int cell = item / (kChunks * kChunks);
        const int chunk_col = item % kChunks, chunk_row = (item / kChunks % kChunks) ^ chunk_col;
        const int cell_row = cell % CELL_ROWS, cell_col = cell / CELL_ROWS;
        if (item < kMicroTiles) {
            turn_micro_tile<SIZE>(micro[turn]);
#pragma unroll
            for (int j = 0; j < V; ++j) {
                const int row = chunk_col * V + j;
                micro[turn][j].store(
                    shared + (cell_row * CELL_COLS + cell_col) * kCellElements + row * kSide + (chunk_row ^ (row % 8)) * V);
            }
        }
    }
    ptx::fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int r = 0; r < CELL_ROWS; ++r) {
            ptx::tma_store_3d(&dst_map, shared + r * CELL_COLS * kCellElements, row0 + r * kSide, col0, index.matrix);
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
    }
}

}  // namespace

#define TMA_KERNEL(SIZE)                                                                      \
    extern "C" __global__ void __launch_bounds__(kThreads) transpose_06_tma_b##SIZE(          \
        const __grid_constant__ TransposeArgs args, const __grid_constant__ CUtensorMap src,  \
        const __grid_constant__ CUtensorMap dst) {                                            \
        body<SIZE>(args, src, dst);                                                           \
    }
TMA_KERNEL(1)
TMA_KERNEL(2)
TMA_KERNEL(4)
TMA_KERNEL(8)
