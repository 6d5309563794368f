// The one argument that every row-wise kernel of this crate takes, by value.
//
// A launch makes of every row of x one of y, of as many elements or, where a place is looked for, of one uint32_t. The elements of a row
// are neighbours. Strides count elements, not bytes, and are 64-bit. `src/rowwise/args.rs` is the mirror of this file on the Rust side:
// the assertions below and the ones there fail to compile when the two drift apart.
#pragma once

#include <cstddef>
#include <cstdint>

struct RowwiseArgs {
    const void* x;        // device address of its first element
    void* y;              // may be x, if rows are as far apart there
    const void* weight;   // of a norm: `width` factors, one a column
    const void* bias;     // of a norm: what is added to each column; nullptr adds nothing
    int64_t x_stride;     // elements between neighbouring rows
    int64_t y_stride;
    int32_t rows;         // ≥ 1
    int32_t width;        // elements of a row, ≥ 1
    float epsilon;        // of a norm: what is added to the variance
    int32_t centered;     // of a norm: whether the mean is subtracted (a layer norm) or not (an RMS norm)
};

static_assert(sizeof(RowwiseArgs) == 64, "src/rowwise/args.rs mirrors this layout");
static_assert(offsetof(RowwiseArgs, x_stride) == 32, "src/rowwise/args.rs mirrors this layout");
static_assert(offsetof(RowwiseArgs, rows) == 48, "src/rowwise/args.rs mirrors this layout");
static_assert(offsetof(RowwiseArgs, epsilon) == 56, "src/rowwise/args.rs mirrors this layout");
