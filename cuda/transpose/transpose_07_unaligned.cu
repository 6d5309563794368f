// Transposition 7: 16-byte accesses for rows that start anywhere.
//
// With 4097 columns no two rows start at the same place within 16 bytes, and transposition 5 has nothing to hold on
// to. Here every row of the source is copied to shared memory as the aligned chunks that cover it, its first element
// `shift` elements into the first chunk; a thread that gathers a column adds each row's own shift. Likewise each row of
// the destination has its own `phase`, the distance of its tile edge from the last 16-byte boundary: the tile's rows of
// the destination begin that much earlier, on the boundary, for which V − 1 more rows of the source are fetched.
// A chunk of padding after every V rows in shared memory lets the eight threads that gather 128 bytes meet eight
// different bank groups (save where shifts of neighbouring rows straddle).
// Needs: unit strides. Any address, any other strides, any number of rows and columns.
// Origin: this project.
// Traffic: each element is read 1 + (V − 1) / TILE_ROWS times, the surplus from L2, and written once. Chunks at the
// start of a row fetch what lies before it in the same 16 bytes; nothing behind its end is read. Arithmetic: about six
// integer operations an element.
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "micro_tile.cuh"

namespace {

// Sides of the tile, and threads.
template <int SIZE> constexpr int kTileRows = SIZE == 1 ? 128 : SIZE == 8 ? 32 : 64;
template <int SIZE> constexpr int kTileCols = SIZE == 8 ? 32 : 64;
template <int SIZE> constexpr int kThreads = SIZE == 4 ? 512 : 256;

// Where an address lies between two multiples of 16 bytes, in elements.
template <int SIZE, typename T>
__device__ __forceinline__ int misalignment(const T* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % kVectorBytes / SIZE);
}

template <int SIZE, int TILE_ROWS = kTileRows<SIZE>, int TILE_COLS = kTileCols<SIZE>, int THREADS = kThreads<SIZE>>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;              // elements in 16 bytes
    constexpr int kHalo = V - 1;                        // rows fetched before the tile's first
    constexpr int kRows = TILE_ROWS + kHalo;
    constexpr int kRowChunks = TILE_COLS / V + 1;       // one more, for rows that start within a chunk
    constexpr int kChunks = kRows * kRowChunks + kRows / V;
    constexpr int kColChunks = TILE_ROWS / V;           // chunks of a row of the destination
    constexpr int kLineChunks = 8;                      // of which neighbouring lanes store 128 bytes
    constexpr int kStores = TILE_COLS * kColChunks / THREADS;
    static_assert(kColChunks % kLineChunks == 0, "a warp stores whole lines");
    static_assert(kStores * THREADS == TILE_COLS * kColChunks, "every thread stores the same number of chunks");

    __shared__ Chunk<SIZE> shared[kChunks];
    const auto at = [](int row, int chunk) { return row * kRowChunks + row / V + chunk; };

    if (args.lets_next) ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    const TileIndex index = tile_index(args, blockIdx.x);
    const OuterOffset offset = outer_offset(args, index.matrix);
    const int64_t row0 = static_cast<int64_t>(index.row) * TILE_ROWS;   // a multiple of V
    const int64_t col0 = static_cast<int64_t>(index.col) * TILE_COLS;
    const int cols = static_cast<int>(min(args.cols - col0, static_cast<int64_t>(TILE_COLS)));
    // Rows of the tile, counted from its first: those in [first_row, last_row) exist, the halo's being negative.
    const int first_row = static_cast<int>(max(-row0, static_cast<int64_t>(-kHalo)));
    const int last_row = static_cast<int>(min(args.rows - row0, static_cast<int64_t>(TILE_ROWS)));
    const T* src = static_cast<const T*>(args.src) + offset.src + row0 * args.src_row_stride + col0;
    T* dst = static_cast<T*>(args.dst) + offset.dst + row0 + col0 * args.dst_col_stride;
    const int src_misalignment = misalignment<SIZE>(src);
    const int src_stride = static_cast<int>(args.src_row_stride % V);
    const auto shift_of = [=](int row) { return (src_misalignment + row * src_stride) & (V - 1); };

    // Load: the aligned chunks that cover each row.
    for (int item = threadIdx.x; item < kRows * kRowChunks; item += THREADS) {
        const int shared_row = item / kRowChunks, chunk = item % kRowChunks;
        const int row = shared_row - kHalo;
        const int shift = shift_of(row);
        // The last chunk may reach into the next tile's columns, but not beyond the row.
        const int wanted = cols + shift - chunk * V;
        const int valid = static_cast<int>(min(args.cols - col0 + shift - chunk * V, static_cast<int64_t>(V)));
        if (row >= first_row && row < last_row && wanted > 0) {
            copy_chunk<SIZE>(&shared[at(shared_row, chunk)], src + row * args.src_row_stride + chunk * V - shift, valid);
        }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();

    // Store: eight lanes make up 128 aligned bytes of one row of the destination.
#pragma unroll
    for (int step = 0; step < kStores; ++step) {
        const int item = step * THREADS + threadIdx.x;
        const int line = item / kLineChunks;
        const int chunk = line / TILE_COLS * kLineChunks + item % kLineChunks;
        const int col = line % TILE_COLS;
        T* target = dst + col * args.dst_col_stride;
        const int row = chunk * V - misalignment<SIZE>(target);   // of the first element of the chunk
        target += row;
        const Chunk<SIZE> column = Chunk<SIZE>::gather([&](int i) {
            return reinterpret_cast<const T*>(shared)[at(row + i + kHalo, 0) * V + shift_of(row + i) + col];
        });
        if (col < cols) column.store_part(target, first_row - row, last_row - row);
    }
}

}  // namespace

TRANSPOSE_KERNEL(transpose_07_unaligned, 1, kThreads<1>)
TRANSPOSE_KERNEL(transpose_07_unaligned, 2, kThreads<2>)
TRANSPOSE_KERNEL(transpose_07_unaligned, 4, kThreads<4>)
TRANSPOSE_KERNEL(transpose_07_unaligned, 8, kThreads<8>)
