// Where a matrix of the batch lies for TMA.
#pragma once

#include "../abi/gemm_args.cuh"

// Coordinates of a matrix of the batch in an operand's tensor map, whose last three dimensions are args.batch_dims[3], [2] and [1]
// (args.batch_dims[0] is 1); a broadcast dimension has extent 1 there.
struct BatchCoordinates {
    int x, y, z;

    __device__ __forceinline__ BatchCoordinates(const GemmArgs& args, const GemmOperand& operand, int batch)
        : x(0), y(0), z(0) {
        if (args.batch == 1) return;   // divisions would stand before a block's first request
        x = batch % args.batch_dims[3];
        batch /= args.batch_dims[3];
        y = batch % args.batch_dims[2];
        z = batch / args.batch_dims[2];
        if (operand.batch_stride[3] == 0) x = 0;
        if (operand.batch_stride[2] == 0) y = 0;
        if (operand.batch_stride[1] == 0) z = 0;
    }
};
