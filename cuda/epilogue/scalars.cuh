// The factors of the product and of C.
#pragma once

#include "../abi/gemm_args.cuh"

// α and β, by value or, where a caller of cuBLAS keeps them there, from device memory.
struct Scalars {
    float alpha, beta;
    bool without_product;   // α in memory is 0, and then a NaN or an infinity in A or B counts for nothing

    __device__ __forceinline__ explicit Scalars(const GemmArgs& args)
        : alpha(args.alpha_at != nullptr ? *args.alpha_at : args.alpha),
          beta(args.beta_at != nullptr ? *args.beta_at : args.beta),
          without_product(args.alpha_at != nullptr && alpha == 0.0f) {}

    __device__ __forceinline__ float scale(float acc) const { return without_product ? 0.0f : alpha * acc; }

    template <int COUNT>
    __device__ __forceinline__ void scale_all(float (&x)[COUNT]) const {
        if (alpha == 1.0f && !without_product) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = scale(x[i]);
    }
};
