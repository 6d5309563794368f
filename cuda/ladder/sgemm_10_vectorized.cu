// Rung 10: vectorized. Four floats an instruction, from global memory, from shared memory and to C.
//
// Origin: A "Vectorize SMEM and GMEM accesses", B kernel 6 (a thread's 8 × 8 outputs contiguous), D matrixMul_4 (four
// quadrants of 4 × 4).
//
// What changes against the 2D thread tile: the same 64 FFMA a thread and k, but fewer instructions around them. A
// float4 from global memory replaces four loads; and since A lies transposed in shared memory, a thread's eight values
// of A are neighbours there as B's are, and come in two reads of 16 bytes instead of eight of 4. The transposition
// happens on the way: a chunk of four along k is loaded in one piece and stored in four (panel.cuh).
//
//      at each k, a thread      2D thread tile         vectorized
//      reads from A             8 × LDS                2 × LDS.128
//      reads from B             8 × LDS                2 × LDS.128
//      multiplies               64 × FFMA              64 × FFMA          16 FFMA a read instead of 4
//
// With contiguous outputs, the neighbours of a warp read B 32 bytes apart, so two of them share a bank and every read
// takes twice as long. Quadrants bring them 16 bytes apart: no conflict. Both are here, as two instances.
//
// Global-memory traffic: m·n·k·(1/BM + 1/BN) floats read, m·n written (and read where β ≠ 0): 1/64 of a float a product
// at 128 × 128. Arithmetic per load: BM·BN/(BM + BN) = 64 products a float from global memory,
// TM·TN/(TM + TN) = 4 a float from shared memory.
#include "../pipeline/grouped_tile.cuh"
#include "block_tile.cuh"
#include "panel.cuh"
#include "store_thread_tile.cuh"

enum class Spread { kContiguous, kQuadrants };   // how a thread's outputs lie in the block's tile

template <int BM, int BN, int BK, int TM, int TN, Spread SPREAD>
struct Vectorized {
    static constexpr int kThreadsM = BM / TM;   // the grid of threads over the tile
    static constexpr int kThreadsN = BN / TN;
    static constexpr int kThreads = kThreadsM * kThreadsN;
    static constexpr bool kSpread = SPREAD == Spread::kQuadrants;
    static_assert(BM % TM == 0 && BN % TN == 0, "thread tiles must fill the block's tile");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    using Thread = GroupedTile<TM, TN, kSpread ? kThreadsM * kVector : kVector, kSpread ? kThreadsN * kVector : kVector>;
    struct Shared {
        alignas(16) typename PanelA::Tile a;
        alignas(16) typename PanelB::Tile b;
    };

    // This thread's first row and column within the block's tile.
    static __device__ __forceinline__ int thread_row() { return threadIdx.x / kThreadsN * (kSpread ? kVector : TM); }
    static __device__ __forceinline__ int thread_col() { return threadIdx.x % kThreadsN * (kSpread ? kVector : TN); }

    // Adds the products of the next `depth` values of k.
    template <bool INSIDE>
    static __device__ __forceinline__ void accumulate(Thread& acc, Shared& shared, PanelA& a, PanelB& b, int depth) {
        for (; depth > 0; depth -= BK) {
            // Load: global memory → registers → shared memory.
            a.deposit(shared.a, a.template fetch<INSIDE>(depth));
            b.deposit(shared.b, b.template fetch<INSIDE>(depth));
            __syncthreads();

            // Compute: shared memory → registers → products.
#pragma unroll(INSIDE ? BK : 2)
            for (int k = 0; k < BK; ++k) {
                typename Thread::Fragment fragment;
                Thread::read(fragment, &shared.a[k][thread_row()], &shared.b[k][thread_col()]);
                acc.multiply_add(fragment);
            }
            __syncthreads();   // nobody reads the tiles any more
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

// NAME, then the tile: BM, BN, BK, TM, TN and the spread.
#define VECTORIZED(NAME, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(Vectorized<__VA_ARGS__>::kThreads, 2)           \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        Vectorized<__VA_ARGS__>::run(args);                                                      \
    }

VECTORIZED(sgemm_10_vectorized, 128, 128, 8, 8, 8, Spread::kQuadrants)
VECTORIZED(sgemm_10_vectorized_contiguous, 128, 128, 8, 8, 8, Spread::kContiguous)
