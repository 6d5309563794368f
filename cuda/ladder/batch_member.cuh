// The matrices that a block of the ladder works on, and the ladder's whole epilogue: α and β.
#pragma once

#include "../abi/gemm_args.cuh"

// The three matrices that a block of the ladder works on: one member of the batch.
template <typename T = float>
struct BatchMember {
    const T* a;
    const T* b;
    const T* c;
    T* d;

    __device__ __forceinline__ BatchMember(const GemmArgs& args, int batch)
        : a(static_cast<const T*>(args.a.data) + batch_offset(args, args.a, batch)),
          b(static_cast<const T*>(args.b.data) + batch_offset(args, args.b, batch)),
          c(static_cast<const T*>(args.c.data) + batch_offset(args, args.c, batch)),
          d(static_cast<T*>(args.d.data) + batch_offset(args, args.d, batch)) {}
};

// D(row, col) ← α·acc + β·C(row, col), guarded. Production kernels use epilogue/epilogue.cuh.
template <typename T = float>
__device__ __forceinline__ void store_scaled(const GemmArgs& args, const BatchMember<T>& member, int row, int col,
                                             T acc) {
    if (row >= args.m || col >= args.n) return;
    T value = T(args.alpha) * acc;
    if (args.beta != 0.0f) {
        value += T(args.beta) * member.c[row * args.c.row_stride + col * args.c.col_stride];
    }
    member.d[row * args.d.row_stride + col] = value;
}
