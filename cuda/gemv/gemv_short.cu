// Few rows of A past lines of B whose k is short, or few columns of B past rows of A, in FP32: short.cuh.
//
// H200, recording of 1128 drawn products, µs, the fastest of all other kernels and this: NT 30 × 1×476×56 5.8 and 3.2, 10 × 1×3136×64 6.4 and
// 4.4, 21 × 1×2756×96 12.1 and 8.8, 125 × 1×432×80 12.2 and 9.2. From k of about 1000 on others are faster.
//
// …_deep give a line to a warp, and have 512 of its k under way: NN 24 × 1799×1×945, rows off 16 bytes, takes 41.7, and 64.4 by gemv_short_n2.
#include "../epilogue/epilogue.cuh"
#include "short.cuh"

namespace gemv {

struct Floats {
    static constexpr element::Type kType = element::Type::kF32;
    static __device__ __forceinline__ uint32_t bits_or_zero(const float* at, bool inside) {
        return __float_as_uint(ptx::load_or_zero(at, inside));
    }
    static __device__ __forceinline__ uint4 load_streaming(const float* at) {
        const float4 v = ptx::load_streaming(at);
        return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
    }
    static __device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, float sum) {
        Epilogue(args, batch).store(args, row, col, sum);
    }
};

}  // namespace gemv

// NAME, vectors at most, lines a lane, k of a turn of all of them, whether A is the matrix, lanes that share a line.
#define GEMV_SHORT(NAME, M, EACH, BK, SWAPPED, LANES)                                                                   \
    extern "C" __global__ void __launch_bounds__((gemv::Short<gemv::Floats, M, EACH, BK, SWAPPED, LANES>::kThreads))   \
        NAME(const __grid_constant__ GemmArgs args) {                                                                   \
        ptx::wait_for_previous_kernels();                                                                               \
        gemv::Short<gemv::Floats, M, EACH, BK, SWAPPED, LANES>::run(args);                                              \
    }

GEMV_SHORT(gemv_short_m1, 1, 2, 128, false, 8)
GEMV_SHORT(gemv_short_m2, 2, 2, 128, false, 8)
GEMV_SHORT(gemv_short_m4, 4, 2, 128, false, 8)
GEMV_SHORT(gemv_short_n1, 1, 2, 128, true, 8)
GEMV_SHORT(gemv_short_n2, 2, 2, 128, true, 8)
GEMV_SHORT(gemv_short_n4, 4, 2, 128, true, 8)
GEMV_SHORT(gemv_short_n8, 8, 1, 64, true, 8)
GEMV_SHORT(gemv_short_m1_deep, 1, 2, 512, false, 32)
GEMV_SHORT(gemv_short_m2_deep, 2, 2, 512, false, 32)
GEMV_SHORT(gemv_short_n1_deep, 1, 2, 512, true, 32)
GEMV_SHORT(gemv_short_n2_deep, 2, 2, 512, true, 32)
