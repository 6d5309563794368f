// Stages for the FFMA kernels with producer warps whose operands start anywhere, on Hopper: producers copy words (cp.async), which is what
// memory allows where rows are not on 16 bytes. TMA is of no help there: not only its strides but every row of a box has to start on 16
// bytes, and an H200 takes another start for an illegal instruction.
//
// Beside ffma_unaligned.cu, whose warps copy and multiply in turn: the main loop is the one of operands by TMA, 8 × 16 outputs a thread, and
// copies are in nobody's way there. They take issue slots all the same, for a tile of 128 × 256 2 % of the FFMA's, for 64 × 64, which was
// retired, 10 %.
// From stand-alone runs on an H200, before tiles on an edge were copied by words: 4097 × 4097 × 4097, ms, operands dense (by TMA: with rows
// padded to 16 bytes):
//              by words   by TMA   ffma_unaligned   cuBLAS
//   TN            3.00     2.82         3.58         2.96
//   NN            3.02     2.84         3.56         3.18
//   NT            3.00     2.88         3.57         3.29
//   TT            2.98     2.83         3.58         2.97
//
// How an operand may be read, a block finds out: where neighbours along k are adjacent, in single words, which are transposed on their way;
// where neighbours along rows are, in words, pairs or vectors, as memory has them aligned. Mostly one operand of a product is aligned
// and the other is not. 320 × 873×48×873, TN, A alone off 16 bytes: 942 µs as first written, with words of both, and 878 now.
// A copy takes an instruction wherever it comes from, so what counts is what comes with it. A thread has one address a step of k (or row)
// and what it copies is a constant number of bytes further, in memory or in the stage. Whether a word is inside the matrix is asked in
// tiles that hang over its edges and at the end of k, nowhere else. The copies of a stage announce themselves: its `full` barrier counts
// each producer thread when all has arrived that it has asked for so far (cp.async.mbarrier.arrive).
#pragma once

#include "../abi/operand.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "copied_stage.cuh"

namespace ffma_gemm {

// A tile of ROWS rows as [k][row]. Lines are a vector longer than the tile, so that neighbours along k are four banks apart.
template <int ROWS, int BK>
struct WordTile {
    static constexpr int kPitch = ROWS + kVector;
    static __device__ __forceinline__ constexpr int offset(int k, int step) { return k * kPitch + step; }
    static __device__ __forceinline__ int lane_offset(int row) { return row; }
};

// How THREADS threads bring such tiles of an operand.
template <int ROWS, int BK, int THREADS>
struct WordLoader {
    using Tile = WordTile<ROWS, BK>;
    static constexpr int kAlongK = 0, kPair = 2;   // widths, beside 1 and kVector

    // What a thread copies of a tile, WIDTH words at a time.
    //   along k:     BK threads beside each other read words of a row; a thread's next word is kRowsAtOnce rows further
    //   along rows:  kAcross threads beside each other read a step of k; what a thread reads next is so much further in this step, if it
    //                has more, and then kStepsAtOnce steps further
    template <int WIDTH>
    struct Part {
        static constexpr int kWidth = WIDTH == kAlongK ? 1 : WIDTH;
        static constexpr int kAcross = ROWS / kWidth < kWarp ? ROWS / kWidth : kWarp;
        static constexpr int kRun = kAcross * kWidth, kStepsAtOnce = THREADS / kAcross, kRowsAtOnce = THREADS / BK;
        static_assert(THREADS % BK == 0 && ROWS % kRowsAtOnce == 0, "threads have whole rows of the tile");
        static_assert(ROWS % kRun == 0 && BK % kStepsAtOnce == 0, "threads have whole runs, each of as many steps");
        static __device__ __forceinline__ int row(int thread) { return WIDTH == kAlongK ? thread / BK : thread % kAcross * kWidth; }
        static __device__ __forceinline__ int k(int thread) { return WIDTH == kAlongK ? thread % BK : thread / kAcross; }
    };

    const float* next;     // the thread's first word in the next tile
    int64_t stride;        // elements between rows, or between steps of k
    int width;             // words at a time, or kAlongK
    int row, k;            // the first word's place in the tile
    int rows_left;         // rows of the operand from `row` on
    bool rows_inside;      // the tile does not hang over the last row

    __device__ __forceinline__ WordLoader(const Source& source, int thread, int first_row, int first_k) {
        const auto starts_on = [&](int words) {
            return reinterpret_cast<uintptr_t>(source.data) % (words * sizeof(float)) == 0 && source.k_stride % words == 0;
        };
        width = source.along_k() ? kAlongK : starts_on(kVector) ? kVector : starts_on(kPair) ? kPair : 1;
        with_width([&](auto part) {
            row = decltype(part)::row(thread);
            k = decltype(part)::k(thread);
        });
        stride = width == kAlongK ? source.row_stride : source.k_stride;
        rows_left = source.rows - first_row - row;
        rows_inside = source.rows - first_row >= ROWS;
        next = source.data + (first_row + row) * source.row_stride + (first_k + k) * source.k_stride;
    }

    // Calls `act` with the thread's part, of a type that says how wide copies are: there is code for each.
    template <typename ACT>
    __device__ __forceinline__ void with_width(const ACT& act) const {
        if (width == kAlongK) act(Part<kAlongK>());
        else if (width == kVector) act(Part<kVector>());
        else if (width == kPair) act(Part<kPair>());
        else act(Part<1>());
    }

