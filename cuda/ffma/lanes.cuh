// How the lanes of a warp share a tile.
#pragma once

#include "../epilogue/epilogue.cuh"

namespace ffma_gemm {

// The lanes of a warp as LM × LN. A 16-byte shared-memory read takes two clocks instead of four where lanes that
// differ in bit 0 or in bit 1 alone ask for the same address; these patterns give that to both operands.
template <int LM, int LN>
struct Lanes {
    static_assert(LM * LN == kWarp && (LM == 2 || LM == 4 || LM == 8 || LM == 16), "a warp has 32 lanes");
    static __device__ __forceinline__ int m(int lane) {
        return LM == 2 ? lane / 2 % 2 : LM == 4 ? lane / 2 % 4 : LM == 8 ? lane / 8 * 2 + lane % 2
                                                                        : lane / 4 * 2 + lane % 2;
    }
    static __device__ __forceinline__ int n(int lane) {
        return LM == 2 ? lane / 4 * 2 + lane % 2 : LM == 4 ? lane / 8 * 2 + lane % 2 : LM == 8 ? lane / 2 % 4
                                                                                            : lane / 2 % 2;
    }

    // For the epilogue: which lane has the next n of the same m.
    static constexpr bool kBeside = true;
    static __device__ __forceinline__ int next(int lane) {
        if (n(lane) == LN - 1) return kNoLane;
        constexpr int kPairs = LM == 2 ? 4 : 8;   // lanes between n and n + 2 where LM is small
        return LM >= 8 ? lane + 2 : lane % 2 == 0 ? lane + 1 : lane + kPairs - 1;
    }
    static __device__ __forceinline__ bool is_first(int lane) { return n(lane) == 0; }
};

}  // namespace ffma_gemm
