// FP32-grade GEMM on the tensor cores of every device from sm_80 on, for views of any stride and alignment.
//
// The arithmetic is that of gemm_tf32x3_sm90.cu: operands are split into TF32 heads and tails, three products are summed
// in the tensor core, and every few steps of k the sum is added to FP32 registers with round to nearest. The instruction
// is a warp's own (mma.sync), so both operands pass through registers, are split there, and may lie in shared memory
// either way round: all four layouts are the same kernel. A warp takes the three products of one step of 8 after another,
// small terms first; a second walk over the stage for the heads would read and split everything twice. So more large
// terms pass through the truncating sum than on Hopper, and promotion comes every 16 of k instead of 32: with uniform
// [0,1] and k = 1024 the error is 1.6e-7, where 32 has 3.2e-7, for 3 % of the time.
//
// Shared memory holds a ring of stages that cp.async fills: 16 bytes at a time along whichever dimension is contiguous,
// or four where the view's base or stride allows no more. A tile keeps the direction of its operand, so nothing is
// transposed; its 16-byte chunks are permuted so that the 32 lanes of a fragment's load hit 32 banks.
//
// Per stage of 32 k and warp of 64 × 32: 192 mma (48 a k8 step), 96 loads of a word, 288 instructions of splitting, 128
// additions of promotion.
// With one product instead of three (Precision::Tf32) operands are rounded to TF32 and sums stay in the tensor core.
//
// Launch. One block a unit, units = ⌈m / BM⌉ · ⌈n / BN⌉ · batch in the order of scheduler/tiles.cuh.

#include "../epilogue/epilogue.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/mma.cuh"
#include "../scheduler/tiles.cuh"
#include "exact.cuh"
#include "split.cuh"

namespace {

constexpr int BK = 32;
constexpr int kStepK = 8;               // k of one mma
constexpr int kSteps = BK / kStepK;
constexpr int kMmaM = 16, kMmaN = 8;
constexpr int kChunk = 16;              // bytes of a cp.async, and what the permutation moves as one
constexpr int kWord = 4;
constexpr int kRowBytes = BK * kWord;   // of a tile that runs along k

// ---- tiles ------------------------------------------------------------------------------------------------------

// ROWS × BK of an operand, `row` counting m for A and n for B. ALONG_K: rows of 32 k, chunk c of row r at c ^ r % 8.
// Otherwise: rows of ROWS, one a k, chunk c of row k at c ^ 2·(k % 4).
template <int ROWS, bool ALONG_K>
struct Tile {
    static constexpr int BYTES = ROWS * BK * kWord;
    static constexpr int LINE = ALONG_K ? BK : ROWS;    // elements that are neighbours
    static constexpr int LINES = ALONG_K ? ROWS : BK;
    static constexpr int LINE_BYTES = LINE * kWord;

    static __device__ __forceinline__ int swizzle(int line) { return ALONG_K ? line % 8 : line % 4 * 2; }

    // The byte of this lane's element (first_row + group, quad); first_row is a multiple of 32.
    static __device__ __forceinline__ int fragment(int first_row, int group, int quad) {
        const int row = first_row + group;
        if (ALONG_K) return row * kRowBytes + group * kChunk + quad * kWord;
        return quad * LINE_BYTES + (row / 4 ^ quad * 2) * kChunk + row % 4 * kWord;
    }
    // From there to the element `rows` (a multiple of 8) and `k` (a multiple of 4) further.
    static __device__ __forceinline__ int move(int from, int rows, int k) {
        if (ALONG_K) return (from ^ k / 4 * kChunk) + rows * kRowBytes;
        return (from ^ rows / 8 % 4 * 2 * kChunk) + rows / 32 * 8 * kChunk + k * LINE_BYTES;
    }
};

// The copies of one operand by all threads of the block, a tile at a time.
template <int ROWS, bool ALONG_K, int THREADS>
struct Copies {
    using Shape = Tile<ROWS, ALONG_K>;
    static constexpr int kChunks = Shape::LINE / kVector;          // of a line
    static constexpr int kVectorLines = THREADS / kChunks;                 // lines that the block copies at once
    static constexpr int kVectorTurns = Shape::LINES / kVectorLines;
    static constexpr int kWordLanes = Shape::LINE < THREADS ? Shape::LINE : THREADS;
    static constexpr int kWordLines = THREADS / kWordLanes;
    static constexpr int kWordTurns = Shape::LINES / kWordLines;
    static_assert(kVectorTurns * kVectorLines == Shape::LINES && kVectorLines % (ALONG_K ? 8 : 4) == 0,
                  "turns are whole, and a thread's chunks are permuted alike in all of them");
    static_assert(kWordTurns * kWordLines == Shape::LINES && kWordLanes == Shape::LINE, "turns are whole");