    // Starts the copies of the tile that has `k_left` elements of k before its slice ends, into lines from `lines` on.
    template <int WIDTH>
    __device__ __forceinline__ void copy(Part<WIDTH> part, float (*lines)[Tile::kPitch], int k_left) {
        constexpr int kWord = sizeof(float), kWidth = Part<WIDTH>::kWidth, kBytes = kWidth * kWord;
        const uint32_t to = ptx::shared_address(&lines[k][row]);
        if (rows_inside && k_left >= BK) {
            each(part, [&](uint32_t place, const float* from, int, int) { ptx::cp_async<kBytes>(to + place, from); });
        } else {
            each(part, [&](uint32_t place, const float* from, int rows_further, int k_further) {
                const int valid = k + k_further < k_left ? min(max(rows_left - rows_further, 0), kWidth) : 0;
                if (kWidth > 1 && valid == kWidth) {
                    ptx::cp_async<kBytes>(to + place, from);
                } else {   // a vector that is partly outside is copied by words: what is outside may be nobody's memory
#pragma unroll
                    for (int word = 0; word < kWidth; ++word)
                        ptx::cp_async_4_or_zero(to + place + word * kWord, from + word, word < valid);
                }
            });
        }
        next += WIDTH == kAlongK ? BK : BK * stride;
    }

private:
    // Calls `copy` for all that the thread copies: how far from the first its place is, in bytes, where it comes from, and how many rows
    // and steps of k it is further.
    template <int WIDTH, typename COPY>
    __device__ __forceinline__ void each(Part<WIDTH>, const COPY& copy) const {
        using Part = WordLoader::Part<WIDTH>;
        constexpr int kWord = sizeof(float);
        const float* from = next;
        if (WIDTH == kAlongK) {
#pragma unroll
            for (int further = 0; further < ROWS; further += Part::kRowsAtOnce) {
                copy(further * kWord, from, further, 0);
                from = ptx::compute_now(from + Part::kRowsAtOnce * stride);   // or else the compiler multiplies
            }
        } else {
#pragma unroll
            for (int further = 0; further < BK; further += Part::kStepsAtOnce) {
#pragma unroll
                for (int run = 0; run < ROWS; run += Part::kRun) copy((further * Tile::kPitch + run) * kWord, from + run, run, further);
                from += Part::kStepsAtOnce * stride;
            }
        }
    }
};

// A stage of such tiles.
template <int BM, int BN, int BK>
struct WordStage : MainLoop<WordTile<BM, BK>, WordTile<BN, BK>, BK> {
    struct Stage {
        float a[BK][WordTile<BM, BK>::kPitch];
        float b[BK][WordTile<BN, BK>::kPitch];
    };

    static constexpr bool kWords = true;   // threads copy, not TMA
    static constexpr int kThreads = 128, kArrivals = kThreads;   // each thread of the producer warps arrives

    static __device__ __forceinline__ void rows_of(const float4 (&q)[kVector], int, int, float4 (&rows)[kVector]) {
        rows_of_piece(q, rows);
    }

    // The producer threads of a block fill the ring of stages with the steps [k_begin, k_end) of the tile at `work`.
    //
    // Half of the threads bring A and the others B, in loops of their own for each width, and each has half as much to do beside: where
    // all bring both and look at the widths in each stage, 64 × 64 takes 8 to 24 % longer at 4097³. Of tiles much longer than wide one half
    // would have little to do, so there they do: 512 × 32 took 212 µs for 18197 × 22 × 5120, TN, and takes 177.
    template <typename SHARED, typename RING>
    static __device__ __forceinline__ void produce(const GemmArgs& args, SHARED& shared, RING& cursor, const WorkUnit& work, int k_begin,
                                                   int k_end, int thread) {
        const Source source_a = Source::of_a(args, work.batch), source_b = Source::of_b(args, work.batch);
        if constexpr (kApart) {
            constexpr int kHalf = kThreads / 2;
            if (thread < kHalf) {
                WordLoader<BM, BK, kHalf> a(source_a, thread, work.row, k_begin);
                a.with_width([&](auto part) {
                    fill(shared, cursor, k_end - k_begin, [&](Stage& stage, int k_left) { a.copy(part, stage.a, k_left); });
                });
            } else {
                WordLoader<BN, BK, kHalf> b(source_b, thread - kHalf, work.col, k_begin);
                b.with_width([&](auto part) {
                    fill(shared, cursor, k_end - k_begin, [&](Stage& stage, int k_left) { b.copy(part, stage.b, k_left); });
                });
            }
        } else {
            WordLoader<BM, BK, kThreads> a(source_a, thread, work.row, k_begin);
            WordLoader<BN, BK, kThreads> b(source_b, thread, work.col, k_begin);
            fill(shared, cursor, k_end - k_begin, [&](Stage& stage, int k_left) {
                a.with_width([&](auto part) { a.copy(part, stage.a, k_left); });
                b.with_width([&](auto part) { b.copy(part, stage.b, k_left); });
            });
        }
    }

private:
    static constexpr bool kApart = BM <= 2 * BN && BN <= 2 * BM;

    // Calls `copy` for one stage after the other, until there is nothing left of k.
    template <typename SHARED, typename RING, typename COPY>
    static __device__ __forceinline__ void fill(SHARED& shared, RING& cursor, int k_left, const COPY& copy) {
#pragma unroll 1
        for (; k_left > 0; k_left -= BK) {
            ptx::mbarrier_wait(&shared.empty[cursor.stage], cursor.parity ^ 1);   // the first round is free
            copy(shared.stages[cursor.stage], k_left);
            ptx::mbarrier_arrive_after_copies(&shared.full[cursor.stage]);
            cursor.advance();
        }
    }
};

}  // namespace ffma_gemm
