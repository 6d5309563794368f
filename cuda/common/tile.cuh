// Guarded access to the elements of an operand: what lies outside the matrix reads as zero, so that a kernel may walk
// whole tiles over any m, n and k.
#pragma once

#include "gemm_args.cuh"

constexpr int kVector = 4;   // floats in a 16-byte access

// Element (row, col) of a rows × cols matrix that starts at `base`, or 0 outside it.
template <typename T = float>
__device__ __forceinline__ T load_or_zero(const GemmOperand& operand, const T* base, int row, int col, int rows,
                                          int cols) {
    if (row >= rows || col >= cols) return T(0);
    return base[row * operand.row_stride + col * operand.col_stride];
}

// Elements (row, col) to (row, col + 3): one 16-byte load where the plan found that rows allow it, four guarded loads
// where they don't or where the matrix ends. `col` is a multiple of 4.
__device__ __forceinline__ float4 load_row_vector(const GemmOperand& operand, Access access, const float* base, int row,
                                                  int col, int rows, int cols) {
    if (access == kRowVector && row < rows && col + kVector <= cols) {
        return *reinterpret_cast<const float4*>(base + row * operand.row_stride + col);
    }
    return make_float4(load_or_zero(operand, base, row, col, rows, cols),
                       load_or_zero(operand, base, row, col + 1, rows, cols),
                       load_or_zero(operand, base, row, col + 2, rows, cols),
                       load_or_zero(operand, base, row, col + 3, rows, cols));
}

// Elements (row, col) to (row + 3, col): the same along a column, for operands that are stored transposed.
__device__ __forceinline__ float4 load_col_vector(const GemmOperand& operand, Access access, const float* base, int row,
                                                  int col, int rows, int cols) {
    if (access == kColVector && row + kVector <= rows && col < cols) {
        return *reinterpret_cast<const float4*>(base + row + col * operand.col_stride);
    }
    return make_float4(load_or_zero(operand, base, row, col, rows, cols),
                       load_or_zero(operand, base, row + 1, col, rows, cols),
                       load_or_zero(operand, base, row + 2, col, rows, cols),
                       load_or_zero(operand, base, row + 3, col, rows, cols));
}

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

// D(row, col) ← α·acc + β·C(row, col), guarded. The ladder's whole epilogue; production kernels use epilogue.cuh.
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

// The same for (row, col) to (row, col + 3), with one 16-byte store where D's rows allow it. `col` is a multiple of 4.
__device__ __forceinline__ void store_scaled_vector(const GemmArgs& args, const BatchMember<float>& member, int row,
                                                    int col, float4 acc) {
    if (args.d_access == kRowVector && row < args.m && col + kVector <= args.n) {
        float4 value = make_float4(args.alpha * acc.x, args.alpha * acc.y, args.alpha * acc.z, args.alpha * acc.w);
        if (args.beta != 0.0f) {
            const float4 c = load_row_vector(args.c, args.c_access, member.c, row, col, args.m, args.n);
            value.x += args.beta * c.x;
            value.y += args.beta * c.y;
            value.z += args.beta * c.z;
            value.w += args.beta * c.w;
        }
        *reinterpret_cast<float4*>(member.d + row * args.d.row_stride + col) = value;
        return;
    }
    store_scaled(args, member, row, col, acc.x);
    store_scaled(args, member, row, col + 1, acc.y);
    store_scaled(args, member, row, col + 2, acc.z);
    store_scaled(args, member, row, col + 3, acc.w);
}
