// GEMM of 16-bit operands (f16, bf16) on the tensor cores of every device from sm_80 on, for views of any stride and alignment.
//
// Products of 16-bit numbers are exact in FP32, and the tensor core sums them in FP32 (m16n8k16), so nothing is split, rounded or
// recomputed: Inf and NaN pass through as IEEE says. What remains is to keep the tensor cores fed.
//
// Shared memory holds a ring of stages that the whole block fills:
//
//   neighbours, lines on 16 bytes    cp.async of 16 bytes
//   neighbours, lines on 4 bytes     cp.async of 4 bytes: a pair of neighbours
//   anything else                    loads of single elements, which pass through registers, some stages ahead
//
// A tile keeps the direction of its operand. ldmatrix brings fragments from lines along k, ldmatrix.trans from lines along m or
// n, so all four layouts are the same kernel and nothing is transposed. The 16-byte chunks of a tile are permuted so that the
// eight lines of a matrix lie in different banks.
//
// Per stage of 64 k and warp of 64 × 32: 64 mma and 24 ldmatrix. A block of 128 × 128 reads 96 KB of shared memory a stage, in
// which Hopper's mma.sync takes 1638 clocks: 59 bytes of 128 a clock.
//
// Launch. One block a unit, units = ⌈m / BM⌉ · ⌈n / BN⌉ · batch in the order of scheduler/tiles.cuh.

#include "../epilogue/half.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/mma.cuh"
#include "../scheduler/tiles.cuh"

namespace {

constexpr int BK = 64;
constexpr int kStepK = 16;              // k of one mma
constexpr int kSteps = BK / kStepK;
constexpr int kPiece = 16;              // rows of A, or of B, that one ldmatrix brings: 16 × 16
constexpr int kChunk = 16;              // bytes that are permuted as one
constexpr int kChunkElements = 8;
constexpr int kElement = 2;
constexpr int kWord = 4;                // bytes
constexpr int kBankRow = 128;           // bytes that hit every bank once

// ---- tiles ------------------------------------------------------------------------------------------------------

// ROWS × BK of an operand, `row` counting m for A and n for B. ALONG_K: lines of 64 k, one a row. Otherwise: lines of ROWS, one
// a k. Chunk c of a line lies at c ^ swizzle(line).
template <int ROWS, bool ALONG_K>
struct Tile {
    static constexpr int BYTES = ROWS * BK * kElement;
    static constexpr int LINE = ALONG_K ? BK : ROWS;    // elements that are neighbours
    static constexpr int LINES = ALONG_K ? ROWS : BK;
    static constexpr int LINE_BYTES = LINE * kElement;
    static constexpr int CHUNKS = LINE / kChunkElements;
    static constexpr int PERMUTED = CHUNKS < 8 ? CHUNKS : 8;   // chunks that change places among themselves
    static constexpr int PERIOD = LINE_BYTES < kBankRow ? kBankRow / LINE_BYTES : 1;   // lines in a row of banks
    static_assert((CHUNKS & (CHUNKS - 1)) == 0, "chunks are exchanged by their bits");

    static __device__ __forceinline__ int swizzle(int line) { return line / PERIOD % PERMUTED; }

