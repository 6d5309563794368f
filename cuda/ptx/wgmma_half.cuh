// wgmma with 16-bit operands, both in shared memory (sm_90a). PTX: "wgmma"; the parts that other types share are in wgmma.cuh.
//
// D (64 × N, FP32) ← A (64 × 16) · B (16 × N) [+ D]. Thread 32·w + 4·g + t of the warpgroup holds of D at index 4·j + 2·f + c the
// element (16w + g + 8f, 8j + 2t + c). Operands may be K-major or MN-major, as their descriptors and the last two template
// arguments say. A function for each N, written by a macro: N/2 sums are N/2 operands of an instruction.
#pragma once

#include "half.cuh"
#include "wgmma.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The names of the first so many operands, and what they are.
#define WGMMA_NAMES_4 "%0, %1, %2, %3"
#define WGMMA_SUMS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WGMMA_NAMES_8 WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define WGMMA_SUMS_8 WGMMA_SUMS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_SUMS_16 WGMMA_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), \
    "+f"(d[14]), "+f"(d[15])
#define WGMMA_NAMES_32 WGMMA_NAMES_16 \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_SUMS_32 WGMMA_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), \
    "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
    "+f"(d[30]), "+f"(d[31])
#define WGMMA_NAMES_48 WGMMA_NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_SUMS_48 WGMMA_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), \
    "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), \
    "+f"(d[46]), "+f"(d[47])
#define WGMMA_NAMES_56 WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_SUMS_56 WGMMA_SUMS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
    "+f"(d[54]), "+f"(d[55])
#define WGMMA_NAMES_64 WGMMA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_SUMS_64 WGMMA_SUMS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), \
    "+f"(d[62]), "+f"(d[63])
#define WGMMA_NAMES_96 WGMMA_NAMES_64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_SUMS_96 WGMMA_SUMS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
    "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), \
    "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), \
    "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), \
    "+f"(d[94]), "+f"(d[95])
#define WGMMA_NAMES_112 WGMMA_NAMES_96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_SUMS_112 WGMMA_SUMS_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), \
    "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), \
    "+f"(d[110]), "+f"(d[111])
#define WGMMA_NAMES_128 WGMMA_NAMES_112 \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_SUMS_128 WGMMA_SUMS_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), \
    "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), \
    "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// N, sums a thread, and the numbers of the operands that follow them: descriptors, `accumulate`, orientations.
#define WGMMA_HALF_AS(TYPE, N, SUMS, A, B, ACCUMULATE, A_ROWS, B_ROWS)                                                 \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" WGMMA_NAMES_##SUMS "}, "         \
                 "%" #A ", %" #B ", p, 1, 1, %" #A_ROWS ", %" #B_ROWS ";\n}"                                           \
                 : WGMMA_SUMS_##SUMS                                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(A_IN_ROWS)),                \
                   "n"(static_cast<int>(B_IN_ROWS)))
#define WGMMA_HALF(N, SUMS, ...)                                                                                       \
    template <Half TYPE, bool A_IN_ROWS, bool B_IN_ROWS>                                                               \
    __device__ __forceinline__ void wgmma_half(float (&d)[SUMS], uint64_t a, uint64_t b, bool accumulate) {            \
        if constexpr (TYPE == Half::kBF16) WGMMA_HALF_AS("bf16", N, SUMS, __VA_ARGS__);                                \
        else WGMMA_HALF_AS("f16", N, SUMS, __VA_ARGS__);                                                               \
    }

namespace ptx {

// A_IN_ROWS, B_IN_ROWS: the operand is MN-major. `accumulate` false starts from zero instead of D.
WGMMA_HALF(8, 4, 4, 5, 6, 7, 8)
WGMMA_HALF(16, 8, 8, 9, 10, 11, 12)
WGMMA_HALF(32, 16, 16, 17, 18, 19, 20)
WGMMA_HALF(64, 32, 32, 33, 34, 35, 36)
WGMMA_HALF(96, 48, 48, 49, 50, 51, 52)
WGMMA_HALF(112, 56, 56, 57, 58, 59, 60)
WGMMA_HALF(128, 64, 64, 65, 66, 67, 68)
WGMMA_HALF(192, 96, 96, 97, 98, 99, 100)
WGMMA_HALF(224, 112, 112, 113, 114, 115, 116)
WGMMA_HALF(256, 128, 128, 129, 130, 131, 132)

}  // namespace ptx

#endif  // sm_90a
