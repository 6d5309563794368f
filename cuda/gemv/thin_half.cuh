// What the kernels for thin products of 16-bit numbers share: how a matrix is read at any alignment, and the end of a tile.
//
// Threads read whole windows, 16 bytes that start on 16 bytes. Where a run of numbers starts within one, a thread reads one window more
// and shifts all of them in registers:
//
//            window         window         window
//        ├───────────────┼───────────────┼───────────────┤
//          · · · 0 1 2 3   4 5 6 7 8 9 …             → words 0 1 │ 2 3 │ 4 5 │ …
//
// The window more is the next thread's first one, so it comes from the L1. Windows that stick out of what may be read (the matrix
// where its lines follow each other without gaps, otherwise the line) are read number by number.
//
// Kernels let the next one start at once (kFewBlocks says why; those whose warps share k gain with any grid), and wait for the one before
// when they have worked out where they read.
#pragma once

#include "../epilogue/half.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/mma.cuh"
#include "thin.cuh"

namespace thin_half {

using ptx::pair_of, ptx::pair_of_high;
using thin::ThinUnit;
using Number = uint16_t;
using Thin = thin::ThinOf<Number>;

constexpr int kWindow = kVectorBytes / sizeof(Number);   // numbers of a window
constexpr int kWindowWords = kWindow / 2;
constexpr int kStepK = 16;                               // k of an mma
constexpr int kGroup = 8;                                // vectors, or lines, of half an mma
constexpr int kIntBits = 32;
constexpr int kItemsOfLarge = 8;                         // sums that each thread stores of a large tile
constexpr int kMatrices = 2 * kGroup;                    // rows of its first operand

// COUNT numbers that are `stride` apart, `valid` of them and zeros for the others, as pairs.
template <int COUNT>
__device__ __forceinline__ void gather_numbers(const Number* from, int64_t stride, int valid, uint32_t* words) {
    uint32_t numbers[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        numbers[i] = i < valid ? *from : 0;
        from += stride;
    }
#pragma unroll
    for (int i = 0; i < COUNT / 2; ++i) words[i] = pair_of(numbers[2 * i], numbers[2 * i + 1]);
}

// WINDOWS windows of neighbours that start anywhere. ALIGNED: on 16 bytes.
template <int WINDOWS, bool ALIGNED>
struct Run {
    static constexpr int kNumbers = WINDOWS * kWindow, kWords = kNumbers / 2;
    static constexpr int kRead = WINDOWS + (ALIGNED ? 0 : 1);

    uint32_t words[kRead * kWindowWords];
    int shift;   // numbers of the first window that lie before the run

    // Asks for the run at `from`, of which `valid` numbers count; windows from `begin` to `end` may be read.
    __device__ __forceinline__ void fetch(const Number* from, int valid, const Number* begin, const Number* end) {
        shift = ALIGNED ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(from) / sizeof(Number) % kWindow);
        const int windows = shift == 0 ? WINDOWS : WINDOWS + 1;
        const Number* const window = from - shift;
        if (valid > 0 && window >= begin && end - window >= windows * kWindow) {
#pragma unroll
            for (int i = 0; i < kRead; ++i) {
                uint4 four = make_uint4(0, 0, 0, 0);
                if (i < windows) four = reinterpret_cast<const uint4*>(window)[i];
                put(i, four);
            }
            return;
        }
        gather(from, 1, valid);
    }

    // The same of numbers that are `stride` apart.
    __device__ __forceinline__ void gather(const Number* from, int64_t stride, int valid) {
        shift = 0;
#pragma unroll
        for (int i = 0; i < kRead * kWindowWords; ++i) words[i] = 0;
        if (valid > 0) gather_numbers<kNumbers>(from, stride, valid, words);
    }

    // Then words[0 … kWords − 1] are the run.
    __device__ __forceinline__ void align() {
        if constexpr (!ALIGNED) {
            constexpr int kAll = kRead * kWindowWords;
            const bool by_four = (shift & 4) != 0, by_two = (shift & 2) != 0;
            const uint32_t selector = (shift & 1) != 0 ? 0x5432 : 0x3210;   // bytes of two words
#pragma unroll
            for (int i = 0; i < kAll - 2; ++i) words[i] = by_four ? words[i + 2] : words[i];
#pragma unroll
            for (int i = 0; i < kAll - 3; ++i) words[i] = by_two ? words[i + 1] : words[i];
#pragma unroll
            for (int i = 0; i < kWords; ++i) words[i] = __byte_perm(words[i], words[i + 1], selector);
        }
    }

