// Panels: what a block needs of A or of B for one step along k, brought to shared memory through registers.
//
// A panel is EXTENT rows of A (or columns of B) by DEPTH steps of k. In shared memory it always lies k by k,
// tile[depth][extent], because that is how the threads read it: a fragment is a few neighbours along the extent.
//
//        A (row-major)                 tile of A                 B (row-major)            tile of B
//        k →                           extent →                  n →                      extent →
//      m ┌────────┐                  k ┌──────────────┐        k ┌──────────────┐       k ┌──────────────┐
//      ↓ │ ▪▪▪▪   │   transposed     ↓ │ ▪            │        ↓ │ ▪▪▪▪         │ as is ↓ │ ▪▪▪▪         │
//        │        │   ──────────►      │ ▪            │          └──────────────┘ ────►   └──────────────┘
//        │        │                    │ ▪            │
//        └────────┘                    │ ▪            │
//
// A thread moves chunks of four floats along whichever direction is contiguous in global memory, so an operand that
// is stored transposed just swaps the two pictures, and all four layouts read 16 bytes at a time. Moving is split in
// two, so that a kernel can put arithmetic in between: `fetch` starts the loads, `deposit` writes to shared memory.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/machine.cuh"

// Floats between the rows of a tile. The four extra floats put the four rows that a transposing warp writes at once
// into different banks, and keep every row on a 16-byte boundary.
template <int EXTENT>
constexpr int kPanelPitch = EXTENT + kVector;

template <int EXTENT, int DEPTH, int THREADS>
struct Panel {
    static constexpr int kChunks = EXTENT * DEPTH / (kVector * THREADS);   // float4s that each thread moves
    static_assert(kChunks >= 1 && kChunks * kVector * THREADS == EXTENT * DEPTH,
                  "the threads of the block must share a panel evenly");
    static_assert(EXTENT % kVector == 0 && DEPTH % kVector == 0, "chunks of four must fit both ways");

    using Tile = float[DEPTH][kPanelPitch<EXTENT>];
    struct Chunks { float4 chunk[kChunks]; };   // a panel on its way, this thread's part

    const float* from[kChunks];   // where this thread's chunks of the next panel start
    int64_t extent_stride;        // elements between neighbours along the extent
    int64_t depth_stride;         // elements between neighbours along k
    int extent;                   // rows of A (columns of B) from the panel's first one to the matrix' end
    bool along_depth;             // chunks run along k, and are transposed on their way to shared memory

    // The panel of A whose first row is `row`.
    static __device__ __forceinline__ Panel of_a(const GemmArgs& args, const float* a, int row) {
        return Panel(a, args.a.row_stride, args.a.col_stride, row, args.m,
                     args.a_access == kRowVector || args.a_access == kRowScalar);
    }

    // The panel of B whose first column is `col`.
    static __device__ __forceinline__ Panel of_b(const GemmArgs& args, const float* b, int col) {
        return Panel(b, args.b.col_stride, args.b.row_stride, col, args.n,
                     args.b_access == kColVector || args.b_access == kColScalar);
    }

    // Loads this thread's chunks of the next panel and moves on. With INSIDE, the whole panel lies in the matrix and
    // its chunks start on 16 bytes; without it every element is guarded, and those past the extent or past
    // `depth_left` are zero.
    template <bool INSIDE>
    __device__ __forceinline__ Chunks fetch(int depth_left) {
        Chunks out;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            out.chunk[i] = INSIDE ? *reinterpret_cast<const float4*>(from[i]) : guarded(i, depth_left);
            from[i] += DEPTH * depth_stride;
        }
        return out;
    }

    __device__ __forceinline__ void deposit(Tile& tile, const Chunks& in) const {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int e = chunk_extent(i);
            const int k = chunk_depth(i);
            if (along_depth) {
                tile[k + 0][e] = in.chunk[i].x;
                tile[k + 1][e] = in.chunk[i].y;
                tile[k + 2][e] = in.chunk[i].z;
                tile[k + 3][e] = in.chunk[i].w;
            } else {
                *reinterpret_cast<float4*>(&tile[k][e]) = in.chunk[i];
            }
        }
    }

private:
    __device__ __forceinline__ Panel(const float* matrix, int64_t extent_stride, int64_t depth_stride, int first,
                                     int end, bool along_depth)
        : extent_stride(extent_stride), depth_stride(depth_stride), extent(end - first), along_depth(along_depth) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            from[i] = matrix + (static_cast<int64_t>(first) + chunk_extent(i)) * extent_stride +
                      chunk_depth(i) * depth_stride;
        }
    }

    // Neighbouring threads take neighbouring chunks of the direction that is contiguous in global memory.
    __device__ __forceinline__ int chunk_extent(int i) const {
        const int index = threadIdx.x + i * THREADS;
        return along_depth ? index / (DEPTH / kVector) : index % (EXTENT / kVector) * kVector;
    }
    __device__ __forceinline__ int chunk_depth(int i) const {
        const int index = threadIdx.x + i * THREADS;
        return along_depth ? index % (DEPTH / kVector) * kVector : index / (EXTENT / kVector);
    }

    __device__ __forceinline__ float4 guarded(int i, int depth_left) const {
        const int extent_room = extent - chunk_extent(i);
        const int depth_room = depth_left - chunk_depth(i);
        const int room = min(extent_room, depth_room) <= 0 ? 0 : along_depth ? depth_room : extent_room;
        const int64_t step = along_depth ? depth_stride : extent_stride;
        return make_float4(room > 0 ? from[i][0] : 0.0f, room > 1 ? from[i][step] : 0.0f,
                           room > 2 ? from[i][2 * step] : 0.0f, room > 3 ? from[i][3 * step] : 0.0f);
    }
};

// Whether the operand can be fetched with INSIDE where the matrix does not end within the tile.
__device__ __forceinline__ bool is_vector(Access access) { return access == kRowVector || access == kColVector; }
