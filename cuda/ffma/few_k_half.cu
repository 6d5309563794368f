// Products of 16-bit numbers with sums of at most 16 products, straight from memory (few_k.cuh), by FP32 multiply-adds: as convolutions of a
// channel by itself have them, whose rows of 9 start anywhere.
//
// A tensor core multiplies 16 of k at once, but its fragments come by way of shared memory, or of windows that threads shift. Where k
// is no longer than that, the way is all that a product takes.

#include "../epilogue/half.cuh"
#include "few_k.cuh"

namespace ffma_gemm {

template <Half TYPE>
struct FewHalves {
    using Element = uint16_t;
    using Epilogue = HalfEpilogue<TYPE, false>;
    static __device__ __forceinline__ float to_float(uint16_t x) { return ptx::low_to_float<TYPE>(x); }
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        if (row < args.m && col < args.n) epilogue.store_element(args, row, col, sum);
    }
};

}  // namespace ffma_gemm

// Name, type, blocks that share a multiprocessor, BM, BN, most of k, outputs of a thread.
#define FEW_K_HALF_OF(NAME, TYPE, BLOCKS, BM, BN, MOST_K, TM)                                                         \
    extern "C" __global__ void                                                                                        \
        LAUNCH_BOUNDS_SHARED_BY(BLOCKS, ffma_gemm::FewK<ffma_gemm::FewHalves<TYPE>, BM, BN, MOST_K, TM>::kThreads)    \
        NAME(const __grid_constant__ GemmArgs args) {                                                                 \
        if (gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                                    \
        ffma_gemm::FewK<ffma_gemm::FewHalves<TYPE>, BM, BN, MOST_K, TM>::run(args);                                   \
    }
#define FEW_K_HALF(TILE, ...)                                                                                         \
    FEW_K_HALF_OF(few_k_f16_##TILE, Half::kF16, __VA_ARGS__)                                                          \
    FEW_K_HALF_OF(few_k_bf16_##TILE, Half::kBF16, __VA_ARGS__)

FEW_K_HALF(128x8, 2, 128, 8, 16, 4)
FEW_K_HALF(16x64, 2, 16, 64, 16, 4)
FEW_K_HALF(512x1, 4, 512, 1, 16, 2)
FEW_K_HALF(1x256, 6, 1, 256, 16, 1)
