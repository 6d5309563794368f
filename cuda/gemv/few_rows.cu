// Few rows of A past a matrix of weights that is stored n × k, as linear layers have it, where the operands are small and lie in the
// L2: D (m ≤ 128) = X · Wᵀ, as a short sentence has them in every layer of a small encoder.
//
// Such a product takes as long as its chain of dependent steps, not as its bytes or its multiplications. A tile kernel for 16 rows has
// many of them: barriers and tensor maps to set up, stages to wait for, tiles to convert, sums to stage. Here the chain has one round
// trip to the L2: a lane asks for all that it needs of both operands at once, straight into registers, and for bias and residual in the
// same breath; it multiplies, lanes and warps add up, and every thread stores.
//
//   a lane      TM rows by TN lines of W (columns of D) by four neighbours of k, a vector of each, STEPS times
//   a warp      LANES_K lanes along k, which read 128 neighbouring bytes of a line or row; the others along rows and lines: fewer
//               lanes along k leave fewer sums to exchange, and a vector is used for more multiplications
//   a block     BM rows by BN lines; WARPS warps along k, one round trip for SLAB_K of it; what is longer comes in turns, of which
//               the next is under way while one is worked on
//   a cluster   its blocks cut k where lines are few: each reads all rows of its tile, so fewer and longer blocks fetch less from the L2,
//               and cuts make up the number
//
// Lanes' sums halve over the lanes along k (LaneSum), warps' sums meet in shared memory. Where k is cut, each block sends its sums to
// the one that stores them, rows in turn: that takes one barrier of the cluster after the sums, and none before a block may end. Sums
// are FP32, added in one order, lanes, then warps, then slices: results are the same from run to run.
//
// Needs: at most 128 rows (kMostTileRows tiles), one matrix, rows of X and lines of W on 16 bytes. k of any length: what is beyond a
// multiple of 4 is added in the end, element by element.
// Traffic: W once for every BM rows, a tile's rows of X once a block. 16×1536×384 in tiles of 16 × 8: 2.4 MB of W and at most 4.7 MB of X out of the L2.
// Floor on an H200: 1.3 µs from one kernel's end to the next one's first instructions and its own end, 0.5 µs to the L2 and back.
// On an H200, one after the other with PDL, for 16 rows: k = 384 takes 1.8 µs at n = 384 and 2.4 µs at n = 1536, 384 × 1536 3.1 µs (k in
// four slices), 1024 × 1024 3.2 µs. gemm_tf32x3_sm90_16x64_nt takes 5.1 to 6.2 µs. From n = 2048 on, the wider tile reads X less often.
//
// Launch. A block a tile, or a cluster of up to kMostSlices. It may start while the kernel before still runs.

#include "../epilogue/epilogue.cuh"
#include "../epilogue/lane_sum.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"

namespace few_rows {

constexpr int kMostSlices = 8;     // of k: as many blocks as a cluster may have on every GPU that has clusters
constexpr int kMostTileRows = 8;   // tiles along the rows of D

// Rows and lines of a block, lanes of a warp along k and along the rows (the others lie along the lines), warps, vectors of a line that a
// lane asks for at once.
template <int BM_, int BN_, int LANES_K_, int LANES_M_, int WARPS_, int STEPS_>
struct Shape {
    static constexpr int BM = BM_, BN = BN_, LANES_K = LANES_K_, LANES_M = LANES_M_, WARPS = WARPS_, STEPS = STEPS_;
    static constexpr int LANES_N = kWarp / LANES_K / LANES_M, TM = BM / LANES_M, TN = BN / LANES_N, THREADS = WARPS * kWarp;
    static constexpr int STEP_K = WARPS * LANES_K * kVector;   // k that the block takes at once
    static constexpr int SLAB_K = STEPS * STEP_K;              // k under way at once
    static constexpr int PARTIAL_SUMS = WARPS * LANES_K;       // of an output
    static constexpr int SUMS = TM * TN, OWNED = SUMS / LANES_K;   // of a lane: of its part of k, and in the end of its warp's
    static constexpr int PAIR = 2;   // sums that a lane leaves in shared memory at once
    static constexpr int OUTPUTS = BM * BN, EACH = (OUTPUTS - 1) / THREADS + 1;   // of the block; that a thread stores
    static_assert(LANES_K * LANES_M * LANES_N == kWarp && TM * LANES_M == BM && TN * LANES_N == BN, "lanes fill the block's tile");
    static_assert(SUMS % LANES_K == 0, "the lanes' sums halve evenly");
    static_assert(OWNED % PAIR == 0 && TN % PAIR == 0, "a lane ends up with whole pairs of neighbours in a row of D");
    static_assert(SLAB_K <= kMaxOvershoot && BN <= kMaxOvershoot, "k + SLAB_K is an int");

