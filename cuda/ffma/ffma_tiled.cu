// Strict FP32 GEMM for every device from sm_80 on: any layout, stride, alignment, batch and tail, and the whole epilogue.
//
// One block computes one BM × BN tile of one matrix over one slice of k, and a thread TM × TN outputs of it in registers. Units of
// work (tiles, or slices of k of a tile) are counted in bands of tile rows, so that blocks that run together share A and B in the
// L2. Where there are fewer tiles than multiprocessors, a cluster of split_k blocks (2 to 6 or 8; compute capability 9.0 and newer)
// cuts the k of a tile: its blocks leave their sums in shared memory, and each adds up and stores its share, always in the order of
// k: no workspace, no second launch, the same bits every time.
//
// There are two main loops, which differ in how the next portion of k, BK of it, gets to shared memory while this one is multiplied:
//
//   ffma_…             ThroughRegisters. The next portion waits in the registers of the threads, so a portion costs one barrier and
//                      two buffers are enough. What is contiguous along k is transposed in registers. Small tiles give each portion
//                      to groups of warps, which keeps 8 × 8 outputs a thread where the tile alone has too few.
//   ffma_pipelined_…   Asynchronous. Copies (cp.async) bring it, STAGES − 1 portions ahead, and no registers are taken: the main loop
//                      of rung 14 of the ladder. What is contiguous along k is transposed by copies of single words.
//
// Arithmetic and reads: TM·TN FFMA for (TM + TN) / 4 16-byte reads of shared memory. 8 × 16 gives 128 to 6, so 95 % of the issue
// slots can be FFMA; smaller thread tiles trade that for more blocks.
#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../pipeline/async_pipeline.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "lanes.cuh"
#include "store_tile.cuh"
#include "thread_tile.cuh"
#include "tile_loader.cuh"

namespace ffma_gemm {

// A block's tile. LOOP brings the operands and multiplies them, then stores the sums: the registers in which the sums are decide how
// fast the loop is, so how they leave is part of it.
template <typename LOOP>
__device__ __forceinline__ void compute_tile(const GemmArgs& args, typename LOOP::Shared& shared) {
    const LOOP loop;
    const WorkUnit work = work_unit<LOOP::kRows, LOOP::kCols>(args, TileGrid::of<LOOP::kRows, LOOP::kCols>(args), blockIdx.x);
    typename LOOP::Thread tile;
    loop.multiply(tile, shared, args, work);
    loop.store(tile, shared, args, work);
}

// ---- through registers ------------------------------------------------------------------------------------------

// The loader (tile_loader.cuh) takes operands 16 bytes at a time along whichever dimension is contiguous, and element by element
// where nothing is aligned. A warp's lanes are LM along m; WARPS_K groups of warps share the steps of a portion, and their sums meet
// in shared memory.
template <int BM, int BN, int BK, int LM, int TM, int TN, int WARPS_K>
struct ThroughRegisters {
    static constexpr int kRows = BM, kCols = BN;
    static constexpr int LN = kWarp / LM;
    using Thread = ThreadTile<LM, LN, TM, TN>;
    static constexpr int kWarpsM = BM / Thread::kWarpM, kWarpsN = BN / Thread::kWarpN;
    static constexpr int kGroup = kWarpsM * kWarpsN * kWarp;   // threads that cover the tile once
    static constexpr int kThreads = kGroup * WARPS_K;
    static constexpr bool kQuickScalars = BM <= 64 && BN <= 64;   // larger tiles have no registers left for it
    static constexpr int kSteps = BK / WARPS_K;                // steps of k for one group in one portion
    static constexpr int kBuffers = 2;                         // one portion is multiplied while the next is stored
    static_assert(kWarpsM * Thread::kWarpM == BM && kWarpsN * Thread::kWarpN == BN, "warp tiles fill the block tile");
    static_assert(kSteps * WARPS_K == BK && kSteps % 8 == 0, "groups share a portion's steps evenly, in whole swizzles");
    static_assert(chunk_swizzle<BM>(kSteps) < LM && chunk_swizzle<BN>(kSteps) < LN,
                  "what a group's first step adds to the swizzle moves lanes only");

    struct Shared {
        float a[kBuffers][BK][BM];
        float b[kBuffers][BK][BN];
    };
    static_assert(WARPS_K == 1 || sizeof(Shared) >= sizeof(float) * BM * BN,
                  "one group's sums fit where the operands were: they pass through the same memory");

    // The thread's number in its group, and its first output in the tile.
    int thread, group, in_group, row, col;

    __device__ __forceinline__ ThroughRegisters() : thread(threadIdx.x), group(thread / kGroup), in_group(thread % kGroup) {
        const int warp = in_group / kWarp, lane = thread % kWarp;
        row = warp / kWarpsN * Thread::kWarpM + Lanes<LM, LN>::m(lane) * kVector;
        col = warp % kWarpsN * Thread::kWarpN + Lanes<LM, LN>::n(lane) * kVector;
    }

