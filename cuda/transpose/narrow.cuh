// Pieces for the kernels whose matrices have one short side: tile length, words of a lane, division by small numbers.
#pragma once

#include "tile.cuh"

// A tile holds all of the short side and this many bytes in shared memory.
constexpr int kNarrowTileBytes = 16 * 1024;
constexpr int kMaxNarrow = 32;   // the longest short side

// How far a tile reaches along the long side, in elements; every short side takes an odd number of them in shared
// memory. `src/transpose/plan.rs` computes the same number.
__device__ __forceinline__ int narrow_tile_length(int short_side, int element_size) {
    constexpr int kMultiple = 16;
    return kNarrowTileBytes / element_size / (short_side | 1) / kMultiple * kMultiple;
}
static_assert(kNarrowTileBytes / 8 / (kMaxNarrow | 1) >= 16, "a tile is never empty");

// What a lane reads or writes at once: 4 bytes, or one element of 8.
template <int SIZE> struct LaneWord { using Type = uint32_t; };
template <> struct LaneWord<8> { using Type = uint64_t; };

// Elements between the last word boundary and `address`.
template <int SIZE, typename T>
__device__ __forceinline__ int elements_into_word(const T* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % sizeof(typename LaneWord<SIZE>::Type) / SIZE);
}

template <int SIZE>
__device__ __forceinline__ typename Bits<SIZE>::Type word_element(typename LaneWord<SIZE>::Type word, int i) {
    return static_cast<typename Bits<SIZE>::Type>(word >> (i * SIZE * 8));
}

// The word whose first element is number `first` of a row of `count` elements, read whole or, where it reaches over an
// end of the row, element by element; the rest is 0. Nothing outside the row is read.
template <int SIZE, typename T>
__device__ __forceinline__ typename LaneWord<SIZE>::Type load_word(const T* row, int first, int count) {
    using Word = typename LaneWord<SIZE>::Type;
    constexpr int E = sizeof(Word) / SIZE;
    if (first >= 0 && first + E <= count) return *reinterpret_cast<const Word*>(row + first);
    Word word = 0;
#pragma unroll
    for (int i = 0; i < E; ++i) {
        if (first + i >= 0 && first + i < count) word |= static_cast<Word>(row[first + i]) << (i * SIZE * 8);
    }
    return word;
}

// The reverse: writes element(0), element(1), … to `first` and after, as far as they are in the row.
template <int SIZE, typename T, typename Element>
__device__ __forceinline__ void store_word(T* row, int first, int count, const Element& element) {
    using Word = typename LaneWord<SIZE>::Type;
    constexpr int E = sizeof(Word) / SIZE;
    Word word = 0;
#pragma unroll
    for (int i = 0; i < E; ++i) word |= static_cast<Word>(element(i)) << (i * SIZE * 8);
    if (first >= 0 && first + E <= count) {
        *reinterpret_cast<Word*>(row + first) = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < E; ++i) {
        if (first + i >= 0 && first + i < count) row[first + i] = word_element<SIZE>(word, i);
    }
}

// Division of numbers below 2^20 by one from 2 to 2^12: multiplier = ⌈2^32 / d⌉ exceeds 2^32 / d by less than 1, so the
// quotient's error stays below n / 2^32 < 2^−12 ≤ 1 / d, too little to reach the next whole number.
struct SmallDivisor {
    uint32_t multiplier;
    __device__ __forceinline__ explicit SmallDivisor(int divisor) : multiplier(0xFFFFFFFFu / divisor + 1) {}
    __device__ __forceinline__ int quotient(int number) const { return __umulhi(number, multiplier); }
};
