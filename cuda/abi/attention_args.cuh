// The one argument that every attention kernel of this crate takes, by value.
//
// A launch computes softmax(scale · Q · Kᵀ + mask) · V for a batch of heads. A row of Q, K, V and of the result lies in memory without
// gaps and starts on 16 bytes. Strides count elements, not bytes, and are 64-bit. `src/attention/args.rs` is the mirror of this file on
// the Rust side: the assertions below and the ones there fail to compile when the two drift apart.
#pragma once

#include <cstddef>
#include <cstdint>

// A tensor (batch, head, row, …).
struct AttentionOperand {
    void* data;              // device address of its first element; of a mask that is absent nullptr
    int64_t row_stride;      // elements between neighbouring queries (Q, mask, result) or keys (K, V)
    int64_t head_stride;     // elements between neighbouring heads; 0 shares one
    int64_t batch_stride;    // elements between neighbours of the outer batch dimension
};

struct AttentionArgs {
    AttentionOperand query, key, value;
    AttentionOperand mask;     // added to the scaled scores
    AttentionOperand out;
    int64_t mask_key_stride;   // elements of the mask between neighbouring keys
    int32_t heads;             // of an outer batch
    int32_t queries, keys;     // rows of a head, each ≥ 1
    int32_t width;             // of a row of Q and K
    int32_t value_width;       // of a row of V and of the result
    float scale;
};

static_assert(sizeof(AttentionOperand) == 32, "src/attention/args.rs mirrors this layout");
static_assert(sizeof(AttentionArgs) == 192, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionArgs, mask) == 96, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionArgs, mask_key_stride) == 160, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionArgs, heads) == 168, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionArgs, value_width) == 184, "src/attention/args.rs mirrors this layout");
