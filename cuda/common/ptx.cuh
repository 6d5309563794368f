// Every PTX instruction that the kernels use, each behind a function that says what it does.
//
// Inline assembly lives in this file alone, so that a kernel stays plain CUDA C++ and a host emulation can replace
// these functions one by one. Section numbers in comments are those of NVIDIA's PTX ISA.
#pragma once

#include <cstdint>

namespace ptx {

// The address of a shared-memory object as the 32-bit number that PTX's .shared instructions take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- cp.async (sm_80): global to shared memory without registers. PTX: "cp.async" ------------------------------

// Copies 16 bytes, bypassing L1. Only the first `valid_bytes` are read; the rest of the 16 becomes zero.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int valid_bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid_bytes) : "memory");
}

// Copies 4 bytes; with `valid_bytes` 0 nothing is read and the 4 bytes become zero.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, int valid_bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid_bytes) : "memory");
}

// Closes the group of this thread's copies since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Returns its argument, which the compiler must take for a new number: what is computed from it stays inside a loop
// instead of being kept in registers before the loop.
__device__ __forceinline__ int recompute(int value) {
    asm volatile("" : "+r"(value));
    return value;
}

// ---- loads of data that is used once. PTX: "ld.global.nc" ------------------------------------------------------

// Reads 16 read-only bytes that no other thread of the block will ask for: they do not displace the L1's content.
__device__ __forceinline__ float4 load_streaming(const float* address) {
    float4 value;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "l"(address));
    return value;
}

// ---- named barriers. PTX: "bar{.cta}.sync" ---------------------------------------------------------------------

// A barrier of `threads` threads of the block (a multiple of 32); identifier 0 is __syncthreads().
__device__ __forceinline__ void named_barrier_sync(int identifier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- mbarrier (sm_90 for the transaction count). PTX: "mbarrier" -----------------------------------------------

// Initialises a barrier in shared memory for `arrivals` arrivals a phase. Follow with fence_mbarrier_init() and a
// barrier of the block (or the cluster) before anybody uses it.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives and announces `bytes` that copies will deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits until the phase of the given parity (0, 1, 0, …) has completed.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}\n" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// ---- bulk tensor copies, TMA (sm_90). PTX: "cp.async.bulk.tensor" ----------------------------------------------

// `map` is a CUtensorMap in parameter or global memory; coordinates count elements, innermost dimension first.
__device__ __forceinline__ void tma_prefetch_descriptor(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load_2d(void* shared, const void* map, uint64_t* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* shared, const void* map, uint64_t* barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_store_2d(const void* map, const void* shared, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(shared_address(shared)), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_store_3d(const void* map, const void* shared, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` bulk groups of this thread still read from shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Orders this thread's ordinary shared-memory accesses before later ones of the copy engine and the tensor cores.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif  // sm_90

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
