// Rung 3: tiles of A and B pass through shared memory, so that global memory is read once a block instead of once a
// thread.
//
// Origin: worklog A, sgemm_shared_mem_block (after https://siboehm.com/articles/22/CUDA-MMM, kernel 3); worklog B,
// NVIDIA_SGEMM_PRACTICE, kernel 2; worklog C, blockGEMM; worklog D, matrixMul_1, for the variants with A transposed.
//
// Against rung 2: a block of TILE × TILE threads brings a TILE × TILE tile of A and one of B into shared memory, one
// element of each a thread, waits, and multiplies them from there:
//
//               k →                     A: (m/TILE)·(n/TILE) blocks · (k/TILE) steps · TILE² elements, B likewise:
//             ┌──┬──┬──┐  B             m·n·k·(1/TILE + 1/TILE) loads instead of 2·m·n·k, 32 times fewer
//             └──┴──┴──┘
//   A ┌──┬──┬──┐  ┌──┐                  arithmetic per load from shared memory: still one multiply-add for two loads
//     └──┴──┴──┘  └──┘ D
//
// A tile's elements are on their way from global memory while the tile before is multiplied: each thread holds the two
// that it will store next in registers. `_in_turn` asks for them only when it needs them.
//
// The other variants show when padding matters. As it comes, A's tile is read at one address by a whole warp and written
// at 32 neighbouring ones: no bank conflict, and rows of TILE floats let the compiler read four steps of k at once, which
// a row of TILE + 1 floats forbids. Transposed on the way in, a warp writes a column: with rows of 32 floats that is
// 32 times the same bank, and one float of padding spreads it over all 32.
#include "block_tile.cuh"

enum class StoreA { kAsItComes, kTransposed };
enum class Load { kAhead, kInTurn };

template <int TILE, StoreA STORE, int PAD, Load LOAD>
__device__ __forceinline__ void sgemm_03(const GemmArgs& args) {
    constexpr int THREADS = TILE * TILE;
    using Loader = TileLoader<TILE, TILE, THREADS>;
    static_assert(Loader::PASSES == 1, "a thread brings one element of each tile");
    __shared__ __align__(16) float As[TILE][TILE + PAD];   // [row][k], or [k][row] if transposed
    __shared__ __align__(16) float Bs[TILE][TILE];         // [k][column]
    const int row = threadIdx.x / TILE;
    const int col = threadIdx.x % TILE;

    for (TileWalk<TILE, TILE> tile; tile.inside(args); tile.next(args)) {
        Loader a(args, args.a, tile.batch, tile.row(), 0);
        Loader b(args, args.b, tile.batch, 0, tile.col());
        float of_a, of_b;   // this thread's elements of the next tiles
        const auto load = [&](int k_left) {
            a.load(args.m - tile.row(), k_left, [&](int, int, float value) { of_a = value; });
            b.load(k_left, args.n - tile.col(), [&](int, int, float value) { of_b = value; });
            a.step_cols();
            b.step_rows();
        };
        float acc = 0.0f;

        if (LOAD == Load::kAhead) load(args.k);
        for (int k_left = args.k; k_left > 0; k_left -= TILE) {
            if (LOAD == Load::kInTurn) load(k_left);
            (STORE == StoreA::kTransposed ? As[col][row] : As[row][col]) = of_a;
            Bs[row][col] = of_b;
            __syncthreads();
            if (LOAD == Load::kAhead) load(k_left - TILE);   // nothing is read where k ends

#pragma unroll
            for (int k = 0; k < TILE; ++k) {
                acc += (STORE == StoreA::kTransposed ? As[k][row] : As[row][k]) * Bs[k][col];
            }
            __syncthreads();
        }

        const BatchMember<> member(args, tile.batch);
        store_scaled(args, member, tile.row() + row, tile.col() + col, acc);
    }
}

// One entry of the kernel table: NAME, the edge of the tiles, how A's tile is stored, floats of padding after its rows, when
// a tile is loaded.
#define SGEMM_03(NAME, TILE, STORE, PAD, LOAD)                                                                  \
    extern "C" __global__ void __launch_bounds__((TILE) * (TILE), kThreadsPerSm / ((TILE) * (TILE)))              \
        NAME(const __grid_constant__ GemmArgs args) {                                                           \
        sgemm_03<TILE, STORE, PAD, LOAD>(args);                                                                 \
    }

SGEMM_03(sgemm_03_shared, 32, StoreA::kAsItComes, 0, Load::kAhead)
SGEMM_03(sgemm_03_shared_in_turn, 32, StoreA::kAsItComes, 0, Load::kInTurn)
SGEMM_03(sgemm_03_shared_padded, 32, StoreA::kAsItComes, 1, Load::kAhead)
SGEMM_03(sgemm_03_shared_transposed, 32, StoreA::kTransposed, 0, Load::kAhead)
SGEMM_03(sgemm_03_shared_transposed_padded, 32, StoreA::kTransposed, 1, Load::kAhead)
