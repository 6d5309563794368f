// Transposition 9: a matrix of few columns and many rows, such as 10⁷ × 3 or the pixels of an image that become planes.
//
// The mirror of transposition 8: a tile has all columns and as many rows as fill shared memory. Where the rows of the
// source have no gaps it is read from front to back, 4 bytes a lane (8 for elements of 8 bytes); stores run along the
// rows of the destination, each cut at the 4-byte boundaries of memory.
// Needs: unit strides; 2 to kMaxNarrow columns. Any address, any other strides, any number of rows.
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

    const int cols = static_cast<int>(args.cols);
    const int pitch = cols | 1;   // elements between rows of the source in shared memory
    const int tile_rows = narrow_tile_length(cols, SIZE);
    const TileIndex index = tile_index(args, blockIdx.x);
    const OuterOffset offset = outer_offset(args, index.matrix);
    const int64_t row0 = static_cast<int64_t>(index.row) * tile_rows;
    const int rows = static_cast<int>(min(args.rows - row0, static_cast<int64_t>(tile_rows)));
    const T* src = static_cast<const T*>(args.src) + offset.src + row0 * args.src_row_stride;
    T* dst = static_cast<T*>(args.dst) + offset.dst + row0;

    // Load: from front to back where the source has no gaps, else row by row.
    const SmallDivisor by_cols(cols);
    const int count = rows * cols;
    if (args.src_row_stride == cols) {
        const int shift = elements_into_word<SIZE>(src);
        for (int base = -shift; base < count; base += kThreads * kUnroll * E) {
            Word staged[kUnroll];
#pragma unroll
            for (int step = 0; step < kUnroll; ++step) {
                const int first = base + (step * kThreads + threadIdx.x) * E;
                staged[step] = load_word<SIZE>(src, first, count);
            }
#pragma unroll
            for (int step = 0; step < kUnroll; ++step) {
                const int first = base + (step * kThreads + threadIdx.x) * E;
#pragma unroll
                for (int i = 0; i < E; ++i) {
                    const int at = first + i;
                    if (at >= 0 && at < count) {
                        shared[at + by_cols.quotient(at) * (pitch - cols)] = word_element<SIZE>(staged[step], i);
                    }
                }
            }
        }
    } else {
        for (int item = threadIdx.x; item < count; item += kThreads) {
            const int row = by_cols.quotient(item), col = item - row * cols;
            shared[row * pitch + col] = src[row * args.src_row_stride + col];
        }
    }
    __syncthreads();

    // Store along the rows of the destination.
    const int col_words = tile_rows / E + 1;   // one more, for rows that start within a word
    const SmallDivisor by_col_words(col_words);
    for (int item = threadIdx.x; item < cols * col_words; item += kThreads) {
        const int col = by_col_words.quotient(item);
        T* row_start = dst + col * args.dst_col_stride;
        const int first = (item - col * col_words) * E - elements_into_word<SIZE>(row_start);
        store_word<SIZE>(row_start, first, rows, [&](int i) {
            const int row = min(max(first + i, 0), rows - 1);
            return shared[row * pitch + col];
        });
    }
}

}  // namespace

TRANSPOSE_KERNELS(transpose_09_few_cols, kThreads)
