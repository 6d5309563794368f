// Rung 13: warp tiled. Block → warp → thread tiles; a warp's threads read few different words of shared memory.
//
// Origin: SGEMM_CUDA kernels 9 (tile numbers found by search) and 10 (warp tiles); here on top of double buffering.
//
// What changes against rung 12: there the 256 threads lie in a 16 × 16 grid over the block's tile, so a warp is a
// 2 × 16 strip: at each k it reads 2·TM floats of A and 16·TN of B. Here each warp owns a tile of its own that is nearly
// square, and its 32 threads lie in a LANES_M × LANES_N grid over it: LANES_M·TM + LANES_N·TN floats a warp and k, which
// is least when the two are equal. And the thread tile grows from 8 × 8 to 8 × 16: 128 FFMA to 6 16-byte loads.
//
//      block BM × BN                warp WM × WN                     thread TM × TN
//      ┌────┬────┬────┬────┐        ┌─────────┬─────────┐            a thread's outputs are groups of 4 × 4, one in
//      │ w0 │ w1 │ w2 │ w3 │        │ ▪ lanes │ ▪ lanes │            each repetition of the lane grid: lanes next to
//      ├────┼────┼────┼────┤        ├─────────┼─────────┤            each other read 16 bytes next to each other, and
//      │ w4 │ w5 │ w6 │ w7 │        │ ▪ lanes │ ▪ lanes │            no two lanes of a phase share a bank
//      └────┴────┴────┴────┘        └─────────┴─────────┘
//
// Global-memory traffic: m·n·k·(1/BM + 1/BN) floats read, m·n written (and read where β ≠ 0): for 128 × 256, 3/256 of a
// float a product. Arithmetic per load: BM·BN/(BM + BN) = 85 products a float from global memory,
// TM·TN/(TM + TN) = 5.3 a float from shared memory.
#include "../common/panel.cuh"

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN>
struct WarpTiled {
    static constexpr int kWarpSize = 32;
    static constexpr int kWarps = (BM / WM) * (BN / WN);
    static constexpr int kThreads = kWarps * kWarpSize;
    static constexpr int kLanesM = WM / TM;            // the grid of a warp's threads
    static constexpr int kLanesN = WN / TN;
    static constexpr int kGroupsM = TM / kVector;      // a thread's 4 × 4 groups
    static constexpr int kGroupsN = TN / kVector;
    static constexpr int kGroupRows = kLanesM * kVector;   // what the lane grid covers in one repetition
    static constexpr int kGroupCols = kLanesN * kVector;

    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles must fill the block's tile");
    static_assert(WM % TM == 0 && WN % TN == 0 && kLanesM * kLanesN == kWarpSize,
                  "the thread tiles of 32 lanes must fill the warp's tile");
    static_assert(TM % kVector == 0 && TN % kVector == 0, "fragments are read four floats at a time");
    static_assert(BK % 2 == 0, "fragments alternate between two sets of registers, which must match up at each step");

    using PanelA = Panel<BM, BK, kThreads>;
    using PanelB = Panel<BN, BK, kThreads>;
    struct Shared {   // two of each: one is read while the other is written
        alignas(16) typename PanelA::Tile a[2];
        alignas(16) typename PanelB::Tile b[2];
    };
    static_assert(sizeof(Shared) <= 48 * 1024, "statically allocated shared memory ends at 48 KiB");

    struct Fragment {   // what a thread multiplies at one k
        float a[TM];
        float b[TN];
    };
    struct Accumulator { float sum[TM][TN]; };

    // The first row and column of this thread's first group, within the block's tile.
    static __device__ __forceinline__ int thread_row() {
        return threadIdx.x / kWarpSize / (BN / WN) * WM + threadIdx.x % kWarpSize / kLanesN * kVector;
    }
    static __device__ __forceinline__ int thread_col() {
        return threadIdx.x / kWarpSize % (BN / WN) * WN + threadIdx.x % kWarpSize % kLanesN * kVector;
    }

