// Split-K with a parallel reduction, second part: adds up the sums of the slices of k, and applies the epilogue.
//
// The kernel before this one has computed each slice of k as if it were a matrix of a batch (scheduler/slices.cuh), for which its tiles
// have as many blocks as there are slices. A cluster cuts k into 8 slices at most; a result of 128 × 128 that is the sum of 30 000
// products a place needs more to fill a GPU. What the slices take to write and read here stays in the L2.
//
//   workspace   [split_k][m][pitch] sums, pitch: n rounded up to vectors of four
//
// A thread has four neighbours of a row. Few outputs have few threads, which would read many slices one after the other: so up to
// kMostGroups groups of the threads of a block have the same outputs and a part of the slices each, in the order of k, all of which are
// under way at once. Then one group adds up the parts in their order: the same bits every time.
//
// The kernel behind this one may start when all blocks have ended, and not before: its first blocks would pile up on the multiprocessors
// that are free first. (On an H200, 45 µs for 2560 × 45 × 1267 in place of 20, launch after launch.)
//
// Launch. As many blocks as the outputs take, of kThreads threads. The arguments are those of the product but for split_k, which is the
// number of slices, and workspace.
#include "../epilogue/epilogue.cuh"
#include "../epilogue/half.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"

namespace add_slices {

constexpr int kThreads = 256;     // of a block
constexpr int kAhead = 8;         // slices that a thread has under way
constexpr int kMostGroups = 8;    // of threads that share the slices
static_assert(kThreads / kMostGroups % kWarp == 0, "the threads of a warp have the same slices");

// Groups of threads that share so many slices: each has no more than kAhead of them, if that many groups are enough. The plan counts
// blocks by the same rule (src/gemm/schedule/parallel.rs).
__device__ __forceinline__ int groups_of(int slices) {
    int groups = 1;
    while (groups < kMostGroups && slices > groups * kAhead) groups *= 2;
    return groups;
}

// Four sums of a row, of which those before `left` are there.
__device__ __forceinline__ float4 load_sums(const float* from, int left) {
    if (left >= kVector) return ptx::load_l2(reinterpret_cast<const float4*>(from));
    return make_float4(__ldcg(from), left > 1 ? __ldcg(from + 1) : 0.0f, left > 2 ? __ldcg(from + 2) : 0.0f, 0.0f);
}

template <typename EPILOGUE>
__device__ __forceinline__ void run(const GemmArgs& args) {
    __shared__ float4 parts[kThreads];
    const int slices = args.split_k, groups = groups_of(slices), vectors = kThreads / groups;   // of a block
    const int group = threadIdx.x / vectors, row_vectors = (args.n - 1) / kVector + 1;
    const int vector = blockIdx.x * vectors + threadIdx.x % vectors;
    const int row = vector / row_vectors, col = (vector - row * row_vectors) * kVector;
    const int64_t pitch = static_cast<int64_t>(row_vectors) * kVector, slice_stride = args.m * pitch;
    const int first = slices * group / groups, end = slices * (group + 1) / groups;
    const float* const from = static_cast<const float*>(args.workspace) + first * slice_stride + row * pitch + col;
    const bool inside = row < args.m;
    ptx::wait_for_previous_kernels();   // all before needs the arguments alone
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (inside) {
        sum = sum_of_slices<kAhead>(end - first, [&](int slice) { return load_sums(from + slice * slice_stride, args.n - col); });
    }
    if (groups > 1) {
        parts[threadIdx.x] = sum;
        __syncthreads();
        if (group > 0) return;
        for (int other = 1; other < groups; ++other) add(sum, parts[other * vectors + threadIdx.x]);
    }
    if (inside) EPILOGUE(args, 0).store_vector(args, row, col, sum);
}

}  // namespace add_slices

// NAME, the epilogue of products of such operands.
#define ADD_SLICES(NAME, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(add_slices::kThreads) NAME(const __grid_constant__ GemmArgs args) { \
        add_slices::run<__VA_ARGS__>(args);                                                                       \
    }

ADD_SLICES(add_slices_f32, Epilogue)
ADD_SLICES(add_slices_f16, HalfEpilogue<Half::kF16, false>)
ADD_SLICES(add_slices_bf16, HalfEpilogue<Half::kBF16, false>)
