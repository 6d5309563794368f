// Transposition 8: a matrix of few long rows, such as 3 × 10⁷ or the planes of an image that become pixels.
//
// A square tile would be almost empty. Here a tile has all rows and as many columns as fill shared memory. Loads run
// along the rows, 4 bytes a lane (8 for elements of 8 bytes), whatever the alignment: a row is cut at the 4-byte
// boundaries of memory, and its first and last word may hold fewer elements. In shared memory the tile lies as in the
// destination, except that a destination row takes an odd number of elements, one of padding if need be: so the lanes,
// whose words lie E destination rows of SIZE bytes apart, meet 32 different banks. Where the destination has no gaps,
// stores run from front to back, likewise 4 bytes a lane; else row by row.
// Needs: unit strides; 2 to kMaxNarrow rows. Any address, any other strides, any number of columns.
// Origin: this project.
// Traffic: each element is read once and written once. Arithmetic: about ten integer operations a word.
#include "narrow.cuh"

namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;   // loads that a thread has under way

template <int SIZE>
__device__ __forceinline__ void body(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    using Word = typename LaneWord<SIZE>::Type;
    constexpr int E = sizeof(Word) / SIZE;   // elements in a word
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

    // Load along the rows: first words into registers, then their elements to their places.
    const int row_words = tile_cols / E + 1;   // one more, for rows that start within a word
    const SmallDivisor by_row_words(row_words);
    for (int base = 0; base < rows * row_words; base += kThreads * kUnroll) {
        Word staged[kUnroll];
        int row[kUnroll], col[kUnroll];   // of a word's first element
#pragma unroll
        for (int step = 0; step < kUnroll; ++step) {
            const int item = base + step * kThreads + threadIdx.x;
            row[step] = by_row_words.quotient(item);
            const T* row_start = src + row[step] * args.src_row_stride;
            col[step] = (item - row[step] * row_words) * E - elements_into_word<SIZE>(row_start);
            if (row[step] < rows) staged[step] = load_word<SIZE>(row_start, col[step], cols);
        }
#pragma unroll
        for (int step = 0; step < kUnroll; ++step) {
            if (row[step] >= rows) continue;
#pragma unroll
            for (int i = 0; i < E; ++i) {
                const int at = col[step] + i;
                if (at >= 0 && at < cols) shared[at * pitch + row[step]] = word_element<SIZE>(staged[step], i);
            }
        }
    }
    __syncthreads();

    // Store: from front to back where the destination has no gaps, else row by row.
    const SmallDivisor by_rows(rows);
    const int count = rows * cols;
    if (args.dst_col_stride == rows) {
        const int shift = elements_into_word<SIZE>(dst);
        for (int first = threadIdx.x * E - shift; first < count; first += kThreads * E) {
            store_word<SIZE>(dst, first, count, [&](int i) {
                const int at = min(max(first + i, 0), count - 1);
                return shared[at + by_rows.quotient(at) * (pitch - rows)];
            });
        }
    } else {
        for (int item = threadIdx.x; item < count; item += kThreads) {
            const int col = by_rows.quotient(item), row = item - col * rows;
            dst[col * args.dst_col_stride + row] = shared[col * pitch + row];
        }
    }
}

}  // namespace

TRANSPOSE_KERNELS(transpose_08_few_rows, kThreads)
