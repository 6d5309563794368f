// Transposition 8: a matrix of few long rows, such as 3 × 10⁷ or the planes of an image that become pixels.
//
// A square tile would be almost empty. Here a tile has all rows and as many columns as fill shared memory. Loads run
// along the rows; what they fill is a piece of the destination as it lies in memory where that is dense (a destination
// row has `rows` elements and no gaps), and is written front to back in 16-byte chunks. In shared memory a row of the
// destination has an odd number of elements, one of padding if need be, so that the scattered writes of a warp meet
// each bank at most four times.
// Needs: unit strides; at most kMaxNarrow rows. 16-byte accesses where addresses and strides allow, else one by one.
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

    const int rows = static_cast<int>(args.rows);
    const int pitch = rows | 1;   // elements between rows of the destination in shared memory
    const int tile_cols = narrow_tile_length(rows, SIZE);
    const TileIndex index = tile_index(args, blockIdx.x);
    const OuterOffset offset = outer_offset(args, index.matrix);
    const int64_t col0 = static_cast<int64_t>(index.col) * tile_cols;
    const int cols = static_cast<int>(min(args.cols - col0, static_cast<int64_t>(tile_cols)));
    const T* src = static_cast<const T*>(args.src) + offset.src + col0;
    T* dst = static_cast<T*>(args.dst) + offset.dst + col0 * args.dst_col_stride;

    // Load along the rows.
    if (is_aligned(src) && args.src_row_stride % V == 0) {
        const int row_chunks = tile_cols / V;
        for (int item = threadIdx.x; item < rows * row_chunks; item += kThreads) {
            const int row = item / row_chunks, col = item % row_chunks * V;
            const T* source = src + row * args.src_row_stride + col;
            T* target = &shared[col * pitch + row];
            if (col + V <= cols) {
                const Chunk<SIZE> chunk = Chunk<SIZE>::load(source);
#pragma unroll
                for (int i = 0; i < V; ++i) target[i * pitch] = chunk.get(i);
            } else {
                for (int i = 0; i < cols - col; ++i) target[i * pitch] = source[i];
            }
        }
    } else {
        for (int item = threadIdx.x; item < rows * tile_cols; item += kThreads) {
            const int row = item / tile_cols, col = item % tile_cols;
            if (col < cols) shared[col * pitch + row] = src[row * args.src_row_stride + col];
        }
    }
    __syncthreads();

    // Store along the destination: dense pieces in chunks, others row by row.
    const int count = rows * cols;
    if (is_aligned(dst) && args.dst_col_stride == rows) {
        for (int first = threadIdx.x * V; first < count; first += kThreads * V) {
            int row = first % rows;
            int position = first / rows * pitch + row;
            const Chunk<SIZE> chunk = Chunk<SIZE>::gather([&](int) {
                const T element = shared[min(position, kNarrowTileBytes / SIZE - 1)];
                ++position;
                if (++row == rows) {
                    row = 0;
                    position += pitch - rows;
                }
                return element;
            });
            chunk.store_part(dst + first, 0, count - first);
        }
    } else {
        for (int item = threadIdx.x; item < count; item += kThreads) {
            const int col = item / rows, row = item % rows;
            dst[col * args.dst_col_stride + row] = shared[col * pitch + row];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(transpose_08_few_rows, kThreads)
