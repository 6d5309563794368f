// The tensor core's instruction for a warp.
#pragma once

#include <cstdint>

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

}  // namespace ptx