    // The byte of the row that this lane names for the 16 × 16 piece at (first_row, 0). The pieces' matrices are (0, 0),
    // (8, 0), (0, 8), (8, 8), by row and k. first_row is a multiple of a warp's rows.
    static __device__ __forceinline__ int fragment(int first_row, int lane) {
        const int half_row = lane / 8 % 2, half_k = lane / 16;
        if (ALONG_K) {
            const int row = first_row + lane % 16;
            return row * LINE_BYTES + (half_k ^ swizzle(row)) * kChunk;
        }
        const int k = half_k * 8 + lane % 8;
        return k * LINE_BYTES + ((first_row / kChunkElements + half_row) ^ swizzle(k)) * kChunk;
    }
    // From there to the piece `rows` and `k` further, multiples of 16; a warp has at most 64 rows.
    static __device__ __forceinline__ int move(int from, int rows, int k) {
        if (ALONG_K) return (from ^ k / kChunkElements * kChunk) + rows * LINE_BYTES;
        return (from ^ rows / kChunkElements * kChunk) + k * LINE_BYTES;
    }
};

// ---- load -------------------------------------------------------------------------------------------------------

// One operand of one matrix, from the slice of k on that is computed: `rows` of it. A slice begins with a whole portion of k, and so on
// 16 bytes where its rows do.
struct Source {
    const uint16_t* data;
    int64_t row_stride, k_stride;
    int rows;
    bool vectors, along_rows;   // neighbours can be read 16 bytes at a time; they are rows

    static __device__ __forceinline__ Source of_a(const GemmArgs& args, const WorkUnit& work) {
        const Access access = args.a_access;
        const int64_t from = batch_offset(args, args.a, work.batch) + work.k_begin * args.a.col_stride;
        return {static_cast<const uint16_t*>(args.a.data) + from, args.a.row_stride,
                args.a.col_stride, args.m, access == kRowVector || access == kColVector,
                access == kColVector || access == kColScalar};
    }
    static __device__ __forceinline__ Source of_b(const GemmArgs& args, const WorkUnit& work) {
        const Access access = args.b_access;
        const int64_t from = batch_offset(args, args.b, work.batch) + work.k_begin * args.b.row_stride;
        return {static_cast<const uint16_t*>(args.b.data) + from, args.b.col_stride,
                args.b.row_stride, args.n, access == kRowVector || access == kColVector,
                access == kRowVector || access == kRowScalar};
    }
};

// The copies of one operand by all threads of the block, a tile at a time. A thread always copies the same chunk, or the same
// pair, of every so many lines.
template <int ROWS, bool ALONG_K, int THREADS>
struct Copies {
    using Shape = Tile<ROWS, ALONG_K>;
    static constexpr int kVectorLines = THREADS / Shape::CHUNKS;           // lines that the block copies at once
    static constexpr int kVectorTurns = Shape::LINES / kVectorLines;
    static constexpr int kPairs = Shape::LINE / 2;                         // of a line
    static constexpr int kPairLines = THREADS / kPairs;
    static constexpr int kPairTurns = Shape::LINES / kPairLines;
    static_assert(kVectorTurns * kVectorLines == Shape::LINES && kVectorLines % 8 == 0,
                  "turns are whole, and a thread's chunks are permuted alike in all of them");
    static_assert(kPairTurns * kPairLines == Shape::LINES, "turns are whole");

    enum Way { kVectors, kAlignedPairs, kElements };

    const uint16_t* next;           // this thread's first element of the next tile
    int64_t line_stride, along_stride, step;
    int line, along;                // its place in the tile
    int rows_left;                  // rows of the operand from the tile's first
    Way way;

    __device__ __forceinline__ Copies(const Source& source, int first_row)
        : line_stride(ALONG_K ? source.row_stride : source.k_stride),
          along_stride(ALONG_K ? source.k_stride : source.row_stride),
          step(BK * source.k_stride),
          rows_left(source.rows - first_row) {
        const bool even = line_stride % 2 == 0 && reinterpret_cast<uintptr_t>(source.data) % (2 * kElement) == 0;
        way = source.vectors ? kVectors : even && along_stride == 1 ? kAlignedPairs : kElements;
        const int thread = threadIdx.x;
        line = way == kVectors ? thread / Shape::CHUNKS : thread / kPairs;
        along = way == kVectors ? thread % Shape::CHUNKS * kChunkElements : thread % kPairs * 2;
        next = source.data + first_row * source.row_stride + line * line_stride + along * along_stride;
    }

