// What production kernels do with an accumulator before they store it:
//
//   D ← activation(α·acc + β·C + bias) + residual
//
// The activations are candle's own functions (Tensor::relu, gelu, gelu_erf, silu, tanh and candle_nn::ops::sigmoid), in the
// form that takes the fewest instructions at the same accuracy: x/2·(1 + tanh u) is x/(1 + e^(−2u)). The quick division
// differs from the exact one by 2 ulp at most, and where its denominator exceeds 2^126 its result is 0 in place of a number
// below 2^-126 of x.
#pragma once

#include "tile.cuh"

__device__ __forceinline__ float activate(Activation activation, float x) {
    constexpr float kSqrtTwoOverPi = 0.79788456080286535588f;
    constexpr float kGeluCubic = 0.044715f;
    switch (activation) {
        case kRelu: return fmaxf(x, 0.0f);
        case kGeluTanh:
            return __fdividef(x, 1.0f + expf(-2.0f * kSqrtTwoOverPi * x * (1.0f + kGeluCubic * x * x)));
        case kGeluErf: return x * normcdff(x);   // x/2·(1 + erf(x/√2)) without the cancellation at negative x
        case kSilu: return __fdividef(x, 1.0f + expf(-x));
        case kTanh: return tanhf(x);
        case kSigmoid: return __fdividef(1.0f, 1.0f + expf(-x));
        default: return x;
    }
}

// The epilogue of one matrix of the batch. Build it once a tile, then store elements, in any order, from any thread.
struct Epilogue {
    const float* c;
    const float* residual;
    const float* bias;
    float* d;

    __device__ __forceinline__ Epilogue(const GemmArgs& args, int batch)
        : c(args.beta != 0.0f ? static_cast<const float*>(args.c.data) + batch_offset(args, args.c, batch) : nullptr),
          residual(args.residual.data != nullptr
                       ? static_cast<const float*>(args.residual.data) + batch_offset(args, args.residual, batch)
                       : nullptr),
          bias(static_cast<const float*>(args.bias)),
          d(static_cast<float*>(args.d.data) + batch_offset(args, args.d, batch)) {}

    // Whether four neighbours of the bias can be read at once.
    static __device__ __forceinline__ bool bias_vectors(const GemmArgs& args) {
        return args.bias_stride == 1 && reinterpret_cast<uintptr_t>(args.bias) % sizeof(float4) == 0;
    }

    // The value of D(row, col), which must lie inside the matrix.
    __device__ __forceinline__ float value(const GemmArgs& args, int row, int col, float acc) const {
        float x = args.alpha * acc;
        if (c != nullptr) x += args.beta * c[row * args.c.row_stride + col * args.c.col_stride];
        if (bias != nullptr) x += bias[col * args.bias_stride];
        x = activate(args.activation, x);
        if (residual != nullptr) x += residual[row * args.residual.row_stride + col * args.residual.col_stride];
        return x;
    }

    __device__ __forceinline__ void store(const GemmArgs& args, int row, int col, float acc) const {
        if (row < args.m && col < args.n) d[row * args.d.row_stride + col] = value(args, row, col, acc);
    }

    // Elements (row, col) to (row, col + 3), with 16-byte accesses where the plan found that they are allowed.
    // `col` is a multiple of 4.
    __device__ __forceinline__ void store_vector(const GemmArgs& args, int row, int col, float4 acc) const {
        if (args.d_access != kRowVector || row >= args.m || col + kVector > args.n) {
            store(args, row, col, acc.x);
            store(args, row, col + 1, acc.y);
            store(args, row, col + 2, acc.z);
            store(args, row, col + 3, acc.w);
            return;
        }
        float x[kVector] = {args.alpha * acc.x, args.alpha * acc.y, args.alpha * acc.z, args.alpha * acc.w};
        if (c != nullptr) {
            const float4 old = load_row_vector(args.c, args.c_access, c, row, col, args.m, args.n);
            x[0] += args.beta * old.x;
            x[1] += args.beta * old.y;
            x[2] += args.beta * old.z;
            x[3] += args.beta * old.w;
        }
        if (bias != nullptr && bias_vectors(args)) {
            const float4 add = __ldg(reinterpret_cast<const float4*>(bias + col));
            x[0] += add.x;
            x[1] += add.y;
            x[2] += add.z;
            x[3] += add.w;
        } else if (bias != nullptr) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) x[i] += bias[(col + i) * args.bias_stride];
        }
        if (args.activation != kIdentity) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) x[i] = activate(args.activation, x[i]);
        }
        if (residual != nullptr) {
            const float4 skip = load_row_vector(args.residual, static_cast<Access>(args.residual_access), residual, row,
                                                col, args.m, args.n);
            x[0] += skip.x;
            x[1] += skip.y;
            x[2] += skip.z;
            x[3] += skip.w;
        }
        *reinterpret_cast<float4*>(d + row * args.d.row_stride + col) = make_float4(x[0], x[1], x[2], x[3]);
    }
};
