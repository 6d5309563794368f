// What the attention kernels share: where a head begins, and the weights of a softmax.
//
// All arithmetic is FP32. A row's softmax is computed online: m is the largest score so far, a key's weight is e^(score − m), and
// where m grows, what was summed before is scaled by e^(old m − new m).
#pragma once

#include "../abi/attention_args.cuh"
#include "../ptx/element.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/machine.cuh"

namespace attention {

using element::Element;
using element::Type;

// The first element of a head.
template <typename STORED>
__device__ __forceinline__ STORED* head_of(const AttentionOperand& operand, int batch, int head) {
    return static_cast<STORED*>(operand.data) + batch * operand.batch_stride + head * operand.head_stride;
}

// ---- softmax -------------------------------------------------------------------------------------------------------

// What scores are compared with: the largest, or anything finite where all of them are −∞. Their weights are 0 then, and not −∞ − −∞.
__device__ __forceinline__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// e^(score − base). The difference comes first: the product with log₂ e then rounds a number that is small where the weight is not.
__device__ __forceinline__ float weight_of(float score, float base) {
    constexpr float kLog2E = 1.4426950408889634f;
    return ptx::exp2_approximate((score - base) * kLog2E);
}

}  // namespace attention
