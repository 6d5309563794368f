// Tiles on their way from global memory through registers to shared memory.
//
// A tile lies in shared memory as [k][row], row counting m for A and n for B, whatever the operand's layout: the
// inner loop then reads both operands 16 bytes at a time along rows and is the same for all four layouts. An operand
// that is contiguous along k is transposed on the way, in registers, 4 × 4 elements a thread.
#pragma once

#include "../abi/operand.cuh"

namespace ffma_gemm {

// A line of a tile keeps its 4-float chunks in an order that changes every four lines: chunk c of line k lies at
// c ^ chunk_swizzle(k). So pieces of neighbouring k can be stored together without bank conflicts.
template <int ROWS>
__device__ __forceinline__ constexpr int chunk_swizzle(int k) {
    return k / kVector * 2 & (ROWS / kVector - 1) & 6;
}

// Moves ROWS × BK tiles with THREADS threads, in 4 × 4 pieces. Accesses of 16 bytes go through memory eight lanes at a
// time, so eight neighbouring lanes read along the dimension that is contiguous: 2 × 4 pieces along k, 64 bytes of each
// row, or 8 × 1 along rows, 128 bytes of each k. The swizzle spreads both over all banks when they are stored.
// With QUICK_SCALARS, operands that do not start on 16 bytes are read without guards inside the matrix, too.
template <int ROWS, int BK, int THREADS, bool QUICK_SCALARS>
struct TileLoader {
    static constexpr int kPieces = ROWS * BK / (kVector * kVector);
    static constexpr int kEach = (kPieces + THREADS - 1) / THREADS;        // pieces a thread moves
    static constexpr int kAcross = ROWS / kVector < 8 ? ROWS / kVector : 8;      // a band: this many pieces along rows
    static constexpr int kPerBand = kAcross * (BK / kVector);                 // times all of BK
    static constexpr int kRowStep = THREADS / kPerBand * kAcross * kVector;   // rows from one piece of a thread to the next
    static_assert(ROWS % (kAcross * kVector) == 0 && BK % (4 * kVector) == 0, "a tile is made of whole bands");
    static_assert(kEach == 1 || THREADS % kPerBand == 0, "all pieces of a thread have the same k");

    Source source;
    const float* address;   // of the thread's first piece in the next tile
    int row, k;             // its place in the tile
    int rows_left;          // rows of the operand from `row` on
    bool active;            // small tiles leave threads without work
    bool rows_inside;       // no piece of the block hangs over the last row
    float4 staged[kEach][kVector];

    __device__ __forceinline__ void start(const Source& from, int thread, int first_row, int first_k) {
        source = from;
        const int band = thread / kPerBand, piece = thread % kPerBand;
        const bool along_rows = source.along_rows();
        const int across = along_rows ? piece % kAcross : piece / 4 % kAcross;
        row = (band * kAcross + across) * kVector;
        k = (along_rows ? piece / kAcross : piece / (4 * kAcross) * 4 + piece % 4) * kVector;
        active = kPieces % THREADS == 0 || thread < kPieces;
        rows_left = source.rows - first_row - row;
        rows_inside = source.rows - first_row >= ROWS;
        address = source.data + (first_row + row) * source.row_stride + (first_k + k) * source.k_stride;
    }

    // Global memory → registers, for the tile that has `k_left` elements of k before its slice ends.
    __device__ __forceinline__ void fetch(int k_left) {
        if (active) {
            const bool quick = source.vectors() || (QUICK_SCALARS && source.run != 0);
            if (rows_inside && k_left >= BK && quick) {
                const int64_t step = source.along_k() ? source.row_stride : source.k_stride;
#pragma unroll
                for (int piece = 0; piece < kEach; ++piece) {
                    const float* from = address + piece * kRowStep * source.row_stride;
#pragma unroll
                    for (int i = 0; i < kVector; ++i)
                        staged[piece][i] = !QUICK_SCALARS || source.vectors() ? load_vector(from + i * step) : load_neighbours(from + i * step);
                }
            } else {
                fetch_guarded(k_left - k);
            }
        }
        address += BK * source.k_stride;
    }

    __device__ __forceinline__ void fetch_guarded(int k_left) {
        const bool along_rows = source.along_rows();
        const int64_t step = along_rows ? source.k_stride : source.row_stride;
        const int64_t inner = along_rows ? source.row_stride : source.k_stride;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float* from = address + piece * kRowStep * source.row_stride;
            const int rows = rows_left - piece * kRowStep;
            const int outer_left = along_rows ? k_left : rows;
            const int inner_left = along_rows ? rows : k_left;
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                const int valid = i < outer_left ? inner_left : 0;
                if (valid >= kVector && source.vectors()) {
                    staged[piece][i] = load_vector(from + i * step);
                } else {
                    staged[piece][i] = load_guarded(from + i * step, inner, valid);
                }
            }
        }
    }

    // Registers → shared memory.
    __device__ __forceinline__ void commit(float (*tile)[ROWS]) const {
        if (!active) return;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float4* v = staged[piece];
            float* to = &tile[k][(row + piece * kRowStep) ^ chunk_swizzle<ROWS>(k) * kVector];
            if (source.along_rows()) {
#pragma unroll
                for (int i = 0; i < kVector; ++i) *reinterpret_cast<float4*>(to + i * ROWS) = v[i];
            } else {
                *reinterpret_cast<float4*>(to) = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
                *reinterpret_cast<float4*>(to + ROWS) = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
                *reinterpret_cast<float4*>(to + 2 * ROWS) = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
                *reinterpret_cast<float4*>(to + 3 * ROWS) = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
            }
        }
    }
};

}  // namespace ffma_gemm
