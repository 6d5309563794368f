// Clusters of blocks, which reach each other's shared memory.
#pragma once

#include <cstdint>

#include "memory.cuh"

namespace ptx {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- clusters (sm_90). PTX: "barrier.cluster", "mapa" ----------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ uint32_t cluster_size() {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// The same, asked for at this place: they need no registers before it.
__device__ __forceinline__ uint32_t cluster_rank_now() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ uint32_t cluster_size_now() {
    uint32_t size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// Which cluster of the grid this is, along x, and how many there are.
__device__ __forceinline__ uint32_t cluster_index() {
    uint32_t index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}

__device__ __forceinline__ uint32_t cluster_count() {
    uint32_t count;
    asm("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
    return count;
}

// A barrier of every thread of the cluster; what was written to shared memory before it is visible after it.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Its two halves. What a thread wrote to the cluster's shared memory before it arrived is visible to those that have waited.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
// Arrives without a word of what was written before.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// The address, as 32 bits of the cluster's shared window, of `pointer`'s counterpart in block `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(const void* pointer, uint32_t rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
    return address;
}

// Arrives at the counterpart of `barrier` in block `rank`, without an explicit .release.cluster: spelling that out
// halves the speed of a pipeline that arrives once a stage, and TMA's own completion needs no such order.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint64_t* barrier, uint32_t rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank)) : "memory");
}

// The same for an address that cluster_address() gave.
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

__device__ __forceinline__ float load_cluster(uint32_t address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void store_cluster(uint32_t address, float value) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_cluster(uint32_t address, uint64_t value) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(value) : "memory");
}

// Writes 16 bytes, which complete on `barrier`, both of them addresses in one block: who has waited for that barrier sees them. So
// nobody waits for the write itself, and no fence, which would wait for the L2, stands between it and its reader. PTX: "st.async"
__device__ __forceinline__ void store_cluster_async(uint32_t address, float4 value, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(address), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier) : "memory");
}

// Reads 16 bytes.
__device__ __forceinline__ float4 load_cluster_vector(uint32_t address) {
    float4 value;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address) : "memory");
    return value;
}

#endif  // sm_90

}  // namespace ptx
