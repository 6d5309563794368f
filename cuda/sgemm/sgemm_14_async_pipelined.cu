// Rung 14: async pipelined. Global memory goes to shared memory without passing through registers, several steps ahead.
//
// Origin: beyond the worklogs; cp.async came with sm_80.
//
// What changes against rung 13: there a panel waits in registers between its load and its way to shared memory, so a
// kernel can be one step ahead and pays with registers and with instructions. A copy of cp.async needs neither: a
// thread starts it and goes on. STAGES panels of A and of B lie in shared memory in a ring; while one is multiplied,
// STAGES − 1 others are under way.
//
//      step t        read ──► [ t ]  [t+1]  [t+2] ◄── copies start here           STAGES = 3
//      step t + 1             [t+3]  [t+1]  [t+2]                                 the oldest buffer is the next target
//
// A copy moves 16 bytes where they stay next to each other in shared memory: rows of B, columns of A stored transposed.
// The other direction is transposed by copies of 4 bytes, BK threads along k, so that they read whole sectors of a row
// together; in shared memory they land four banks apart, which at BK = 16 puts two on one bank. (Eight along k and four
// along the extent avoid that, but ask for twice as many rows at a time, and measured slower.) Copies of 4 bytes also
// serve every operand whose rows do not start on 16 bytes, so odd sizes lose little.
//
// Global-memory traffic and arithmetic per load: as in rung 13, m·n·k·(1/BM + 1/BN) floats read; 85 products a float
// from global memory and 5.3 a float from shared memory at 128 × 256 and 8 × 16.
#include "../common/block_tile.cuh"
#include "../common/ptx.cuh"
#include "../common/thread_tile.cuh"

// EXTENT rows of A (columns of B) by DEPTH steps of k, copied to shared memory as tile[DEPTH][EXTENT].
template <int EXTENT, int DEPTH, int THREADS>
struct AsyncPanel {
    static constexpr int kPitch = EXTENT + kVector;   // four banks from k to k + 1, and rows on 16 bytes
    using Tile = float[DEPTH][kPitch];

    enum Way : int {
        kVectorRows,   // 16 bytes at a time, neighbouring threads along the extent
        kScalarRows,   // 4 bytes at a time, the same
        kTransposed,   // 4 bytes at a time, neighbouring threads along k
    };

    const float* from;       // this thread's first element of the next panel
    int64_t extent_stride;   // elements between neighbours along the extent
    int64_t depth_stride;    // elements between neighbours along k
    int extent;              // rows of A (columns of B) from the panel's first one to the matrix' end
    Way way;

    static __device__ __forceinline__ AsyncPanel of_a(const GemmArgs& args, const float* a, int row) {
        const Way way = args.a_access == kColVector ? kVectorRows
                      : args.a_access == kColScalar ? kScalarRows : kTransposed;
        return AsyncPanel(a, args.a.row_stride, args.a.col_stride, row, args.m, way);
    }
    static __device__ __forceinline__ AsyncPanel of_b(const GemmArgs& args, const float* b, int col) {
        const Way way = args.b_access == kRowVector ? kVectorRows
                      : args.b_access == kRowScalar ? kScalarRows : kTransposed;
        return AsyncPanel(b, args.b.col_stride, args.b.row_stride, col, args.n, way);
    }

    // Starts the copies of the next panel, of which `depth` steps of k are left in the matrix, and moves on.
    // What lies outside the matrix becomes zero.
    __device__ __forceinline__ void copy(Tile& tile, int depth) {
        const bool inside = extent >= EXTENT && depth >= DEPTH;
        if (way == kTransposed) {
            if (inside) copy_transposed<true>(tile, depth); else copy_transposed<false>(tile, depth);
        } else if (way == kVectorRows) {
            if (inside) copy_rows<kVector, true>(tile, depth); else copy_rows<kVector, false>(tile, depth);
        } else {
            copy_rows<1, false>(tile, depth);
        }
        from += DEPTH * depth_stride;
    }

private:
    __device__ __forceinline__ AsyncPanel(const float* matrix, int64_t extent_stride, int64_t depth_stride, int first,
                                          int end, Way way)
        : extent_stride(extent_stride), depth_stride(depth_stride), extent(end - first), way(way) {
        const int e = way == kTransposed ? transposed_extent()
                    : way == kVectorRows ? row_extent<kVector>() : row_extent<1>();
        const int k = way == kTransposed ? transposed_depth()
                    : way == kVectorRows ? row_depth<kVector>() : row_depth<1>();
        from = matrix + (static_cast<int64_t>(first) + e) * extent_stride + k * depth_stride;
    }

    // This thread's first element where threads lie along the extent, WIDTH floats each.
    template <int WIDTH>
    static __device__ __forceinline__ int row_extent() { return threadIdx.x % (EXTENT / WIDTH) * WIDTH; }
    template <int WIDTH>
    static __device__ __forceinline__ int row_depth() { return threadIdx.x / (EXTENT / WIDTH); }

    // The same where they lie along k.
    static __device__ __forceinline__ int transposed_extent() { return threadIdx.x / DEPTH; }
    static __device__ __forceinline__ int transposed_depth() { return threadIdx.x % DEPTH; }

