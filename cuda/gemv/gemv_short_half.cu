// Few rows of A past lines of B whose k is short, or few columns of B past rows of A, of 16-bit numbers: short.cuh. By multiply-adds:
// memory is what such a product waits for.
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

// Name, type, vectors at most, lines a lane, k of a turn of all of them, whether A is the matrix.
#define GEMV_SHORT_HALF_OF(NAME, TYPE, M, EACH, BK, SWAPPED)                                                               \
    extern "C" __global__ void __launch_bounds__((gemv::Short<gemv::Halves<TYPE>, M, EACH, BK, SWAPPED>::kThreads))      \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        ptx::wait_for_previous_kernels();                                                                              \
        gemv::Short<gemv::Halves<TYPE>, M, EACH, BK, SWAPPED>::run(args);                                                  \
    }
#define GEMV_SHORT_HALF(VECTORS, ...)                                                                                  \
    GEMV_SHORT_HALF_OF(gemv_short_f16_##VECTORS, Half::kF16, __VA_ARGS__)                                              \
    GEMV_SHORT_HALF_OF(gemv_short_bf16_##VECTORS, Half::kBF16, __VA_ARGS__)

GEMV_SHORT_HALF(m1, 1, 4, 128, false)
GEMV_SHORT_HALF(m2, 2, 4, 128, false)
GEMV_SHORT_HALF(m4, 4, 2, 128, false)
GEMV_SHORT_HALF(n1, 1, 4, 128, true)
GEMV_SHORT_HALF(n2, 2, 4, 128, true)
GEMV_SHORT_HALF(n4, 4, 2, 128, true)
