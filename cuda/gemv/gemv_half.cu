// Few rows of 16-bit numbers times a matrix of weights that is stored n × k, as linear layers have it: D (m ≤ 16) = X · Wᵀ.
//
// Such a product takes as long as its weights take to arrive. A block has 8·GROUPS columns of D, that is rows of W, and all of k, which its
// eight warps share in turns of 64: the block reads 1024 bytes of a row at a time. Enough blocks fit on a multiprocessor for
// UNROLL · 32 · GROUPS bytes a thread to be under way, and twice that with the buffer that is fetched while the other is used.
//
// W goes from global memory straight to registers, 16 bytes a lane, and is the 8-wide operand of mma.m16n8k16; X, from the L1, is
// the 16-wide one. A lane should hold the pairs at 2t and 2t + 8 of 16 k, but has eight neighbours. Which k a register
// stands for does not matter as long as both operands agree: so a lane's eight neighbours are its fragments of two products,
// (first pair, second pair) and (third pair, fourth pair), for X as for W.
//
// Sums of the warps meet in shared memory and are added in their order: results are the same from run to run.
//
// Launch. One block a unit of 8·GROUPS columns of one matrix, columns first. It may start while the kernel before still runs.

#include "../epilogue/half.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/mma.cuh"

namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kVectorElements = 8;          // of 16 bytes
constexpr int kLoadK = 4 * kVectorElements; // k of a load by the four lanes of a row
constexpr int kLoads = 2;                   // of a turn
constexpr int kTurnK = kLoads * kLoadK;
constexpr int kGroupColumns = 8, kGroupRows = 8;

template <Half TYPE_, int ROW_GROUPS_, int GROUPS_, int UNROLL_>
struct Shape {
    static constexpr Half TYPE = TYPE_;
    static constexpr int ROW_GROUPS = ROW_GROUPS_, GROUPS = GROUPS_;
    static constexpr int UNROLL = UNROLL_;   // turns of a warp that are fetched together
    static constexpr int ROWS = ROW_GROUPS * kGroupRows, COLUMNS = GROUPS * kGroupColumns;
    static constexpr int BATCH_K = UNROLL * kWarps * kTurnK;   // k that the block takes at once
    static_assert(ROW_GROUPS == 1 || ROW_GROUPS == 2, "a product has 16 rows of X");
    static_assert(2 * BATCH_K <= kMaxOvershoot, "k + 2 · BATCH_K is an int");
    using Sums = float[kWarps][ROWS][COLUMNS + 1];   // a column of padding: writers hit different banks
};

