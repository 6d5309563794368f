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
// here. Where a cluster cuts k, each of its blocks adds up and stores its share, in the order of k: a few outputs of a thread at a time, for
// what lies in another block's shared memory is some 600 clocks away.
template <int BM, int BN, int THREADS, int PITCH>
__device__ __forceinline__ void store_sums(const GemmArgs& args, const WorkUnit& work, const Epilogue& epilogue, const float* sums) {
    constexpr int kAtOnce = 4;
    const int apart = args.split_k * THREADS;   // from one output of a thread to the next
#pragma unroll 1
    for (int first = work.slice * THREADS + threadIdx.x; first < BM * BN; first += kAtOnce * apart) {
        float sum[kAtOnce] = {};
        int place[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int item = min(first + i * apart, BM * BN - 1);   // behind the last one, the last one again
            place[i] = item / BN * PITCH + item % BN;
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
#pragma unroll 2
            for (int slice = 0; slice < args.split_k; ++slice) {
                const uint32_t theirs = ptx::cluster_address(sums, slice);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) sum[i] += ptx::load_cluster(theirs + place[i] * static_cast<uint32_t>(sizeof(float)));
            }
        } else
#endif
        {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) sum[i] = sums[place[i]];
        }
        // They pass by like a drum.
#pragma unroll 1
        for (int item = first; item < min(first + kAtOnce * apart, BM * BN); item += apart) {
            epilogue.store(args, work.row + item / BN, work.col + item % BN, sum[0]);
#pragma unroll
            for (int next = 0; next + 1 < kAtOnce; ++next) sum[next] = sum[next + 1];
        }
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
}

}  // namespace ffma_gemm
