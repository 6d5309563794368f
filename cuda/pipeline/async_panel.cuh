// Panels that come to shared memory by asynchronous copies (cp.async), without passing through registers.
//
// A panel is what ladder/panel.cuh calls one: EXTENT rows of A (or columns of B) by DEPTH steps of k, k by k in shared memory.
// A copy moves 16 bytes where they stay next to each other in shared memory: rows of B, columns of A stored transposed.
// The other direction is transposed by copies of 4 bytes, DEPTH threads along k, so that they read whole sectors of a row
// together; in shared memory they land four banks apart. Copies of 4 bytes also serve every operand whose rows do not
// start on 16 bytes.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/machine.cuh"

// EXTENT rows of A (columns of B) by DEPTH steps of k, copied to shared memory as tile[DEPTH][EXTENT].
template <int EXTENT, int DEPTH, int THREADS>
struct AsyncPanel {
    static constexpr int kPitch = EXTENT + kVector;   // four banks from k to k + 1, and rows on 16 bytes
    using Tile = float[DEPTH][kPitch];

    enum Way : int {
        kVectorRows,   // 16 bytes at a time, neighbouring threads along the extent
        kScalarRows,   // 4 bytes at a time, the same
        kTransposed,   // 4 bytes at a time, neighbouring threads along k
    };

    const float* from;       // this thread's first element of the next panel
    int64_t extent_stride;   // elements between neighbours along the extent
    int64_t depth_stride;    // elements between neighbours along k
    int extent;              // rows of A (columns of B) from the panel's first one to the matrix' end
    Way way;

    static __device__ __forceinline__ AsyncPanel of_a(const GemmArgs& args, const float* a, int row) {
        const Way way = args.a_access == kColVector ? kVectorRows
                      : args.a_access == kColScalar ? kScalarRows : kTransposed;
        return AsyncPanel(a, args.a.row_stride, args.a.col_stride, row, args.m, way);
    }
    static __device__ __forceinline__ AsyncPanel of_b(const GemmArgs& args, const float* b, int col) {
        const Way way = args.b_access == kRowVector ? kVectorRows
                      : args.b_access == kRowScalar ? kScalarRows : kTransposed;
        return AsyncPanel(b, args.b.col_stride, args.b.row_stride, col, args.n, way);
    }

    // Starts the copies of the next panel, of which `depth` steps of k are left in the matrix, and moves on.
    // What lies outside the matrix becomes zero.
    __device__ __forceinline__ void copy(Tile& tile, int depth) {
        const bool inside = extent >= EXTENT && depth >= DEPTH;
        if (way == kTransposed) {
            if (inside) copy_transposed<true>(tile, depth); else copy_transposed<false>(tile, depth);
        } else if (way == kVectorRows) {
            if (inside) copy_rows<kVector, true>(tile, depth); else copy_rows<kVector, false>(tile, depth);
        } else {
            if (inside) copy_rows<1, true>(tile, depth); else copy_rows<1, false>(tile, depth);
        }
        from += DEPTH * depth_stride;
    }

private:
    __device__ __forceinline__ AsyncPanel(const float* matrix, int64_t extent_stride, int64_t depth_stride, int first,
                                          int end, Way way)
        : extent_stride(extent_stride), depth_stride(depth_stride), extent(end - first), way(way) {
        const int e = way == kTransposed ? transposed_extent()
                    : way == kVectorRows ? row_extent<kVector>() : row_extent<1>();
        const int k = way == kTransposed ? transposed_depth()
                    : way == kVectorRows ? row_depth<kVector>() : row_depth<1>();
        from = matrix + (static_cast<int64_t>(first) + e) * extent_stride + k * depth_stride;
    }

    // This thread's first element where threads lie along the extent, WIDTH floats each.
    template <int WIDTH>
    static __device__ __forceinline__ int row_extent() { return threadIdx.x % (EXTENT / WIDTH) * WIDTH; }
    template <int WIDTH>
    static __device__ __forceinline__ int row_depth() { return threadIdx.x / (EXTENT / WIDTH); }

    // The same where they lie along k.
    static __device__ __forceinline__ int transposed_extent() { return threadIdx.x / DEPTH; }
    static __device__ __forceinline__ int transposed_depth() { return threadIdx.x % DEPTH; }

    template <int WIDTH, bool INSIDE>
    __device__ __forceinline__ void copy_rows(Tile& tile, int depth) const {
        constexpr int kRows = THREADS / (EXTENT / WIDTH);   // rows of the tile that the block copies at a time
        static_assert(kRows * (EXTENT / WIDTH) == THREADS && DEPTH % kRows == 0, "threads must fill whole rows");
        const int e = row_extent<WIDTH>();
        const float* source = from;
#pragma unroll
        for (int i = 0; i < DEPTH; i += kRows) {
            const int k = row_depth<WIDTH>() + i;
            const int valid = INSIDE ? WIDTH : k < depth ? min(max(extent - e, 0), WIDTH) : 0;
            if (INSIDE || valid == WIDTH) {
                if (WIDTH == kVector) {
                    ptx::cp_async_16(&tile[k][e], source);
                } else {
                    ptx::cp_async_4(&tile[k][e], source);
                }
            } else {   // the matrix ends here: what is left of it, then zeros
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) tile[k][e + j] = j < valid ? source[j] : 0.0f;
            }
            source += kRows * depth_stride;
        }
    }

    template <bool INSIDE>
    __device__ __forceinline__ void copy_transposed(Tile& tile, int depth) const {
        constexpr int kRows = THREADS / DEPTH;   // rows of A (columns of B) that the block copies at a time
        static_assert(kRows * DEPTH == THREADS && EXTENT % kRows == 0, "threads must fill whole columns");
        const int k = transposed_depth();
        const float* source = from;
#pragma unroll
        for (int i = 0; i < EXTENT; i += kRows) {
            const int e = transposed_extent() + i;
            const bool valid = INSIDE || (e < extent && k < depth);
            if (valid) {
                ptx::cp_async_4(&tile[k][e], source);
            } else {
                tile[k][e] = 0.0f;
            }
            source += kRows * extent_stride;
        }
    }
};