    const float* next;              // this thread's first element of the next tile
    int64_t line_stride, along_stride, step;
    int line, along;                // its place in the tile
    int rows_left;                  // rows of the operand from the tile's first
    bool vectors;

    __device__ __forceinline__ Copies(const Source& source, bool vectors_, int first_row, int first_k)
        : line_stride(ALONG_K ? source.row_stride : source.k_stride),
          along_stride(ALONG_K ? source.k_stride : source.row_stride),
          step(BK * source.k_stride),
          rows_left(source.rows - first_row),
          vectors(vectors_) {
        const int thread = threadIdx.x;
        line = vectors ? thread / kChunks : thread / kWordLanes;
        along = vectors ? thread % kChunks * kVector : thread % kWordLanes;
        next = source.data + first_row * source.row_stride + first_k * source.k_stride + line * line_stride +
               along * along_stride;
    }

    // Starts the copies of a tile that has `k_left` elements of k before its slice ends; the rest becomes zero.
    __device__ __forceinline__ void start(char* tile, int k_left) {
        if (rows_left >= ROWS && k_left >= BK) {
            vectors ? start_vectors<true>(tile, k_left) : start_words<true>(tile, k_left);
        } else {
            vectors ? start_vectors<false>(tile, k_left) : start_words<false>(tile, k_left);
        }
        next += step;
    }

private:
    static __device__ __forceinline__ float* place(char* tile, int line, int along) {
        const int chunk = along / kVector ^ Shape::swizzle(line);
        return reinterpret_cast<float*>(tile + line * Shape::LINE_BYTES + chunk * kChunk) + along % kVector;
    }
    __device__ __forceinline__ int lines_left(int k_left) const { return (ALONG_K ? rows_left : k_left) - line; }
    __device__ __forceinline__ int along_left(int k_left) const { return (ALONG_K ? k_left : rows_left) - along; }

    // INSIDE: all of the tile is inside the operand.
    template <bool INSIDE>
    __device__ __forceinline__ void start_vectors(char* tile, int k_left) const {
        char* to = reinterpret_cast<char*>(place(tile, line, along));
        const int valid = min(max(along_left(k_left), 0), kVector);
#pragma unroll
        for (int turn = 0; turn < kVectorTurns; ++turn) {
            const int skip = turn * kVectorLines;
            const int here = INSIDE ? kVector : skip < lines_left(k_left) ? valid : 0;
            const float* from = next + skip * line_stride;
            float* chunk = reinterpret_cast<float*>(to + skip * Shape::LINE_BYTES);
            if (INSIDE || here == kVector) {
                ptx::cp_async_16(chunk, from);
            } else {   // the operand ends within these 16 bytes, or before them
#pragma unroll
                for (int word = 0; word < kVector; ++word) {
                    if (word < here) ptx::cp_async_4(chunk + word, from + word); else chunk[word] = 0.0f;
                }
            }
        }
    }

    template <bool INSIDE>
    __device__ __forceinline__ void start_words(char* tile, int k_left) const {
#pragma unroll 4
        for (int turn = 0; turn < kWordTurns; ++turn) {
            const int skip = turn * kWordLines;
            float* to = place(tile, line + skip, along);
            if (INSIDE || (skip < lines_left(k_left) && along_left(k_left) > 0)) {
                ptx::cp_async_4(to, next + skip * line_stride);
            } else {
                *to = 0.0f;
            }
        }
    }
};

// ---- arithmetic -------------------------------------------------------------------------------------------------

// `COUNT` words of A (its heads rounded) or of B.
template <int PRODUCTS, int COUNT, bool OF_A>
struct Fragment {
    uint32_t head[COUNT], tail[PRODUCTS == 3 ? COUNT : 1];

