// Layer norm and RMS norm of rows:
//
//   y ← (x − mean) / √(variance + ε) · weight + bias        or        y ← x / √(mean of x² + ε) · weight
//
// Between two products a norm moves little: 16 rows of 384 numbers are 24 KB. What counts is the chain from the end of the kernel
// before to the start of the next: one trip to memory for the row, its weights and biases together, one or two sums over threads, and
// one store. With the row in registers the variance is that of x − mean, without a second trip, and without the cancellation
// that the mean of squares has where the mean is large. The next kernel may start meanwhile.
//
// Needs: rows whose elements are neighbours; for pieces of 16 bytes, rows, weights and biases that start there, and a whole number of
// them a row.
// Traffic: x is read once and y written once.
// Floor at 1 row: 1.5 µs, of which 0.8 are memory and 0.1 each sum over a block's warps.

#include "row.cuh"

namespace {

template <typename SHAPE>
__device__ __forceinline__ void norm(const RowwiseArgs& args) {
    __shared__ float sums[2][SHAPE::WARPS];
    const rowwise::Place<SHAPE> place(args);
    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    if (place.row >= args.rows) return;   // whole warps, of kernels without barriers

    rowwise::Values<SHAPE> x, weight, bias;
    place.load(args.x, args.x_stride, 0.0f, x);
    place.load(args.weight, 0, 0.0f, weight);
    if (args.bias != nullptr) place.load(args.bias, 0, 0.0f, bias);

    const float count = static_cast<float>(args.width);
    if (args.centered) {
        const float mean = rowwise::over_row<rowwise::Sum, SHAPE>(rowwise::over_own<rowwise::Sum, SHAPE>(x), sums[0]) / count;
#pragma unroll
        for (int piece = 0; piece < SHAPE::PIECES; ++piece) {
            if (!place.inside(piece)) continue;
#pragma unroll
            for (float& value : x[piece]) value -= mean;
        }
    }
    rowwise::Values<SHAPE> squares;
#pragma unroll
    for (int piece = 0; piece < SHAPE::PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < SHAPE::WIDTH; ++i) squares[piece][i] = x[piece][i] * x[piece][i];
    const float variance =
        rowwise::over_row<rowwise::Sum, SHAPE>(rowwise::over_own<rowwise::Sum, SHAPE>(squares), sums[1]) / count;
    const float factor = 1.0f / sqrtf(variance + args.epsilon);
#pragma unroll
    for (int piece = 0; piece < SHAPE::PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < SHAPE::WIDTH; ++i) {
            const float scaled = x[piece][i] * factor;
            x[piece][i] = args.bias != nullptr ? fmaf(scaled, weight[piece][i], bias[piece][i]) : scaled * weight[piece][i];
        }
    place.store(args.y, args.y_stride, x);
}

}  // namespace

ROWWISE_SHAPES(norm, norm_f32, rowwise::Type::kF32)
ROWWISE_SHAPES(norm, norm_f16, rowwise::Type::kF16)
ROWWISE_SHAPES(norm, norm_bf16, rowwise::Type::kBF16)
