// Which part of k a block has.
//
// Slices whose sums a cluster adds up are blocks of it. Slices whose sums a second kernel adds up (split_k/add_slices.cu) lie along y of
// the grid, whose height is 1 elsewhere. Such a launch has one matrix, D is one for each slice in the workspace, FP32 and without an
// epilogue, and the slice takes the place of the matrix of the batch there: A and B have no batch stride.
#pragma once

#include "../abi/gemm_args.cuh"

// The number of this block's slice among those that a second kernel adds up.
__device__ __forceinline__ int slice_apart() { return static_cast<int>(blockIdx.y); }

// Where a slice begins and ends; k_slice is all of k where there is only one.
__device__ __forceinline__ int slice_begin(const GemmArgs& args, int slice_of_cluster) {
    return (slice_of_cluster + slice_apart()) * args.k_slice;
}
__device__ __forceinline__ int slice_end(const GemmArgs& args, int begin) { return min(args.k, begin + args.k_slice); }
