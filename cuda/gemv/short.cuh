// Few vectors past the lines of a matrix that is contiguous along k, which is short: at most four rows of A past the columns of B, such as
// the scores of attention, one token at a time, with a matrix of keys for each head; or at most eight columns of B past the rows of A, such as
// the patches of an image past a filter for each channel.
//
// Other kernels for few vectors give a line to all lanes of a warp, and k to all warps of a block. Where k is a head's 64 to 256, most of
// these have nothing to do. Here a line belongs to eight lanes, so a warp has four lines at once, and each lane EACH of them under way. In FP32:
//
//        lanes    0 … 7 │ 8 … 15 │ 16 … 23 │ 24 … 31       k →  lane i: k = 4·i … 4·i + 3 of 32, then of the next 32, …
//        line         0 │      1 │       2 │       3       eight lanes read 128 neighbouring bytes of a line
//        then         4 │      5 │       6 │       7
//
// 128 of k of all lines are asked for at once (64 past eight vectors, for registers), with the same of the vectors, which come out of the L1.
// A block is gone when its lines are done: nine of them a multiprocessor have up to 147 KB under way, more than memory needs. Rows off 16 bytes are read element by element,
// eight neighbouring ones of a line at a time. A line that is longer is worth all lanes of a warp (LANES). Sums are FP32 and always added in the same order: k in turn, then lanes.
#pragma once

#include "../abi/operand.cuh"
#include "../epilogue/lane_sum.cuh"
#include "../ptx/element.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"
#include "thin.cuh"

namespace gemv {

// NUMBERS: what the elements are, and the epilogue. At most M vectors; EACH lines a lane, K of whose k are under way. SWAPPED: A is the matrix.
// LANES share a line.
template <typename NUMBERS, int M, int EACH, int K, bool SWAPPED, int LANES = 8>
struct Short {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
    static constexpr int kLanes = LANES, kGroups = kWarp / kLanes;   // lanes of a line, and lines of a warp beside each other
    static constexpr int kElements = Element::kVectorElements;   // of 16 bytes
    static constexpr int BK = K, kTurn = kLanes * kElements, kTurns = BK / kTurn;
    static constexpr int kLines = kWarps * kGroups * EACH;
    static constexpr int kSums = M * EACH;                       // of a lane
    static_assert(kTurns * kTurn == BK, "turns of k fill what is under way");
    static_assert(kSums <= kLanes && (kSums & (kSums - 1)) == 0, "a line's lanes end up with one sum each, or with none");
    static_assert(BK <= kMaxOvershoot && kLines <= kMaxOvershoot, "past the end of k and of the lines an index is an int");

    using Thin = thin::ThinOf<Stored>;

    // A lane's elements of a turn: neighbours that are read at once, neighbours of which each is read by itself, or every kLanes-th.
    enum class Reads { kVector, kNeighbours, kWords };

    // What a lane has of a line in a turn; zeros past the end of k.
    template <Reads READS, bool STREAMED>
    static __device__ __forceinline__ uint4 load(const Stored* line, int64_t stride, int k, int lane, int k_end) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if constexpr (READS == Reads::kVector) {
            const Stored* at = line + k + lane * kElements;
            if (k + lane * kElements < k_end) v = STREAMED ? NUMBERS::load_streaming(at) : *reinterpret_cast<const uint4*>(at);
        } else {
            uint32_t words[4] = {};
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                constexpr int kOfWord = kElements / 4, kBits = 32 / kOfWord;
                const int at = READS == Reads::kNeighbours ? k + lane * kElements + i : k + i * kLanes + lane;
                words[i / kOfWord] |= NUMBERS::bits_or_zero(line + at * stride, at < k_end) << i % kOfWord * kBits;
            }
            v = make_uint4(words[0], words[1], words[2], words[3]);
        }
        return v;
    }

    template <Reads OF_LINES, Reads OF_VECTORS>
    static __device__ __forceinline__ void multiply(const Thin& thin, int k_end, const Stored* const (&line)[EACH], int lane, float (&sum)[kSums]) {
#pragma unroll 1
        for (int k = 0; k < k_end; k += BK) {
            uint4 w[kTurns][EACH];
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn)
#pragma unroll
                for (int i = 0; i < EACH; ++i) w[turn][i] = load<OF_LINES, true>(line[i], thin.matrix_k_stride, k + turn * kTurn, lane, k_end);
            if constexpr (LANES == kWarp) __syncwarp();   // or else the compiler puts multiplications between the loads, and they wait
#pragma unroll
            for (int turn = 0; turn < kTurns; ++turn) {
                float x[M][kElements];   // vectors beyond the last are read as the last one again and not stored
#pragma unroll
                for (int v = 0; v < M; ++v)
                    Element::unpack(load<OF_VECTORS, false>(thin.vectors + min(v, thin.count - 1) * thin.vector_stride, thin.vector_k_stride,
                                                            k + turn * kTurn, lane, k_end), x[v]);
#pragma unroll
                for (int i = 0; i < EACH; ++i) {
                    float y[kElements];
                    Element::unpack(w[turn][i], y);
#pragma unroll
                    for (int v = 0; v < M; ++v)
#pragma unroll
                        for (int j = 0; j < kElements; ++j) sum[v * EACH + i] = fmaf(y[j], x[v][j], sum[v * EACH + i]);
                }
            }
        }
    }

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const int line_blocks = ((SWAPPED ? args.m : args.n) - 1) / kLines + 1;
        const int batch = args.batch == 1 ? 0 : blockIdx.x / line_blocks;
        const int lane = threadIdx.x % kLanes;
        const int first = (blockIdx.x - batch * line_blocks) * kLines + threadIdx.x / kWarp * kGroups * EACH + threadIdx.x % kWarp / kLanes;
        const Thin thin = Thin::template of<SWAPPED>(args, batch);
        const Stored* line[EACH];   // beyond the last, likewise
#pragma unroll
        for (int i = 0; i < EACH; ++i) line[i] = thin.matrix + min(first + i * kGroups, thin.lines - 1) * thin.line_stride;

        float sum[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0.0f;
        const bool a_vectors = args.a_access == kRowVector && args.k % kElements == 0;
        const bool b_vectors = args.b_access == kColVector && args.k % kElements == 0;
        if (a_vectors && b_vectors) multiply<Reads::kVector, Reads::kVector>(thin, args.k, line, lane, sum);
        else if (SWAPPED && a_vectors) multiply<Reads::kVector, Reads::kNeighbours>(thin, args.k, line, lane, sum);
        else multiply<Reads::kWords, Reads::kWords>(thin, args.k, line, lane, sum);

        using Sum = LaneSum<kSums, kLanes / 2>;
        Sum::add(sum, lane);
        if (!Sum::speaks(lane)) return;
        const int vector = Sum::owned(lane) / EACH, of_line = first + Sum::owned(lane) % EACH * kGroups;
        if (vector < thin.count && of_line < thin.lines)
            NUMBERS::store(args, batch, SWAPPED ? of_line : vector, SWAPPED ? vector : of_line, sum[0]);
    }
};

}  // namespace gemv
