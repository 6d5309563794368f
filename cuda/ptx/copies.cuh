// Asynchronous copies between global and shared memory: cp.async, a thread's own, and TMA, which moves whole boxes of a tensor.
#pragma once

#include <cstdint>

#include "memory.cuh"

namespace ptx {

// ---- cp.async (sm_80): global to shared memory without registers. PTX: "cp.async" ------------------------------

// Copies 16 bytes, bypassing L1. Only the first `valid_bytes` are read; the rest of the 16 becomes zero.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global, int valid_bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid_bytes) : "memory");
}

// The same to this address in shared memory.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global, int valid_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes) : "memory");
}

// The same, and asks the L2 to fetch the whole 256 bytes around them: for rows that the block reads on.
__device__ __forceinline__ void cp_async_16_prefetch_256(void* shared, const void* global, int valid_bytes = 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid_bytes) : "memory");
}

// Copies 4 bytes. Only the first `valid_bytes` are read; the rest of the 4 becomes zero.
__device__ __forceinline__ void cp_async_4(void* shared, const void* global, int valid_bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 ::"r"(shared_address(shared)), "l"(global), "r"(valid_bytes) : "memory");
}

// Copies so many bytes, 4, 8 or 16, to this address in shared memory; 16 bypass the L1.
template <int BYTES>
__device__ __forceinline__ void cp_async(uint32_t shared, const void* global) {
    if constexpr (BYTES == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES) : "memory");
}

// Copies 4 bytes to this address in shared memory, or zeros where not `inside`: then nothing is read, and `global` may lead anywhere.
// With WHOLE_LINE it also asks the L2 for the whole 128 bytes around them.
template <bool WHOLE_LINE = false>
__device__ __forceinline__ void cp_async_4_or_zero(uint32_t shared, const void* global, bool inside) {
    if constexpr (WHOLE_LINE)
        asm volatile(
            "{\n\t.reg .pred outside;\n\t"
            "setp.eq.u32 outside, %2, 0;\n\t"
            "cp.async.ca.shared.global.L2::128B [%0], [%1], 4, outside;\n\t}"
            ::"r"(shared), "l"(global), "r"(static_cast<uint32_t>(inside)) : "memory");
    else
        asm volatile(
            "{\n\t.reg .pred outside;\n\t"
            "setp.eq.u32 outside, %2, 0;\n\t"
            "cp.async.ca.shared.global [%0], [%1], 4, outside;\n\t}"
            ::"r"(shared), "l"(global), "r"(static_cast<uint32_t>(inside)) : "memory");
}

// The same, but where not `inside` nothing is written either.
template <bool WHOLE_LINE = false>
__device__ __forceinline__ void cp_async_4_if(bool inside, uint32_t shared, const void* global) {
    if constexpr (WHOLE_LINE)
        asm volatile(
            "{\n\t.reg .pred inside;\n\t"
            "setp.ne.u32 inside, %0, 0;\n\t"
            "@inside cp.async.ca.shared.global.L2::128B [%1], [%2], 4;\n\t}"
            ::"r"(static_cast<uint32_t>(inside)), "r"(shared), "l"(global) : "memory");
    else
        asm volatile(
            "{\n\t.reg .pred inside;\n\t"
            "setp.ne.u32 inside, %0, 0;\n\t"
            "@inside cp.async.ca.shared.global [%1], [%2], 4;\n\t}"
            ::"r"(static_cast<uint32_t>(inside)), "r"(shared), "l"(global) : "memory");
}

// Closes the group of this thread's copies since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- bulk tensor copies, TMA (sm_90). PTX: "cp.async.bulk.tensor" ----------------------------------------------

// `map` is a CUtensorMap in parameter or global memory; coordinates count elements, innermost dimension first.
__device__ __forceinline__ void tma_prefetch_descriptor(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void tma_load_3d(void* shared, const void* map, uint64_t* barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_store_3d(const void* map, const void* shared, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 ::"l"(map), "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z) : "memory");
}

// What "createpolicy.fractional.L2::evict_first.b64 policy, 1.0" yields, spelled out because the instruction would stand
// before a block's first request: the lines of a copy leave the L2 before others.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;

__device__ __forceinline__ void tma_load_3d(void* shared, const void* map, uint64_t* barrier, int x, int y, int z,
                                            uint64_t l2_policy) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5}], [%2], %6;"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "l"(l2_policy)
        : "memory");
}

__device__ __forceinline__ void tma_store_3d(const void* map, const void* shared, int x, int y, int z,
                                             uint64_t l2_policy) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], [%1], %5;"
                 ::"l"(map), "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z), "l"(l2_policy) : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` bulk groups of this thread still read from shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Orders this thread's ordinary shared-memory accesses before later ones of TMA and the tensor cores.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory: between what other threads wrote there, of which this one knows, and its later copies of TMA.
__device__ __forceinline__ void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Copies so many bytes, a multiple of 16, that lie together in global memory.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// The batched forms: the map is x, y and three batch dimensions.
__device__ __forceinline__ void tma_load_5d(void* shared, const void* map, uint64_t* barrier, int x, int y, int z,
                                            int v, int w) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w)
        : "memory");
}

// Writes the box to the same shared-memory offset of every block of the cluster whose bit is set in `blocks`, and
// completes the bytes on the barrier at the same offset of each.
__device__ __forceinline__ void tma_load_5d_multicast(void* shared, const void* map, uint64_t* barrier,
                                                      uint16_t blocks, int x, int y, int z, int v, int w) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
        ::"r"(shared_address(shared)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w),
          "h"(blocks)
        : "memory");
}

__device__ __forceinline__ void tma_store_5d(const void* map, uint32_t shared, int x, int y, int z, int v, int w) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];"
                 ::"l"(map), "r"(shared), "r"(x), "r"(y), "r"(z), "r"(v), "r"(w) : "memory");
}

#endif  // sm_90

}  // namespace ptx
