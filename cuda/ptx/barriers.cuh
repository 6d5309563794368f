// Barriers of some of a block's threads, and barriers in shared memory (mbarrier), which also count the bytes of copies.
#pragma once

#include <cstdint>

#include "memory.cuh"

namespace ptx {

// ---- named barriers. PTX: "bar{.cta}.sync" ---------------------------------------------------------------------

// A barrier of `threads` threads of the block (a multiple of 32); identifier 0 is __syncthreads().
__device__ __forceinline__ void named_barrier_sync(int identifier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

// Arrives at such a barrier without waiting: `threads` counts those that arrive and those that sync.
__device__ __forceinline__ void named_barrier_arrive(int identifier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(identifier), "r"(threads) : "memory");
}

// Such a barrier that tells every thread whether all of them brought `value` true.
__device__ __forceinline__ bool named_barrier_and(int identifier, int threads, bool value) {
    int all;
    asm volatile(
        "{\n"
        ".reg .pred mine, everybody;\n"
        "setp.ne.b32 mine, %3, 0;\n"
        "bar.red.and.pred everybody, %1, %2, mine;\n"
        "selp.b32 %0, 1, 0, everybody;\n"
        "}\n" : "=r"(all) : "r"(identifier), "r"(threads), "r"(static_cast<int>(value)) : "memory");
    return all != 0;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- mbarrier (sm_90 for the transaction count). PTX: "mbarrier" -----------------------------------------------

// Initialises a barrier in shared memory for `arrivals` arrivals a phase. Follow with fence_mbarrier_init() and a
// barrier of the block (or the cluster) before anybody uses it.
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to TMA and to the other blocks of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, one of the arrivals that the barrier counts, as soon as all copies (cp.async) that this thread has started are done.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives and announces `bytes` that copies will deliver in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Announces `bytes` that copies will deliver in this phase, and leaves the arrival to others.
__device__ __forceinline__ void mbarrier_expect_bytes(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
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

#endif  // sm_90

}  // namespace ptx
