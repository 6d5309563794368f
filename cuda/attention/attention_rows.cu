// Attention of few queries, as a step of a decoder has them: softmax(scale · Q · Kᵀ + mask) · V for at most 8 rows of Q a head.
//
// Such a kernel takes as long as its chain of dependent steps. A step of a Llama of 1 billion parameters has 8 heads of keys, 4 queries
// each, 256 keys of width 64: 1 MiB of FP32 numbers, 0.2 µs of an H200's memory. So the keys of a head are spread over the warps of a
// block and over the blocks of a cluster, and a lane asks for all that it needs of K, V, Q and mask at once: one round trip to memory,
// with up to 2 · KEYS vectors of 16 bytes a lane under way. Longer sequences come in turns, of which the next is under way while one
// is worked on.
//
// LANES lanes have a row of K or V, 16 bytes each; the GROUPS = 32 / LANES such groups of a warp have KEYS keys a turn. A lane multiplies
// its columns of KEYS keys with those of ROWS queries, and KEYS · ROWS sums over the group (LaneSum, about as many shuffles) leave each
// lane with its share of the scores. It scales and masks them, and by way of shared memory every lane gets all scores of its group.
// Weights are computed by every lane of a group alike: KEYS · ROWS exponentials in place of another exchange. They multiply the columns
// of V that the lane holds already.
//
// In the end the groups of a warp add up, and the parts of all warps of the cluster (the largest score, sum of weights, weighted
// values) meet in shared memory, each block's read by the others: a block has its share of the result's columns. A lane reads what
// it needs of one block's parts at once, one round trip across the cluster, and lanes add up blocks in pairs, pairs of pairs and so on:
// results are the same from run to run.
//
// Needs: at most ROWS queries; at most WIDTH columns; rows without gaps on 16 bytes.
// Traffic: K, V, Q and mask are read once, the result is written once. Arithmetic: 2 · ROWS multiply-adds a number of K and V.
// Floor of the step above: 2.5 µs: 1.3 µs from the end of one kernel to the first instructions of the next and its own end, 0.8 µs to
// memory and back, 0.4 µs of barriers of the cluster and reads across it. Predicted: 3.0 µs, where three kernels take 8.8.
//
// Launch. A cluster of 1, 2, 4 or kMostBlocks blocks a head; one block where there are no clusters. It may start while the kernel before
// still runs.

#include "attention_rows.cuh"

using namespace attention_rows;

#define ATTENTION_ROWS_OF(NAME, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) NAME(const __grid_constant__ AttentionArgs args) {       \
        __shared__ Shape<__VA_ARGS__>::Shared shared;                                                                  \
        run<Operands, Shape<__VA_ARGS__>>(args, shared);                                                               \
    }
ATTENTION_KERNELS(ATTENTION_ROWS_OF, attention_rows)
