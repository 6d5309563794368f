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
#include "../epilogue/epilogue.cuh"
#include "../pipeline/async_pipeline.cuh"
#include "../ptx/cluster.cuh"
#include "../scheduler/tiles.cuh"
#include "thread_tile.cuh"

namespace ffma_gemm {

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct Pipelined {
    using Pipeline = AsyncPipeline<BM, BN, BK, WM, WN, TM, TN, STAGES, Walk::kShortSide>;
    using Thread = typename Pipeline::Thread;
    static constexpr int kThreads = Pipeline::kThreads;
    static constexpr int kQuads = TM * TN / kVector;              // 16-byte vectors of a thread's outputs
    static constexpr bool kDown = TM < TN;                     // the outer product goes down columns, or along rows
    static constexpr int kRingBytes = sizeof(typename Pipeline::Shared), kResultBytes = kQuads * kThreads * sizeof(float4);
    static constexpr int kSharedBytes = kRingBytes > kResultBytes ? kRingBytes : kResultBytes;   // one after the other
    static constexpr int kPieceQuads = kDown ? kVector : 1;       // quads that make up whole 16-byte pieces of rows
    static_assert((kDown ? TM : TN) % kVector == 0, "quads lie within a thread's outputs");

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
        store(args, acc, reinterpret_cast<float4*>(dynamic_shared) + threadIdx.x, work,
              work.row + Pipeline::thread_row(), work.col + Pipeline::thread_col());
    }

    // Quad v of a thread's outputs: four neighbours in the direction of the outer product, in swapped pairs. The swap
    // makes the compiler give accumulators the registers of the other bank than the operands that they meet:
    // ThreadTile::quad() in thread_tile.cuh has the reason.
    static __device__ __forceinline__ float4 quad(const Thread& acc, int v) {
        if (kDown) {
            const int i = v / TN * kVector, j = v % TN;
            return make_float4(acc.sum[i + 1][j], acc.sum[i][j], acc.sum[i + 3][j], acc.sum[i + 2][j]);
        }
        const int i = v / (TN / kVector), j = v % (TN / kVector) * kVector;
        return make_float4(acc.sum[i][j + 1], acc.sum[i][j], acc.sum[i][j + 3], acc.sum[i][j + 2]);
    }

    // Quad v lies at [v][thread] in the block's shared memory. Where k is cut, block r of the cluster adds up and stores
    // pieces r, r + split_k and so on; otherwise a thread takes back what is its own.
    static __device__ __forceinline__ void store(const GemmArgs& args, const Thread& acc, float4* mine,
                                                 const WorkUnit& work, int row, int col) {
        __syncthreads();   // nobody reads the ring any more
#pragma unroll
        for (int v = 0; v < kQuads; ++v) mine[v * kThreads] = quad(acc, v);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) ptx::cluster_sync();
#endif
        const Epilogue epilogue(args, work.batch);
#pragma unroll 1
        for (int v = work.slice * kPieceQuads; v < kQuads; v += args.split_k * kPieceQuads) {
            float4 q[kPieceQuads];
            sum_slices(args, mine + v * kThreads, q);
            if constexpr (kDown) {
                const int first_row = row + Thread::row_of(v / TN * kVector), first_col = col + Thread::col_of(v % TN);
                float4 rows[kVector];
                rows_of_piece(q, rows);
                epilogue.store_rows(args, first_row, first_col, rows);
            } else {
                epilogue.store_vector(args, row + Thread::row_of(v / (TN / kVector)),
                                      col + Thread::col_of(v % (TN / kVector) * kVector),
                                      make_float4(q[0].y, q[0].x, q[0].w, q[0].z));
            }
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
    }

    // Like sum_over_cluster(), whose code the compiler arranges otherwise in three of these kernels.
    static __device__ __forceinline__ void sum_slices(const GemmArgs& args, const float4* mine, float4 (&q)[kPieceQuads]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
#pragma unroll
            for (int j = 0; j < kPieceQuads; ++j) q[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
            for (int slice = 0; slice < args.split_k; ++slice) {
                const uint32_t from = ptx::cluster_address(mine, slice);
#pragma unroll
                for (int j = 0; j < kPieceQuads; ++j) {
                    const float4 part = ptx::load_cluster_vector(from + j * kThreads * sizeof(float4));
                    q[j].x += part.x;
                    q[j].y += part.y;
                    q[j].z += part.z;
                    q[j].w += part.w;
                }
            }
            return;
        }
#endif
#pragma unroll
        for (int j = 0; j < kPieceQuads; ++j) q[j] = mine[j * kThreads];
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, then the tile: BM, BN, BK, WM, WN, TM, TN, STAGES.
#define FFMA_PIPELINED(NAME, BLOCKS, ...)                                                                          \
    enum : int { NAME##_shared = ffma_gemm::Pipelined<__VA_ARGS__>::kSharedBytes };                                \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Pipelined<__VA_ARGS__>::kThreads), BLOCKS)            \
        NAME(const __grid_constant__ GemmArgs args) {                                                              \
        ffma_gemm::Pipelined<__VA_ARGS__>::run(args);                                                              \
    }

FFMA_PIPELINED(ffma_pipelined_128x256, 1, 128, 256, 16, 32, 128, 8, 16, 3)
FFMA_PIPELINED(ffma_pipelined_128x128, 2, 128, 128, 16, 32, 128, 8, 16, 3)
FFMA_PIPELINED(ffma_pipelined_64x128, 3, 64, 128, 16, 32, 64, 8, 8, 3)
FFMA_PIPELINED(ffma_pipelined_128x64, 4, 128, 64, 16, 32, 64, 8, 8, 3)
FFMA_PIPELINED(ffma_pipelined_64x64, 4, 64, 64, 16, 32, 32, 8, 4, 4)
FFMA_PIPELINED(ffma_pipelined_32x128, 4, 32, 128, 16, 32, 32, 8, 4, 4)
FFMA_PIPELINED(ffma_pipelined_32x64, 6, 32, 64, 16, 16, 64, 4, 8, 4)
FFMA_PIPELINED(ffma_pipelined_32x32, 6, 32, 32, 32, 16, 32, 4, 4, 4)
