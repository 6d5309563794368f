// Strict FP32 GEMM for a single column of sums of at most 8 products, straight from memory (few_k.cuh). Wider results are better off with
// ffma_outer.cu, which reads an element of A once for a tile.

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
    extern "C" __global__ void                                                                                        \
        LAUNCH_BOUNDS_SHARED_BY(BLOCKS, ffma_gemm::FewK<ffma_gemm::FewFloats, BM, BN, MOST_K, TM>::kThreads)          \
        NAME(const __grid_constant__ GemmArgs args) {                                                                 \
        if (gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                                    \
        ffma_gemm::FewK<ffma_gemm::FewFloats, BM, BN, MOST_K, TM>::run(args);                                         \
    }

FFMA_FEW_K(ffma_few_k_1024x1, 4, 1024, 1, 8, 4)
