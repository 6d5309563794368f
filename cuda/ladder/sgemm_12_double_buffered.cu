// Rung 12: double buffered. Two tiles of each operand in shared memory: one is read while the other is filled.
//
// Origin: B kernel 7.
//
// What changes against rung 10: there a step is load, barrier, multiply, barrier, and while a block loads it multiplies
// nothing. Here the loads of step t + 1 start before the products of step t, and wait in registers meanwhile; what they
// bring is stored to the other tile, so one barrier a step is enough.
//
//      rung 10:    load 0 │ multiply 0 │ load 1 │ multiply 1 │ …                      │ barriers
//
//      rung 12:    load 0 │ fetch 1 → multiply 0 → deposit 1 │ fetch 2 → multiply 1 → deposit 2 │ …
//                             tile 0 is read, tile 1 written      tile 1 is read, tile 0 written
//
// On a card that runs two blocks a multiprocessor this wins little, or loses: the other block hid the loads already, and
// the registers that hold the next step are missed elsewhere. docs/ladder.md has the counters.
//
// Global-memory traffic and arithmetic per load: as in rung 10, m·n·k·(1/BM + 1/BN) floats read, 64 products a float
// from global memory and 4 a float from shared memory at 128 × 128 and 8 × 8.
#include "../pipeline/grouped_tile.cuh"
#include "block_tile.cuh"
#include "panel.cuh"
#include "store_thread_tile.cuh"

template <int BM, int BN, int BK, int TM, int TN>
struct DoubleBuffered {
    static constexpr int kThreadsM = BM / TM;   // the grid of threads over the tile
    static constexpr int kThreadsN = BN / TN;
    static constexpr int kThreads = kThreadsM * kThreadsN;
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must fill the block's tile");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    using Thread = GroupedTile<TM, TN, kThreadsM * kVector, kThreadsN * kVector>;
    struct Shared {   // two of each: one is read while the other is written
        alignas(16) typename PanelA::Tile a[2];
        alignas(16) typename PanelB::Tile b[2];
    };

    // This thread's first row and column within the block's tile.
    static __device__ __forceinline__ int thread_row() { return threadIdx.x / kThreadsN * kVector; }
    static __device__ __forceinline__ int thread_col() { return threadIdx.x % kThreadsN * kVector; }

    // Adds the products of the next `depth` values of k.
    template <bool INSIDE>
    static __device__ __forceinline__ void accumulate(Thread& acc, Shared& shared, PanelA& a, PanelB& b, int depth) {
        if (depth <= 0) return;
        int buffer = 0;
        __syncthreads();   // nobody reads the tiles of an earlier call any more
        a.deposit(shared.a[buffer], a.template fetch<INSIDE>(depth));
        b.deposit(shared.b[buffer], b.template fetch<INSIDE>(depth));
        __syncthreads();

        for (; depth > 0; depth -= BK) {
            const bool more = depth > BK;
            typename PanelA::Chunks next_a;
            typename PanelB::Chunks next_b;
            if (more) {
                next_a = a.template fetch<INSIDE>(depth - BK);
                next_b = b.template fetch<INSIDE>(depth - BK);
            }
#pragma unroll(INSIDE ? BK : 2)
            for (int k = 0; k < BK; ++k) {
                typename Thread::Fragment fragment;
                Thread::read(fragment, &shared.a[buffer][k][thread_row()], &shared.b[buffer][k][thread_col()]);
                acc.multiply_add(fragment);
            }
            if (more) {
                buffer ^= 1;
                a.deposit(shared.a[buffer], next_a);
                b.deposit(shared.b[buffer], next_b);
                __syncthreads();
            }
        }
    }

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ Shared shared;
        for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
            const BatchMember<> member(args, tile.batch);
            PanelA a = PanelA::of_a(args, member.a, tile.row());
            PanelB b = PanelB::of_b(args, member.b, tile.col());
            const bool whole = a.extent >= BM && b.extent >= BN;   // no element of the tile lies outside
            const bool vectors = is_vector(args.a_access) && is_vector(args.b_access);
            const int unguarded = whole && vectors ? args.k - args.k % BK : 0;
            Thread acc = {};
            accumulate<true>(acc, shared, a, b, unguarded);
            accumulate<false>(acc, shared, a, b, args.k - unguarded);
            store_outputs(acc, args, tile.batch, tile.row() + thread_row(), tile.col() + thread_col(), whole);
        }
    }
};

// NAME, then the tile: BM, BN, BK, TM, TN.
#define DOUBLE_BUFFERED(NAME, ...)                                                               \
    extern "C" __global__ void __launch_bounds__(DoubleBuffered<__VA_ARGS__>::kThreads, 2)       \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        DoubleBuffered<__VA_ARGS__>::run(args);                                                  \
    }

DOUBLE_BUFFERED(sgemm_12_double_buffered, 128, 128, 8, 8, 8)