    __device__ __forceinline__ void multiply(Thread& tile, Shared& shared, const GemmArgs& args, const WorkUnit& work) const {
        const int first_step = group * kSteps;
        const int row_at = row ^ chunk_swizzle<BM>(first_step) * kVector;   // where the group finds them in the portion
        const int col_at = col ^ chunk_swizzle<BN>(first_step) * kVector;
        TileLoader<BM, BK, kThreads, kQuickScalars> a;
        TileLoader<BN, BK, kThreads, kQuickScalars> b;
        a.start(Source::of_a(args, work.batch), thread, work.row, work.k_begin);
        b.start(Source::of_b(args, work.batch), thread, work.col, work.k_begin);

        tile.clear();
        int k_left = work.k_end - work.k_begin;
        a.fetch(k_left);
        b.fetch(k_left);
        a.commit(shared.a[0]);
        b.commit(shared.b[0]);
        __syncthreads();

        for (int buffer = 0; k_left > 0; buffer ^= 1) {
            k_left -= BK;
            if (k_left > 0) {
                a.fetch(k_left);
                b.fetch(k_left);
            }
            const float(*tile_a)[BM] = shared.a[buffer] + first_step;
            const float(*tile_b)[BN] = shared.b[buffer] + first_step;
            tile.load(0, tile_a, tile_b, 0, row_at, col_at);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                if (step + 1 < kSteps) tile.load((step + 1) % 2, tile_a, tile_b, step + 1, row_at, col_at);
                tile.multiply(step % 2);
            }
            if (k_left > 0) {
                a.commit(shared.a[buffer ^ 1]);
                b.commit(shared.b[buffer ^ 1]);
            }
            __syncthreads();
        }
    }

    __device__ __forceinline__ void store(Thread& tile, Shared& shared, const GemmArgs& args, const WorkUnit& work) const {
        float* room = reinterpret_cast<float*>(&shared);
        if (WARPS_K > 1) add_groups(tile, room, group, in_group);
        store_tile<kGroup, WARPS_K, sizeof(Shared)>(tile, args, work, group, in_group, work.row + row, work.col + col,
                                                    reinterpret_cast<float4*>(room));
    }

    // Adds the sums of groups 1, 2, … to group 0's, in that order, through shared memory.
    static __device__ __forceinline__ void add_groups(Thread& tile, float* room, int group, int in_group) {
        for (int from = 1; from < WARPS_K; ++from) {
            if (group == from) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) room[(i * TN + j) * kGroup + in_group] = tile.acc[i][j];
            }
            __syncthreads();
            if (group == 0) {
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) tile.acc[i][j] += room[(i * TN + j) * kGroup + in_group];
            }
            __syncthreads();
        }
    }
};

// ---- by asynchronous copies -------------------------------------------------------------------------------------

// The ring and the loop over it are pipeline/async_pipeline.cuh, which the ladder has, too.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct Asynchronous {
    static constexpr int kRows = BM, kCols = BN;
    using Pipeline = AsyncPipeline<BM, BN, BK, WM, WN, TM, TN, STAGES, Walk::kShortSide>;
    using Thread = typename Pipeline::Thread;
    using Shared = typename Pipeline::Shared;
    static constexpr int kThreads = Pipeline::kThreads;
    static constexpr int kQuads = TM * TN / kVector;   // 16-byte vectors of a thread's outputs
    static constexpr int kRingBytes = sizeof(Shared), kSumsBytes = kQuads * kThreads * sizeof(float4);
    static constexpr int kSharedBytes = kRingBytes > kSumsBytes ? kRingBytes : kSumsBytes;   // one after the other
    static_assert(TM < TN && TM % kVector == 0, "the outer product goes down columns, and quads lie within them");

    __device__ __forceinline__ void multiply(Thread& tile, Shared& shared, const GemmArgs& args, const WorkUnit& work) const {
        const float* a_data = static_cast<const float*>(args.a.data) + batch_offset(args, args.a, work.batch);
        const float* b_data = static_cast<const float*>(args.b.data) + batch_offset(args, args.b, work.batch);
        auto a = Pipeline::PanelA::of_a(args, a_data + work.k_begin * args.a.col_stride, work.row);
        auto b = Pipeline::PanelB::of_b(args, b_data + work.k_begin * args.b.row_stride, work.col);
        tile = {};
        Pipeline::accumulate(tile, shared, a, b, work.k_end - work.k_begin);
    }

    // Quad v lies at [v][thread] in the block's shared memory. Where k is cut, block r of the cluster adds up and stores
    // pieces r, r + split_k and so on; otherwise a thread takes back what is its own. Not store_tile(), which has tiles that pass in
    // parts, and groups: it would change the code that the compiler makes of all of this.
    __device__ __forceinline__ void store(const Thread& tile, Shared& shared, const GemmArgs& args, const WorkUnit& work) const {
        float4* mine = reinterpret_cast<float4*>(&shared) + threadIdx.x;
        const int row = work.row + Pipeline::thread_row(), col = work.col + Pipeline::thread_col();
        __syncthreads();   // nobody reads the ring any more
#pragma unroll
        for (int v = 0; v < kQuads; ++v) mine[v * kThreads] = quad(tile, v);
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) ptx::cluster_sync();
#endif
        const Epilogue epilogue(args, work.batch);
