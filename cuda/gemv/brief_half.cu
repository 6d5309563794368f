// Up to 64 rows past lines of small matrices of 16-bit numbers (brief.cuh). By multiply-adds: a block has one row or
// four of them, and to multiply is the least of what they take.
//
// H200, BF16, stand-alone, µs, matrices cold, launched one after the other: floor (bytes ÷ 4.8 TB/s), gemv_half, gemv_short_half, this.
//   NT  1 × 1×768×768    0.25   2.6          2.2         NT  32 × 1×128×128   0.22   2.7   3.0   2.3
//   NT  1 × 1×3072×768   0.98   3.6          3.3         NT 320 × 1×48×256    1.64         4.9   3.9
//   NT 12 × 1×197×64     0.06   2.6   2.7    2.0         NT  12 × 4×200×64    0.06   2.6   2.8   2.2
#include "../epilogue/half.cuh"
#include "brief.cuh"

namespace brief {

template <Half TYPE>
struct Halves {
    static constexpr element::Type kType = TYPE == Half::kBF16 ? element::Type::kBF16 : element::Type::kF16;
    static __device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, float sum) {
        HalfEpilogue<TYPE, false>(args, batch).store_element(args, row, col, sum);
    }
};

}  // namespace brief

// Name, type, vectors at most, lines of a block, times 16 bytes that a thread asks for at once, whether the next kernel may come in then.
#define BRIEF_HALF_OF(NAME, TYPE, M, LINES, STEPS, EARLY)                                                            \
    extern "C" __global__ void __launch_bounds__(brief::kWarps * kWarp) NAME(const __grid_constant__ GemmArgs args) {      \
        brief::BriefWide<brief::Halves<TYPE>, M, LINES, STEPS, EARLY>::run(args);                                    \
    }
#define BRIEF_HALF(TILE, ...)                                       \
    BRIEF_HALF_OF(brief_f16_##TILE, Half::kF16, __VA_ARGS__)        \
    BRIEF_HALF_OF(brief_bf16_##TILE, Half::kBF16, __VA_ARGS__)

BRIEF_HALF(1x4, 1, 4, 2, true)
BRIEF_HALF(1x8, 1, 8, 3, true)
BRIEF_HALF(1x16, 1, 16, 2, true)
BRIEF_HALF(4x32, 4, 32, 1, false)
