// The parts that the FFMA kernels share: where a block works, how a tile reaches shared memory, the outer product in
// registers, and how slices of k come together.
//
// A tile lies in shared memory as [k][row], row counting m for A and n for B, whatever the operand's layout: the
// inner loop then reads both operands 16 bytes at a time along rows and is the same for all four layouts. An operand
// that is contiguous along k is transposed on the way, in registers, 4 × 4 elements a thread.
#pragma once

#include "../common/epilogue.cuh"
#include "../common/gemm_args.cuh"
#include "../common/ptx.cuh"

namespace ffma_gemm {

constexpr int kWarp = 32;
constexpr int kVec = 4;   // floats of a 16-byte access

// ---- where a block works ----------------------------------------------------------------------------------------

struct WorkUnit {
    int batch, row, col;       // the matrix of the batch, the first row and column of the tile
    int k_begin, k_end;        // the slice of k
    int slice;                 // its number
    int tile;                  // the number of the tile over the whole batch
};

struct TileGrid {
    int tiles_m, tiles_n;

    template <int BM, int BN>
    static __device__ __forceinline__ TileGrid of(const GemmArgs& args) {
        return {(args.m - 1) / BM + 1, (args.n - 1) / BN + 1};
    }
    __device__ __forceinline__ int units(const GemmArgs& args) const {
        return tiles_m * tiles_n * args.batch * args.split_k;
    }
};

// Units count slices first, then tiles, then matrices. Tiles are walked in bands of group_m rows, column by column
// within a band, so that blocks that run together share columns of B and rows of A in the L2.
template <int BM, int BN>
__device__ __forceinline__ WorkUnit work_unit(const GemmArgs& args, TileGrid grid, int unit) {
    WorkUnit work;
    work.slice = unit % args.split_k;
    work.tile = unit / args.split_k;
    const int tiles = grid.tiles_m * grid.tiles_n;
    work.batch = work.tile / tiles;
    const int tile = work.tile - work.batch * tiles;
    const int band_tiles = args.group_m * grid.tiles_n;
    const int band = tile / band_tiles;
    const int first_m = band * args.group_m;
    const int band_rows = min(args.group_m, grid.tiles_m - first_m);
    const int in_band = tile - band * band_tiles;
    const int tile_n = in_band / band_rows;
    work.row = (first_m + in_band - tile_n * band_rows) * BM;
    work.col = tile_n * BN;
    work.k_begin = work.slice * args.k_slice;
    work.k_end = args.split_k == 1 ? args.k : min(args.k, work.k_begin + args.k_slice);
    return work;
}

// ---- tiles: global memory → registers → shared memory -----------------------------------------------------------

// One operand of one matrix: `rows` of it, each with k elements.
struct Source {
    const float* data;
    int64_t row_stride, k_stride;
    int rows;
    bool along_rows;   // neighbours along the rows are neighbours in memory; otherwise neighbours along k are, if any
    bool vectors;      // and may be read 16 bytes at a time

    static __device__ __forceinline__ Source of_a(const GemmArgs& args, int batch) {
        return {static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch), args.a.row_stride,
                args.a.col_stride, args.m, args.a_access == kColVector || args.a_access == kColScalar,
                args.a_access == kRowVector || args.a_access == kColVector};
    }
    static __device__ __forceinline__ Source of_b(const GemmArgs& args, int batch) {
        return {static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch), args.b.col_stride,
                args.b.row_stride, args.n, args.b_access == kRowVector || args.b_access == kRowScalar,
                args.b_access == kRowVector || args.b_access == kColVector};
    }
};

__device__ __forceinline__ float4 load_vector(const float* address) {
    return __ldg(reinterpret_cast<const float4*>(address));
}

// Up to four neighbours, `valid` of them inside the matrix (any number ≤ 0: none); zeros outside.
__device__ __forceinline__ float4 load_guarded(const float* address, int64_t stride, int valid) {
    float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (valid > 0) value.x = __ldg(address);
    if (valid > 1) value.y = __ldg(address + stride);
    if (valid > 2) value.z = __ldg(address + 2 * stride);
    if (valid > 3) value.w = __ldg(address + 3 * stride);
    return value;
}

// A line of a tile keeps its 4-float chunks in an order that changes every four lines: chunk c of line k lies at
// c ^ chunk_swizzle(k). So pieces of neighbouring k can be stored together without bank conflicts.
template <int ROWS>
__device__ __forceinline__ constexpr int chunk_swizzle(int k) {
    return k / kVec * 2 & (ROWS / kVec - 1) & 6;
}