    __device__ __forceinline__ void set(int i, float x) {
        if constexpr (PRODUCTS == 3 && OF_A) {
            float rest;
            split_rounded(x, head[i], rest);
            tail[i] = __float_as_uint(rest);
        } else if constexpr (PRODUCTS == 3) {
            split_truncated(x, head[i], tail[i]);
        } else {
            head[i] = rounded_word(x);
        }
    }
};

template <int PRODUCTS_, int BM_, int BN_, int WM_, int WN_, int STAGES_>
struct Shape {
    static constexpr int PRODUCTS = PRODUCTS_, BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr int PROMOTE = PRODUCTS == 3 ? 2 : kSteps;   // steps of k between two promotions
    static constexpr int WARPS_N = BN / WN;
    static constexpr int THREADS = BM / WM * WARPS_N * kWarp;
    static constexpr int TILES_M = WM / kMmaM, TILES_N = WN / kMmaN;
    static constexpr int STAGE_BYTES = (BM + BN) * BK * kWord;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles fill the block tile");
    static_assert(WM % 32 == 0 && WN % 32 == 0, "a warp's rows start where the permutation of chunks does");
    using Sums = float[TILES_M][TILES_N][4];
};

template <typename SHAPE>
__device__ __forceinline__ void clear(typename SHAPE::Sums& sums) {
#pragma unroll
    for (int i = 0; i < SHAPE::TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < SHAPE::TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
}

template <typename SHAPE>
__device__ __forceinline__ void add(typename SHAPE::Sums& sums, const typename SHAPE::Sums& fresh) {
#pragma unroll
    for (int i = 0; i < SHAPE::TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < SHAPE::TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] += fresh[i][j][e];
}

// Adds the products of PROMOTE steps of k to `sums`; `a_at` and `b_at` are the places of this lane's first elements.
template <typename SHAPE, typename TILE_A, typename TILE_B>
__device__ __forceinline__ void multiply(typename SHAPE::Sums& sums, const char* a_tile, const char* b_tile, int a_at,
                                         int b_at, bool short_sum) {
    const auto word = [](const char* tile, int at) { return *reinterpret_cast<const float*>(tile + at); };
#pragma unroll
    for (int step = 0; step < SHAPE::PROMOTE; ++step) {
        Fragment<SHAPE::PRODUCTS, 4, true> a[SHAPE::TILES_M];
        Fragment<SHAPE::PRODUCTS, 2, false> b[SHAPE::TILES_N];
#pragma unroll
        for (int i = 0; i < SHAPE::TILES_M; ++i)
#pragma unroll
            for (int part = 0; part < 4; ++part)
                a[i].set(part, word(a_tile, TILE_A::move(a_at, i * kMmaM + part % 2 * 8, step * kStepK + part / 2 * 4)));
#pragma unroll
        for (int j = 0; j < SHAPE::TILES_N; ++j)
#pragma unroll
            for (int part = 0; part < 2; ++part)
                b[j].set(part, word(b_tile, TILE_B::move(b_at, j * kMmaN, step * kStepK + part * 4)));
        const auto all = [&](auto product) {   // every accumulator once, so that none waits for its last result
#pragma unroll
            for (int i = 0; i < SHAPE::TILES_M; ++i)
#pragma unroll
                for (int j = 0; j < SHAPE::TILES_N; ++j) product(sums[i][j], a[i], b[j]);
        };
        if constexpr (SHAPE::PRODUCTS == 3) {
            if (short_sum) all([](auto& d, const auto& x, const auto& y) { ptx::mma_tf32(d, x.tail, y.tail); });
            all([](auto& d, const auto& x, const auto& y) { ptx::mma_tf32(d, x.tail, y.head); });
            all([](auto& d, const auto& x, const auto& y) { ptx::mma_tf32(d, x.head, y.tail); });
        }
        all([](auto& d, const auto& x, const auto& y) { ptx::mma_tf32(d, x.head, y.head); });
    }
}

// The sums of one tile over one slice of k.
template <typename SHAPE, bool A_ALONG_K, bool B_ALONG_K>
__device__ __forceinline__ void accumulate(const GemmArgs& args, const WorkUnit& work, char* shared,
                                           int warp_row, int warp_col, typename SHAPE::Sums& sums) {
    using TileA = Tile<SHAPE::BM, A_ALONG_K>;
    using TileB = Tile<SHAPE::BN, B_ALONG_K>;
    const bool a_vectors = args.a_access == kRowVector || args.a_access == kColVector;
    const bool b_vectors = args.b_access == kRowVector || args.b_access == kColVector;
    Copies<SHAPE::BM, A_ALONG_K, SHAPE::THREADS> a(Source::of_a(args, work.batch), a_vectors, work.row,
                                                   work.k_begin);
    Copies<SHAPE::BN, B_ALONG_K, SHAPE::THREADS> b(Source::of_b(args, work.batch), b_vectors, work.col,
                                                   work.k_begin);
    const int group = threadIdx.x % kWarp / 4, quad = threadIdx.x % 4;
    const int a_at = TileA::fragment(warp_row, group, quad), b_at = TileB::fragment(warp_col, group, quad);
    const bool short_sum = args.k < kShortSum;
    int k_left = work.k_end - work.k_begin, to_copy = k_left;
    int filled = 0, read = 0;   // bytes from `shared` to the stage that is filled next, and to the one in use
    const auto next = [](int at) { return at + SHAPE::STAGE_BYTES == SHAPE::SHARED_BYTES ? 0 : at + SHAPE::STAGE_BYTES; };
    const auto fill = [&] {
        if (to_copy > 0) {
            a.start(shared + filled, to_copy);
            b.start(shared + filled + TileA::BYTES, to_copy);
        }
        ptx::cp_async_commit();   // empty groups past the end keep the count simple
        to_copy -= BK;
        filled = next(filled);
    };
#pragma unroll
    for (int stage = 0; stage + 1 < SHAPE::STAGES; ++stage) fill();
#pragma unroll 1
    for (; k_left > 0; k_left -= BK) {
        ptx::cp_async_wait<SHAPE::STAGES - 2>();
        __syncthreads();   // the stage has arrived, and nobody reads the one before any more
        fill();
        const char* a_tile = shared + read;
        const char* b_tile = a_tile + TileA::BYTES;
#pragma unroll 1
        for (int k = 0; k < BK; k += SHAPE::PROMOTE * kStepK) {
            const int a_from = TileA::move(a_at, 0, k), b_from = TileB::move(b_at, 0, k);
            if constexpr (SHAPE::PRODUCTS == 3) {
                typename SHAPE::Sums fresh;
                clear<SHAPE>(fresh);
                multiply<SHAPE, TileA, TileB>(fresh, a_tile, b_tile, a_from, b_from, short_sum);
                add<SHAPE>(sums, fresh);
            } else {
                multiply<SHAPE, TileA, TileB>(sums, a_tile, b_tile, a_from, b_from, short_sum);
            }
        }
        read = next(read);
    }
}

// ---- after the sums ---------------------------------------------------------------------------------------------

template <typename SHAPE>
using FlatSums = float[SHAPE::TILES_M * SHAPE::TILES_N * 4];

// Calls visit(row, col, x) for parts of the sums in turn: PART of those of 16 rows, in groups of four, the first of which are
// those at (row, col), (row, col + 1), (row + 8, col) and (row + 8, col + 1), the next eight columns further.
template <typename SHAPE, int PART, typename VISIT>
__device__ __forceinline__ void visit_sums(typename SHAPE::Sums& sums, int row, int col, const VISIT& visit) {
    constexpr int kParts = SHAPE::TILES_N * 4 / PART;   // of 16 rows
    visit_parts<PART>(reinterpret_cast<FlatSums<SHAPE>&>(sums), [&](int part, float (&x)[PART]) {
        visit(row + part / kParts * kMmaM, col + part % kParts * (PART / 4 * kMmaN), x);
    });
}

// Recomputes the sums that are not finite; (row, col) is the place of the warp's first.
template <typename SHAPE>
__device__ __forceinline__ void repair(const GemmArgs& args, const WorkUnit& work, int row, int col,
                                       typename SHAPE::Sums& sums) {
    constexpr int kPart = 4, kAhead = 1, kFlight = 1;   // more would cost the kernel registers
    if (all_finite(reinterpret_cast<FlatSums<SHAPE>&>(sums))) return;
    const auto operand = [&](const Source& from) {
        const float* data = from.data + work.k_begin * from.k_stride;
        return ExactOperand{data, from.row_stride, from.k_stride, from.rows, from.along_k() && from.vectors(), false};
    };
    const ExactOperand a = operand(Source::of_a(args, work.batch));
    const ExactOperand b = operand(Source::of_b(args, work.batch));
    visit_sums<SHAPE, kPart>(sums, row, col, [&](int first_row, int first_col, float (&x)[kPart]) {
        const auto row_of = [&](int half, int group) { return first_row + half * 8 + group; };
        unsigned of_a = kUnseen;   // rows change from part to part
        recompute<kAhead, false, kFlight>(a, b, row_of, first_col, work.k_end - work.k_begin, of_a, x);
    });
}

template <typename SHAPE>
__device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, typename SHAPE::Sums& sums) {
    const Epilogue epilogue(args, batch);
    const bool bare = epilogue.c == nullptr && epilogue.bias == nullptr && epilogue.residual == nullptr &&
                      args.activation == kIdentity && args.d_access == kRowVector && args.n % 2 == 0;
    if (bare) {   // n is even, so both of a pair are inside, or none
#pragma unroll
        for (int i = 0; i < SHAPE::TILES_M; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + i * kMmaM + half * 8;
                float* line = epilogue.d + r * args.d.row_stride;
#pragma unroll
                for (int j = 0; j < SHAPE::TILES_N; ++j) {
                    const int c = col + j * kMmaN;
                    if (r < args.m && c < args.n) {
                        *reinterpret_cast<float2*>(line + c) =
                            make_float2(epilogue.scalars.scale(sums[i][j][half * 2]),
                                        epilogue.scalars.scale(sums[i][j][half * 2 + 1]));
                    }
                }
            }
        }
        return;
    }
    visit_sums<SHAPE, 4>(sums, row, col, [&](int r, int c, const float (&x)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) epilogue.store(args, r + e / 2 * 8, c + e % 2, x[e]);
    });
}