    // Starts the copies of a tile that has `k_left` elements of k before its end; the rest becomes zero.
    __device__ __forceinline__ void start(char* tile, int k_left) {
        const int lines = (ALONG_K ? rows_left : k_left) - line;                       // inside, from this thread's first
        const int left = max((ALONG_K ? k_left : rows_left) - along, 0);
        if (way == kVectors) {
            start_vectors(tile, lines, min(left, kChunkElements) * kElement);
        } else if (way == kAlignedPairs) {
            start_pairs(tile, lines, min(left, 2) * kElement);
        } else {
            copy_elements(tile, lines, left);
        }
        next += step;
    }

private:
    static __device__ __forceinline__ char* place(char* tile, int line, int along) {
        const int chunk = along / kChunkElements ^ Shape::swizzle(line);
        return tile + line * Shape::LINE_BYTES + chunk * kChunk + along % kChunkElements * kElement;
    }
    // A chunk that is partly outside: what is outside may be nobody's memory.
    static __device__ __forceinline__ void copy_odd(char* to, const uint16_t* from, int count) {
        uint32_t words[kChunkElements / 2] = {};
#pragma unroll
        for (int i = 0; i < kChunkElements; ++i) {
            words[i / 2] |= static_cast<uint32_t>(ptx::load_or_zero(from + i, i < count)) << i % 2 * 16;
        }
        *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    __device__ __forceinline__ void start_vectors(char* tile, int lines, int bytes) const {
        char* to = place(tile, line, along);
#pragma unroll
        for (int turn = 0; turn < kVectorTurns; ++turn) {
            const int skip = turn * kVectorLines;
            const int here = skip < lines ? bytes : 0;   // what is not read need not exist
            const uint16_t* from = here > 0 ? next + skip * line_stride : next;
            if (here == 0 || here == kChunk) ptx::cp_async_16(to + skip * Shape::LINE_BYTES, from, here);
            else copy_odd(to + skip * Shape::LINE_BYTES, from, here / kElement);
        }
    }
    __device__ __forceinline__ void start_pairs(char* tile, int lines, int bytes) const {
#pragma unroll 4
        for (int turn = 0; turn < kPairTurns; ++turn) {
            const int skip = turn * kPairLines;
            const int here = skip < lines ? bytes : 0;
            const uint16_t* from = here > 0 ? next + skip * line_stride : next;
            char* to = place(tile, line + skip, along);
            if (here % kWord == 0) ptx::cp_async_4(to, from, here);
            else *reinterpret_cast<uint32_t*>(to) = *from;
        }
    }
    __device__ __forceinline__ void copy_elements(char* tile, int lines, int left) const {
        constexpr int kFlight = kPairTurns < 8 ? kPairTurns : 8;   // pairs of a thread that are under way together
#pragma unroll 1
        for (int first = 0; first < kPairTurns; first += kFlight) {
            uint32_t pair[kFlight];
#pragma unroll
            for (int i = 0; i < kFlight; ++i) {
                const int skip = (first + i) * kPairLines;
                const uint16_t* from = next + skip * line_stride;
                const uint32_t low = ptx::load_or_zero(from, skip < lines && left > 0);
                const uint32_t high = ptx::load_or_zero(from + along_stride, skip < lines && left > 1);
                pair[i] = high << 16 | low;
            }
#pragma unroll
            for (int i = 0; i < kFlight; ++i)
                *reinterpret_cast<uint32_t*>(place(tile, line + (first + i) * kPairLines, along)) = pair[i];
        }
    }
};

// ---- compute ----------------------------------------------------------------------------------------------------

template <Half TYPE_, int BM_, int BN_, int WM_, int WN_, int STAGES_>
struct Shape {
    static constexpr Half TYPE = TYPE_;
    static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr int WARPS_N = BN / WN;
    static constexpr int THREADS = BM / WM * WARPS_N * kWarp;
    static constexpr int PIECES_M = WM / kPiece, PIECES_N = WN / kPiece;
    static constexpr int COUNT = WN / 2;   // a thread's sums of 16 rows
    static constexpr int STAGE_BYTES = (BM + BN) * BK * kElement;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
    static_assert(BM % WM == 0 && BN % WN == 0, "warp tiles fill the block tile");
    static_assert(WM % kPiece == 0 && WN % kPiece == 0 && WM <= 64 && WN <= 64, "pieces fill the warp tile, and are reached by bits");
    static_assert(STAGES >= 3, "elements are stored into a stage two barriers before it is read");
    using Sums = float[PIECES_M][COUNT];
};

// Adds the products of one stage to `sums`; `a_at` and `b_at` are the places of this lane's rows of the first pieces.
template <typename SHAPE, bool A_ALONG_K, bool B_ALONG_K>
__device__ __forceinline__ void multiply(typename SHAPE::Sums& sums, uint32_t a_tile, uint32_t b_tile, int a_at, int b_at) {
    using TileA = Tile<SHAPE::BM, A_ALONG_K>;
    using TileB = Tile<SHAPE::BN, B_ALONG_K>;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        uint32_t a[SHAPE::PIECES_M][4], b[SHAPE::PIECES_N][4];
#pragma unroll
        for (int i = 0; i < SHAPE::PIECES_M; ++i)
            ptx::load_matrices<!A_ALONG_K>(a[i], a_tile + TileA::move(a_at, i * kPiece, step * kStepK));
#pragma unroll
        for (int j = 0; j < SHAPE::PIECES_N; ++j)
            ptx::load_matrices<!B_ALONG_K>(b[j], b_tile + TileB::move(b_at, j * kPiece, step * kStepK));
#pragma unroll
        for (int i = 0; i < SHAPE::PIECES_M; ++i) {
#pragma unroll
            for (int j = 0; j < SHAPE::PIECES_N * 2; ++j) {   // 8 columns each
                float(&sum)[4] = reinterpret_cast<float(&)[4]>(sums[i][j * 4]);
                ptx::mma_half<SHAPE::TYPE>(sum, a[i][0], a[i][1], a[i][2], a[i][3], b[j / 2][j % 2], b[j / 2][j % 2 + 2]);
            }
        }
    }
}

// The sums of one tile.
template <typename SHAPE, bool A_ALONG_K, bool B_ALONG_K>
__device__ __forceinline__ void accumulate(const GemmArgs& args, const WorkUnit& work, const Source& source_a,
                                           const Source& source_b, char* shared, int warp_row, int warp_col,
                                           typename SHAPE::Sums& sums) {
    using TileA = Tile<SHAPE::BM, A_ALONG_K>;
    using TileB = Tile<SHAPE::BN, B_ALONG_K>;
    Copies<SHAPE::BM, A_ALONG_K, SHAPE::THREADS> a(source_a, work.row);
    Copies<SHAPE::BN, B_ALONG_K, SHAPE::THREADS> b(source_b, work.col);
    const int lane = threadIdx.x % kWarp;
    const int a_at = TileA::fragment(warp_row, lane), b_at = TileB::fragment(warp_col, lane);
    const uint32_t base = ptx::shared_address(shared);
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
#pragma unroll 1
    for (int stage = 0; stage + 1 < SHAPE::STAGES; ++stage) fill();
#pragma unroll 1
    for (; k_left > 0; k_left -= BK) {
        ptx::cp_async_wait<SHAPE::STAGES - 2>();
        __syncthreads();   // the stage has arrived, and nobody reads the one before any more
        fill();
        multiply<SHAPE, A_ALONG_K, B_ALONG_K>(sums, base + read, base + read + TileA::BYTES, a_at, b_at);
        read = next(read);
    }
}

// ---- store ------------------------------------------------------------------------------------------------------

// (row, col) is the place in D of this thread's first sum.
template <typename SHAPE>
__device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, typename SHAPE::Sums& sums) {
    const HalfEpilogue<SHAPE::TYPE, false> epilogue(args, batch);
    if (epilogue.bare(args)) {
#pragma unroll
        for (int i = 0; i < SHAPE::PIECES_M; ++i) {
            epilogue.scale(sums[i]);
            epilogue.store(args, row + i * kPiece, col, sums[i]);
        }
        return;
    }
    float(&flat)[SHAPE::PIECES_M * SHAPE::COUNT] = reinterpret_cast<float(&)[SHAPE::PIECES_M * SHAPE::COUNT]>(sums);
    in_turn<SHAPE::COUNT>(flat, [&](int i, float (&x)[SHAPE::COUNT]) {
        epilogue.apply(args, row + i * kPiece, col, x);
        epilogue.store(args, row + i * kPiece, col, x);
    });
}

