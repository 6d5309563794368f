// An operand as the arguments describe it: how it lies, and guarded access to its elements. What lies outside the matrix reads as
// zero, so that a kernel may walk whole tiles over any m, n and k.
#pragma once

#include "../ptx/machine.cuh"
#include "gemm_args.cuh"

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

// One operand of one matrix: `rows` of it, each with k elements.
struct Source {
    const float* data;
    int64_t row_stride, k_stride;
    int rows;
    int run;   // where neighbours lead (0: nowhere), plus kVectors where four of them can be read at once

    static constexpr int kVectors = 1, kAlongK = 2, kAlongRows = 4;

    static __device__ __forceinline__ Source of_a(const GemmArgs& args, int batch) {
        const int run = args.a_access == kRowVector   ? kAlongK + kVectors
                        : args.a_access == kRowScalar ? kAlongK
                        : args.a_access == kColVector ? kAlongRows + kVectors
                        : args.a_access == kColScalar ? kAlongRows
                                                      : 0;
        return {static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch), args.a.row_stride,
                args.a.col_stride, args.m, run};
    }
    static __device__ __forceinline__ Source of_b(const GemmArgs& args, int batch) {
        const int run = args.b_access == kColVector   ? kAlongK + kVectors
                        : args.b_access == kColScalar ? kAlongK
                        : args.b_access == kRowVector ? kAlongRows + kVectors
                        : args.b_access == kRowScalar ? kAlongRows
                                                      : 0;
        return {static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch), args.b.col_stride,
                args.b.row_stride, args.n, run};
    }
    __device__ __forceinline__ bool along_k() const { return (run & kAlongK) != 0; }
    __device__ __forceinline__ bool along_rows() const { return (run & kAlongRows) != 0; }
    __device__ __forceinline__ bool vectors() const { return (run & kVectors) != 0; }
};

__device__ __forceinline__ float4 load_vector(const float* address) {
    return *reinterpret_cast<const float4*>(address);
}

// The same where four neighbours do not start on 16 bytes.
__device__ __forceinline__ float4 load_neighbours(const float* address) {
    return make_float4(address[0], address[1], address[2], address[3]);
}

// Up to four neighbours, `valid` of them inside the matrix (any number ≤ 0: none); zeros outside.
__device__ __forceinline__ float4 load_guarded(const float* address, int64_t stride, int valid) {
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (valid > 0) value.x = *address;
    if (valid > 1) value.y = address[stride];
    if (valid > 2) value.z = address[2 * stride];
    if (valid > 3) value.w = address[3 * stride];
    return value;
}
