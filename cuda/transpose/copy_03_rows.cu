// Copy 3: rows that stay whole find their new places. For permutations that keep the fastest dimension, such as the
// split of attention heads, and for views that leave gaps between rows.
//
// The destination is dense and written from front to back; each thread works out where an element comes from. Three things make
// that as cheap as a copy: the plan widens the element to up to 16 bytes, as far as row length and alignment allow, so
// that there are few of them; divisions are multiplications prepared on the host; and every thread has several loads
// under way before its first store: four for data that comes from memory, two where the L2 holds it and more blocks
// start sooner. A column stride other than 1 is allowed (then nothing is widened): this kernel
// takes whatever no other kernel can.
// Here `tiles_inner` divides by the columns of a row and `tiles_matrix` by the rows of a matrix.
// Origin: this project.
// Traffic: each element is read once and written once; rows below 32 bytes are read in sectors of 32. Arithmetic: about
// five integer operations for each dimension and element.
#include "../common/transpose_args.cuh"

namespace {

constexpr int kThreads = 256;

// A thread copies UNROLL elements.
template <int SIZE, int UNROLL>
__device__ __forceinline__ void copy_rows(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    const uint32_t row_count = args.tiles_matrix.value * args.outer_count;
    const uint32_t count = args.tiles_inner.value * row_count;
    const uint32_t first = blockIdx.x * (kThreads * UNROLL) + threadIdx.x;

    T staged[UNROLL];
#pragma unroll
    for (int step = 0; step < UNROLL; ++step) {
        const uint32_t item = first + step * kThreads;
        if (item < count) {
            const uint32_t row_index = quotient(item, args.tiles_inner);
            const int64_t col = item - row_index * args.tiles_inner.value;
            const uint32_t matrix = quotient(row_index, args.tiles_matrix);
            const int64_t row = row_index - matrix * args.tiles_matrix.value;
            staged[step] = static_cast<const T*>(args.src)[outer_offset(args, matrix).src + row * args.src_row_stride +
                                                           col * args.src_col_stride];
        }
    }
#pragma unroll
    for (int step = 0; step < UNROLL; ++step) {
        const uint32_t item = first + step * kThreads;
        if (item < count) static_cast<T*>(args.dst)[item] = staged[step];
    }
}

}  // namespace

#define COPY_ROWS_KERNELS(SIZE)                                                                                     \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
        copy_03_rows_b##SIZE(const __grid_constant__ TransposeArgs args) {                                          \
        copy_rows<SIZE, 4>(args);                                                                                   \
    }                                                                                                               \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                          \
        copy_03_rows_two_b##SIZE(const __grid_constant__ TransposeArgs args) {                                      \
        copy_rows<SIZE, 2>(args);                                                                                   \
    }
COPY_ROWS_KERNELS(1)
COPY_ROWS_KERNELS(2)
COPY_ROWS_KERNELS(4)
COPY_ROWS_KERNELS(8)
COPY_ROWS_KERNELS(16)
