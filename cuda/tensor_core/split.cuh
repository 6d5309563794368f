// FP32 as a sum of two TF32 numbers, head + tail. TF32 has FP32's exponent and 10 stored bits of mantissa; the tensor
// core ignores the low 13 bits of an operand's word.
#pragma once

#include <cstdint>

namespace {

constexpr uint32_t kHeadMask = 0xFFFFE000u;   // sign, exponent and the 10 stored bits of TF32
constexpr uint32_t kHalfUnit = 0x1000u;       // half of TF32's last bit: adding it rounds a later truncation

// In sums of fewer products than this the representation of the operands is most of the error, and they take the product
// of the tails too. Longer sums err more by adding up.
constexpr int kShortSum = 384;

// x = truncated head + tail; the head is what wgmma reads of x itself, the tail is rounded to TF32.
__device__ __forceinline__ float tail_of_truncated(float x) {
    const float head = __uint_as_float(__float_as_uint(x) & kHeadMask);
    return __uint_as_float(__float_as_uint(x - head) + kHalfUnit);
}

// x = rounded head + tail. A rounded head leaves a tail of either sign with one bit less, which halves the error. NaN's
// head may become a number; the tail keeps it NaN.
__device__ __forceinline__ void split_rounded(float x, uint32_t& head, float& tail) {
    head = (__float_as_uint(x) + kHalfUnit) & kHeadMask;
    tail = x - __uint_as_float(head);
}

// Rounds a tail, nearly: adds a third to two thirds of TF32's last bit before the tensor core truncates. An addition to
// the bits would be exact, but turns the usual NaN, 7fffffff, into a number.
__device__ __forceinline__ float nearly_rounded(float tail) {
    constexpr float kRoundUp = 1.0f + 0.66666667f / 2048.0f;
    return tail * kRoundUp;
}

// The word from which the tensor core truncates x to the nearest TF32.
__device__ __forceinline__ uint32_t rounded_word(float x) {
    const uint32_t word = __float_as_uint(x);
    return isnan(x) ? word : word + kHalfUnit;   // 7fffffff would become a number
}

// x = truncated head + rounded tail: for NaN the head is NaN, or Inf.
__device__ __forceinline__ void split_truncated(float x, uint32_t& head, uint32_t& tail) {
    head = __float_as_uint(x);
    tail = __float_as_uint(tail_of_truncated(x));
}

}  // namespace