// Moves ROWS × BK tiles with THREADS threads, in 4 × 4 pieces. Accesses of 16 bytes go through memory eight lanes at a
// time, so eight neighbouring lanes read along the dimension that is contiguous: 2 × 4 pieces along k, 64 bytes of each
// row, or 8 × 1 along rows, 128 bytes of each k. The swizzle spreads both over all banks when they are stored.
template <int ROWS, int BK, int THREADS>
struct TileLoader {
    static constexpr int kPieces = ROWS * BK / (kVec * kVec);
    static constexpr int kEach = (kPieces + THREADS - 1) / THREADS;        // pieces a thread moves
    static constexpr int kAcross = ROWS / kVec < 8 ? ROWS / kVec : 8;      // a band: this many pieces along rows
    static constexpr int kPerBand = kAcross * (BK / kVec);                 // times all of BK
    static constexpr int kRowStep = THREADS / kPerBand * kAcross * kVec;   // rows from one piece of a thread to the next
    static_assert(ROWS % (kAcross * kVec) == 0 && BK % (4 * kVec) == 0, "a tile is made of whole bands");
    static_assert(kEach == 1 || THREADS % kPerBand == 0, "all pieces of a thread have the same k");

    Source source;
    const float* address;   // of the thread's first piece in the next tile
    int row, k;             // its place in the tile
    int rows_left;          // rows of the operand from `row` on
    bool active;            // small tiles leave threads without work
    bool rows_inside;       // no piece of the block hangs over the last row
    float4 staged[kEach][kVec];

    __device__ __forceinline__ void start(const Source& from, int thread, int first_row, int first_k) {
        source = from;
        const int band = thread / kPerBand, piece = thread % kPerBand;
        const bool along_rows = source.along_rows;
        const int across = along_rows ? piece % kAcross : piece / 4 % kAcross;
        row = (band * kAcross + across) * kVec;
        k = (along_rows ? piece / kAcross : piece / (4 * kAcross) * 4 + piece % 4) * kVec;
        active = kPieces % THREADS == 0 || thread < kPieces;
        rows_left = source.rows - first_row - row;
        rows_inside = source.rows - first_row >= ROWS;
        address = source.data + (first_row + row) * source.row_stride + (first_k + k) * source.k_stride;
    }

    // Global memory → registers, for the tile that has `k_left` elements of k before its slice ends.
    __device__ __forceinline__ void fetch(int k_left) {
        if (source.along_rows) {
            fetch_as<true>(k_left);
        } else {
            fetch_as<false>(k_left);
        }
    }

    // The same where the direction is known when the kernel is compiled.
    template <bool ALONG_ROWS>
    __device__ __forceinline__ void fetch_as(int k_left) {
        if (active) {
            const bool inside = rows_inside && k_left >= BK;
            if (inside && source.vectors) {
                const int64_t step = ALONG_ROWS ? source.k_stride : source.row_stride;
#pragma unroll
                for (int piece = 0; piece < kEach; ++piece) {
                    const float* from = address + piece * kRowStep * source.row_stride;
#pragma unroll
                    for (int i = 0; i < kVec; ++i) staged[piece][i] = load_vector(from + i * step);
                }
            } else {
                fetch_scalars<ALONG_ROWS>(k_left - k, inside);
            }
        }
        address += BK * source.k_stride;
    }

    // Element by element, where rows are not aligned and where the matrix ends.
    template <bool ALONG_ROWS>
    __device__ __forceinline__ void fetch_scalars(int k_left, bool inside) {
        const int64_t step = ALONG_ROWS ? source.k_stride : source.row_stride;
        const int64_t inner = ALONG_ROWS ? source.row_stride : source.k_stride;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float* from = address + piece * kRowStep * source.row_stride;
            const int rows = inside ? kVec : rows_left - piece * kRowStep;
            const int ks = inside ? kVec : k_left;
            const int outer_left = ALONG_ROWS ? ks : rows;
            const int inner_left = ALONG_ROWS ? rows : ks;
#pragma unroll
            for (int i = 0; i < kVec; ++i)
                staged[piece][i] = load_guarded(from + i * step, inner, i < outer_left ? inner_left : 0);
        }
    }

    // Registers → shared memory.
    __device__ __forceinline__ void commit(float (*tile)[ROWS]) const {
        if (source.along_rows) {
            commit_as<true>(tile);
        } else {
            commit_as<false>(tile);
        }
    }

    template <bool ALONG_ROWS>
    __device__ __forceinline__ void commit_as(float (*tile)[ROWS]) const {
        if (!active) return;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float4* v = staged[piece];
            float* to = &tile[k][(row + piece * kRowStep) ^ chunk_swizzle<ROWS>(k) * kVec];
            if (ALONG_ROWS) {
#pragma unroll
                for (int i = 0; i < kVec; ++i) *reinterpret_cast<float4*>(to + i * ROWS) = v[i];
            } else {
                *reinterpret_cast<float4*>(to) = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
                *reinterpret_cast<float4*>(to + ROWS) = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
                *reinterpret_cast<float4*>(to + 2 * ROWS) = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
                *reinterpret_cast<float4*>(to + 3 * ROWS) = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
            }
        }
    }
};