    struct alignas(16) Shared {
        float sums[WARPS][OUTPUTS];
        float parts[kMostSlices][OUTPUTS];   // of the rows that this block stores, from every block of the cluster
    };
};

// ---- the blocks of a cluster ---------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
// A product is not cut there.
__device__ __forceinline__ int tile_of_block() { return blockIdx.x; }
__device__ __forceinline__ int slice_of_block() { return 0; }
__device__ __forceinline__ void started() {}
__device__ __forceinline__ void arrive() {}
__device__ __forceinline__ void wait() {}
__device__ __forceinline__ void send(float*, int, float) {}
#else
__device__ __forceinline__ int tile_of_block() { return static_cast<int>(ptx::cluster_index()); }
__device__ __forceinline__ int slice_of_block() { return static_cast<int>(ptx::cluster_rank()); }
__device__ __forceinline__ void started() { ptx::cluster_arrive_relaxed(); }
__device__ __forceinline__ void arrive() { ptx::cluster_arrive(); }
__device__ __forceinline__ void wait() { ptx::cluster_wait(); }
// To the counterpart of `to` in a block of the cluster.
__device__ __forceinline__ void send(float* to, int block, float value) { ptx::store_cluster(ptx::cluster_address(to, block), value); }
#endif

// ---- a block -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void multiply_add(float& sum, float4 x, float4 w) {
    sum = fmaf(x.x, w.x, sum);
    sum = fmaf(x.y, w.y, sum);
    sum = fmaf(x.z, w.z, sum);
    sum = fmaf(x.w, w.w, sum);
}