// ---- the kernel -------------------------------------------------------------------------------------------------

template <typename SHAPE>
__device__ __forceinline__ void gemm(const GemmArgs& args) {
    extern __shared__ __align__(128) char shared[];
    const TileGrid grid = TileGrid::of<SHAPE::BM, SHAPE::BN>(args);
    const WorkUnit work = work_unit<SHAPE::BM, SHAPE::BN>(args, grid, blockIdx.x);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const int warp_row = warp / SHAPE::WARPS_N * SHAPE::WM, warp_col = warp % SHAPE::WARPS_N * SHAPE::WN;
    const Source a = Source::of_a(args, work), b = Source::of_b(args, work);
    ptx::wait_for_previous_kernels();   // all before needs the arguments alone

    typename SHAPE::Sums sums;
#pragma unroll
    for (int i = 0; i < SHAPE::PIECES_M; ++i)
#pragma unroll
        for (int e = 0; e < SHAPE::COUNT; ++e) sums[i][e] = 0.0f;
    if (a.along_rows) {
        if (b.along_rows) accumulate<SHAPE, false, false>(args, work, a, b, shared, warp_row, warp_col, sums);
        else accumulate<SHAPE, false, true>(args, work, a, b, shared, warp_row, warp_col, sums);
    } else {
        if (b.along_rows) accumulate<SHAPE, true, false>(args, work, a, b, shared, warp_row, warp_col, sums);
        else accumulate<SHAPE, true, true>(args, work, a, b, shared, warp_row, warp_col, sums);
    }
    store<SHAPE>(args, work.batch, work.row + warp_row + lane / 4, work.col + warp_col + lane % 4 * 2, sums);
}

}  // namespace