    template <int WIDTH, bool INSIDE>
    __device__ __forceinline__ void copy_rows(Tile& tile, int depth) const {
        constexpr int kRows = THREADS / (EXTENT / WIDTH);   // rows of the tile that the block copies at a time
        static_assert(kRows * (EXTENT / WIDTH) == THREADS && DEPTH % kRows == 0, "threads must fill whole rows");
        const int e = row_extent<WIDTH>();
        const float* source = from;
#pragma unroll
        for (int i = 0; i < DEPTH; i += kRows) {
            const int k = row_depth<WIDTH>() + i;
            const int valid = INSIDE ? WIDTH : k < depth ? min(max(extent - e, 0), WIDTH) : 0;
            if (INSIDE || valid == WIDTH) {
                if (WIDTH == kVector) {
                    ptx::cp_async_16(&tile[k][e], source);
                } else {
                    ptx::cp_async_4(&tile[k][e], source);
                }
            } else {   // the matrix ends here: what is left of it, then zeros
#pragma unroll
                for (int j = 0; j < WIDTH; ++j) tile[k][e + j] = j < valid ? source[j] : 0.0f;
            }
            source += kRows * depth_stride;
        }
    }

    template <bool INSIDE>
    __device__ __forceinline__ void copy_transposed(Tile& tile, int depth) const {
        constexpr int kRows = THREADS / DEPTH;   // rows of A (columns of B) that the block copies at a time
        static_assert(kRows * DEPTH == THREADS && EXTENT % kRows == 0, "threads must fill whole columns");
        const int k = transposed_depth();
        const float* source = from;
#pragma unroll
        for (int i = 0; i < EXTENT; i += kRows) {
            const int e = transposed_extent() + i;
            const bool valid = INSIDE || (e < extent && k < depth);
            if (valid) {
                ptx::cp_async_4(&tile[k][e], source);
            } else {
                tile[k][e] = 0.0f;
            }
            source += kRows * extent_stride;
        }
    }
};

template <int BM, int BN, int BK, int WM, int WN, int TM, int TN, int STAGES>
struct AsyncPipelined {
    static constexpr int kWarpSize = 32;
    static constexpr int kThreads = (BM / WM) * (BN / WN) * kWarpSize;
    static constexpr int kLanesM = WM / TM;            // the grid of a warp's threads
    static constexpr int kLanesN = WN / TN;

    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles must fill the block's tile");
    static_assert(WM % TM == 0 && WN % TN == 0 && kLanesM * kLanesN == kWarpSize,
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
    using Thread = ThreadTile<TM, TN, kLanesM * kVector, kLanesN * kVector>;
    using Fragment = typename Thread::Fragment;

    // The first row and column of this thread's first group, within the block's tile.
    static __device__ __forceinline__ int thread_row() {
        return threadIdx.x / kWarpSize / (BN / WN) * WM + threadIdx.x % kWarpSize / kLanesN * kVector;
    }
    static __device__ __forceinline__ int thread_col() {
        return threadIdx.x / kWarpSize % (BN / WN) * WN + threadIdx.x % kWarpSize % kLanesN * kVector;
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
                acc.multiply_add(even);
                row_of_a += 2 * PanelA::kPitch;
                row_of_b += 2 * PanelB::kPitch;
                Thread::read(even, row_of_a, row_of_b);
                acc.multiply_add(odd);
            }
            Thread::read(odd, row_of_a + PanelA::kPitch, row_of_b + PanelB::kPitch);
            acc.multiply_add(even);
            ptx::cp_async_wait<STAGES - 2>();   // this thread's part of the next stage has arrived …
            __syncthreads();                    // … and everybody's, and nobody reads the oldest stage any more
            stage = next(stage);
            read(even, shared, stage, 0);
            acc.multiply_add(odd);
        }
    }

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        for (TileWalk<BM, BN> tile; tile.inside(args); tile.next(args)) {
            const BatchMember<> member(args, tile.batch);
            PanelA a = PanelA::of_a(args, member.a, tile.row());
            PanelB b = PanelB::of_b(args, member.b, tile.col());
            const bool whole = a.extent >= BM && b.extent >= BN;   // no element of the tile lies outside
            Thread acc = {};
            accumulate(acc, shared, a, b, args.k);
            acc.store(args, tile.batch, tile.row() + thread_row(), tile.col() + thread_col(), whole);
            __syncthreads();   // nobody reads the last stage any more when the next tile's copies start
        }
    }
};

// NAME, then the tile: BM, BN, BK, WM, WN, TM, TN, STAGES.
#define ASYNC_PIPELINED(NAME, ...)                                                               \
    extern "C" __global__ void __launch_bounds__(AsyncPipelined<__VA_ARGS__>::kThreads)          \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        AsyncPipelined<__VA_ARGS__>::run(args);                                                  \
    }

ASYNC_PIPELINED(sgemm_14_async_pipelined, 128, 256, 16, 32, 128, 8, 16, 3)
ASYNC_PIPELINED(sgemm_14_async_pipelined_128x128, 128, 128, 16, 32, 128, 8, 16, 3)
