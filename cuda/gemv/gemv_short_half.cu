// Few rows of A past lines of B whose k is short, of 16-bit numbers: short.cuh. By multiply-adds: with so few rows a tensor core would multiply
// zeros, and memory is what such a product waits for.
#include "../epilogue/half.cuh"
#include "short.cuh"

namespace gemv {

template <Half TYPE>
struct Halves {
    static constexpr element::Type kType = TYPE == Half::kBF16 ? element::Type::kBF16 : element::Type::kF16;
    static __device__ __forceinline__ uint32_t bits_or_zero(const uint16_t* at, bool inside) { return ptx::load_or_zero(at, inside); }
    static __device__ __forceinline__ uint4 load_streaming(const uint16_t* at) { return ptx::load_streaming(at); }
    static __device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, float sum) {
        HalfEpilogue<TYPE, false>(args, batch).store_element(args, row, col, sum);
    }
};

}  // namespace gemv

// Name, type, rows of A at most, lines of B a lane.
#define GEMV_SHORT_HALF_OF(NAME, TYPE, M, EACH)                                                                        \
    extern "C" __global__ void __launch_bounds__((gemv::Short<gemv::Halves<TYPE>, M, EACH>::kThreads))               \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        ptx::wait_for_previous_kernels();                                                                              \
        gemv::Short<gemv::Halves<TYPE>, M, EACH>::run(args);                                                           \
    }
#define GEMV_SHORT_HALF(ROWS, ...)                                                                                     \
    GEMV_SHORT_HALF_OF(gemv_short_f16_##ROWS, Half::kF16, __VA_ARGS__)                                                 \
    GEMV_SHORT_HALF_OF(gemv_short_bf16_##ROWS, Half::kBF16, __VA_ARGS__)

GEMV_SHORT_HALF(m1, 1, 4)
GEMV_SHORT_HALF(m2, 2, 4)
GEMV_SHORT_HALF(m4, 4, 2)
