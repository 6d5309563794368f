// Outer products of 16-bit numbers, and sums of up to 16 products, whose results are large (outer.cuh), by FP32 multiply-adds: a tensor core
// would multiply in no time what its fragments and their way back from registers to rows of D cost.

#include "../epilogue/half.cuh"
#include "outer.cuh"

namespace ffma_gemm {

template <Half TYPE>
struct OuterHalves {
    static constexpr element::Type kType = TYPE == Half::kBF16 ? element::Type::kBF16 : element::Type::kF16;
    using Epilogue = HalfEpilogue<TYPE, false>;
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        epilogue.store_element(args, row, col, sum);
    }
};

}  // namespace ffma_gemm

// Name, type, blocks that share a multiprocessor, BM, BN, most of k, warps.
#define OUTER_HALF_OF(NAME, TYPE, BLOCKS, BM, BN, MOST_K, WARPS)                                                       \
    extern "C" __global__ void LAUNCH_BOUNDS_SHARED_BY(BLOCKS, WARPS* kWarp)                                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        if (gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                                     \
        ffma_gemm::Outer<ffma_gemm::OuterHalves<TYPE>, BM, BN, MOST_K, WARPS>::run(args);                              \
    }
#define OUTER_HALF(TILE, ...)                                                                                          \
    OUTER_HALF_OF(outer_f16_##TILE, Half::kF16, __VA_ARGS__)                                                           \
    OUTER_HALF_OF(outer_bf16_##TILE, Half::kBF16, __VA_ARGS__)

OUTER_HALF(16x32x8, 16, 16, 32, 8, 1)
OUTER_HALF(64x128x8, 5, 64, 128, 8, 4)
OUTER_HALF(128x64x8, 5, 128, 64, 8, 4)
OUTER_HALF(256x32x8, 5, 256, 32, 8, 4)
OUTER_HALF(16x32x16, 16, 16, 32, 16, 1)
OUTER_HALF(64x128x16, 4, 64, 128, 16, 4)
OUTER_HALF(128x64x16, 4, 128, 64, 16, 4)
OUTER_HALF(256x32x16, 3, 256, 32, 16, 4)