    static __device__ __forceinline__ void read_fragment(Fragment& fragment, const Shared& shared, int buffer, int k) {
#pragma unroll
        for (int group = 0; group < kGroupsM; ++group) {
            *reinterpret_cast<float4*>(&fragment.a[group * kVector]) =
                *reinterpret_cast<const float4*>(&shared.a[buffer][k][thread_row() + group * kGroupRows]);
        }
#pragma unroll
        for (int group = 0; group < kGroupsN; ++group) {
            *reinterpret_cast<float4*>(&fragment.b[group * kVector]) =
                *reinterpret_cast<const float4*>(&shared.b[buffer][k][thread_col() + group * kGroupCols]);
        }
    }

    static __device__ __forceinline__ void multiply(Accumulator& acc, const Fragment& fragment) {
#pragma unroll
        for (int row = 0; row < TM; ++row) {
#pragma unroll
            for (int col = 0; col < TN; ++col) acc.sum[row][col] += fragment.a[row] * fragment.b[col];
        }
    }

    // Adds the products of the next `depth` values of k. The loads of a step are in flight while the step before
    // is multiplied; so are the reads of the next fragment.
    template <bool INSIDE>
    static __device__ __forceinline__ void accumulate(Accumulator& acc, Shared& shared, PanelA& a, PanelB& b,
                                                      int depth) {
        if (depth <= 0) return;
        int buffer = 0;
        __syncthreads();   // whoever still reads the buffers of an earlier call
        a.deposit(shared.a[buffer], a.template fetch<INSIDE>(depth));
        b.deposit(shared.b[buffer], b.template fetch<INSIDE>(depth));
        __syncthreads();
        Fragment fragment[2];
        read_fragment(fragment[0], shared, buffer, 0);

        for (; depth > 0; depth -= BK) {
            const bool more = depth > BK;
            typename PanelA::Chunks next_a;
            typename PanelB::Chunks next_b;
            if (more) {
                next_a = a.template fetch<INSIDE>(depth - BK);
                next_b = b.template fetch<INSIDE>(depth - BK);
            }
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                if (k == BK - 1 && more) {
                    buffer ^= 1;
                    a.deposit(shared.a[buffer], next_a);
                    b.deposit(shared.b[buffer], next_b);
                    __syncthreads();
                }
                if (k < BK - 1 || more) read_fragment(fragment[(k + 1) % 2], shared, buffer, (k + 1) % BK);
                multiply(acc, fragment[k % 2]);
            }
        }
    }

    static __device__ __forceinline__ void store(const GemmArgs& args, int batch, int tile_row, int tile_col,
                                                 const Accumulator& acc) {
        const BatchMember<> member(args, batch);   // found again, so that its pointers hold no registers till here
        const int first_row = tile_row + thread_row();
        const int first_col = tile_col + thread_col();
#pragma unroll
        for (int row = 0; row < TM; ++row) {
#pragma unroll
            for (int group = 0; group < kGroupsN; ++group) {
                const float* sum = &acc.sum[row][group * kVector];
                store_scaled_vector(args, member, first_row + row / kVector * kGroupRows + row % kVector,
                                    first_col + group * kGroupCols, make_float4(sum[0], sum[1], sum[2], sum[3]));
            }
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
                const bool inside = is_vector(args.a_access) && is_vector(args.b_access) && a.extent >= BM &&
                                    b.extent >= BN;
                const int whole = inside ? args.k - args.k % BK : 0;
                Accumulator acc = {};
                accumulate<true>(acc, shared, a, b, whole);
                accumulate<false>(acc, shared, a, b, args.k - whole);
                store(args, batch, tile_row, tile_col, acc);
            }
        }
    }
};

// Grid: (tiles of n, tiles of m or fewer, batch or fewer). NAME, then the tile: BM, BN, BK, WM, WN, TM, TN.
#define WARP_TILED(NAME, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(WarpTiled<__VA_ARGS__>::kThreads)               \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        WarpTiled<__VA_ARGS__>::run(args);                                                       \
    }

WARP_TILED(sgemm_13_warp_tiled, 128, 256, 8, 64, 64, 8, 16)
WARP_TILED(sgemm_13_warp_tiled_128x128, 128, 128, 8, 64, 32, 8, 8)
WARP_TILED(sgemm_13_warp_tiled_128x128_t8x16, 128, 128, 8, 64, 64, 8, 16)
WARP_TILED(sgemm_13_warp_tiled_64x64, 64, 64, 8, 32, 32, 4, 8)