// ---- the outer product ------------------------------------------------------------------------------------------

// The lanes of a warp as LM × LN. A 16-byte shared-memory read takes two clocks instead of four where lanes that
// differ in bit 0 or in bit 1 alone ask for the same address; these patterns give that to both operands.
template <int LM, int LN>
struct Lanes {
    static_assert(LM * LN == kWarp && (LM == 2 || LM == 4 || LM == 8 || LM == 16), "a warp has 32 lanes");
    static __device__ __forceinline__ int m(int lane) {
        return LM == 2 ? lane / 2 % 2 : LM == 4 ? lane / 2 % 4 : LM == 8 ? lane / 8 * 2 + lane % 2
                                                                        : lane / 4 * 2 + lane % 2;
    }
    static __device__ __forceinline__ int n(int lane) {
        return LM == 2 ? lane / 4 * 2 + lane % 2 : LM == 4 ? lane / 8 * 2 + lane % 2 : LM == 8 ? lane / 2 % 4
                                                                                            : lane / 2 % 2;
    }
};

// TM × TN accumulators of a thread. Its rows come in chunks of four, LM chunks apart from each other, so that the lanes
// of a warp read neighbouring chunks; columns likewise.
template <int LM, int LN, int TM, int TN>
struct ThreadTile {
    static constexpr int kWarpM = LM * TM, kWarpN = LN * TN;
    static_assert(TM % kVec == 0 && TN % kVec == 0, "fragments are read 16 bytes at a time");
    static_assert(kWarpM % 32 == 0 || kWarpM == 16, "the swizzle moves chunks within a warp's rows");
    static_assert(kWarpN % 32 == 0, "the swizzle moves chunks within a warp's columns");

    float acc[TM][TN];
    float a[2][TM], b[2][TN];   // fragments of this step and the next

    static __device__ __forceinline__ int row(int i) { return i / kVec * LM * kVec + i % kVec; }
    static __device__ __forceinline__ int col(int j) { return j / kVec * LN * kVec + j % kVec; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
    }

    // Reads the thread's operands for step k of the tiles; (row, col) is its first output in the block tile. `k` and the
    // thread's chunks are known to the compiler, its lane is not: a swizzle is applied to each on its own.
    template <int BM, int BN>
    __device__ __forceinline__ void load(int buffer, const float (*tile_a)[BM], const float (*tile_b)[BN], int k,
                                         int first_row, int first_col) {
        const int swizzle_a = chunk_swizzle<BM>(k), swizzle_b = chunk_swizzle<BN>(k);
        const float* a_line = tile_a[k] + (first_row ^ swizzle_a % LM * kVec);
        const float* b_line = tile_b[k] + (first_col ^ swizzle_b % LN * kVec);
#pragma unroll
        for (int i = 0; i < TM; i += kVec)
            *reinterpret_cast<float4*>(&a[buffer][i]) =
                *reinterpret_cast<const float4*>(a_line + (row(i) ^ swizzle_a / LM * LM * kVec));
#pragma unroll
        for (int j = 0; j < TN; j += kVec)
            *reinterpret_cast<float4*>(&b[buffer][j]) =
                *reinterpret_cast<const float4*>(b_line + (col(j) ^ swizzle_b / LN * LN * kVec));
    }

    // Rows in turn, back and forth along the columns: each step keeps one operand of the step before.
    __device__ __forceinline__ void multiply(int buffer) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int col = i % 2 == 0 ? j : TN - 1 - j;
                acc[i][col] = fmaf(a[buffer][i], b[buffer][col], acc[i][col]);
            }
    }

    // Columns in turn, up and down the rows. See quad().
    __device__ __forceinline__ void multiply_columns(int buffer) {
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int row = j % 2 == 0 ? i : TM - 1 - i;
                acc[row][j] = fmaf(a[buffer][row], b[buffer][j], acc[row][j]);
            }
    }

    // Four rows of one column in swapped pairs, to be stored as one vector.
    //
    // A register file has two banks, even registers and odd ones, and each gives one operand a clock; an FFMA that takes
    // two from one bank costs two clocks. Going down a column, b stays in the operand cache and each FFMA takes a new
    // element of a and a new accumulator. Element i of a is in a register of i's parity, as a 16-byte read put it there.
    // A 16-byte store wants its registers in a row, too, so where the accumulators of rows 1, 0, 3, 2 are stored as one
    // vector, the compiler gives them registers of the opposite parity, and the two never meet in a bank.
    __device__ __forceinline__ float4 quad(int first_row, int j) const {
        return make_float4(acc[first_row + 1][j], acc[first_row][j], acc[first_row + 3][j], acc[first_row + 2][j]);
    }
};