// Eight neighbours in k of one line, of which the first `left` are inside; zeros for the others. WHOLE: all eight are, or none.
template <bool STREAMED, bool WHOLE>
__device__ __forceinline__ uint4 load_vector(const uint16_t* from, int left) {
    if (WHOLE ? left > 0 : left >= kVectorElements) {
        if constexpr (STREAMED) return ptx::load_streaming(from);
        return *reinterpret_cast<const uint4*>(from);
    }
    uint32_t words[kVectorElements / 2] = {};
    if (!WHOLE && left > 0) {   // k ends within 16 bytes: by words, which are all under way at once
#pragma unroll
        for (int word = 0; word < kVectorElements / 2; ++word) {
            if (2 * word + 1 < left) words[word] = reinterpret_cast<const uint32_t*>(from)[word];
            else if (2 * word < left) words[word] = from[2 * word];
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// WHOLE: k is a multiple of 8, without the code for everything else.
template <typename SHAPE, bool WHOLE>
__device__ __forceinline__ void gemv(const GemmArgs& args, typename SHAPE::Sums& sums) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, group = lane / 4, quad = lane % 4;
    const int blocks = (args.n - 1) / SHAPE::COLUMNS + 1;
    const int batch = args.batch == 1 ? 0 : blockIdx.x / blocks;
    const int first = (blockIdx.x - batch * blocks) * SHAPE::COLUMNS;

    // Lines beyond the last are read as the last one again and not stored.
    const uint16_t* const w = static_cast<const uint16_t*>(args.b.data) + batch_offset(args, args.b, batch);
    const uint16_t* const x = static_cast<const uint16_t*>(args.a.data) + batch_offset(args, args.a, batch);
    const int first_k = warp * kTurnK + quad * kVectorElements;
    const uint16_t* w_line[SHAPE::GROUPS];
#pragma unroll
    for (int i = 0; i < SHAPE::GROUPS; ++i)
        w_line[i] = w + min(first + i * kGroupColumns + group, args.n - 1) * args.b.col_stride + first_k;
    const uint16_t* x_line[SHAPE::ROW_GROUPS];
#pragma unroll
    for (int i = 0; i < SHAPE::ROW_GROUPS; ++i)
        x_line[i] = x + min(i * kGroupRows + group, args.m - 1) * args.a.row_stride + first_k;

    using Weights = uint4[SHAPE::UNROLL][kLoads][SHAPE::GROUPS];
    const auto k_of = [](int turn, int load) { return turn * kWarps * kTurnK + load * kLoadK; };
    const auto fetch = [&](int k, Weights& to) {   // k: of the batch of turns
#pragma unroll
        for (int turn = 0; turn < SHAPE::UNROLL; ++turn)
#pragma unroll
            for (int load = 0; load < kLoads; ++load)
#pragma unroll
                for (int i = 0; i < SHAPE::GROUPS; ++i) {
                    const int at = k + k_of(turn, load);
                    to[turn][load][i] = load_vector<true, WHOLE>(w_line[i] + at, args.k - first_k - at);
                }
    };
    float sum[SHAPE::GROUPS][4] = {};
    const auto multiply = [&](int k, const Weights& by) {
        uint4 rows[SHAPE::UNROLL][kLoads][SHAPE::ROW_GROUPS];
#pragma unroll
        for (int turn = 0; turn < SHAPE::UNROLL; ++turn)
#pragma unroll
            for (int load = 0; load < kLoads; ++load)
#pragma unroll
                for (int i = 0; i < SHAPE::ROW_GROUPS; ++i) {
                    const int at = k + k_of(turn, load);
                    rows[turn][load][i] = load_vector<false, WHOLE>(x_line[i] + at, args.k - first_k - at);
                }
#pragma unroll
        for (int turn = 0; turn < SHAPE::UNROLL; ++turn)
#pragma unroll
            for (int load = 0; load < kLoads; ++load)
#pragma unroll
                for (int i = 0; i < SHAPE::GROUPS; ++i) {
                    const uint4 b = by[turn][load][i], low = rows[turn][load][0];
                    const uint4 high = SHAPE::ROW_GROUPS == 1 ? make_uint4(0, 0, 0, 0) : rows[turn][load][SHAPE::ROW_GROUPS - 1];
                    ptx::mma_half<SHAPE::TYPE>(sum[i], low.x, high.x, low.y, high.y, b.x, b.y);
                    ptx::mma_half<SHAPE::TYPE>(sum[i], low.z, high.z, low.w, high.w, b.z, b.w);
                }
    };

    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    Weights even, odd;
    fetch(0, even);
#pragma unroll 1
    for (int k = 0; k < args.k; k += 2 * SHAPE::BATCH_K) {
        const int next = k + SHAPE::BATCH_K;
        if (next < args.k) fetch(next, odd);
        multiply(k, even);
        if (next >= args.k) break;
        if (next + SHAPE::BATCH_K < args.k) fetch(next + SHAPE::BATCH_K, even);
        multiply(next, odd);
    }

#pragma unroll
    for (int i = 0; i < SHAPE::GROUPS; ++i)
#pragma unroll
        for (int e = 0; e < 2 * SHAPE::ROW_GROUPS; ++e)
            sums[warp][e / 2 * kGroupRows + group][i * kGroupColumns + quad * 2 + e % 2] = sum[i][e];
    __syncthreads();
    const HalfEpilogue<SHAPE::TYPE, false> epilogue(args, batch);
    for (int i = threadIdx.x; i < SHAPE::ROWS * SHAPE::COLUMNS; i += kThreads) {
        const int row = i / SHAPE::COLUMNS, column = i % SHAPE::COLUMNS;
        if (row >= args.m || first + column >= args.n) continue;
        float total = 0.0f;
#pragma unroll
        for (int from = 0; from < kWarps; ++from) total += sums[from][row][column];
        epilogue.store_element(args, row, first + column, total);
    }
}

}  // namespace

// Name, groups of rows, groups of columns, turns that are fetched together.
#define GEMV_HALF_OF(NAME, TYPE, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(kThreads) NAME(const __grid_constant__ GemmArgs args) {               \
        __shared__ Shape<TYPE, __VA_ARGS__>::Sums sums;                                                                \
        if (args.k % kVectorElements == 0) gemv<Shape<TYPE, __VA_ARGS__>, true>(args, sums);                           \
        else gemv<Shape<TYPE, __VA_ARGS__>, false>(args, sums);                                                        \
    }
#define GEMV_HALF(TILE, ...)                                                                                           \
    GEMV_HALF_OF(gemv_f16_##TILE, Half::kF16, __VA_ARGS__)                                                             \
    GEMV_HALF_OF(gemv_bf16_##TILE, Half::kBF16, __VA_ARGS__)

GEMV_HALF(m8_n8, 1, 1, 2)
GEMV_HALF(m8_n16, 1, 2, 2)
GEMV_HALF(m16_n8, 2, 1, 2)
