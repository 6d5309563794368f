// What the kernels for thin products share: one operand is a *matrix* with many lines (n columns of B, or m rows of A), the
// other has at most 32 *vectors* (rows of A, or columns of B), and each element of the matrix takes part in as many products.
#pragma once

#include "../epilogue/epilogue.cuh"
#include "../ptx/cluster.cuh"
#include "../scheduler/slices.cuh"

namespace thin {

constexpr int kTiles = 2;   // of vectors at most: the matrix is read once for each of them

template <typename T>
struct ThinOf {
    const T* matrix;
    const T* vectors;
    int64_t line_stride, matrix_k_stride;     // of the matrix
    int64_t vector_stride, vector_k_stride;   // of the vectors
    int lines, count;                         // of the matrix, of the vectors

    // SWAPPED: A is the matrix and the columns of B are the vectors.
    template <bool SWAPPED>
    static __device__ __forceinline__ ThinOf of(const GemmArgs& args, int batch) {
        const T* a = static_cast<const T*>(args.a.data) + batch_offset(args, args.a, batch);
        const T* b = static_cast<const T*>(args.b.data) + batch_offset(args, args.b, batch);
        if (SWAPPED)
            return {a, b, args.a.row_stride, args.a.col_stride, args.b.col_stride, args.b.row_stride, args.m, args.n};
        return {b, a, args.b.col_stride, args.b.row_stride, args.a.row_stride, args.a.col_stride, args.n, args.m};
    }
};
using Thin = ThinOf<float>;

// Where a block works: slices of k count first, then tiles along the vectors, which share lines in the L2, then lines.
struct ThinUnit {
    int batch, line, vector, slice;   // the matrix of the batch (or of the slices); the slice in the cluster

    template <int VECTORS, int LINES, bool SWAPPED>
    static __device__ __forceinline__ ThinUnit of(const GemmArgs& args) {
        const int line_blocks = ((SWAPPED ? args.m : args.n) - 1) / LINES + 1;
        const int vector_blocks = ((SWAPPED ? args.n : args.m) - 1) / VECTORS + 1;
        const int tile = blockIdx.x / args.split_k;
        const int strip = tile / vector_blocks;
        ThinUnit unit;
        unit.slice = blockIdx.x - tile * args.split_k;
        unit.vector = (tile - strip * vector_blocks) * VECTORS;
        const int matrix = strip / line_blocks;
        unit.batch = matrix + slice_apart();
        unit.line = (strip - matrix * line_blocks) * LINES;
        return unit;
    }
};

// Stores VECTORS × LINES sums, which lie as sums[vector · PITCH + line] in shared memory; where k is cut, this block's share of
// what the blocks of its cluster have together. Neighbouring threads store neighbours of a row of D: 16 bytes each where
// its rows allow that.
template <int VECTORS, int LINES, int PITCH, int THREADS, bool SWAPPED>
__device__ __forceinline__ void store_thin(const GemmArgs& args, const ThinUnit& unit, const float* sums) {
    // Like sum_over_cluster(), with which the compiler arranges the kernels' code otherwise.
    const auto sum_of = [&](int at) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
            float sum = 0.0f;
#pragma unroll 4
            for (int slice = 0; slice < args.split_k; ++slice) sum += ptx::load_cluster(ptx::cluster_address(sums + at, slice));
            return sum;
        }
#endif
        return sums[at];
    };
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();
#endif
    const Epilogue epilogue(args, unit.batch);
    const int lines = min(LINES, (SWAPPED ? args.m : args.n) - unit.line);
    const int vectors = min(VECTORS, (SWAPPED ? args.n : args.m) - unit.vector);
    const int rows = SWAPPED ? lines : vectors, cols = SWAPPED ? vectors : lines;
    const int first_row = SWAPPED ? unit.line : unit.vector, first_col = SWAPPED ? unit.vector : unit.line;
    const int first = unit.slice * THREADS + threadIdx.x, step = args.split_k * THREADS;
    const auto at = [](int row, int col) { return SWAPPED ? col * PITCH + row : row * PITCH + col; };
    if ((SWAPPED ? VECTORS : LINES) % kVector == 0 && args.d_access == kRowVector) {
        const int pieces = (cols - 1) / kVector + 1;
#pragma unroll 1
        for (int item = first; item < rows * pieces; item += step) {
            const int row = item / pieces, col = (item - row * pieces) * kVector;
            epilogue.store_vector(args, first_row + row, first_col + col,
                                  make_float4(sum_of(at(row, col)), sum_of(at(row, col + 1)), sum_of(at(row, col + 2)),
                                              sum_of(at(row, col + 3))));
        }
    } else {
#pragma unroll 1
        for (int item = first; item < rows * cols; item += step) {
            const int row = item / cols, col = item - row * cols;
            epilogue.store(args, first_row + row, first_col + col, sum_of(at(row, col)));
        }
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
}

}  // namespace thin
