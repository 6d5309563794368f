// Strict FP32 GEMM, any layout, stride, alignment, batch and tail, whole epilogue: the last rung of the ladder made fit for
// use.
//
// The main loop is that of rung 14: panels come by asynchronous copies, several steps ahead, and a thread multiplies TM × TN
// outputs out of shared memory. Around it:
//   - units of work (tiles, or slices of k of a tile) are counted in bands of tile rows, so that blocks that run together
//     share A and B in the L2;
//   - where there are fewer tiles than multiprocessors, a cluster of split_k blocks (2, 4 or 8; compute capability 9.0 and
//     newer) cuts k. Its blocks leave their sums in shared memory, and each adds up and stores its share of the tile,
//     always in the order of k: no workspace, no second launch, the same bits every time;
//   - bias, activation and residual are applied to the sums before they are stored.
//
// Traffic and arithmetic per load are those of rung 14 for the same tile.
#include "../common/async_pipeline.cuh"
#include "ffma_tile.cuh"

namespace ffma_gemm {

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct Pipelined {
    using Pipeline = AsyncPipeline<BM, BN, BK, WM, WN, TM, TN, STAGES>;
    using Thread = typename Pipeline::Thread;
    static constexpr int kThreads = Pipeline::kThreads;
    static constexpr int kRowVectors = TN / kVec;              // 16-byte pieces of a thread's row
    static constexpr int kVectors = TM * kRowVectors;          // and of all its outputs

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        auto& shared = *reinterpret_cast<typename Pipeline::Shared*>(dynamic_shared);
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        const float* a_data = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, work.batch);
        const float* b_data = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, work.batch);
        auto a = Pipeline::PanelA::of_a(args, a_data + work.k_begin * args.a.col_stride, work.row);
        auto b = Pipeline::PanelB::of_b(args, b_data + work.k_begin * args.b.row_stride, work.col);
        Thread acc = {};
        Pipeline::accumulate(acc, shared, a, b, work.k_end - work.k_begin);
        const Epilogue epilogue(args, work.batch);
        const int row = work.row + Pipeline::thread_row(), col = work.col + Pipeline::thread_col();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
            reduce_and_store(args, epilogue, acc, reinterpret_cast<float4*>(dynamic_shared), work.slice, row, col);
            return;
        }
#endif
        store(args, epilogue, acc, row, col);
    }

    // A bare α·acc goes out in straight-line code. Anything more takes one row of the thread tile at a time, the rest
    // moving up: the code of the epilogue is large, and there is one copy of it for TN outputs instead of TM·TN.
    static __device__ __forceinline__ void store(const GemmArgs& args, const Epilogue& epilogue, Thread& acc, int row,
                                                 int col) {
        const bool bare = args.beta == 0.0f && args.bias == nullptr && args.residual.data == nullptr &&
                          args.activation == kIdentity && args.d_access == kRowVector;
        if (bare && col + Thread::col_of(TN - 1) < args.n) {
            float* line = epilogue.d + row * args.d.row_stride + col;
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (row + Thread::row_of(i) < args.m) {
#pragma unroll
                    for (int j = 0; j < TN; j += kVec)
                        *reinterpret_cast<float4*>(line + Thread::row_of(i) * args.d.row_stride + Thread::col_of(j)) =
                            make_float4(args.alpha * acc.sum[i][j], args.alpha * acc.sum[i][j + 1],
                                        args.alpha * acc.sum[i][j + 2], args.alpha * acc.sum[i][j + 3]);
                }
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < TM; ++i) {
            const int first_col = ptx::recompute(col);
#pragma unroll
            for (int j = 0; j < TN; j += kVec)
                epilogue.store_vector(args, row + Thread::row_of(i), first_col + Thread::col_of(j),
                                      make_float4(acc.sum[0][j], acc.sum[0][j + 1], acc.sum[0][j + 2], acc.sum[0][j + 3]));
#pragma unroll
            for (int to = 0; to + 1 < TM; ++to)
#pragma unroll
                for (int j = 0; j < TN; ++j) acc.sum[to][j] = acc.sum[to + 1][j];
        }
    }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    // Piece v of a thread's outputs lies at [v][thread] in its block's shared memory; block r of the cluster adds up and
    // stores pieces r, r + split_k and so on.
    static __device__ __forceinline__ void reduce_and_store(const GemmArgs& args, const Epilogue& epilogue, const Thread& acc,
                                                            float4* sums, int slice, int row, int col) {
        __syncthreads();   // nobody reads the ring any more
        float4* mine = sums + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; j += kVec)
                mine[(i * kRowVectors + j / kVec) * kThreads] =
                    make_float4(acc.sum[i][j], acc.sum[i][j + 1], acc.sum[i][j + 2], acc.sum[i][j + 3]);
        ptx::cluster_sync();
#pragma unroll 1
        for (int v = slice; v < kVectors; v += args.split_k) {
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
            for (int from = 0; from < args.split_k; ++from) {
                const float4 part = ptx::load_cluster_vector(ptx::cluster_address(mine + v * kThreads, from));
                total.x += part.x;
                total.y += part.y;
                total.z += part.z;
                total.w += part.w;
            }
            epilogue.store_vector(args, row + Thread::row_of(v / kRowVectors), col + Thread::col_of(v % kRowVectors * kVec),
                                  total);
        }
        ptx::cluster_sync();   // no block leaves while another reads its sums
    }
#endif
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, then the tile: BM, BN, BK, WM, WN, TM, TN, STAGES.
#define FFMA_PIPELINED(NAME, BLOCKS, ...)                                                                          \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Pipelined<__VA_ARGS__>::kThreads), BLOCKS)            \
        NAME(const __grid_constant__ GemmArgs args) {                                                              \
        ffma_gemm::Pipelined<__VA_ARGS__>::run(args);                                                              \
    }

FFMA_PIPELINED(ffma_pipelined_128x256, 1, 128, 256, 16, 32, 128, 8, 16, 3)
FFMA_PIPELINED(ffma_pipelined_128x128, 2, 128, 128, 16, 32, 128, 8, 16, 3)
FFMA_PIPELINED(ffma_pipelined_64x128, 3, 64, 128, 16, 32, 64, 8, 8, 3)
FFMA_PIPELINED(ffma_pipelined_64x64, 4, 64, 64, 16, 32, 32, 8, 4, 4)
FFMA_PIPELINED(ffma_pipelined_32x128, 4, 32, 128, 16, 32, 32, 8, 4, 4)
FFMA_PIPELINED(ffma_pipelined_32x64, 6, 32, 64, 16, 16, 64, 4, 8, 4)
FFMA_PIPELINED(ffma_pipelined_32x32, 6, 32, 32, 32, 16, 32, 4, 4, 4)
