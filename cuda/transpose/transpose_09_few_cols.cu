// Transposition 9: a matrix of few columns and many rows, such as 10⁷ × 3 or the pixels of an image that become planes.
//
// The mirror of transposition 8: a tile has all columns and as many rows as fill shared memory. Where the rows of the
// source have no gaps it is read front to back in 16-byte chunks; stores run along the rows of the destination.
// Needs: unit strides; at most kMaxNarrow columns. 16-byte accesses where addresses and strides allow, else one by one.
// Origin: this project.
// Traffic: each element is read once and written once. Arithmetic: about four integer operations an element.
#include "../common/transpose_args.cuh"
#include "../common/transpose_tile.cuh"

namespace {

constexpr int kThreads = 256;

template <int SIZE>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    constexpr int V = kVectorBytes / SIZE;
    __shared__ T shared[kNarrowTileBytes / SIZE];

    const int cols = static_cast<int>(args.cols);
    const int pitch = cols | 1;   // elements between rows of the source in shared memory
    const int tile_rows = narrow_tile_length(cols, SIZE);
    const TileIndex index = tile_index(args, blockIdx.x);
    const OuterOffset offset = outer_offset(args, index.matrix);
    const int64_t row0 = static_cast<int64_t>(index.row) * tile_rows;
    const int rows = static_cast<int>(min(args.rows - row0, static_cast<int64_t>(tile_rows)));
    const T* src = static_cast<const T*>(args.src) + offset.src + row0 * args.src_row_stride;
    T* dst = static_cast<T*>(args.dst) + offset.dst + row0;

    // Load along the source: dense pieces in chunks, others row by row.
    const int count = rows * cols;
    if (is_aligned(src) && args.src_row_stride == cols) {
        for (int first = threadIdx.x * V; first < count; first += kThreads * V) {
            int col = first % cols;
            int position = first / cols * pitch + col;
            const auto put = [&](T element) {
                shared[position] = element;
                ++position;
                if (++col == cols) {
                    col = 0;
                    position += pitch - cols;
                }
            };
            if (first + V <= count) {
                const Chunk<SIZE> chunk = Chunk<SIZE>::load(src + first);
#pragma unroll
                for (int i = 0; i < V; ++i) put(chunk.get(i));
            } else {
                for (int i = first; i < count; ++i) put(src[i]);
            }
        }
    } else {
        for (int item = threadIdx.x; item < count; item += kThreads) {
            const int row = item / cols, col = item % cols;
            shared[row * pitch + col] = src[row * args.src_row_stride + col];
        }
    }
    __syncthreads();

    // Store along the rows of the destination.
    if (is_aligned(dst) && args.dst_col_stride % V == 0) {
        const int col_chunks = tile_rows / V;
        for (int item = threadIdx.x; item < cols * col_chunks; item += kThreads) {
            const int col = item / col_chunks, row = item % col_chunks * V;
            if (row < rows) {
                const Chunk<SIZE> chunk =
                    Chunk<SIZE>::gather([&](int i) { return shared[(row + i) * pitch + col]; });
                chunk.store_part(dst + col * args.dst_col_stride + row, 0, rows - row);
            }
        }
    } else {
        for (int item = threadIdx.x; item < cols * tile_rows; item += kThreads) {
            const int col = item / tile_rows, row = item % tile_rows;
            if (row < rows) dst[col * args.dst_col_stride + row] = shared[row * pitch + col];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(transpose_09_few_cols, kThreads)
