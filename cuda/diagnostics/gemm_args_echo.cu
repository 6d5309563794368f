// Writes every field of its argument, in the order of the struct, as a double to args.d.data. A test gives each field
// another value and reads them back: the two sides of the kernel ABI agree on more than the size.
#include "../abi/gemm_args.cuh"

__device__ double* echo(double* out, const GemmOperand& operand) {
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(operand.data));
    *out++ = static_cast<double>(operand.row_stride);
    *out++ = static_cast<double>(operand.col_stride);
    for (int dim = 0; dim < kMaxBatchDims; ++dim) *out++ = static_cast<double>(operand.batch_stride[dim]);
    return out;
}

extern "C" __global__ void gemm_args_echo(const __grid_constant__ GemmArgs args) {
    double* out = static_cast<double*>(args.d.data);
    out = echo(out, args.a);
    out = echo(out, args.b);
    out = echo(out, args.c);
    out = echo(out, args.d);
    out = echo(out, args.residual);
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(args.bias));
    *out++ = static_cast<double>(args.bias_stride);
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(args.workspace));
    *out++ = static_cast<double>(args.epoch);
    *out++ = args.m;
    *out++ = args.n;
    *out++ = args.k;
    *out++ = args.batch;
    for (int dim = 0; dim < kMaxBatchDims; ++dim) *out++ = args.batch_dims[dim];
    *out++ = args.split_k;
    *out++ = args.k_slice;
    *out++ = args.whole_tiles;
    *out++ = args.stream_ranges;
    *out++ = args.group_m;
    *out++ = args.a_access;
    *out++ = args.b_access;
    *out++ = args.c_access;
    *out++ = args.d_access;
    *out++ = args.activation;
    *out++ = args.alpha;
    *out++ = args.beta;
    *out++ = args.residual_access;
    *out++ = args.combine;
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(args.alpha_at));
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(args.beta_at));
    *out++ = args.a_type;
    *out++ = args.b_type;
    *out++ = args.c_type;
    *out++ = args.d_type;
    *out++ = args.bias_type;
    *out++ = args.residual_type;
    *out++ = args.gated;
    *out++ = static_cast<double>(reinterpret_cast<uintptr_t>(args.norm));
    *out++ = args.norm_epsilon;
    *out++ = args.reserved;
}
