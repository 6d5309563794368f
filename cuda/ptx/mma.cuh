// The tensor core's instruction for a warp.
#pragma once

#include <cstdint>

#include "half.cuh"

namespace ptx {

// ---- matrix multiply-add of a warp (sm_80). PTX: "mma" --------------------------------------------------------------
//
// D (16 × 8, FP32) ← A (16 × 8) · B (8 × 8) + D. TF32 operands are 32-bit words whose low 13 bits the hardware ignores.
//
// Lane 4·g + t holds of A the elements (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) in that order, of B (t, g) and
// (t + 4, g), and of D (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// D (16 × 8, FP32) ← A (16 × 16) · B (16 × 8) + D, of 16-bit numbers, two neighbours in k a register.
//
// Lane 4·g + t holds of A the pairs from (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8) in that order, of B those from (2t, g)
// and (2t + 8, g), and of D what it holds above.
template <Half TYPE>
__device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    if constexpr (TYPE == Half::kBF16) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

}  // namespace ptx
