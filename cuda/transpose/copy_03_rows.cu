// Copy 3: rows that stay whole find their new places. For permutations that keep the fastest dimension, such as the
// split of attention heads, and for views that leave gaps between rows.
//
// The destination is written from front to back; each thread works out where an element comes from, and where it goes to
// if rows of the destination have gaps between them. Three things make that as cheap as a copy: the plan widens the element to
// up to 16 bytes, as far as row length and alignment allow, so that there are few of them; divisions are multiplications
// prepared on the host; and every thread has several loads under way before its first store: four for data that comes from
// memory, two where the L2 holds it and more blocks start sooner. A column stride other than 1 is allowed (then nothing is
// widened): this kernel takes whatever no other kernel can.
// Here `tiles_inner` divides by the columns of a row and `tiles_matrix` by the rows of a matrix.
// Origin: this project.
// Traffic: each element is read once and written once; rows below 32 bytes are read in sectors of 32. Arithmetic: about
// five integer operations for each dimension and element.
#include "../ptx/execution.cuh"
#include "tile.cuh"

namespace {

constexpr int kThreads = 256;

// Where an element comes from and goes to, worked out dimension by dimension.
struct Place {
    uint32_t rest;      // what the dimensions so far leave of the element's number
    int64_t src, dst;   // how far into source and destination they lead

    __device__ __forceinline__ void walk(const Divisor& extent, int64_t src_stride, int64_t dst_stride) {
        const uint32_t next = quotient(rest, extent);
        const int64_t index = rest - next * extent.value;
        src += index * src_stride;
        dst += index * dst_stride;
        rest = next;
    }
};

// A thread copies UNROLL elements, and takes one step of all their divisions after the other: few instructions to fetch,
// and nobody's load waits for a neighbour's arithmetic. Elements beyond the last are read as the last one again and not
// stored.
template <int SIZE, int UNROLL, bool GAPS>
__device__ __forceinline__ void copy_elements(const TransposeArgs& args) {
    using T = typename Bits<SIZE>::Type;
    const uint32_t count = args.tiles_inner.value * args.tiles_matrix.value * args.outer_count;
    const uint32_t first = blockIdx.x * (kThreads * UNROLL) + threadIdx.x;

    Place place[UNROLL];
#pragma unroll
    for (int step = 0; step < UNROLL; ++step) {
        place[step] = {min(first + step * kThreads, count - 1), 0, 0};
        place[step].walk(args.tiles_inner, args.src_col_stride, 1);
        place[step].walk(args.tiles_matrix, args.src_row_stride, args.dst_row_stride);
    }
#pragma unroll 1
    for (uint32_t dim = 0; dim < args.outer_dims; ++dim) {
#pragma unroll
        for (int step = 0; step < UNROLL; ++step) {
            place[step].walk(args.outer[dim].extent, args.outer[dim].src_stride, args.outer[dim].dst_stride);
        }
    }

    T staged[UNROLL];
#pragma unroll
    for (int step = 0; step < UNROLL; ++step) staged[step] = static_cast<const T*>(args.src)[place[step].src];
#pragma unroll
    for (int step = 0; step < UNROLL; ++step) {
        const uint32_t item = first + step * kThreads;
        if (item < count) static_cast<T*>(args.dst)[GAPS ? place[step].dst : item] = staged[step];
    }
}

template <int SIZE, int UNROLL>
__device__ __forceinline__ void copy_rows(const TransposeArgs& args) {
    if (args.lets_next) ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    if (args.gaps) {
        copy_elements<SIZE, UNROLL, true>(args);
    } else {
        copy_elements<SIZE, UNROLL, false>(args);
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
