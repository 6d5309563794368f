// Strict FP32 GEMM for Hopper, for the small products of attention: A is contiguous along k, and a tile's start and end count
// as much as its multiplications.
//
// The other kernels bring A to shared memory as [k][row], so what is contiguous along k has to be transposed on the way. Here
// A stays as TMA brings it, [row][k]: a thread reads 16 bytes along k of each of its 8 rows, and of B two
// pieces of 16 bytes along n for each of these 4 k. That is 16 reads for 256 FFMA, as with any 8 × 8 outputs a thread, and
// nobody transposes A. B comes as it lies where it is contiguous along n; where it is contiguous along k (Q·Kᵀ), the block
// transposes it in shared memory, 16 elements a thread for every 2048 FFMA.
//
//   stage    BK = 32: rows of A of 128 bytes, 16-byte chunk c of row r at c ^ r % 8; then B
//   ring     STAGES of them. One thread asks for all at the start; later the warp that is the last to read a stage asks again
//   groups   narrow tiles have two groups of warps, each with half of a stage's chunks; their sums meet at the end
//   blocks   three or four a multiprocessor: while one starts or stores, the others multiply
//
// Register banks (ThreadTile::quad() in thread_tile.cuh): along a row of outputs, element j of B is in a register of j's parity, so
// sums leave as vectors of columns 1, 0, 3, 2. The compiler's allocation decides more than the source does: count the conflicts in
// the machine code after any change here. Where a warp barrier between the reads and the FFMA of a chunk (APART) keeps it from
// mixing chunks and gave fewer conflicts, there is one.
// Code. Where blocks run only once, fetching their instructions takes time: with a loop that stores, 384 × (128×32×128) takes
// 13.4 µs, with stores in a straight line 17.6.
//
// Traffic: (BM + BN) · 128 bytes a stage for BM · BN · 64 FLOP: 13 FLOP a byte (128 × 32), 21 (128 × 64) past the L2.
// k is never cut across blocks: the same bits every time.
#include <cuda.h>

#include "../epilogue/epilogue.cuh"
#include "../epilogue/partial_sums.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../pipeline/ring.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "lanes.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace ffma_gemm {

// Whether the epilogue is α alone, and rows of D can be written 16 bytes at a time.
__device__ __forceinline__ bool stores_plainly(const GemmArgs& args) {
    return args.beta == 0.0f && args.alpha_at == nullptr && args.beta_at == nullptr && args.bias == nullptr &&
           args.residual.data == nullptr && args.activation == kIdentity && args.d_access == kRowVector;
}

__device__ __forceinline__ void store_scaled(float* to, float alpha, float4 sums) {
    *reinterpret_cast<float4*>(to) = make_float4(alpha * sums.x, alpha * sums.y, alpha * sums.z, alpha * sums.w);
}

// TOGETHER: chunks in a turn of the main loop; UNROLLED: turns in a straight line; APART: reads and FFMA of a chunk are kept apart;
// STORED: rows of outputs that are stored in a straight line.
template <int BM, int BN, int GROUPS, int STAGES, bool B_TRANSPOSED, int TOGETHER, int UNROLLED, bool APART, int STORED>
struct Direct {
    static constexpr int BK = 32;                                 // 128 bytes, the width of the swizzle
    static constexpr int TM = 8, TN = 8, LM = 8, LN = 4;
    static constexpr int kRowBytes = BK * 4, kLineBytes = BN * 4;
    static constexpr int kWarpM = LM * TM, kWarpN = LN * TN;
    static constexpr int kWarpsN = BN / kWarpN;
    static constexpr int kGroupWarps = BM / kWarpM * kWarpsN;     // warps that cover the tile once
    static constexpr int kGroup = kGroupWarps * kWarp;
    static constexpr int kWarps = kGroupWarps * GROUPS, kThreads = kWarps * kWarp;
    static constexpr int kChunks = kRowBytes / kChunk / GROUPS;   // of a stage, that a warp takes
    static constexpr int kBytesA = BM * kRowBytes, kBytesB = BN * kRowBytes, kStageBytes = kBytesA + kBytesB;
    static constexpr bool kSwizzledB = !B_TRANSPOSED && kLineBytes == kRowBytes;   // lines of 128 bytes arrive swizzled, too
    static constexpr int kQuads = TM * TN / kVector;                 // of a thread
    static constexpr int kAcross = TN / kVector;                     // of them, beside each other
    static constexpr int kBatch = kMaxBatchDims - 1;              // the innermost batch dimension
    static_assert(BM % kWarpM == 0 && BN % kWarpN == 0, "warp tiles fill the block tile");
    static_assert(kBytesA % (kSwizzle * kRowBytes) == 0, "B starts on a period of the swizzle");
    static_assert(STAGES * kStageBytes >= kThreads * kQuads * 16, "the sums fit into the ring");
    static_assert(kChunks % TOGETHER == 0 && (!kSwizzledB || TOGETHER % 2 == 0), "whole turns; whether a chunk is odd is known");
    static_assert(GROUPS == 1 || GROUPS == kAcross, "groups share the quads of a row");
    static_assert(!B_TRANSPOSED || STAGES >= 2, "a stage is transposed while the one before is multiplied");

