// 16-byte pieces of rows, for the vectorised copy and transposition kernels.
#pragma once

#include "transpose_args.cuh"

constexpr int kVectorBytes = 16;   // the widest access of a thread

// 16 bytes of a row: V elements of SIZE bytes.
template <int SIZE>
struct alignas(kVectorBytes) Chunk {
    typename Bits<SIZE>::Type element[kVectorBytes / SIZE];
};

// Writes the first `valid` elements to a 16-byte aligned address.
template <int SIZE>
__device__ __forceinline__ void store_chunk(typename Bits<SIZE>::Type* address, const Chunk<SIZE>& chunk,
                                            int64_t valid) {
    constexpr int V = kVectorBytes / SIZE;
    if (valid >= V) {
        *reinterpret_cast<Chunk<SIZE>*>(address) = chunk;
        return;
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
        if (i < valid) address[i] = chunk.element[i];
    }
}

// Transposes V × V elements in registers: element j of chunk i becomes element i of chunk j. Elements of 4 and 8 bytes
// are whole registers and only change names; smaller ones are turned in squares of one word's width by byte permutation.
template <int SIZE>
__device__ __forceinline__ void turn_micro_tile(Chunk<SIZE> (&chunks)[kVectorBytes / SIZE]) {
    constexpr int V = kVectorBytes / SIZE;
    if constexpr (SIZE >= 4) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
#pragma unroll
            for (int j = 0; j < i; ++j) {
                const auto element = chunks[i].element[j];
                chunks[i].element[j] = chunks[j].element[i];
                chunks[j].element[i] = element;
            }
        }
    } else {
        constexpr int kWords = 4;            // words in a chunk
        constexpr int kSquare = 4 / SIZE;    // elements in a word, and words in a square
        uint32_t words[V][kWords];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            const uint4 bits = *reinterpret_cast<const uint4*>(&chunks[i]);
            words[i][0] = bits.x, words[i][1] = bits.y, words[i][2] = bits.z, words[i][3] = bits.w;
        }
        uint32_t turned[V][kWords];
#pragma unroll
        for (int across = 0; across < kWords; ++across) {
#pragma unroll
            for (int down = 0; down < kWords; ++down) {
                // The square of rows down·kSquare … in word `across` goes to rows across·kSquare … in word `down`.
                uint32_t in[kSquare], out[kSquare];
#pragma unroll
                for (int i = 0; i < kSquare; ++i) in[i] = words[down * kSquare + i][across];
                if constexpr (SIZE == 2) {
                    out[0] = __byte_perm(in[0], in[1], 0x5410);   // the low halves of both
                    out[1] = __byte_perm(in[0], in[1], 0x7632);   // the high halves
                } else {
                    const uint32_t low01 = __byte_perm(in[0], in[1], 0x5140);    // bytes 0 and 1 of both, interleaved
                    const uint32_t high01 = __byte_perm(in[0], in[1], 0x7362);   // bytes 2 and 3
                    const uint32_t low23 = __byte_perm(in[2], in[3], 0x5140);
                    const uint32_t high23 = __byte_perm(in[2], in[3], 0x7362);
                    out[0] = __byte_perm(low01, low23, 0x5410);
                    out[1] = __byte_perm(low01, low23, 0x7632);
                    out[2] = __byte_perm(high01, high23, 0x5410);
                    out[3] = __byte_perm(high01, high23, 0x7632);
                }
#pragma unroll
                for (int i = 0; i < kSquare; ++i) turned[across * kSquare + i][down] = out[i];
            }
        }
#pragma unroll
        for (int i = 0; i < V; ++i) {
            *reinterpret_cast<uint4*>(&chunks[i]) = make_uint4(turned[i][0], turned[i][1], turned[i][2], turned[i][3]);
        }
    }
}
