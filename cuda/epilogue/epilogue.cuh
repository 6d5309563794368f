// What production kernels do with an accumulator before they store it:
//
//   D ← activation(α·acc + β·C + bias) + residual        or times the residual
#pragma once

#include "../abi/operand.cuh"
#include "activation.cuh"
#include "scalars.cuh"

constexpr int kNoLane = -1;

// A lane that need not know where its neighbours in a row of D are.
struct Alone {
    static constexpr bool kBeside = false;
};

// The epilogue of one matrix of the batch. Build it once a tile, then store elements, in any order, from any thread.
struct Epilogue {
    Scalars scalars;
    const float* c;
    const float* residual;
    const float* bias;
    float* d;

    __device__ __forceinline__ Epilogue(const GemmArgs& args, int batch)
        : scalars(args),
          c(scalars.beta != 0.0f ? static_cast<const float*>(args.c.data) + batch_offset(args, args.c, batch) : nullptr),
          residual(args.residual.data != nullptr
                       ? static_cast<const float*>(args.residual.data) + batch_offset(args, args.residual, batch)
                       : nullptr),
          bias(static_cast<const float*>(args.bias)),
          d(static_cast<float*>(args.d.data) + batch_offset(args, args.d, batch)) {}

    // What the residual makes of the activation's result.
    static __device__ __forceinline__ float combine(const GemmArgs& args, float x, float residual) {
        return args.combine == kMultiply ? x * residual : x + residual;
    }

    // Element (row, col), if it lies inside the matrix.
    __device__ __forceinline__ void store(const GemmArgs& args, int row, int col, float acc) const {
        store_with(args, row, col, acc, [&] { return c_at(args, row, col); }, [&] { return bias_at(args, col); },
                   [&] { return residual_at(args, row, col); });
    }

    // Columns `col`, which is even, and the next one, both inside the matrix, as one element: where columns are gated.
    __device__ __forceinline__ void store_gated(const GemmArgs& args, int row, int col, float gate, float up) const {
        float x[1] = {scalars.scale(gate)};
        float by = scalars.scale(up);
        if (bias != nullptr) x[0] += bias_at(args, col), by += bias_at(args, col + 1);
        activate(args.activation, x);
        d[row * args.d.row_stride + col / 2] = x[0] * by;
    }

    // What an element has beside its product: a kernel that fetches it together with its operands waits for memory once.
    struct Beside {
        float c, bias, residual;
    };
    __device__ __forceinline__ Beside fetch(const GemmArgs& args, int row, int col) const {
        Beside beside = {};
        if (row >= args.m || col >= args.n) return beside;
        if (c != nullptr) beside.c = c_at(args, row, col);
        if (bias != nullptr) beside.bias = bias_at(args, col);
        if (residual != nullptr) beside.residual = residual_at(args, row, col);
        return beside;
    }
    __device__ __forceinline__ void store(const GemmArgs& args, int row, int col, float acc, const Beside& beside) const {
        store_with(args, row, col, acc, [&] { return beside.c; }, [&] { return beside.bias; }, [&] { return beside.residual; });
    }

    // Columns `col` to `col + 3` of ROWS rows from `row` on, with 16-byte accesses where the plan found that they are
    // allowed. `col` is a multiple of 4. LANES tells which lane has the next four columns: then whole warps come here.
    template <typename LANES = Alone, int ROWS>
    __device__ __forceinline__ void store_rows(const GemmArgs& args, int row, int col, const float4 (&acc)[ROWS]) const {
        float x[ROWS * kVector];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            x[r * kVector] = scalars.scale(acc[r].x);
            x[r * kVector + 1] = scalars.scale(acc[r].y);
            x[r * kVector + 2] = scalars.scale(acc[r].z);
            x[r * kVector + 3] = scalars.scale(acc[r].w);
        }
        if (c != nullptr) {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float4 old = load_row_vector(args.c, args.c_access, c, row + r, col, args.m, args.n);
                x[r * kVector] += scalars.beta * old.x;
                x[r * kVector + 1] += scalars.beta * old.y;
                x[r * kVector + 2] += scalars.beta * old.z;
                x[r * kVector + 3] += scalars.beta * old.w;
            }
        }
        if (bias != nullptr) {
            const float4 add = bias_vector(args, col);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                x[r * kVector] += add.x;
                x[r * kVector + 1] += add.y;
                x[r * kVector + 2] += add.z;
                x[r * kVector + 3] += add.w;
            }
        }
        activate_in_turn(args.activation, x);
        if (residual != nullptr) {
            const Access access = static_cast<Access>(args.residual_access);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float4 skip = load_row_vector(args.residual, access, residual, row + r, col, args.m, args.n);
                x[r * kVector] = combine(args, x[r * kVector], skip.x);
                x[r * kVector + 1] = combine(args, x[r * kVector + 1], skip.y);
                x[r * kVector + 2] = combine(args, x[r * kVector + 2], skip.z);
                x[r * kVector + 3] = combine(args, x[r * kVector + 3], skip.w);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if constexpr (LANES::kBeside) {
                if (args.d_access != kRowVector) {
                    const float now[] = {x[r * kVector], x[r * kVector + 1], x[r * kVector + 2], x[r * kVector + 3]};
                    store_shifted<LANES>(args, row + r, col, now);
                    continue;
                }
            }
            if (row + r >= args.m) return;
            float* const line = d + (row + r) * args.d.row_stride + col;
            if (args.d_access == kRowVector && col + kVector <= args.n) {
                *reinterpret_cast<float4*>(line) =
                    make_float4(x[r * kVector], x[r * kVector + 1], x[r * kVector + 2], x[r * kVector + 3]);
            } else {
#pragma unroll
                for (int i = 0; i < kVector; ++i) {
                    if (col + i < args.n) line[i] = x[r * kVector + i];
                }
            }
        }
    }

    // One row of it.
    template <typename LANES = Alone>
    __device__ __forceinline__ void store_vector(const GemmArgs& args, int row, int col, float4 acc) const {
        const float4 rows[1] = {acc};
        store_rows<LANES>(args, row, col, rows);
    }

