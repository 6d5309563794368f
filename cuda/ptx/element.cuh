// Numbers of each type as they lie in memory: read as FP32 and rounded when they are stored, one or some neighbours at a time.
#pragma once

#include "half.cuh"
#include "machine.cuh"

namespace element {

using ptx::Half;

enum class Type { kF32, kF16, kBF16 };

// 16-bit numbers.
template <Type TYPE>
struct Element {
    using Stored = uint16_t;
    static constexpr Half kHalf = TYPE == Type::kBF16 ? Half::kBF16 : Half::kF16;
    static constexpr int kVectorElements = kVectorBytes / sizeof(Stored);

    static __device__ __forceinline__ float load(const Stored* from) { return ptx::low_to_float<kHalf>(*from); }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[1]) {
        *to = static_cast<Stored>(ptx::round_pair<kHalf>(x[0], 0.0f));
    }
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
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[8]) {
        *reinterpret_cast<uint4*>(to) = make_uint4(ptx::round_pair<kHalf>(x[0], x[1]), ptx::round_pair<kHalf>(x[2], x[3]),
                                                   ptx::round_pair<kHalf>(x[4], x[5]), ptx::round_pair<kHalf>(x[6], x[7]));
    }
};

template <>
struct Element<Type::kF32> {
    using Stored = float;
    static constexpr int kVectorElements = kVectorBytes / sizeof(Stored);

    static __device__ __forceinline__ float load(const Stored* from) { return *from; }
    static __device__ __forceinline__ void store(Stored* to, const float (&x)[1]) { *to = x[0]; }
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

}  // namespace element
