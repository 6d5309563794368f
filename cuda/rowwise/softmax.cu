// The softmax of rows: y ← e^(x − m) / Σ e^(x − m), where m is the row's largest number.
//
// Scores of attention are the largest tensors of many models: 8 heads of 1500 × 1500 are 72 MB, read once and written once, 34 µs at
// the 4.2 TB/s of a copy on an H200. With the row in registers there is no second trip for the sum or for the division, and rows of
// a block's threads keep some 32 KB of a multiprocessor under way.
//
// The difference x − m comes before the factor log₂ e: its product then rounds a number that is small where e^(x − m) is not. A row
// that has −∞ alone, +∞ or NaN is NaN, as 0 / 0 and ∞ − ∞ are.
//
// Needs: as norm.cu.

#include "row.cuh"

namespace {

template <typename SHAPE>
__device__ __forceinline__ void softmax(const RowwiseArgs& args) {
    constexpr float kLog2E = 1.4426950408889634f;
    __shared__ float parts[2][SHAPE::WARPS];
    const rowwise::Place<SHAPE> place(args);
    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    if (place.row >= args.rows) return;   // whole warps, of kernels without barriers

    rowwise::Values<SHAPE> x;
    place.load(args.x, args.x_stride, -INFINITY, x);
    const float largest =
        rowwise::over_row<rowwise::Maximum, SHAPE>(rowwise::over_own<rowwise::Maximum, SHAPE>(x), parts[0]);
#pragma unroll
    for (int piece = 0; piece < SHAPE::PIECES; ++piece)
#pragma unroll
        for (float& value : x[piece]) value = ptx::exp2_approximate((value - largest) * kLog2E);
    const float sum = rowwise::over_row<rowwise::Sum, SHAPE>(rowwise::over_own<rowwise::Sum, SHAPE>(x), parts[1]);
    const float factor = 1.0f / sum;
#pragma unroll
    for (int piece = 0; piece < SHAPE::PIECES; ++piece)
#pragma unroll
        for (float& value : x[piece]) value *= factor;
    place.store(args.y, args.y_stride, x);
}

}  // namespace

ROWWISE_SHAPES(softmax, softmax_f32, rowwise::Type::kF32)
ROWWISE_SHAPES(softmax, softmax_f16, rowwise::Type::kF16)
ROWWISE_SHAPES(softmax, softmax_bf16, rowwise::Type::kBF16)
