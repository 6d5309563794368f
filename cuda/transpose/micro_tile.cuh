// 16-byte pieces of rows, for the vectorised copy and transposition kernels.
#pragma once

#include "../ptx/copies.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "tile.cuh"

// 16 bytes of a row: V = 16 / SIZE elements, held in four registers. Spelled out in words, because the compiler splits
// the copy of an array of small elements into as many small accesses.
template <int SIZE>
struct Chunk {
    using T = typename Bits<SIZE>::Type;
    static constexpr int V = kVectorBytes / SIZE;
    static constexpr int kWords = 4;
    uint32_t word[kWords];

    static __device__ __forceinline__ Chunk load(const void* address) {
        const uint4 bits = *static_cast<const uint4*>(address);
        return Chunk{{bits.x, bits.y, bits.z, bits.w}};
    }

    // To shared memory.
    __device__ __forceinline__ void store(void* address) const {
        *static_cast<uint4*>(address) = make_uint4(word[0], word[1], word[2], word[3]);
    }

    // To global memory, always as one access: a plain assignment is split where another path stores parts of it.
    __device__ __forceinline__ void store_global(void* address) const {
        __stcg(static_cast<uint4*>(address), make_uint4(word[0], word[1], word[2], word[3]));
    }

    // Element i; `i` is a constant after unrolling.
    __device__ __forceinline__ T get(int i) const {
        if constexpr (SIZE == 8) {
            return static_cast<uint64_t>(word[2 * i + 1]) << 32 | word[2 * i];
        } else {
            constexpr int kPerWord = 4 / SIZE;
            return static_cast<T>(word[i / kPerWord] >> (i % kPerWord * SIZE * 8));
        }
    }

    // The chunk of elements element(0) … element(V − 1).
    template <typename Element>
    static __device__ __forceinline__ Chunk gather(const Element& element) {
        Chunk chunk;
        if constexpr (SIZE == 8) {
#pragma unroll
            for (int i = 0; i < V; ++i) {
                const uint64_t bits = element(i);
                chunk.word[2 * i] = static_cast<uint32_t>(bits);
                chunk.word[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
            }
        } else {
            constexpr int kPerWord = 4 / SIZE;
#pragma unroll
            for (int w = 0; w < kWords; ++w) {
                uint32_t bits[kPerWord];
#pragma unroll
                for (int i = 0; i < kPerWord; ++i) bits[i] = element(w * kPerWord + i);
                if constexpr (SIZE == 4) {
                    chunk.word[w] = bits[0];
                } else if constexpr (SIZE == 2) {
                    chunk.word[w] = ptx::pair_of(bits[0], bits[1]);
                } else {
                    const uint32_t low = __byte_perm(bits[0], bits[1], 0x0040);    // the lowest bytes of both
                    const uint32_t high = __byte_perm(bits[2], bits[3], 0x0040);
                    chunk.word[w] = ptx::pair_of(low, high);
                }
            }
        }
        return chunk;
    }

    // Writes elements [first, last) of the chunk to where the whole chunk would go, which starts on 16 bytes.
    __device__ __forceinline__ void store_part(T* address, int first, int last) const {
        if (first <= 0 && last >= V) {
            store_global(address);
            return;
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
            if (i >= first && i < last) address[i] = get(i);
        }
    }
};

// Starts the copy of the chunk at `global`, which starts on 16 bytes, to shared memory. Where only the first `valid` elements
// belong to the row, they are copied one by one and at once: nothing behind them is touched.
template <int SIZE>
__device__ __forceinline__ void copy_chunk(Chunk<SIZE>* shared, const typename Bits<SIZE>::Type* global, int valid) {
    if (valid >= Chunk<SIZE>::V) {
        ptx::cp_async_16_prefetch_256(shared, global);
        return;
    }
    auto* target = reinterpret_cast<typename Bits<SIZE>::Type*>(shared);
#pragma unroll 1
    for (int i = 0; i < valid; ++i) target[i] = global[i];
}

// Transposes V × V elements in registers: element j of chunk i becomes element i of chunk j. Elements of 4 and 8 bytes
// are whole registers and only change names; smaller ones are turned in squares of one word's width by byte permutation.
template <int SIZE>
__device__ __forceinline__ void turn_micro_tile(Chunk<SIZE> (&chunks)[kVectorBytes / SIZE]) {
    constexpr int V = kVectorBytes / SIZE;
    constexpr int kSquare = SIZE < 4 ? 4 / SIZE : 1;           // rows of a square, of as many elements
    constexpr int kSquareWords = SIZE < 4 ? 1 : SIZE / 4;      // words in a row of a square
    constexpr int kSquares = V / kSquare;                      // squares along a side
    Chunk<SIZE> turned[V];
#pragma unroll
    for (int down = 0; down < kSquares; ++down) {
#pragma unroll
        for (int across = 0; across < kSquares; ++across) {
            const auto in = [&](int row, int word = 0) {
                return chunks[down * kSquare + row].word[across * kSquareWords + word];
            };
            const auto out = [&](int row, int word = 0) -> uint32_t& {
                return turned[across * kSquare + row].word[down * kSquareWords + word];
            };
            if constexpr (SIZE >= 4) {
#pragma unroll
                for (int word = 0; word < kSquareWords; ++word) out(0, word) = in(0, word);
            } else if constexpr (SIZE == 2) {
                out(0) = ptx::pair_of(in(0), in(1));
                out(1) = ptx::pair_of_high(in(0), in(1));
            } else {
                const uint32_t low01 = __byte_perm(in(0), in(1), 0x5140);    // bytes 0 and 1 of both, interleaved
                const uint32_t high01 = __byte_perm(in(0), in(1), 0x7362);   // bytes 2 and 3
                const uint32_t low23 = __byte_perm(in(2), in(3), 0x5140);
                const uint32_t high23 = __byte_perm(in(2), in(3), 0x7362);
                out(0) = ptx::pair_of(low01, low23);
                out(1) = ptx::pair_of_high(low01, low23);
                out(2) = ptx::pair_of(high01, high23);
                out(3) = ptx::pair_of_high(high01, high23);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < V; ++i) chunks[i] = turned[i];
}
