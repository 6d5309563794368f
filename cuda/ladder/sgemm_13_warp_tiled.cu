// Rung 13: warp tiled. Block → warp → thread tiles; a warp's threads read few different words of shared memory.
//
// Origin: SGEMM_CUDA kernels 9 (tile numbers found by search) and 10 (warp tiles); here on top of double buffering.
//
// What changes against rung 12: there the 256 threads lie in a 16 × 16 grid over the block's tile, so a warp is a
// 2 × 16 strip: at each k it reads 2·TM floats of A and 16·TN of B. Here each warp owns a tile of its own, and its 32
// threads lie in a LANES_M × LANES_N grid over it: LANES_M·TM + LANES_N·TN floats a warp and k. The thread tile grows
// from 8 × 8 to 8 × 16: 128 FFMA to 6 reads of 16 bytes. With so many registers a thread, a multiprocessor holds two
// warps a scheduler and no more, so a warp must hide its own reads: fragments are double, those of k + 1 are read from
// shared memory while those of k are multiplied.
//
// A warp of 64 × 64 reads least, 128 floats a k; one of 32 × 128 reads 160 and is faster on an H100, for shared memory
// is half idle by now and the registers that the compiler chooses matter more. Both are here.
//
//      block BM × BN                  warp WM × WN                     a thread's TM × TN outputs are groups of 4 × 4,
//      ┌────┬────┬────┬────┐          ┌─────────┬─────────┐            one in each repetition of the lane grid
//      │ w0 │ w1 │ w2 │ w3 │          │ ▪ lanes │ ▪ lanes │            (pipeline/grouped_tile.cuh)
//      ├────┼────┼────┼────┤          ├─────────┼─────────┤
//      │ w4 │ w5 │ w6 │ w7 │          │ ▪ lanes │ ▪ lanes │
//      └────┴────┴────┴────┘          └─────────┴─────────┘
//
// Global-memory traffic: m·n·k·(1/BM + 1/BN) floats read, m·n written (and read where β ≠ 0): for 128 × 256, 3/256 of a
// float a product. Arithmetic per load: BM·BN/(BM + BN) = 85 products a float from global memory,
// TM·TN/(TM + TN) = 5.3 a float from shared memory.
#include "../pipeline/grouped_tile.cuh"
#include "block_tile.cuh"
#include "panel.cuh"
#include "store_thread_tile.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN>
struct WarpTiled {
    static constexpr int kThreads = (BM / WM) * (BN / WN) * kWarp;
    static constexpr int kLanesM = WM / TM;   // the grid of a warp's threads
    static constexpr int kLanesN = WN / TN;

    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles must fill the block's tile");
    static_assert(WM % TM == 0 && WN % TN == 0 && kLanesM * kLanesN == kWarp,
                  "the thread tiles of 32 lanes must fill the warp's tile");
    static_assert(BK >= 4 && BK % 2 == 0, "fragments alternate between two sets of registers");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    using Thread = GroupedTile<TM, TN, kLanesM * kVector, kLanesN * kVector>;
    using Fragment = typename Thread::Fragment;
    struct Shared {   // two of each: one is read while the other is written
        alignas(16) typename PanelA::Tile a[2];
        alignas(16) typename PanelB::Tile b[2];
    };
    static_assert(sizeof(Shared) <= 48 * 1024, "statically allocated shared memory ends at 48 KiB");

    // This thread's first row and column within the block's tile: the warp's place, then the lane's.
    static __device__ __forceinline__ int thread_row() {
        return threadIdx.x / kWarp / (BN / WN) * WM + threadIdx.x % kWarp / kLanesN * kVector;
    }
    static __device__ __forceinline__ int thread_col() {
        return threadIdx.x / kWarp % (BN / WN) * WN + threadIdx.x % kWarp % kLanesN * kVector;
    }

    static __device__ __forceinline__ void read(Fragment& fragment, const Shared& shared, int buffer, int k) {
        Thread::read(fragment, &shared.a[buffer][k][thread_row()], &shared.b[buffer][k][thread_col()]);
    }

    // Adds the products of the next `depth` values of k, as rung 12 does.
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

// NAME, then the tile: BM, BN, BK, WM, WN, TM, TN.
#define WARP_TILED(NAME, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(WarpTiled<__VA_ARGS__>::kThreads)               \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        WarpTiled<__VA_ARGS__>::run(args);                                                       \
    }

WARP_TILED(sgemm_13_warp_tiled, 128, 256, 8, 32, 128, 8, 16)
WARP_TILED(sgemm_13_warp_tiled_w64x64, 128, 256, 8, 64, 64, 8, 16)
WARP_TILED(sgemm_13_warp_tiled_128x128, 128, 128, 8, 64, 64, 8, 16)
WARP_TILED(sgemm_13_warp_tiled_128x128_t8x8, 128, 128, 8, 64, 32, 8, 8)
WARP_TILED(sgemm_13_warp_tiled_64x64, 64, 64, 8, 32, 32, 4, 8)