// ---- the kernel -------------------------------------------------------------------------------------------------

template <typename SHAPE>
__device__ __forceinline__ void gemm(const GemmArgs& args) {
    extern __shared__ __align__(128) char shared[];
    const TileGrid grid = TileGrid::of<SHAPE::BM, SHAPE::BN>(args);
    const WorkUnit work = work_unit<SHAPE::BM, SHAPE::BN>(args, grid, blockIdx.x);
    const int warp = threadIdx.x / kWarp, group = threadIdx.x % kWarp / 4, quad = threadIdx.x % 4;
    const int warp_row = warp / SHAPE::WARPS_N * SHAPE::WM, warp_col = warp % SHAPE::WARPS_N * SHAPE::WN;
    const bool a_along_k = args.a_access != kColVector && args.a_access != kColScalar;
    const bool b_along_k = args.b_access != kRowVector && args.b_access != kRowScalar;

    typename SHAPE::Sums sums;
    clear<SHAPE>(sums);
    if (a_along_k) {
        if (b_along_k) {
            accumulate<SHAPE, true, true>(args, work, shared, warp_row, warp_col, sums);
        } else {
            accumulate<SHAPE, true, false>(args, work, shared, warp_row, warp_col, sums);
        }
    } else {
        if (b_along_k) {
            accumulate<SHAPE, false, true>(args, work, shared, warp_row, warp_col, sums);
        } else {
            accumulate<SHAPE, false, false>(args, work, shared, warp_row, warp_col, sums);
        }
    }
    const int row = work.row + warp_row, col = work.col + warp_col;
    repair<SHAPE>(args, work, row, col, sums);
    store<SHAPE>(args, work.batch, row + group, col + quad * 2, sums);
}

}  // namespace

// NAME, blocks that a multiprocessor has registers for, products, block tile, warp tile, stages.
#define GEMM_MMA(NAME, BLOCKS, ...)                                                                                    \
    enum : int { NAME##_shared = Shape<__VA_ARGS__>::SHARED_BYTES };                                                   \
    extern "C" __global__ void __launch_bounds__(Shape<__VA_ARGS__>::THREADS, BLOCKS)                                  \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        gemm<Shape<__VA_ARGS__>>(args);                                                                                \
    }

GEMM_MMA(gemm_tf32x3_mma_128x128, 1, 3, 128, 128, 64, 32, 3)
GEMM_MMA(gemm_tf32x3_mma_64x64, 3, 3, 64, 64, 32, 32, 3)
GEMM_MMA(gemm_tf32_mma_128x128, 1, 1, 128, 128, 64, 64, 3)
GEMM_MMA(gemm_tf32_mma_64x64, 4, 1, 64, 64, 32, 32, 3)
