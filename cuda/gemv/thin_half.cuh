// What the kernels for thin products of 16-bit numbers share: a matrix that is read at any alignment, up to 16 vectors in shared
// memory, and the end of a tile.
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
#pragma once

#include "../epilogue/half.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/mma.cuh"
#include "thin.cuh"

namespace thin_half {

using thin::ThinUnit;
using Number = uint16_t;
using Thin = thin::ThinOf<Number>;

constexpr int kWindow = kVectorBytes / sizeof(Number);   // numbers of a window
constexpr int kWindowWords = kWindow / 2;
constexpr int kStepK = 16;                               // k of an mma
constexpr int kGroup = 8;                                // vectors, or lines, of half an mma
constexpr int kMatrices = 2 * kGroup;                    // rows of its first operand

__device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) { return high << 16 | low; }

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
                if (i < windows) four = __ldg(reinterpret_cast<const uint4*>(window) + i);
                put(i, four);
            }
            return;
        }
        shift = 0;
#pragma unroll
        for (int i = 0; i < kRead * kWindowWords; ++i) words[i] = 0;
        if (valid <= 0) return;
        uint32_t numbers[kNumbers];
#pragma unroll
        for (int i = 0; i < kNumbers; ++i) numbers[i] = i < valid ? __ldg(from + i) : 0;
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = pair_of(numbers[2 * i], numbers[2 * i + 1]);
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

// A portion of the vectors in shared memory: DEPTH of k of each.
template <int VECTORS, int DEPTH, int THREADS>
struct VectorPortion {
    static constexpr int kEach = VECTORS * DEPTH / THREADS;
    static_assert(VECTORS * DEPTH % THREADS == 0, "every thread copies as many numbers");
    static_assert(THREADS % DEPTH == 0 || DEPTH % THREADS == 0, "threads along k copy whole vectors, or parts of one");
    static_assert(THREADS % VECTORS == 0, "threads along the vectors copy whole rows");

    Number numbers[VECTORS][DEPTH + kWindow];   // lines of eight vectors are in different banks

    // What a thread copies, on its way. Neighbouring threads copy neighbours.
    struct Taken {
        Number numbers[kEach];

        // Vectors that there are not, and k from `k_left` on, become zero.
        __device__ __forceinline__ void fetch(const Number* from, const Thin& thin, int vectors, int k_left) {
            if (along_k(thin)) {
                const int vector = threadIdx.x / DEPTH, k = threadIdx.x % DEPTH;
                from += vector * thin.vector_stride + k;
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    constexpr int kTurns = DEPTH > THREADS ? DEPTH / THREADS : 1, kAtOnce = DEPTH > THREADS ? 1 : THREADS / DEPTH;
                    const int more_vectors = i / kTurns * kAtOnce, more_k = i % kTurns * THREADS;
                    numbers[i] = vector + more_vectors < vectors && k + more_k < k_left ? __ldg(from + more_k) : Number(0);
                    if (i % kTurns == kTurns - 1) from += kAtOnce * thin.vector_stride;
                }
            } else {
                constexpr int kAtOnce = THREADS / VECTORS;
                const int vector = threadIdx.x % VECTORS, k = threadIdx.x / VECTORS;
                from += vector * thin.vector_stride + k * thin.vector_k_stride;
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    numbers[i] = vector < vectors && k + i * kAtOnce < k_left ? __ldg(from) : Number(0);
                    from += kAtOnce * thin.vector_k_stride;
                }
            }
        }
    };
    __device__ __forceinline__ void store(const Taken& taken, const Thin& thin) {
        const bool deep = along_k(thin);
        const int vector = deep ? threadIdx.x / DEPTH : threadIdx.x % VECTORS, k = deep ? threadIdx.x % DEPTH : threadIdx.x / VECTORS;
        Number* const to = &numbers[vector][k];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int along = i * THREADS / DEPTH * (DEPTH + kWindow) + i * THREADS % DEPTH, across = i * (THREADS / VECTORS);
            to[deep ? along : across] = taken.numbers[i];
        }
    }

private:
    static __device__ __forceinline__ bool along_k(const Thin& thin) { return thin.vector_k_stride == 1; }
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
#pragma unroll 1
    for (int item = unit.slice * THREADS + threadIdx.x; item < rows * cols; item += args.split_k * THREADS) {
        const int row = item / cols, col = item - row * cols;
        const int at = SWAPPED ? col * PITCH + row : row * PITCH + col;
        float sum = 0.0f;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (args.split_k > 1) {
#pragma unroll 4
            for (int slice = 0; slice < args.split_k; ++slice) sum += ptx::load_cluster(ptx::cluster_address(parts[0] + at, slice));
        } else
#endif
            sum = sum_of_parts(at);
        if (bare) epilogue.d.store(epilogue.d.place(first_row + row, first_col + col), epilogue.scalars.scale(sum));
        else epilogue.store_element(args, first_row + row, first_col + col, sum);
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    if (args.split_k > 1) ptx::cluster_sync();   // no block leaves while another reads its sums
#endif
}

}  // namespace thin_half
