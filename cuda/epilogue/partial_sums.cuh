// How partial sums come together, always in the order of k: the same bits every time.
#pragma once

#include "../ptx/cluster.cuh"

__device__ __forceinline__ void add(float& sum, float part) { sum += part; }
__device__ __forceinline__ void add(float4& sum, float4 part) {
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
}

// The sum of the slices that `load(slice)` reads, AHEAD of them under way at a time.
template <int AHEAD, typename LOAD>
__device__ __forceinline__ float4 sum_of_slices(int slices, const LOAD& load) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int first = 0; first < slices; first += AHEAD) {
        float4 part[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (first + i < slices) part[i] = load(first + i);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            if (first + i < slices) add(sum, part[i]);
    }
    return sum;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ void load_cluster(uint32_t address, float& value) { value = ptx::load_cluster(address); }
__device__ __forceinline__ void load_cluster(uint32_t address, float4& value) { value = ptx::load_cluster_vector(address); }

// The sums over the blocks of a cluster, which hold a slice of k each: COUNT of them, which lie STRIDE apart from `mine` on in the
// shared memory of each block. UNROLL slices at a time.
template <int COUNT, int STRIDE, int UNROLL, typename T>
__device__ __forceinline__ void sum_over_cluster(const T* mine, int slices, T (&sum)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum[i] = T{};
#pragma unroll UNROLL
    for (int slice = 0; slice < slices; ++slice) {
        const uint32_t theirs = ptx::cluster_address(mine, slice);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            T part;
            load_cluster(theirs + i * STRIDE * static_cast<uint32_t>(sizeof(T)), part);
            add(sum[i], part);
        }
    }
}

#endif  // sm_90
