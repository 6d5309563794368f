// The one argument that every GEMM kernel of this crate takes, by value.
//
//   D ← activation(α·A·B + β·C + bias) + residual        for each matrix of the batch
//
// or, where `combine` says so, times the residual. Kernels that can may do two things more. With a norm, a row of A counts as
//
//   (a ∘ norm) / √(mean of a² + norm_epsilon)
//
// With gated columns those of A·B come in pairs, and D has one for each: the activation of the first times the second, with bias and
// α in both, and no C and no residual.
//
// Row-major, as candle is, but every operand has a row and a column stride, so a transposed, padded, narrowed or
// broadcast operand is the same kernel with other numbers. Strides count elements, not bytes; all are 64-bit, so an
// operand may be longer than 2^31 elements. `src/gemm/launch/args.rs` is the mirror of this file on the Rust side: the
// assertions below and the ones there fail to compile when the two drift apart.
#pragma once

#include <cstddef>
#include <cstdint>

// Batch dimensions of one launch, after the plan has merged those that can be walked with one stride.
constexpr int kMaxBatchDims = 4;

// Sizes are at most kMaxSize, so that what a kernel counts with may go kMaxOvershoot beyond the end of m, n, k or the batch and
// is still an int: steps of k, rows and columns of the last tile, and the next matrix of a block, which is up to kMaxGridZ
// further. src/gemm/problem.rs has both numbers.
constexpr int kMaxOvershoot = 65535;
constexpr int kMaxSize = INT32_MAX - kMaxOvershoot;

// How the 2D part of an operand may be read or written, found out by the plan from strides and alignment.
enum Access : uint8_t {
    kStrided = 0,     // any strides: one element at a time
    kRowScalar = 1,   // unit column stride, but rows do not all start on 16 bytes
    kColScalar = 2,   // unit row stride (stored transposed), columns do not all start on 16 bytes
    kRowVector = 3,   // unit column stride, every row of every matrix of the batch starts on 16 bytes
    kColVector = 4,   // unit row stride, every column of every matrix of the batch starts on 16 bytes
};

// What happens to α·acc + β·C + bias before it is stored. The numbers are the ABI: src/gemm/problem.rs has them too.
enum Activation : uint32_t {
    kIdentity = 0,
    kRelu = 1,
    kGeluTanh = 2,   // candle's Tensor::gelu
    kGeluErf = 3,    // candle's Tensor::gelu_erf
    kSilu = 4,
    kTanh = 5,
    kSigmoid = 6,
};

// What becomes of the activation's result and the residual. The numbers are the ABI: src/gemm/problem.rs has them too.
enum Combine : uint16_t {
    kAdd = 0,
    kMultiply = 1,
};

// What an element of an operand is. The numbers are the ABI: src/gemm/operands.rs has them too.
enum ElementType : uint8_t {
    kF32 = 0,
    kF64 = 1,
    kF16 = 2,
    kBF16 = 3,
};

struct GemmOperand {
    void* data;                             // device address of the element (0, 0) of the first matrix
    int64_t row_stride;                     // elements between (i, j) and (i + 1, j)
    int64_t col_stride;                     // elements between (i, j) and (i, j + 1)
    int64_t batch_stride[kMaxBatchDims];    // elements between neighbours in each batch dimension; 0 broadcasts
};

struct GemmArgs {
    GemmOperand a;          // m × k
    GemmOperand b;          // k × n
    GemmOperand c;          // m × n, read only where beta != 0 (so a NaN in an unused C stays out)
    GemmOperand d;          // m × n, or m × n/2 where columns are gated; written; its column stride is 1
    GemmOperand residual;   // m × n, added after the activation, or multiplied with it; data == nullptr: none
    const void* bias;       // n elements, one a column; nullptr: none
    int64_t bias_stride;    // elements between neighbours of bias
    void* workspace;        // scratch memory, its contents arbitrary; nullptr where the plan asked for none
    uint64_t epoch;         // a multiple of 4 that no other launch has; see scheduler/stream_k.cuh
    int32_t m, n, k;        // each ≥ 1 and ≤ kMaxSize, as is the batch
    int32_t batch;          // the product of batch_dims: matrices in this launch
    int32_t batch_dims[kMaxBatchDims];   // outermost first, 1 where unused
    int32_t split_k;        // slices of k, ≥ 1
    int32_t k_slice;        // length of a slice: a multiple of the kernel's BK unless split_k is 1
    int32_t whole_tiles;    // stream-K: tiles that one block computes alone, in whole waves
    int32_t stream_ranges;  // ranges of equal length into which the k of all other tiles is cut; 0: no stream-K
    int32_t group_m;        // block order: this many rows of tiles are walked together, to share B in the L2
    Access a_access, b_access, c_access, d_access;
    Activation activation;
    float alpha, beta;
    uint16_t residual_access;   // an Access
    Combine combine;
    const float* alpha_at;   // where α lies in device memory, to be read by the kernel; nullptr: `alpha` counts
    const float* beta_at;    // likewise, β
    ElementType a_type, b_type, c_type, d_type, bias_type, residual_type;   // those of A and B are the same
    uint16_t gated;            // 1: columns come in pairs; n is even
    const void* norm;          // k elements of A's type from a multiple of 16 bytes on; nullptr: rows of A count as they are
    float norm_epsilon;
    uint32_t reserved;
};

static_assert(sizeof(GemmOperand) == 56, "src/gemm/launch/args.rs mirrors this layout");
static_assert(sizeof(GemmArgs) == 424, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, bias) == 280, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, m) == 312, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, batch_dims) == 328, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, split_k) == 344, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, a_access) == 364, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, activation) == 368, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, residual_access) == 380, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, alpha_at) == 384, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, a_type) == 400, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, gated) == 406, "src/gemm/launch/args.rs mirrors this layout");
static_assert(offsetof(GemmArgs, norm) == 408, "src/gemm/launch/args.rs mirrors this layout");

// Elements from the first matrix of an operand to the `batch`-th one (row-major over batch_dims).
__device__ __forceinline__ int64_t batch_offset(const GemmArgs& args, const GemmOperand& operand, int batch) {
    int64_t offset = 0;
#pragma unroll
    for (int dim = kMaxBatchDims - 1; dim >= 0; --dim) {
        const int extent = args.batch_dims[dim];
        if (extent > 1) {
            offset += static_cast<int64_t>(batch % extent) * operand.batch_stride[dim];
            batch /= extent;
        }
    }
    return offset;
}
