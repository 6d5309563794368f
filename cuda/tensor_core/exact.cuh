// FP32 sums for the few elements where the tensor core's are no use: those that are not finite.
//
// Splitting or rounding an operand may turn Inf into Inf + NaN and a number near FLT_MAX into Inf, so a sum that saw one
// may be NaN, or Inf, where FP32 arithmetic says something else; but it is never finite. So what is finite is right, and
// the rest is computed again.
#pragma once

#include "../common/gemm_args.cuh"

namespace {

constexpr int kWarp = 32;

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

// Σ a(row, k)·b(k, col) over a range of k in FP32, by the 32 lanes of a warp together.
__device__ __forceinline__ float warp_dot(const GemmArgs& args, int batch, int row, int col, int k_begin, int k_end) {
    const float* a = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch) +
                     row * args.a.row_stride;
    const float* b = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch) +
                     col * args.b.col_stride;
    constexpr unsigned kAll = 0xFFFFFFFFu;
    float sum = 0.0f;
    for (int first = k_begin; first < k_end; first += kWarp) {
        const int k = first + threadIdx.x % kWarp;
        if (k < k_end) sum = fmaf(a[k * args.a.col_stride], b[k * args.b.row_stride], sum);
        if (__any_sync(kAll, isnan(sum))) break;   // NaN stays NaN
    }
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kAll, sum, distance);
    return sum;
}

}  // namespace
