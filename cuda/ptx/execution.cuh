// How a kernel runs: its start after the kernel before it, the registers of its warpgroups, and instructions of arithmetic that CUDA
// C++ has no words for.
#pragma once

#include <cstdint>

namespace ptx {

// ---- rcp.approx: a reciprocal without the steps that round it. PTX: "rcp" -----------------------------------------

// 1/x with an error of at most 1 ulp, for an x between 2^-126 and 2^126.
__device__ __forceinline__ float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 2^x with a relative error of at most 2^-22.5; results below 2^-126 become 0. PTX: "ex2".
__device__ __forceinline__ float exp2_approximate(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The larger one, or NaN where one of them is (sm_80). PTX: "max".
__device__ __forceinline__ float max_or_nan(float x, float y) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
}

// ---- for the compiler alone ----------------------------------------------------------------------------------------

// Returns its argument, which the compiler must take for a new number: what is computed from it stays inside a loop
// instead of being kept in registers before the loop.
__device__ __forceinline__ int recompute(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// Keeps the compiler from moving what computes, reads or writes these values across this point, or what memory is asked for behind it to before it:
// wgmma writes accumulators when it likes.
template <int COUNT>
__device__ __forceinline__ void settle(float (&values)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Returns its argument, which the compiler has to compute before what follows of these instructions: before a wait, and not after it. It
// does not know any more that the pointer is one to global memory (load_global() in memory.cuh does).
__device__ __forceinline__ const float* compute_now(const float* pointer) {
    asm volatile("" : "+l"(pointer) : : "memory");
    return pointer;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- elect.sync: one lane that acts for its warp. PTX: "elect.sync" -------------------------------------------------

// Whether this lane is the one: always the same of a whole warp, all lanes of which ask. Copies by TMA take coordinates and addresses from
// uniform registers. What one elected lane has goes there at once; behind `lane == 0`, which says nothing to the compiler, each copy is a
// loop over the lanes that may differ, of a dozen instructions.
__device__ __forceinline__ bool elect_lane() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
}

#endif  // sm_90

// ---- the kernel before on the stream (sm_90). PTX: "griddepcontrol" ------------------------------------------------

// Lets the next kernel on the stream, if its launch allows that, take the places of blocks that end from now on. It has to
// wait, as below, before it reads what this kernel writes. Where this one has started early itself, that covers the kernels
// before it too: it ends after them, because all of its blocks wait.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernels before this one on its stream have finished and what they wrote can be read. Only a launch that
// allows this kernel to start before they end has anything to wait for.
__device__ __forceinline__ void wait_for_previous_kernels() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

// ---- registers for a warpgroup (sm_90a). PTX: "setmaxnreg" -----------------------------------------------------

template <int REGISTERS>
__device__ __forceinline__ void registers_increase_to() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void registers_decrease_to() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif  // sm_90a

}  // namespace ptx
