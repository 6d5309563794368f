// Few vectors past small matrices in FP32: brief.cuh.
//
// H200, stand-alone, µs, matrices cold, launched one after the other: floor (bytes ÷ 4.8 TB/s), the fastest other kernel for few vectors, this one.
//   NN   4 × 1×98×80      0.03   2.94   1.6         NT   4 × 1×98×80     0.03   2.71   1.7
//   NN  17 × 1×8×512      0.06   3.30   2.7         NT  17 × 1×8×512     0.06   2.73   2.0
//   NN  90 × 1×120×368    3.31   9.21   6.2         NT  90 × 1×120×368   3.31   9.47   6.6
//   NN 560 × 4×56×52      1.36   7.61   4.1         NT 560 × 4×56×52     1.36   7.01   6.2
//   NN  12 × 8×64×64      0.04   3.16   2.0         NT  12 × 4×64×200    0.13   2.94   2.6
//   NN 608 × 6×6×128      0.39   9.60   3.7         NT 608 × 6×6×128     0.39   5.91   4.6
//   NN 1120 × 1×80×4      0.30   5.50   3.0         NT 1120 × 1×80×4     0.30   7.92   2.9
#include "../epilogue/epilogue.cuh"
#include "brief.cuh"

namespace brief {

struct Floats {
    static constexpr element::Type kType = element::Type::kF32;
    static __device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, float sum) {
        Epilogue(args, batch).store(args, row, col, sum);
    }
};

}  // namespace brief

// NAME (with the tile of D), vectors and lines of a block, lines of a warp beside each other, elements of a thread at a time, warps.
#define BRIEF(NAME, M, LINES, LANES, STEPS, WARPS, SWAPPED, ALONG_K)                                                 \
    extern "C" __global__ void __launch_bounds__(WARPS * kWarp) NAME(const __grid_constant__ GemmArgs args) {        \
        brief::Brief<brief::Floats, M, LINES, LANES, STEPS, SWAPPED, ALONG_K, WARPS>::run(args);                     \
    }
#define BRIEF_AXPY_ROWS(NAME, ...) BRIEF(NAME, __VA_ARGS__, false, false)
#define BRIEF_AXPY_COLS(NAME, ...) BRIEF(NAME, __VA_ARGS__, true, false)
#define BRIEF_DOT_ROWS(NAME, ...) BRIEF(NAME, __VA_ARGS__, false, true)
#define BRIEF_DOT_COLS(NAME, ...) BRIEF(NAME, __VA_ARGS__, true, true)
// NAME, vectors at most, lines of a block, elements of a line and of each vector that a thread asks for at once.
#define BRIEF_LINES(NAME, M, LINES, STEPS, SWAPPED)                                                                  \
    extern "C" __global__ void __launch_bounds__(LINES) NAME(const __grid_constant__ GemmArgs args) {                \
        brief::BriefLines<brief::Floats, M, LINES, STEPS, SWAPPED>::run(args);                                       \
    }
#define BRIEF_LINES_ROWS(NAME, ...) BRIEF_LINES(NAME, __VA_ARGS__, false)
#define BRIEF_LINES_COLS(NAME, ...) BRIEF_LINES(NAME, __VA_ARGS__, true)
// NAME, vectors at most, lines of a block, times 16 bytes that a thread asks for at once.
#define BRIEF_WIDE(NAME, M, LINES, STEPS)                                                                            \
    extern "C" __global__ void __launch_bounds__(brief::kWarps * kWarp) NAME(const __grid_constant__ GemmArgs args) { \
        brief::BriefWide<brief::Floats, M, LINES, STEPS, false>::run(args);                                          \
    }

BRIEF_AXPY_ROWS(brief_axpy_1x8, 1, 8, 8, 8, 8)
BRIEF_AXPY_ROWS(brief_axpy_1x8_deep, 1, 8, 8, 8, 32)
BRIEF_AXPY_ROWS(brief_axpy_1x16, 1, 16, 16, 8, 8)
BRIEF_AXPY_ROWS(brief_axpy_1x32, 1, 32, 32, 16, 8)
BRIEF_AXPY_ROWS(brief_axpy_4x8, 4, 8, 8, 8, 8)
BRIEF_AXPY_ROWS(brief_axpy_4x8_deep, 4, 8, 8, 8, 32)
BRIEF_AXPY_ROWS(brief_axpy_4x32, 4, 32, 32, 16, 8)
BRIEF_AXPY_ROWS(brief_axpy_4x64, 4, 64, 32, 16, 8)
BRIEF_AXPY_ROWS(brief_axpy_8x16, 8, 16, 16, 8, 8)
BRIEF_AXPY_ROWS(brief_axpy_8x32, 8, 32, 32, 8, 8)
BRIEF_AXPY_COLS(brief_axpy_8x1, 1, 8, 8, 8, 8)
BRIEF_AXPY_COLS(brief_axpy_8x1_deep, 1, 8, 8, 8, 32)
BRIEF_AXPY_COLS(brief_axpy_32x1, 1, 32, 32, 16, 8)
BRIEF_AXPY_COLS(brief_axpy_32x4, 4, 32, 32, 16, 8)
BRIEF_AXPY_COLS(brief_axpy_32x8, 8, 32, 32, 8, 8)
BRIEF_DOT_ROWS(brief_dot_1x4, 1, 4, 4, 8, 8)
BRIEF_DOT_ROWS(brief_dot_1x4_deep, 1, 4, 4, 8, 32)
BRIEF_DOT_ROWS(brief_dot_1x16, 1, 16, 4, 8, 8)
BRIEF_DOT_ROWS(brief_dot_4x8, 4, 8, 4, 8, 8)
BRIEF_DOT_ROWS(brief_dot_4x8_deep, 4, 8, 4, 8, 32)
BRIEF_DOT_ROWS(brief_dot_4x32, 4, 32, 4, 8, 8)
BRIEF_DOT_ROWS(brief_dot_8x8, 8, 8, 4, 4, 8)
BRIEF_DOT_COLS(brief_dot_4x1, 1, 4, 4, 8, 8)
BRIEF_DOT_COLS(brief_dot_4x1_deep, 1, 4, 4, 8, 32)
BRIEF_DOT_COLS(brief_dot_16x1, 1, 16, 4, 8, 8)
BRIEF_DOT_COLS(brief_dot_8x4, 4, 8, 4, 8, 8)
BRIEF_DOT_COLS(brief_dot_32x4, 4, 32, 4, 8, 8)
BRIEF_DOT_COLS(brief_dot_32x8, 8, 32, 4, 8, 8)
BRIEF_WIDE(brief_wide_1x4, 1, 4, 2)
BRIEF_WIDE(brief_wide_1x32, 1, 32, 2)
BRIEF_WIDE(brief_wide_4x16, 4, 16, 1)
BRIEF_LINES_ROWS(brief_lines_1x64, 1, 64, 8)
BRIEF_LINES_ROWS(brief_lines_1x128, 1, 128, 8)
BRIEF_LINES_ROWS(brief_lines_4x64, 4, 64, 4)
BRIEF_LINES_ROWS(brief_lines_4x128, 4, 128, 4)
BRIEF_LINES_COLS(brief_lines_128x1, 1, 128, 8)
BRIEF_LINES_COLS(brief_lines_64x4, 4, 64, 4)
BRIEF_LINES_COLS(brief_lines_128x4, 4, 128, 4)
