// What the attention kernels share: elements of each type, where a head begins, and the weights of a softmax.
//
// All arithmetic is FP32. A row's softmax is computed online: m is the largest score so far, a key's weight is e^(score − m), and
// where m grows, what was summed before is scaled by e^(old m − new m).
#pragma once

#include "../abi/attention_args.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"

namespace attention {

using ptx::Half;

enum class Type { kF32, kF16, kBF16 };

// ---- elements ------------------------------------------------------------------------------------------------------

// 16-bit numbers.
template <Type TYPE>
struct Element {
    using Stored = uint16_t;
    static constexpr Half kHalf = TYPE == Type::kBF16 ? Half::kBF16 : Half::kF16;
    static constexpr int kVectorElements = kVectorBytes / sizeof(Stored);

    static __device__ __forceinline__ float load(const Stored* from) { return ptx::low_to_float<kHalf>(*from); }
    static __device__ __forceinline__ void unpack(const uint4& from, float (&to)[kVectorElements]) {
        const uint32_t words[] = {from.x, from.y, from.z, from.w};
#pragma unroll
        for (int i = 0; i < kVectorElements / 2; ++i) {
            to[2 * i] = ptx::low_to_float<kHalf>(words[i]);
            to[2 * i + 1] = ptx::high_to_float<kHalf>(words[i]);
        }
    }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[2]) {
        *reinterpret_cast<uint32_t*>(to) = ptx::round_pair<kHalf>(x[0], x[1]);
    }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[4]) {
        *reinterpret_cast<uint2*>(to) = make_uint2(ptx::round_pair<kHalf>(x[0], x[1]), ptx::round_pair<kHalf>(x[2], x[3]));
    }
};

template <>
struct Element<Type::kF32> {
    using Stored = float;
    static constexpr int kVectorElements = kVectorBytes / sizeof(Stored);

    static __device__ __forceinline__ float load(const Stored* from) { return *from; }
    static __device__ __forceinline__ void unpack(const uint4& from, float (&to)[kVectorElements]) {
        to[0] = __uint_as_float(from.x);
        to[1] = __uint_as_float(from.y);
        to[2] = __uint_as_float(from.z);
        to[3] = __uint_as_float(from.w);
    }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[2]) {
        *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
    }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[4]) {
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    }
};

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
