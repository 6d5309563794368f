// The one argument that every copy and transposition kernel of this crate takes, by value.
//
// A launch moves a batch of matrices: element (i, j) of each, for 0 ≤ i < rows and 0 ≤ j < cols, goes from
// src + i·src_row_stride + j·src_col_stride to dst + i·dst_row_stride + j·dst_col_stride. In a transposition the matrix
// is read along its rows (src_col_stride = 1) and written along its columns (dst_row_stride = 1); in a copy both
// column strides are 1. Every other permutation is one of the two, with the remaining dimensions as batch.
// Strides count elements, not bytes, and are 64-bit. `src/transpose/args.rs` is the mirror of this file on the Rust
// side: the assertions below and the ones there fail to compile when the two drift apart.
#pragma once

#include <cstddef>
#include <cstdint>

// Batch dimensions of one launch, after the problem has merged those that can be walked with one stride.
constexpr int kMaxOuterDims = 6;

// Division of a number below 2^31 by a number fixed on the host: one multiplication and one shift.
// quotient = (2n · multiplier) >> 32 >> shift; the host picks multiplier and shift so that this is exact.
struct Divisor {
    uint32_t value;        // what to divide by, ≥ 1 and < 2^31
    uint32_t multiplier;   // ≥ 2^31
    uint32_t shift;
};

// A batch dimension of a launch.
struct OuterDim {
    int64_t src_stride;   // elements between neighbouring matrices in the source; 0 broadcasts
    int64_t dst_stride;
    Divisor extent;
    uint32_t reserved;    // 0
};

// What every block reads comes first and close together: at the start of a kernel each 64 bytes of arguments that it
// touches are a miss of the constant cache, one after the other, and for what the L2 holds those are a good part of the
// whole time. Batch dimensions are read only as far as there are any.
struct TransposeArgs {
    const void* src;          // device address of element (0, 0) of the first matrix
    void* dst;                // likewise
    int64_t src_row_stride;   // elements between (i, j) and (i + 1, j)
    int64_t dst_col_stride;   // elements between (i, j) and (i, j + 1)
    int64_t src_col_stride;
    int64_t dst_row_stride;
    int64_t rows, cols;       // each ≥ 1
    Divisor tiles_inner;      // tiles of a matrix along the direction that is walked first
    Divisor tiles_matrix;     // tiles of a matrix
    uint16_t walk_rows;       // 1: neighbouring blocks take neighbouring tiles of a column; 0: of a row
    uint16_t streaming;       // 1: more than the L2 holds, so that nobody will find it there
    uint16_t outer_dims;      // batch dimensions in use
    uint16_t lets_next;       // 1: the next kernel, which reads what is written here, may get ready meanwhile
    uint32_t outer_count;     // matrices of this launch, the product of their extents
    uint32_t gaps;            // 1: rows or matrices of the destination do not follow one another without gaps
    OuterDim outer[kMaxOuterDims];   // innermost first
};

static_assert(sizeof(Divisor) == 12, "src/transpose/args.rs mirrors this layout");
static_assert(sizeof(OuterDim) == 32, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(OuterDim, extent) == 16, "src/transpose/args.rs mirrors this layout");
static_assert(sizeof(TransposeArgs) == 296, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, rows) == 48, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, tiles_inner) == 64, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, walk_rows) == 88, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, streaming) == 90, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, outer_dims) == 92, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, lets_next) == 94, "src/transpose/args.rs mirrors this layout");
static_assert(offsetof(TransposeArgs, outer) == 104, "src/transpose/args.rs mirrors this layout");

__device__ __forceinline__ uint32_t quotient(uint32_t number, const Divisor& divisor) {
    return __umulhi(2 * number, divisor.multiplier) >> divisor.shift;
}
