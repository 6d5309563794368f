// Strict FP32 GEMM for sums of at most 8 products, straight from memory (few_k.cuh).
//
// Large results are better off with shared memory, where an element of A is read once for a tile: with k = 2,
// 20989 × 1600 takes an H200 227 µs here and 106 by ffma_words_32x32. Tiny ones, such as 10 × (3×88×3), take 1.7 to 2.3 µs here and 2.1
// to 2.6 there (stand-alone run, launches in a graph). Four columns a thread, stored as vectors, did not help large results: 880 × (2487×32×1)
// took 193 µs so, and 141 by ffma_unaligned_128x32.

#include "../epilogue/epilogue.cuh"
#include "few_k.cuh"

namespace ffma_gemm {

struct FewFloats {
    using Element = float;
    using Epilogue = ::Epilogue;
    static __device__ __forceinline__ float to_float(float x) { return x; }
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        epilogue.store(args, row, col, sum);
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, BM, BN, most of k, outputs of a thread.
#define FFMA_FEW_K(NAME, BLOCKS, BM, BN, MOST_K, TM)                                                                  \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::FewK<ffma_gemm::FewFloats, BM, BN, MOST_K, TM>::kThreads), \
                                                 BLOCKS - kFewerBlocks) NAME(const __grid_constant__ GemmArgs args) { \
        if (gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                                    \
        ffma_gemm::FewK<ffma_gemm::FewFloats, BM, BN, MOST_K, TM>::run(args);                                         \
    }

FFMA_FEW_K(ffma_few_k_128x8, 4, 128, 8, 8, 4)
FFMA_FEW_K(ffma_few_k_1024x1, 4, 1024, 1, 8, 4)
