// Rung 12: double buffered. Two tiles of each operand in shared memory: one is read while the other is filled.
//
// Origin: B kernel 7.
//
// What changes against rung 10: there a step is load, barrier, multiply, barrier, and while a block loads it multiplies
// nothing. Here the loads of step t + 1 start before the products of step t, and wait in registers meanwhile; what they
// bring is stored to the other tile, so one barrier a step is enough. The fragments are double too: those of k + 1 are
// read from shared memory while those of k are multiplied.
//
//      rung 10:    load 0 │ multiply 0 │ load 1 │ multiply 1 │ …                      │ barriers
//
//      rung 12:    load 0 │ fetch 1 → multiply 0 → deposit 1 │ fetch 2 → multiply 1 → deposit 2 │ …
//                             tile 0 is read, tile 1 written      tile 1 is read, tile 0 written
//
// The loop over k within a step is left a loop on purpose: unrolled whole, the compiler moves the loads from global
// memory down to where their values are stored, and nothing is left to hide behind.
//
// Global-memory traffic and arithmetic per load: as in rung 10, m·n·k·(1/BM + 1/BN) floats read, 64 products a float
// from global memory and 4 a float from shared memory at 128 × 128 and 8 × 8.
#include "../common/panel.cuh"
#include "../common/thread_tile.cuh"

template <int BM, int BN, int BK, int TM, int TN>
struct DoubleBuffered {
    static constexpr int kThreadsM = BM / TM;   // the grid of threads over the tile
    static constexpr int kThreadsN = BN / TN;
    static constexpr int kThreads = kThreadsM * kThreadsN;
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must fill the block's tile");
    static_assert(BK >= 4 && BK % 2 == 0, "fragments alternate between two sets of registers");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    using Thread = ThreadTile<TM, TN, kThreadsM * kVector, kThreadsN * kVector>;
    using Fragment = typename Thread::Fragment;
    struct Shared {   // two of each: one is read while the other is written
        alignas(16) typename PanelA::Tile a[2];
        alignas(16) typename PanelB::Tile b[2];
    };

    // This thread's first row and column within the block's tile.
    static __device__ __forceinline__ int thread_row() { return threadIdx.x / kThreadsN * kVector; }
    static __device__ __forceinline__ int thread_col() { return threadIdx.x % kThreadsN * kVector; }

    static __device__ __forceinline__ void read(Fragment& fragment, const Shared& shared, int buffer, int k) {
        Thread::read(fragment, &shared.a[buffer][k][thread_row()], &shared.b[buffer][k][thread_col()]);
    }

    // Adds the products of the next `depth` values of k.
    template <bool INSIDE>
    static __device__ __forceinline__ void accumulate(Thread& acc, Shared& shared, PanelA& a, PanelB& b, int depth) {
        if (depth <= 0) return;
        int buffer = 0;
        __syncthreads();   // nobody reads the tiles of an earlier call any more
        a.deposit(shared.a[buffer], a.template fetch<INSIDE>(depth));
        b.deposit(shared.b[buffer], b.template fetch<INSIDE>(depth));
        __syncthreads();
        Fragment even, odd;   // of the even and of the odd k
        read(even, shared, buffer, 0);

        for (; depth > 0; depth -= BK) {
            const bool more = depth > BK;
            typename PanelA::Chunks next_a;
            typename PanelB::Chunks next_b;
            if (more) {
                next_a = a.template fetch<INSIDE>(depth - BK);
                next_b = b.template fetch<INSIDE>(depth - BK);
            }
#pragma unroll 1
            for (int k = 0; k < BK - 2; k += 2) {
                read(odd, shared, buffer, k + 1);
                acc.multiply_add(even);
                read(even, shared, buffer, k + 2);
                acc.multiply_add(odd);
            }
            read(odd, shared, buffer, BK - 1);
            acc.multiply_add(even);
            if (more) {
                buffer ^= 1;
                a.deposit(shared.a[buffer], next_a);
                b.deposit(shared.b[buffer], next_b);
                __syncthreads();
                read(even, shared, buffer, 0);
            }
            acc.multiply_add(odd);
        }
    }

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ Shared shared;
        const int tiles_m = (args.m - 1) / BM + 1;
        const int tile_col = blockIdx.x * BN;
        for (int batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
            const BatchMember<> member(args, batch);
            for (int tile = blockIdx.y; tile < tiles_m; tile += gridDim.y) {
                const int tile_row = tile * BM;
                PanelA a = PanelA::of_a(args, member.a, tile_row);
                PanelB b = PanelB::of_b(args, member.b, tile_col);
                const bool whole = a.extent >= BM && b.extent >= BN;   // no element of the tile lies outside
                const bool vectors = is_vector(args.a_access) && is_vector(args.b_access);
                const int unguarded = whole && vectors ? args.k - args.k % BK : 0;
                Thread acc = {};
                accumulate<true>(acc, shared, a, b, unguarded);
                accumulate<false>(acc, shared, a, b, args.k - unguarded);
                acc.store(args, batch, tile_row + thread_row(), tile_col + thread_col(), whole);
            }
        }
    }
};

// Grid: (tiles of n, tiles of m or fewer, batch or fewer). NAME, then the tile: BM, BN, BK, TM, TN.
#define DOUBLE_BUFFERED(NAME, ...)                                                               \
    extern "C" __global__ void __launch_bounds__(DoubleBuffered<__VA_ARGS__>::kThreads, 2)       \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        DoubleBuffered<__VA_ARGS__>::run(args);                                                  \
    }

DOUBLE_BUFFERED(sgemm_12_double_buffered, 128, 128, 8, 8, 8)
DOUBLE_BUFFERED(sgemm_12_double_buffered_bk16, 128, 128, 16, 8, 8)
