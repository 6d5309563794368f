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
// The other direction is transposed by copies of 4 bytes, eight threads along k so that each reads a whole 32-byte
// sector of a row together; in shared memory they land four floats apart by k, on 32 different banks. Copies of 4 bytes
// also serve every operand whose rows do not start on 16 bytes, so odd sizes lose little.
//
// Global-memory traffic and arithmetic per load: as in rung 13, m·n·k·(1/BM + 1/BN) floats read; 85 products a float
// from global memory and 5.3 a float from shared memory at 128 × 256 and 8 × 16.
#include "../common/ptx.cuh"
#include "../common/thread_tile.cuh"

// EXTENT rows of A (columns of B) by DEPTH steps of k, copied to shared memory as tile[DEPTH][EXTENT].
template <int EXTENT, int DEPTH, int THREADS>
struct AsyncPanel {
    static constexpr int kPitch = EXTENT + kVector;   // four apart: see the banks above; 16-byte rows
    static constexpr int kScalars = EXTENT * DEPTH / THREADS;      // copies a thread makes, of 4 bytes
    static constexpr int kVectors = kScalars / kVector;            // or of 16 bytes
    static_assert(kVectors * kVector * THREADS == EXTENT * DEPTH, "the threads of the block must share a panel evenly");
    static_assert(THREADS % DEPTH == 0 && THREADS % (EXTENT / kVector) == 0,
                  "all copies of a thread must have the same k when they transpose, the same place in a row when not");

    using Tile = float[DEPTH][kPitch];
    enum Way : int {
        kVectorCopies,   // 16 bytes along the extent
        kTransposing,    // 4 bytes, neighbouring threads along k
        kScalarCopies,   // 4 bytes, neighbouring threads along the extent
    };

    const float* first;      // the element (0, 0) of the next panel
    int64_t extent_stride;   // elements between neighbours along the extent
    int64_t depth_stride;    // elements between neighbours along k
    int extent;              // rows of A (columns of B) from the panel's first one to the matrix' end
    Way way;

    static __device__ __forceinline__ AsyncPanel of_a(const GemmArgs& args, const float* a, int row) {
        const Way way = args.a_access == kColVector ? kVectorCopies
                      : args.a_access == kColScalar ? kScalarCopies : kTransposing;
        return {a + row * args.a.row_stride, args.a.row_stride, args.a.col_stride, args.m - row, way};
    }
    static __device__ __forceinline__ AsyncPanel of_b(const GemmArgs& args, const float* b, int col) {
        const Way way = args.b_access == kRowVector ? kVectorCopies
                      : args.b_access == kRowScalar ? kScalarCopies : kTransposing;
        return {b + col * args.b.col_stride, args.b.col_stride, args.b.row_stride, args.n - col, way};
    }

    // Starts the copies of the next panel, of which `depth` steps of k are left in the matrix, and moves on.
    // What lies outside the matrix becomes zero.
    __device__ __forceinline__ void copy(Tile& tile, int depth) {
        const bool inside = extent >= EXTENT && depth >= DEPTH;
        if (way == kVectorCopies) {
            if (inside) copy_vectors<true>(tile, depth); else copy_vectors<false>(tile, depth);
        } else if (way == kTransposing) {
            if (inside) copy_transposing<true>(tile, depth); else copy_transposing<false>(tile, depth);
        } else {
            copy_scalars(tile, depth);
        }
        first += DEPTH * depth_stride;
    }

private:
    template <bool INSIDE>
    __device__ __forceinline__ void copy_vectors(Tile& tile, int depth) const {
        constexpr int kRow = EXTENT / kVector;   // threads along a row
        const int e = threadIdx.x % kRow * kVector;
        const int row = threadIdx.x / kRow;
        const float* from = first + e + row * depth_stride;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = row + i * (THREADS / kRow);
            const int room = INSIDE ? kVector : k < depth ? min(max(extent - e, 0), kVector) : 0;
            ptx::cp_async_16(&tile[k][e], room > 0 ? from : first, room * int(sizeof(float)));
            from += THREADS / kRow * depth_stride;
        }
    }

    template <bool INSIDE>
    __device__ __forceinline__ void copy_transposing(Tile& tile, int depth) const {
        const int k = threadIdx.x % DEPTH;
        const int row = threadIdx.x / DEPTH;
        const float* from = first + k * depth_stride + row * extent_stride;
#pragma unroll
        for (int i = 0; i < kScalars; ++i) {
            const int e = row + i * (THREADS / DEPTH);
            const bool valid = INSIDE || (e < extent && k < depth);
            ptx::cp_async_4(&tile[k][e], valid ? from : first, valid ? sizeof(float) : 0);
            from += THREADS / DEPTH * extent_stride;
        }
    }

    __device__ __forceinline__ void copy_scalars(Tile& tile, int depth) const {
#pragma unroll
        for (int i = 0; i < kScalars; ++i) {
            const int e = (threadIdx.x + i * THREADS) % EXTENT;
            const int k = (threadIdx.x + i * THREADS) / EXTENT;
            const bool valid = e < extent && k < depth;
            ptx::cp_async_4(&tile[k][e], valid ? first + e * extent_stride + k * depth_stride : first,
                            valid ? sizeof(float) : 0);
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
    static_assert(sizeof(Shared) <= 48 * 1024, "statically allocated shared memory ends at 48 KiB");

    using Thread = ThreadTile<TM, TN, kLanesM * kVector, kLanesN * kVector>;   // one group in each repetition of the lanes
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
        Fragment fragment[2];
        read(fragment[0], shared, stage, 0);

        for (; depth > 0; depth -= BK) {
            start_copies();
#pragma unroll
            for (int k = 0; k < BK; ++k) {
                if (k == BK - 1) {   // the next stage has arrived, and nobody reads the oldest one any more
                    ptx::cp_async_wait<STAGES - 2>();
                    __syncthreads();
                    stage = next(stage);
                }
                read(fragment[(k + 1) % 2], shared, stage, (k + 1) % BK);
                acc.multiply_add(fragment[k % 2]);
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
                Thread acc = {};
                accumulate(acc, shared, a, b, args.k);
                acc.store(args, batch, tile_row + thread_row(), tile_col + thread_col(),
                          a.extent >= BM && b.extent >= BN);
                __syncthreads();   // nobody reads the last stage any more when the next tile's copies start
            }
        }
    }
};

// Grid: (tiles of n, tiles of m or fewer, batch or fewer). NAME, then the tile: BM, BN, BK, WM, WN, TM, TN, STAGES.
#define ASYNC_PIPELINED(NAME, ...)                                                               \
    extern "C" __global__ void __launch_bounds__(AsyncPipelined<__VA_ARGS__>::kThreads)          \
        NAME(const __grid_constant__ GemmArgs args) {                                            \
        AsyncPipelined<__VA_ARGS__>::run(args);                                                  \
    }

ASYNC_PIPELINED(sgemm_14_async_pipelined, 128, 256, 8, 64, 64, 8, 16, 3)