    struct Shared {
        unsigned char stage[STAGES][kStageBytes];
        unsigned char transposed[B_TRANSPOSED ? 2 : 1][B_TRANSPOSED ? kBytesB : 16];   // B of this step and the next
        uint64_t full[STAGES];
        int readers[STAGES];   // warps that have read the stage, over all rounds
    };
    static constexpr int kSharedBytes = sizeof(Shared);
    static_assert(kSharedBytes <= kSharedLimit, "what a block may have");

    // ---- load ----

    // Where a matrix of the batch lies in its tensor map, without a division where there is one batch dimension.
    struct Coordinates {
        int x, y, z;

        __device__ __forceinline__ Coordinates(const GemmArgs& args, const GemmOperand& operand, int batch)
            : x(operand.batch_stride[kBatch] != 0 ? batch : 0), y(0), z(0) {
            if (args.batch != args.batch_dims[kBatch]) {
                const BatchCoordinates found(args, operand, batch);
                x = found.x, y = found.y, z = found.z;
            }
        }
    };

    // The tile's operands, for TMA.
    struct Source {
        const CUtensorMap& a_map;
        const CUtensorMap& b_map;
        int row, col;
        Coordinates a, b;

        // Asks for these BK steps of k.
        __device__ __forceinline__ void ask(Shared& shared, int step) const {
            const int stage = step % STAGES, k = step * BK;
            uint64_t* full = &shared.full[stage];
            unsigned char* to = shared.stage[stage];
            ptx::mbarrier_arrive_expect_bytes(full, kStageBytes);
            ptx::tma_load_5d(to, &a_map, full, k, row, a.x, a.y, a.z);
            ptx::tma_load_5d(to + kBytesA, &b_map, full, B_TRANSPOSED ? k : col, B_TRANSPOSED ? col : k, b.x, b.y, b.z);
        }

        // The same for a stage that has been read: TMA writes through the async proxy, which has to be told of
        // reads through the generic one.
        __device__ __forceinline__ void ask_again(Shared& shared, int step) const {
            ptx::fence_async_proxy();
            ask(shared, step);
        }
    };

    // B of a stage, [n][k] → [k][n]: a thread transposes 4 × 4 elements. Eight neighbouring lanes read eight different places of
    // the swizzle, and write eight neighbouring pieces.
    static __device__ __forceinline__ void transpose(Shared& shared, int stage, int step, int thread) {
        constexpr int kFours = BN / kVector;
        static_assert(kFours * BK / kVector == kThreads, "every thread transposes one piece");
        const int four = thread % kFours, chunk = thread / kFours ^ (four / 2 & 3);
        const uint32_t from = ptx::shared_address(shared.stage[stage]) + kBytesA + four * kVector * kRowBytes;
        float4 v[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i)
            v[i] = ptx::load_shared_vector(from + i * kRowBytes + (chunk ^ (four % 2 * kVector + i)) * kChunk);
        float4* to = reinterpret_cast<float4*>(shared.transposed[step % 2] + chunk * kVector * kLineBytes) + four;
        to[0] = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
        to[kFours] = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
        to[2 * kFours] = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
        to[3 * kFours] = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
    }

    // ---- compute ----

