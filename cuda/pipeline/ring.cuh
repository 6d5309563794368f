// A ring of stages in shared memory, which producers fill and consumers read. Each stage has two barriers: `full` completes when
// all of it has arrived, `empty` when all have read it.
#pragma once

#include <cstdint>

#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"

// A place in the ring, and the parity of the phase that its barriers are in. A consumer waits for `full` with this parity, a producer
// for `empty` with the other: so all stages are free in the first round.
template <int STAGES>
struct Ring {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    // By several stages, STAGES at most.
    __device__ __forceinline__ void advance(int by) {
        stage += by;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// A warp has read a stage. It tells the blocks of the cluster whose copies land there, WRITERS of them: lane i the one with
// rank `writer`.
template <int WRITERS>
__device__ __forceinline__ void release_stage(uint64_t* empty, int lane, int writer) {
    if constexpr (WRITERS == 1) {
        if (lane == 0) ptx::mbarrier_arrive(empty);
    } else {
        if (lane < WRITERS) ptx::mbarrier_arrive_cluster(empty, writer);
    }
}

// Without producers a warp that has read a stage asks for its next contents, if it is the last of the block's WARPS to have read it in this
// round: then what all of them read there comes before what it asks for. `readers` counts over all rounds.
template <int WARPS>
__device__ __forceinline__ bool is_last_reader(int& readers) {
    return ptx::add_in_turn(&readers, 1) % WARPS == WARPS - 1;
}

#endif  // sm_90
