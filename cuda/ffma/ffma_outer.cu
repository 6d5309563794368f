// Strict FP32 GEMM for outer products and sums of up to 16 products whose results are large (outer.cuh).
//
// H100, µs, launches of a stand-alone run in a graph; floors are D at 2.9 TB/s and a launch:
//   NN 20989 × 1600 × 2             45   floor 48         TT 2665 × 5039 × 9             24   floor 21
//   NN 880 × (2487 × 32 × 1)       107   floor 99         NN 18 × (280 × 1082 × 2)       10   floor 10
//
// Tried: loads that the compiler may move, each of which then waited for the one before to be stored: 42 µs for the second.

#include "../epilogue/epilogue.cuh"
#include "outer.cuh"

namespace ffma_gemm {

struct OuterFloats {
    static constexpr element::Type kType = element::Type::kF32;
    using Epilogue = ::Epilogue;
    static __device__ __forceinline__ void store(const Epilogue& epilogue, const GemmArgs& args, int row, int col, float sum) {
        epilogue.store(args, row, col, sum);
    }
};

}  // namespace ffma_gemm

// Blocks that share a multiprocessor, BM, BN, most of k, warps.
#define FFMA_OUTER(NAME, BLOCKS, BM, BN, MOST_K, WARPS)                                                                \
    extern "C" __global__ void LAUNCH_BOUNDS_SHARED_BY(BLOCKS, WARPS* kWarp)                                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        ffma_gemm::Outer<ffma_gemm::OuterFloats, BM, BN, MOST_K, WARPS>::run(args);                                    \
    }

FFMA_OUTER(ffma_outer_16x32x8, 24, 16, 32, 8, 1)
FFMA_OUTER(ffma_outer_64x128x8, 7, 64, 128, 8, 4)
FFMA_OUTER(ffma_outer_128x64x8, 7, 128, 64, 8, 4)
FFMA_OUTER(ffma_outer_256x32x8, 7, 256, 32, 8, 4)
FFMA_OUTER(ffma_outer_64x128x16, 4, 64, 128, 16, 4)