// TILE, blocks that a multiprocessor has registers for, block tile, warp tile, stages.
#define GEMM_HALF_MMA_OF(NAME, BLOCKS, ...)                                                                            \
    enum : int { NAME##_shared = Shape<__VA_ARGS__>::SHARED_BYTES };                                                   \
    extern "C" __global__ void __launch_bounds__(Shape<__VA_ARGS__>::THREADS, BLOCKS)                                  \
        NAME(const __grid_constant__ GemmArgs args) {                                                                  \
        if (gridDim.x <= kFewBlocks) ptx::let_next_kernel_start();                                                     \
        gemm<Shape<__VA_ARGS__>>(args);                                                                                \
    }
#define GEMM_HALF_MMA(TILE, BLOCKS, ...)                                                                               \
    GEMM_HALF_MMA_OF(gemm_f16_mma_##TILE, BLOCKS, Half::kF16, __VA_ARGS__)                                             \
    GEMM_HALF_MMA_OF(gemm_bf16_mma_##TILE, BLOCKS, Half::kBF16, __VA_ARGS__)

GEMM_HALF_MMA(128x128, 1, 128, 128, 64, 32, 3)
GEMM_HALF_MMA(64x64, 3, 64, 64, 32, 32, 3)
GEMM_HALF_MMA(16x64, 4, 16, 64, 16, 16, 4)
