// Loads, stores, counters and prefetches that CUDA C++ has no words for. PTX wrappers: inline assembly lives in the headers of this
// folder alone, each instruction behind a function that says what it does, so that a kernel stays plain CUDA C++ and a host emulation
// can replace these functions one by one. Section numbers and quoted names are those of NVIDIA's PTX ISA.
#pragma once

#include <cstdint>

namespace ptx {

// The address of a shared-memory object as the 32-bit number that PTX's .shared instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- shared memory by its 32-bit address. PTX: "ld.shared" -----------------------------------------------------

// Reads 16 bytes: for addresses that are computed bit by bit, where a pointer would hide from the compiler that it is one to
// shared memory.
__device__ __forceinline__ float4 load_shared_vector(uint32_t address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address) : "memory");
    return value;
}

// ---- fetching into the L2 (sm_90). PTX: "cp.async.bulk.prefetch" ------------------------------------------------------

// Asks the L2 for `bytes` bytes; address and number are multiples of 16. It is not a read: if another kernel writes there
// meanwhile, later reads find what it wrote.
__device__ __forceinline__ void prefetch_l2(const void* address, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

// ---- loads of data that is used once. PTX: "ld.global" ---------------------------------------------------------
//
// No ld.global.nc, and no __ldg() in any kernel: they ask for memory that nobody writes for as long as the kernel runs. A kernel that starts
// while the one before is still writing can't promise that, and ptxas, which trusts the promise, has moved such loads ahead of
// griddepcontrol.wait.

// Reads 16 bytes by a pointer of which the compiler may not know that it is one to global memory.
__device__ __forceinline__ float4 load_global(const float* address) {
    float4 value;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(address));
    return value;
}

// Reads 16 bytes that no other thread of the block will ask for: they do not displace the L1's content.
__device__ __forceinline__ float4 load_streaming(const float* address) {
    float4 value;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(address));
    return value;
}

__device__ __forceinline__ uint4 load_streaming(const uint16_t* address) {
    uint4 value;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(address));
    return value;
}

// Reads an element, or nothing where not `inside`: then it is zero, and `address` may lead anywhere. The compiler keeps the order of such
// loads, and does not move them to their uses: what a thread asks for before it uses any of it is under way together.
__device__ __forceinline__ float load_or_zero(const float* address, bool inside) {
    float value;
    asm volatile(
        "{\n\t.reg .pred inside;\n\t"
        "setp.ne.u32 inside, %2, 0;\n\t"
        "mov.f32 %0, 0f00000000;\n\t"
        "@inside ld.global.f32 %0, [%1];\n\t}"
        : "=&f"(value) : "l"(address), "r"(static_cast<uint32_t>(inside)));
    return value;
}

__device__ __forceinline__ uint16_t load_or_zero(const uint16_t* address, bool inside) {
    uint16_t value;
    asm volatile(
        "{\n\t.reg .pred inside;\n\t"
        "setp.ne.u32 inside, %2, 0;\n\t"
        "mov.u16 %0, 0;\n\t"
        "@inside ld.global.u16 %0, [%1];\n\t}"
        : "=&h"(value) : "l"(address), "r"(static_cast<uint32_t>(inside)));
    return value;
}

// The same of 16 bytes.
__device__ __forceinline__ uint4 load_or_zeros(const void* address, bool inside) {
    uint4 value;
    asm volatile(
        "{\n\t.reg .pred inside;\n\t"
        "setp.ne.u32 inside, %5, 0;\n\t"
        "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
        "@inside ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w) : "l"(address), "r"(static_cast<uint32_t>(inside)));
    return value;
}

// ---- data and flags that blocks exchange. PTX: "ld", "st", cache operator .cg; .acquire, .release ---------------

// Reads 16 bytes past the L1, whose lines may be older than what another block wrote. The address may be one of shared
// memory, too.
__device__ __forceinline__ float4 load_l2(const float4* address) {
    float4 value;
    asm volatile("ld.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_l2(float4* address, float4 value) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(address), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");
}

// Whoever on the device reads this value with load_acquire_gpu() also sees what this thread wrote before, and what it
// knew of through a barrier.
__device__ __forceinline__ void store_release_gpu(uint64_t* address, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ uint64_t load_acquire_gpu(const uint64_t* address) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

// ---- numbers and turns drawn from counters. PTX: "atom" ------------------------------------------------------------

// Adds 1 to a counter in global memory, or sets it to 0 where it stands at `last`, and returns what it was.
__device__ __forceinline__ uint32_t increment_or_wrap(uint32_t* counter, uint32_t last) {
    uint32_t old;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(counter), "r"(last) : "memory");
    return old;
}

// Adds to a counter in shared memory and returns what it was. What any thread of the block did before it added, and what it
// knew of through a barrier, comes before what a thread does that adds later.
__device__ __forceinline__ int add_in_turn(int* counter, int value) {
    int old;
    asm volatile("atom.acq_rel.cta.shared.add.u32 %0, [%1], %2;"
                 : "=r"(old) : "r"(shared_address(counter)), "r"(value) : "memory");
    return old;
}

}  // namespace ptx
