// The one argument of the kernels for a decoder's step, by value. `src/attention/args.rs` is the mirror of this file on the Rust side.
#pragma once

#include "attention_args.cuh"

// A step writes a key and a value of each head into a cache, and attends over those that are there. K and V of `attention` are the cache,
// with as many keys as it has places, and there is no mask: keys up to the position are seen.
struct AttentionStepArgs {
    AttentionArgs attention;
    AttentionOperand new_key, new_value;   // (batch, head, …); the stride of rows counts for nothing
    const void* cosines;                   // (places, width / 2), without gaps
    const void* sines;
    const uint32_t* position;              // the place that is written; beyond the last nothing is, and all places are seen
};

static_assert(sizeof(AttentionStepArgs) == 280, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionStepArgs, new_key) == 192, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionStepArgs, cosines) == 256, "src/attention/args.rs mirrors this layout");
static_assert(offsetof(AttentionStepArgs, position) == 272, "src/attention/args.rs mirrors this layout");
