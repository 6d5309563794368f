// The main loop of kernels whose panels come by asynchronous copies: STAGES panels of A and of B lie in shared memory in a
// ring; while one is multiplied, STAGES − 1 others are under way.
//
//      step t        read ──► [ t ]  [t+1]  [t+2] ◄── copies start here           STAGES = 3
//      step t + 1             [t+3]  [t+1]  [t+2]                                 the oldest buffer is the next target
#pragma once

#include "../ptx/copies.cuh"
#include "async_panel.cuh"
#include "grouped_tile.cuh"

// A block computes BM × BN, in steps of BK along k; a warp WM × WN of it and a thread TM × TN.
template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES, Walk WALK = Walk::kRows>
struct AsyncPipeline {
    static constexpr int kThreads = (BM / WM) * (BN / WN) * kWarp;
    static constexpr int kLanesM = WM / TM;            // the grid of a warp's threads
    static constexpr int kLanesN = WN / TN;

    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles must fill the block's tile");
    static_assert(WM % TM == 0 && WN % TN == 0 && kLanesM * kLanesN == kWarp,
                  "the thread tiles of 32 lanes must fill the warp's tile");
    static_assert(BK % 2 == 0, "fragments alternate between two sets of registers, which must match up at each step");
    static_assert(STAGES >= 2, "one buffer is read while another is filled");

    using PanelA = AsyncPanel<BM, BK, kThreads>;
    using PanelB = AsyncPanel<BN, BK, kThreads>;
    struct Shared {
        alignas(16) typename PanelA::Tile a[STAGES];
        alignas(16) typename PanelB::Tile b[STAGES];
    };

    // One group in each repetition of the lanes.
    using Thread = GroupedTile<TM, TN, kLanesM * kVector, kLanesN * kVector>;
    using Fragment = typename Thread::Fragment;

    // The first row and column of this thread's first group, within the block's tile.
    static __device__ __forceinline__ int thread_row() {
        return threadIdx.x / kWarp / (BN / WN) * WM + threadIdx.x % kWarp / kLanesN * kVector;
    }
    static __device__ __forceinline__ int thread_col() {
        return threadIdx.x / kWarp % (BN / WN) * WN + threadIdx.x % kWarp % kLanesN * kVector;
    }

    static __device__ __forceinline__ void read(Fragment& fragment, const Shared& shared, int stage, int k) {
        Thread::read(fragment, &shared.a[stage][k][thread_row()], &shared.b[stage][k][thread_col()]);
    }

    static __device__ __forceinline__ int next(int stage) { return stage + 1 == STAGES ? 0 : stage + 1; }

    static __device__ __forceinline__ void accumulate(Thread& acc, Shared& shared, PanelA& a, PanelB& b,
                                                      int depth) {
        int copied = 0;    // the stage that is filled next
        int to_copy = depth;
        const auto start_copies = [&] {
            if (to_copy > 0) {
                a.copy(shared.a[copied], to_copy);
                b.copy(shared.b[copied], to_copy);
                to_copy -= BK;
            }
            ptx::cp_async_commit();   // an empty group past the end keeps the count of groups simple
            copied = next(copied);
        };

#pragma unroll
        for (int i = 0; i < STAGES - 1; ++i) start_copies();
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();
        int stage = 0;     // the stage that is multiplied
        Fragment even, odd;   // of the even and of the odd k
        read(even, shared, stage, 0);

        for (; depth > 0; depth -= BK) {
            start_copies();
            const float* row_of_a = &shared.a[stage][0][thread_row()];   // at k
            const float* row_of_b = &shared.b[stage][0][thread_col()];
#pragma unroll 1
            for (int k = 0; k < BK - 2; k += 2) {
                Thread::read(odd, row_of_a + PanelA::kPitch, row_of_b + PanelB::kPitch);
                acc.template multiply_add<WALK>(even);
                row_of_a += 2 * PanelA::kPitch;
                row_of_b += 2 * PanelB::kPitch;
                Thread::read(even, row_of_a, row_of_b);
                acc.template multiply_add<WALK>(odd);
            }
            Thread::read(odd, row_of_a + PanelA::kPitch, row_of_b + PanelB::kPitch);
            acc.template multiply_add<WALK>(even);
            ptx::cp_async_wait<STAGES - 2>();   // this thread's part of the next stage has arrived …
            __syncthreads();                    // … and everybody's, and nobody reads the oldest stage any more
            stage = next(stage);
            read(even, shared, stage, 0);
            acc.template multiply_add<WALK>(odd);
        }
    }
};
