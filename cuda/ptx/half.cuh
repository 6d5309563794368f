// Numbers of 16 bits: conversions, and how fragments of them come from shared memory and go there.
#pragma once

#include <cstdint>

namespace ptx {

// ---- numbers of 16 bits (sm_80). PTX: "cvt" -------------------------------------------------------------------------

enum class Half { kF16, kBF16 };   // IEEE's binary16; the upper half of an FP32 number

// The first of two neighbours in memory is the low half of a word.
template <Half TYPE>
__device__ __forceinline__ float low_to_float(uint32_t pair) {
    if constexpr (TYPE == Half::kBF16) return __uint_as_float(pair << 16);
    float result;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}" : "=f"(result) : "r"(pair));
    return result;
}

template <Half TYPE>
__device__ __forceinline__ float high_to_float(uint32_t pair) {
    if constexpr (TYPE == Half::kBF16) return __uint_as_float(pair & 0xFFFF0000u);
    float result;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}" : "=f"(result) : "r"(pair));
    return result;
}

// Both rounded to nearest even; what is too large becomes infinite.
template <Half TYPE>
__device__ __forceinline__ uint32_t round_pair(float low, float high) {
    uint32_t pair;
    if constexpr (TYPE == Half::kBF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Words of the low halves of two words, and of their high halves. PTX: "prmt".
__device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x5410); }
__device__ __forceinline__ uint32_t pair_of_high(uint32_t low, uint32_t high) { return __byte_perm(low, high, 0x7632); }

// ---- 8 × 8 matrices of 16-bit numbers (sm_75; stores sm_90). PTX: "ldmatrix", "stmatrix" -----------------------------
//
// Lane 8·i + r gives the address of row r of matrix i, 16 bytes. Lane 4·g + t then holds of each the elements (g, 2t) and
// (g, 2t + 1), or with TRANSPOSED (2t, g) and (2t + 1, g).

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(uint32_t (&matrices)[4], uint32_t shared) {
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3]) : "r"(shared) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3]) : "r"(shared) : "memory");
    }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ void store_matrices(uint32_t shared, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
#endif

}  // namespace ptx