    // What comes after `valid` numbers becomes zero: they may be anything, infinite too.
    __device__ __forceinline__ void cut(int valid) {
        if (valid >= kNumbers) return;
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            const int left = valid - 2 * i;
            words[i] = left >= 2 ? words[i] : left == 1 ? words[i] & 0xFFFFu : 0;
        }
    }

private:
    __device__ __forceinline__ void put(int window, const uint4& four) {
        words[window * kWindowWords] = four.x;
        words[window * kWindowWords + 1] = four.y;
        words[window * kWindowWords + 2] = four.z;
        words[window * kWindowWords + 3] = four.w;
    }
};

// Stores VECTORS × LINES sums, of which PARTS warps have a part each: parts[part][vector · PITCH + line] in shared memory. Where a
// cluster cuts k, its blocks share what they have together. Parts are added in their order, then slices: the same bits every time.
template <ptx::Half TYPE, int VECTORS, int LINES, int PITCH, int PARTS, int THREADS, bool SWAPPED>
__device__ __forceinline__ void store_parts(const GemmArgs& args, const ThinUnit& unit, float (&parts)[PARTS][VECTORS * PITCH]) {
    const auto sum_of_parts = [&](int at) {
        float sum = parts[0][at];
#pragma unroll
        for (int part = 1; part < PARTS; ++part) sum += parts[part][at];
        return sum;
    };
    __syncthreads();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) {
#pragma unroll 1
        for (int at = threadIdx.x; at < VECTORS * PITCH; at += THREADS) parts[0][at] = sum_of_parts(at);
        ptx::cluster_sync();
    }
#endif
    const HalfEpilogue<TYPE, false> epilogue(args, unit.batch);
    const bool bare = epilogue.bare(args);
    const int lines = min(LINES, (SWAPPED ? args.m : args.n) - unit.line);
    const int vectors = min(VECTORS, (SWAPPED ? args.n : args.m) - unit.vector);
    const int rows = SWAPPED ? lines : vectors, cols = SWAPPED ? vectors : lines;
    const int first_row = SWAPPED ? unit.line : unit.vector, first_col = SWAPPED ? unit.vector : unit.line;
    const auto at = [](int row, int col) { return SWAPPED ? col * PITCH + row : row * PITCH + col; };
    const auto sum_of = [&](int at) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
            float sum = 0.0f;
#pragma unroll 4
            for (int slice = 0; slice < args.split_k; ++slice) sum += ptx::load_cluster(ptx::cluster_address(parts[0] + at, slice));
            return sum;
        }
#endif
        return sum_of_parts(at);
    };
    // Threads store neighbours of a row: of large tiles two where addresses allow. Rows are rounded up to a power of two of such items: to
    // divide by their number took longer than all the rest.
    constexpr bool kLarge = VECTORS * LINES >= kItemsOfLarge * THREADS;
    const int width = kLarge && bare && epilogue.d.pairs ? 2 : 1;
    const int log_items = kIntBits - __clz((cols - 1) / width);
#pragma unroll 1
    for (int item = unit.slice * THREADS + threadIdx.x; item < rows << log_items; item += args.split_k * THREADS) {
        const int row = item >> log_items, col = (item - (row << log_items)) * width;
        if (col >= cols) continue;
        const int count = min(width, cols - col);
        const float x = sum_of(at(row, col));
        if (bare) {
            const float y = kLarge && count > 1 ? sum_of(at(row, col + 1)) : 0.0f;
            epilogue.d.store_pair(epilogue.d.place(first_row + row, first_col + col), count, epilogue.scalars.scale(x),
                                  epilogue.scalars.scale(y));
        } else {
            epilogue.store_element(args, first_row + row, first_col + col, x);
        }
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
}

}  // namespace thin_half