// ---- storing ----------------------------------------------------------------------------------------------------

// Stores a thread's outputs, the first of them at (row, col). A bare α·acc goes out in straight-line code. Anything
// more takes one row of the thread tile at a time, the rest moving up: the code of the epilogue is large, and there
// is one copy of it for TN outputs instead of TM·TN.
template <int LM, int LN, int TM, int TN>
__device__ __forceinline__ void store_tile(ThreadTile<LM, LN, TM, TN>& tile, const GemmArgs& args, int batch, int row,
                                           int col) {
    using Tile = ThreadTile<LM, LN, TM, TN>;
    const Epilogue epilogue(args, batch);
    const bool bare = args.beta == 0.0f && args.bias == nullptr && args.residual.data == nullptr &&
                      args.activation == kIdentity && args.d_access == kRowVector;
    if (bare && col + Tile::col(TN - 1) < args.n) {
        float* line = epilogue.d + row * args.d.row_stride + col;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            if (row + Tile::row(i) < args.m) {
#pragma unroll
                for (int j = 0; j < TN; j += kVec)
                    *reinterpret_cast<float4*>(line + Tile::row(i) * args.d.row_stride + Tile::col(j)) =
                        make_float4(args.alpha * tile.acc[i][j], args.alpha * tile.acc[i][j + 1],
                                    args.alpha * tile.acc[i][j + 2], args.alpha * tile.acc[i][j + 3]);
            }
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < TM; ++i) {
        const int first_col = ptx::recompute(col);
#pragma unroll
        for (int j = 0; j < TN; j += kVec)
            epilogue.store_vector(args, row + Tile::row(i), first_col + Tile::col(j),
                                  *reinterpret_cast<const float4*>(&tile.acc[0][j]));
#pragma unroll
        for (int to = 0; to + 1 < TM; ++to)
#pragma unroll
            for (int j = 0; j < TN; ++j) tile.acc[to][j] = tile.acc[to + 1][j];
    }
}

// ---- slices of k ------------------------------------------------------------------------------------------------

// The workspace of a split-K launch: kMaxCounters counters, one a tile of the batch, zero before the launch and zero
// again after it, whatever the launch; then for each tile and slice its partial sums.
constexpr int kMaxCounters = 16384;

__device__ __forceinline__ float* partial_sums(const GemmArgs& args) {
    return reinterpret_cast<float*>(static_cast<unsigned*>(args.workspace) + kMaxCounters);
}

// Tells whether this block is the last of its tile to finish; all earlier blocks' partial sums are visible then.
// `barrier` is a barrier of the threads that take part, one of which is `first`; `flag` is in shared memory.
template <class Barrier>
__device__ __forceinline__ bool arrives_last(unsigned* counter, int slices, bool first, int* flag, Barrier barrier) {
    __threadfence();
    barrier();
    if (first) {
        const bool last = atomicAdd(counter, 1u) == static_cast<unsigned>(slices) - 1;
        if (last) *counter = 0;
        *flag = last;
    }
    barrier();
    const bool last = *flag != 0;
    if (last) __threadfence();
    return last;
}

// The partial sums of one tile; THREADS threads hold a whole tile in registers.
template <int THREADS>
struct SliceSum {
    unsigned* counter;
    float* partial;   // of slice 0
    int slice, slices, tile_floats;

    __device__ __forceinline__ SliceSum(const GemmArgs& args, const WorkUnit& work, int tile_floats)
        : counter(static_cast<unsigned*>(args.workspace) + work.tile),
          partial(partial_sums(args) + static_cast<size_t>(work.tile) * args.split_k * tile_floats),
          slice(work.slice),
          slices(args.split_k),
          tile_floats(tile_floats) {}

    // Leaves this block's sums in the workspace. The last block of the tile takes all of them, in the order of k, so
    // that the result does not depend on which block that was; the others get false. Threads that hold no part of the
    // tile come along for the barriers with `holds` false.
    template <int LM, int LN, int TM, int TN, class Barrier>
    __device__ __forceinline__ bool add(ThreadTile<LM, LN, TM, TN>& tile, bool holds, int thread, int* flag, bool first,
                                        Barrier barrier) const {
        float* mine = partial + static_cast<size_t>(slice) * tile_floats + thread;
        if (holds) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) __stcg(mine + (i * TN + j) * THREADS, tile.acc[i][j]);
        }
        if (!arrives_last(counter, slices, first, flag, barrier)) return false;
        if (!holds) return true;
        tile.clear();
        const float* from = partial + thread;
#pragma unroll 1
        for (int number = 0; number < slices; ++number, from += tile_floats) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) tile.acc[i][j] += __ldcg(from + (i * TN + j) * THREADS);
        }
        return true;
    }
};

}  // namespace ffma_gemm
