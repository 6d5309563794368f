// Activations: candle's own functions (Tensor::relu, gelu, gelu_erf, silu, tanh and candle_nn::ops::sigmoid), in the form that
// takes the fewest instructions at the same accuracy: x/2·(1 + tanh u) is x·sigmoid(2u), without its cancellation where u is
// negative.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/execution.cuh"

// 1/(1 + e^(−t)): q = e^(−|t|)/(1 + e^(−|t|)) where t is negative, 1 − q where it is not. Nothing overflows, for the denominator is
// between 1 and 2; results below 2^-126 are as good as FP32 has them; and near 1 only the subtraction rounds, where 1 + e^(−t)
// would have lost the end of the exponential. The remainder of the quick quotient rounds it like an exact one's.
__device__ __forceinline__ float sigmoid(float t) {
    const float e = expf(-fabsf(t));
    const float denominator = 1.0f + e;
    const float reciprocal = ptx::reciprocal(denominator);
    const float quotient = e * reciprocal;
    const float q = fmaf(fmaf(-quotient, denominator, e), reciprocal, quotient);
    return t < 0.0f ? q : 1.0f - q;
}

template <Activation ACTIVATION>
__device__ __forceinline__ float activated(float x) {
    constexpr float kSqrtTwoOverPi = 0.79788456080286535588f;
    constexpr float kGeluCubic = 0.044715f;
    if constexpr (ACTIVATION == kRelu) return fmaxf(x, 0.0f);
    if constexpr (ACTIVATION == kGeluTanh)
        return x * sigmoid(2.0f * kSqrtTwoOverPi * x * (1.0f + kGeluCubic * x * x));
    if constexpr (ACTIVATION == kGeluErf) return x * normcdff(x);   // x/2·(1 + erf(x/√2)), no cancellation at negative x
    if constexpr (ACTIVATION == kSilu) return x * sigmoid(x);
    if constexpr (ACTIVATION == kTanh) return tanhf(x);
    if constexpr (ACTIVATION == kSigmoid) return sigmoid(x);
    return x;
}

template <Activation ACTIVATION, int COUNT>
__device__ __forceinline__ void activate(float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = activated<ACTIVATION>(x[i]);
}

// One jump for all the values, which overlap each other's latencies.
template <int COUNT>
__device__ __forceinline__ void activate(Activation activation, float (&x)[COUNT]) {
    switch (activation) {
        case kRelu: return activate<kRelu>(x);
        case kGeluTanh: return activate<kGeluTanh>(x);
        case kGeluErf: return activate<kGeluErf>(x);
        case kSilu: return activate<kSilu>(x);
        case kTanh: return activate<kTanh>(x);
        case kSigmoid: return activate<kSigmoid>(x);
        default: return;
    }
}

// The same of many values. The activations are long code, of which the instruction cache should find few copies: the values
// pass by it like a drum, AT_ONCE at a time.
template <int AT_ONCE = 4, int COUNT>
__device__ __forceinline__ void activate_in_turn(Activation activation, float (&x)[COUNT]) {
    static_assert(COUNT % AT_ONCE == 0, "every turn of the drum takes as many values");
    if (activation == kRelu) {   // one instruction each
        activate<kRelu>(x);
    } else if (activation != kIdentity) {
#pragma unroll 1
        for (int turn = 0; turn < COUNT; turn += AT_ONCE) {
            float now[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) now[i] = x[i];
            activate(activation, now);
#pragma unroll
            for (int i = 0; i + AT_ONCE < COUNT; ++i) x[i] = x[i + AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) x[COUNT - AT_ONCE + i] = now[i];
        }
    }
}