    static __device__ __forceinline__ void run(const GemmArgs& args, const CUtensorMap& a_map, const CUtensorMap& b_map) {
        extern __shared__ __align__(1024) unsigned char shared_bytes[];
        Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
        const int thread = threadIdx.x, lane = thread % kWarp, warp = thread / kWarp;
        if (thread == 0) {
            ptx::tma_prefetch_descriptor(&a_map);
            ptx::tma_prefetch_descriptor(&b_map);
        }
        const TileGrid grid = TileGrid::of<BM, BN>(args);
        WorkUnit work{static_cast<int>(blockIdx.x), 0, 0, 0, args.k, 0, 0};   // one tile a matrix: no divisions
        if (grid.tiles_m > 1 || grid.tiles_n > 1) work = work_unit<BM, BN>(args, grid, blockIdx.x);
        const int steps = (args.k - 1) / BK + 1;
        const Source source{a_map, b_map, work.row, work.col, Coordinates(args, args.a, work.batch),
                            Coordinates(args, args.b, work.batch)};
        if (thread == 0) {
            for (int stage = 0; stage < STAGES; ++stage) {
                ptx::mbarrier_init(&shared.full[stage], 1);
                shared.readers[stage] = 0;
            }
            ptx::fence_mbarrier_init();
            ptx::wait_for_previous_kernels();   // one of them may repack an operand
            for (int step = 0; step < STAGES && step < steps; ++step) source.ask(shared, step);
        }
        __syncthreads();

        const int group = ptx::recompute(warp) / kGroupWarps, in_group = warp % kGroupWarps;   // not known, for the sake of APART
        const int row = in_group / kWarpsN * kWarpM + Lanes<LM, LN>::m(lane);
        const int col = in_group % kWarpsN * kWarpN + Lanes<LM, LN>::n(lane) * kVector;
        const uint32_t ring = ptx::shared_address(shared.stage);
        const uint32_t a_lane = ring + row * kRowBytes + row % kSwizzle * kChunk;
        const uint32_t b_lane = (B_TRANSPOSED ? ptx::shared_address(shared.transposed) : ring + kBytesA) + (kSwizzledB ? 0 : col * 4);
        uint32_t swizzled[kVector] = {};   // where the thread's first columns lie in the four lines of an even chunk
        if (kSwizzledB) {
#pragma unroll
            for (int k = 0; k < kVector; ++k) swizzled[k] = (Lanes<LM, LN>::n(lane) ^ k) * kChunk + k * kLineBytes;
        }
        const int first_chunk = group * kChunks, end_chunk = GROUPS > 1 ? first_chunk + kChunks : kChunks;

        float sums[TM][TN];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[i][j] = 0.0f;
        int stage = 0;         // not a Ring: the compiler would put one kernel's instructions in another order
        uint32_t parity = 0;
        if constexpr (B_TRANSPOSED) {
            ptx::mbarrier_wait(&shared.full[0], 0);
            transpose(shared, 0, 0, thread);
            __syncthreads();
        }
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if (!B_TRANSPOSED) ptx::mbarrier_wait(&shared.full[stage], parity);
            const uint32_t a_stage = a_lane + stage * kStageBytes;
            const uint32_t b_stage = b_lane + (B_TRANSPOSED ? step % 2 * kBytesB : stage * kStageBytes);
            if constexpr (B_TRANSPOSED) {
                if (step + 1 < steps) {
                    const int next = stage + 1 == STAGES ? 0 : stage + 1;
                    ptx::mbarrier_wait(&shared.full[next], next == 0 ? parity ^ 1 : parity);
                    transpose(shared, next, step + 1, thread);
                }
            }
#pragma unroll UNROLLED
            for (int chunk = first_chunk; chunk < end_chunk; chunk += TOGETHER) {
#pragma unroll
                for (int part = 0; part < TOGETHER; ++part) {
                    float a[TM][kVector], b[kVector][TN];
                    const uint32_t a_chunk = a_stage ^ (chunk + part) * kChunk;
                    const uint32_t b_chunk = b_stage + (chunk + part) * kVector * kLineBytes;
#pragma unroll
                    for (int i = 0; i < TM; ++i) {
                        const float4 v = ptx::load_shared_vector(a_chunk + i * LM * kRowBytes);
                        a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
                    }
#pragma unroll
                    for (int k = 0; k < kVector; ++k)
#pragma unroll
                        for (int j = 0; j < kAcross; ++j) {
                            const uint32_t at = kSwizzledB ? swizzled[k] + (j ^ part % 2) * LN * kChunk
                                                           : k * kLineBytes + j * LN * kChunk;
                            const float4 v = ptx::load_shared_vector(b_chunk + at);
                            b[k][j * kVector] = v.x, b[k][j * kVector + 1] = v.y, b[k][j * kVector + 2] = v.z, b[k][j * kVector + 3] = v.w;
                        }
                    if (APART) __syncwarp();
#pragma unroll
                    for (int k = 0; k < kVector; ++k)
#pragma unroll
                        for (int i = 0; i < TM; ++i)
#pragma unroll
                            for (int place = 0; place < TN; ++place) {
                                const int j = (i % 2 == 0) != B_TRANSPOSED ? place : TN - 1 - place;   // fewer conflicts so
                                sums[i][j] = fmaf(a[i][k], b[k][j], sums[i][j]);
                            }
                }
            }
            if (B_TRANSPOSED) {
                __syncthreads();
                if (thread == 0 && step + STAGES < steps) source.ask_again(shared, step + STAGES);
            } else if (step + STAGES < steps) {
                __syncwarp();
                if (lane == 0 && is_last_reader<kWarps>(shared.readers[stage])) source.ask_again(shared, step + STAGES);
            }
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }

        // ---- store ----

        // Quad v of a thread lies at [v][thread], where the stages were. Each group adds up and stores its share.
        __syncthreads();
        float4* room = reinterpret_cast<float4*>(shared.stage);
#pragma unroll
        for (int v = 0; v < kQuads; ++v) {
            const int i = v / kAcross, j = v % kAcross * kVector;
            room[v * kThreads + thread] = make_float4(sums[i][j + 1], sums[i][j], sums[i][j + 3], sums[i][j + 2]);
        }
        if (GROUPS > 1) __syncthreads();
        const float4* mine = room + thread % kGroup + (GROUPS > 1 ? group * kThreads : 0);
        const int first_col = work.col + col + (GROUPS > 1 ? group * LN * kVector : 0);
        if (stores_plainly(args) && args.m - work.row >= BM && args.n - work.col >= BN) {
            float* d = static_cast<float*>(args.d.data) + batch_offset(args, args.d, work.batch) +
                       (work.row + row) * args.d.row_stride + first_col;
#pragma unroll STORED
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < kAcross; j += GROUPS)
                    store_scaled(d + i * LM * args.d.row_stride + j * LN * kVector, args.alpha, sum(mine, i * kAcross + j));
        } else {
            const Epilogue epilogue(args, work.batch);
#pragma unroll 1
            for (int v = 0; v < kQuads; v += GROUPS)
                epilogue.template store_vector<Lanes<LM, LN>>(args, work.row + row + v / kAcross * LM,
                                                              first_col + v % kAcross * LN * kVector, sum(mine, v));
        }
    }

    // Quad v of all groups, its columns in order.
    static __device__ __forceinline__ float4 sum(const float4* mine, int v) {
        float4 sum = mine[v * kThreads];
#pragma unroll
        for (int group = 1; group < GROUPS; ++group) add(sum, mine[v * kThreads + group * kGroup]);
        return make_float4(sum.y, sum.x, sum.w, sum.z);
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, then the parameters of Direct.
#define FFMA_DIRECT(NAME, BLOCKS, ...)                                                                      \
    enum : int { NAME##_shared = ffma_gemm::Direct<__VA_ARGS__>::kSharedBytes };                            \
    extern "C" __global__ void __launch_bounds__((ffma_gemm::Direct<__VA_ARGS__>::kThreads), BLOCKS)        \
        NAME(const __grid_constant__ GemmArgs args, const __grid_constant__ CUtensorMap a_map,              \
             const __grid_constant__ CUtensorMap b_map) {                                                   \
        ffma_gemm::Direct<__VA_ARGS__>::run(args, a_map, b_map);                                            \
    }

FFMA_DIRECT(ffma_direct_128x32_nn_sm90, 3, 128, 32, 2, 3, false, 2, 2, true, 1)
FFMA_DIRECT(ffma_direct_128x64_nn_sm90, 4, 128, 64, 1, 2, false, 1, 1, false, 1)
FFMA_DIRECT(ffma_direct_128x64_nt_sm90, 3, 128, 64, 1, 2, true, 2, 1, true, 8)

#endif  // sm_90a