#pragma unroll 1
        for (int v = work.slice * kVector; v < kQuads; v += args.split_k * kVector) {
            float4 q[kVector];
            sum_slices(args, mine + v * kThreads, q);
            store_piece(args, epilogue, v, row, col, q);
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
    }

    // Quad v of a thread's outputs: four rows of a column, in swapped pairs. The swap
    // makes the compiler give accumulators the registers of the other bank than the operands that they meet:
    // ThreadTile::quad() in thread_tile.cuh has the reason.
    static __device__ __forceinline__ float4 quad(const Thread& tile, int v) {
        const int i = v / TN * kVector, j = v % TN;
        return make_float4(tile.sum[i + 1][j], tile.sum[i][j], tile.sum[i + 3][j], tile.sum[i + 2][j]);
    }

    // The sums of a piece over all slices of k. Like sum_over_cluster(), whose code the compiler arranges otherwise.
    static __device__ __forceinline__ void sum_slices(const GemmArgs& args, const float4* mine, float4 (&q)[kVector]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
#pragma unroll
            for (int j = 0; j < kVector; ++j) q[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
            for (int slice = 0; slice < args.split_k; ++slice) {
                const uint32_t from = ptx::cluster_address(mine, slice);
#pragma unroll
                for (int j = 0; j < kVector; ++j) {
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
        for (int j = 0; j < kVector; ++j) q[j] = mine[j * kThreads];
    }

    // The piece that begins with quad v; (row, col) is the thread's first output in D.
    static __device__ __forceinline__ void store_piece(const GemmArgs& args, const Epilogue& epilogue, int v, int row, int col,
                                                       const float4 (&q)[kVector]) {
        float4 rows[kVector];
        rows_of_piece(q, rows);
        epilogue.store_rows(args, row + Thread::row_of(v / TN * kVector), col + Thread::col_of(v % TN), rows);
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, BM, BN, BK, lanes along m, TM, TN, groups of warps that share k.
#define FFMA_TILED(NAME, BLOCKS, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::ThroughRegisters<__VA_ARGS__>::kThreads), BLOCKS) \
        NAME(const __grid_constant__ GemmArgs args) {                                                        \
        using Loop = ffma_gemm::ThroughRegisters<__VA_ARGS__>;                                               \
        __shared__ __align__(128) Loop::Shared shared;                                                       \
        ptx::wait_for_previous_kernels();                                                                    \
        ffma_gemm::compute_tile<Loop>(args, shared);                                                         \
    }

FFMA_TILED(ffma_64x64, 2, 64, 64, 32, 8, 8, 8, 2)
FFMA_TILED(ffma_32x128, 2, 32, 128, 32, 4, 8, 8, 2)
FFMA_TILED(ffma_16x128, 2, 16, 128, 32, 2, 8, 8, 4)
FFMA_TILED(ffma_128x32, 3, 128, 32, 32, 8, 4, 8, 1)

// NAME, blocks that share a multiprocessor, BM, BN, BK, WM, WN, TM, TN, stages.
#define FFMA_PIPELINED(NAME, BLOCKS, ...)                                                                    \
    enum : int { NAME##_shared = ffma_gemm::Asynchronous<__VA_ARGS__>::kSharedBytes };                       \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Asynchronous<__VA_ARGS__>::kThreads), BLOCKS)   \
        NAME(const __grid_constant__ GemmArgs args) {                                                        \
        using Loop = ffma_gemm::Asynchronous<__VA_ARGS__>;                                                   \
        extern __shared__ __align__(16) unsigned char shared_bytes[];                                        \
        ptx::wait_for_previous_kernels();                                                                    \
        ffma_gemm::compute_tile<Loop>(args, *reinterpret_cast<Loop::Shared*>(shared_bytes));                 \
    }

FFMA_PIPELINED(ffma_pipelined_128x256, 1, 128, 256, 16, 32, 128, 8, 16, 3)
FFMA_PIPELINED(ffma_pipelined_128x128, 2, 128, 128, 16, 32, 128, 8, 16, 3)
