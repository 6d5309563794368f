// Where a matrix of the batch lies for TMA.
#pragma once

#include "../abi/gemm_args.cuh"

// Coordinates of a matrix of the batch in an operand's tensor map, whose last three dimensions are args.batch_dims[3], [2]
// and [1]; a broadcast dimension has extent 1 there. args.batch_dims[0] is 1.
struct CopyCoordinates {
    int x = 0, y = 0, z = 0;

    __device__ __forceinline__ CopyCoordinates(const GemmArgs& args, const GemmOperand& operand, int batch) {
        if (args.batch == 1) return;
        const int rest = batch / args.batch_dims[3];
        if (operand.batch_stride[3] != 0) x = batch - rest * args.batch_dims[3];
        if (operand.batch_stride[2] != 0) y = rest % args.batch_dims[2];
        if (operand.batch_stride[1] != 0) z = rest / args.batch_dims[2];
    }
};