private:
    __device__ __forceinline__ float c_at(const GemmArgs& args, int row, int col) const {
        return c[row * args.c.row_stride + col * args.c.col_stride];
    }
    __device__ __forceinline__ float bias_at(const GemmArgs& args, int col) const { return bias[col * args.bias_stride]; }
    __device__ __forceinline__ float residual_at(const GemmArgs& args, int row, int col) const {
        return residual[row * args.residual.row_stride + col * args.residual.col_stride];
    }

    // Element (row, col) with what these functions return, each called where there is such an operand.
    template <typename C, typename BIAS, typename RESIDUAL>
    __device__ __forceinline__ void store_with(const GemmArgs& args, int row, int col, float acc, const C& c_of,
                                               const BIAS& bias_of, const RESIDUAL& residual_of) const {
        if (row >= args.m || col >= args.n) return;
        float x[1] = {scalars.scale(acc)};
        if (c != nullptr) x[0] += scalars.beta * c_of();
        if (bias != nullptr) x[0] += bias_of();
        activate(args.activation, x);
        if (residual != nullptr) x[0] = combine(args, x[0], residual_of());
        d[row * args.d.row_stride + col] = x[0];
    }

    // Four columns of a row that begins anywhere. Single elements would go to the L2 in parts of sectors, at a quarter of the
    // speed. So a lane hands those before its first multiple of 16 bytes to the lane before it and takes as many from the one
    // after it. The first lane of a row keeps its own, the last has nobody to take from. All lanes of the warp come here.
    template <typename LANES>
    __device__ __forceinline__ void store_shifted(const GemmArgs& args, int row, int col, const float (&x)[kVector]) const {
        const int lane = threadIdx.x % kWarp, next = LANES::next(lane);
        float* const line = d + row * args.d.row_stride + col;
        const int head = -static_cast<int>(reinterpret_cast<uintptr_t>(line) / sizeof(float)) & (kVector - 1);
        float run[2 * kVector - 1] = {x[0], x[1], x[2], x[3]};
#pragma unroll
        for (int i = 0; i < kVector - 1; ++i)
            run[kVector + i] = __shfl_sync(kWholeWarp, x[i], next == kNoLane ? lane : next);
#pragma unroll
        for (int bit = 1; bit < kVector; bit *= 2) {   // run[i] becomes what run[i + head] was
#pragma unroll
            for (int i = 0; i + bit < 2 * kVector - 1; ++i) run[i] = (head & bit) != 0 ? run[i + bit] : run[i];
        }
        if (row >= args.m) return;
        if (LANES::is_first(lane)) {
#pragma unroll
            for (int i = 0; i < kVector - 1; ++i) {
                if (i < head && col + i < args.n) line[i] = x[i];
            }
        }
        const int count = next == kNoLane ? kVector - head : kVector;
        if (count == kVector && col + head + kVector <= args.n) {
            *reinterpret_cast<float4*>(line + head) = make_float4(run[0], run[1], run[2], run[3]);
        } else {
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                if (i < count && col + head + i < args.n) line[head + i] = run[i];
            }
        }
    }

    // Four neighbours of the bias, 0 where there are no columns.
    __device__ __forceinline__ float4 bias_vector(const GemmArgs& args, int col) const {
        const bool aligned = args.bias_stride == 1 && reinterpret_cast<uintptr_t>(args.bias) % sizeof(float4) == 0;
        if (aligned && col + kVector <= args.n) return *reinterpret_cast<const float4*>(bias + col);
        float x[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) x[i] = col + i < args.n ? bias[(col + i) * args.bias_stride] : 0.0f;
        return make_float4(x[0], x[1], x[2], x[3]);
    }
};
