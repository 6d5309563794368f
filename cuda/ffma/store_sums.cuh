// The end of a tile whose sums lie in shared memory, one by one.
#pragma once

#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../ptx/cluster.cuh"
#include "../scheduler/tiles.cuh"

namespace ffma_gemm {

// Waits until all threads of the block, and where a cluster cuts k of all its blocks, have written their sums.
__device__ __forceinline__ void wait_for_sums(const GemmArgs& args) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();
#endif
    __syncthreads();
}

// Then stores BM × BN sums, whose rows are PITCH apart, with one short copy of the epilogue's code. All THREADS threads of the block come
// here. Where a cluster cuts k, each of its blocks adds up and stores its share, in the order of k.
template <int BM, int BN, int THREADS, int PITCH>
__device__ __forceinline__ void store_sums(const GemmArgs& args, const WorkUnit& work, const Epilogue& epilogue, const float* sums) {
#pragma unroll 1
    for (int item = work.slice * THREADS + threadIdx.x; item < BM * BN; item += args.split_k * THREADS) {
        const int row = item / BN, col = item % BN;
        const float* here = sums + row * PITCH + col;
        float sum[] = {*here};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) sum_over_cluster<1, 1, 4>(here, args.split_k, sum);
#endif
        epilogue.store(args, work.row + row, work.col + col, sum[0]);
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
}

}  // namespace ffma_gemm