template <typename SHAPE>
__device__ __forceinline__ void multiply(const GemmArgs& args, typename SHAPE::Shared& shared) {
    constexpr int BM = SHAPE::BM, BN = SHAPE::BN, TM = SHAPE::TM, TN = SHAPE::TN, STEPS = SHAPE::STEPS, EACH = SHAPE::EACH;
    constexpr int LANES_K = SHAPE::LANES_K, LANES_M = SHAPE::LANES_M, THREADS = SHAPE::THREADS, WARPS = SHAPE::WARPS;
    constexpr int PAIR = SHAPE::PAIR;
    const int slices = args.split_k, slice = slice_of_block();
    const bool cut = slices > 1;
    if (cut) started();
    // Tiles follow one another along the lines.
    const unsigned tile = tile_of_block(), tile_cols = (args.n - 1) / BN + 1;
    const int first_row = static_cast<int>(tile / tile_cols) * BM;
    const int first_line = static_cast<int>(tile % tile_cols) * BN;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int whole_k = args.k / kVector * kVector;   // what is left is added in the end, element by element
    const int k_begin = slice * args.k_slice, k_end = min(k_begin + args.k_slice, whole_k);
    const int lane_k = k_begin + (warp * LANES_K + lane % LANES_K) * kVector;
    const int lane_row = lane / LANES_K % LANES_M * TM, lane_line = lane / LANES_K / LANES_M * TN;
    const float* const a = static_cast<const float*>(args.a.data);
    const float* const b = static_cast<const float*>(args.b.data);
    // Rows and lines beyond the last are read as the last one again and not stored.
    const float *row[TM], *line[TN];
    line[0] = b + min(first_line + lane_line, args.n - 1) * args.b.col_stride + lane_k;
    row[0] = a + min(first_row + lane_row, args.m - 1) * args.a.row_stride + lane_k;
#pragma unroll
    for (int i = 1; i < TN; ++i) line[i] = line[i - 1] + (first_line + lane_line + i < args.n ? args.b.col_stride : 0);
#pragma unroll
    for (int i = 1; i < TM; ++i) row[i] = row[i - 1] + (first_row + lane_row + i < args.m ? args.a.row_stride : 0);
#pragma unroll
    for (int i = 0; i < TN; ++i) line[i] = ptx::compute_now(line[i]);
#pragma unroll
    for (int i = 0; i < TM; ++i) row[i] = ptx::compute_now(row[i]);

    // The lanes of a warp ask the L2 one after the other, so every warp has its share of the lines.
    const int ahead_line = first_line + lane * WARPS + warp;
    if (lane < (BN - 1) / WARPS + 1 && ahead_line < min(first_line + BN, args.n) && k_begin < k_end)
        ptx::prefetch_l2(b + ahead_line * args.b.col_stride + k_begin,
                         min(k_end - k_begin, SHAPE::SLAB_K) * static_cast<int>(sizeof(float)));

    ptx::wait_for_previous_kernels();
    float4 x[STEPS][TM], w[STEPS][TN];
    const auto is_inside = [&](int step, int slab) { return lane_k + slab + step * SHAPE::STEP_K < k_end; };
    const auto fetch = [&](int step, int slab) {   // to which lines and rows point
        if (!is_inside(step, slab)) return;
#pragma unroll
        for (int i = 0; i < TN; ++i) w[step][i] = ptx::load_streaming(line[i] + step * SHAPE::STEP_K);
#pragma unroll
        for (int i = 0; i < TM; ++i) x[step][i] = ptx::load_global(row[i] + step * SHAPE::STEP_K);
    };
#pragma unroll
    for (int step = 0; step < STEPS; ++step) fetch(step, 0);
    ptx::let_next_kernel_start();   // behind the loads: its first instructions do not take turns with them

    // The outputs that this thread adds up over the warps, one in THREADS, and which block of the cluster stores them.
    const auto tile_row_of = [&](int i) { return (static_cast<int>(threadIdx.x) + i * THREADS) / BN; };
    const auto row_of = [&](int i) { return first_row + tile_row_of(i); };
    const auto line_of = [&](int i) { return first_line + (static_cast<int>(threadIdx.x) + i * THREADS) % BN; };
    const auto is_output = [&](int i) {
        return SHAPE::OUTPUTS % THREADS == 0 || static_cast<int>(threadIdx.x) + i * THREADS < SHAPE::OUTPUTS;
    };
    const auto owner_of = [&](int i) {
        return cut ? static_cast<int>(static_cast<unsigned>(tile_row_of(i)) % static_cast<unsigned>(slices)) : 0;
    };
    const Epilogue epilogue(args, 0);
    Epilogue::Beside beside[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if (is_output(i) && owner_of(i) == slice) beside[i] = epilogue.fetch(args, row_of(i), line_of(i));

    float sum[SHAPE::SUMS];
#pragma unroll
    for (int i = 0; i < SHAPE::SUMS; ++i) sum[i] = 0.0f;
#pragma unroll 1
    for (int slab = 0; k_begin + slab < k_end; slab += SHAPE::SLAB_K) {
        const bool more = k_begin + slab + SHAPE::SLAB_K < k_end;
        if (more) {
#pragma unroll
            for (int i = 0; i < TN; ++i) line[i] += SHAPE::SLAB_K;
#pragma unroll
            for (int i = 0; i < TM; ++i) row[i] += SHAPE::SLAB_K;
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (is_inside(step, slab)) {
#pragma unroll
                for (int r = 0; r < TM; ++r)
#pragma unroll
                    for (int i = 0; i < TN; ++i) multiply_add(sum[r * TN + i], x[step][r], w[step][i]);
            }
            if (more) fetch(step, slab + SHAPE::SLAB_K);
        }
    }

    // Over the lanes along k; neighbours in a row of D stay together.
    using Sum = LaneSum<SHAPE::SUMS, LANES_K / 2>;
    Sum::add(sum, lane);
    const int own = Sum::owned(lane);
#pragma unroll
    for (int i = 0; i < SHAPE::OWNED; i += PAIR) {
        const int at = (lane_row + (own + i) / TN) * BN + lane_line + (own + i) % TN;
        *reinterpret_cast<float2*>(&shared.sums[warp][at]) = make_float2(sum[i], sum[i + 1]);
    }
    __syncthreads();
    float total[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        total[i] = 0.0f;
        if (!is_output(i)) continue;
#pragma unroll
        for (int part = 0; part < WARPS; ++part) total[i] += shared.sums[part][threadIdx.x + i * THREADS];
    }
    if (cut) {
        wait();   // all blocks of the cluster have started
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (is_output(i)) send(&shared.parts[slice][threadIdx.x + i * THREADS], owner_of(i), total[i]);
        arrive();
        wait();   // all sums are here, and nobody writes to another block any more
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (!is_output(i) || owner_of(i) != slice) continue;
            total[i] = 0.0f;
#pragma unroll
            for (int part = 0; part < kMostSlices; ++part)
                if (part < slices) total[i] += shared.parts[part][threadIdx.x + i * THREADS];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int to_row = row_of(i), to_line = line_of(i);
        if (!is_output(i) || owner_of(i) != slice || to_row >= args.m || to_line >= args.n) continue;
#pragma unroll 1
        for (int k = whole_k; k < args.k; ++k)
            total[i] = fmaf(a[to_row * args.a.row_stride + k], b[to_line * args.b.col_stride + k], total[i]);
        epilogue.store(args, to_row, to_line, total[i], beside[i]);
    }
}

}  // namespace few_rows

// Entries: rows, lines, lanes along k and along rows, warps, vectors of a line at once, blocks a multiprocessor. Names have the tile of D.
#define FEW_ROWS(NAME, BM, BN, LANES_K, LANES_M, WARPS, STEPS, BLOCKS)                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * kWarp, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {   \
        using SHAPE = few_rows::Shape<BM, BN, LANES_K, LANES_M, WARPS, STEPS>;                                          \
        __shared__ SHAPE::Shared shared;                                                                                \
        few_rows::multiply<SHAPE>(args, shared);                                                                        \
    }

FEW_ROWS(few_rows_16x8, 16, 8, 8, 2, 4, 3, 2)
FEW_ROWS(few_rows_16x12, 16, 12, 8, 2, 4, 2, 2)
