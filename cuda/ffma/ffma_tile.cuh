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
    int run;   // where neighbours lead (0: nowhere), plus kVectors where four of them can be read at once

    static constexpr int kVectors = 1, kAlongK = 2, kAlongRows = 4;

    static __device__ __forceinline__ Source of_a(const GemmArgs& args, int batch) {
        const int run = args.a_access == kRowVector   ? kAlongK + kVectors
                        : args.a_access == kRowScalar ? kAlongK
                        : args.a_access == kColVector ? kAlongRows + kVectors
                        : args.a_access == kColScalar ? kAlongRows
                                                      : 0;
        return {static_cast<const float*>(args.a.data) + batch_offset(args, args.a, batch), args.a.row_stride,
                args.a.col_stride, args.m, run};
    }
    static __device__ __forceinline__ Source of_b(const GemmArgs& args, int batch) {
        const int run = args.b_access == kColVector   ? kAlongK + kVectors
                        : args.b_access == kColScalar ? kAlongK
                        : args.b_access == kRowVector ? kAlongRows + kVectors
                        : args.b_access == kRowScalar ? kAlongRows
                                                      : 0;
        return {static_cast<const float*>(args.b.data) + batch_offset(args, args.b, batch), args.b.col_stride,
                args.b.row_stride, args.n, run};
    }
    __device__ __forceinline__ bool along_k() const { return (run & kAlongK) != 0; }
    __device__ __forceinline__ bool along_rows() const { return (run & kAlongRows) != 0; }
    __device__ __forceinline__ bool vectors() const { return (run & kVectors) != 0; }
};

__device__ __forceinline__ float4 load_vector(const float* address) {
    return __ldg(reinterpret_cast<const float4*>(address));
}

// The same where four neighbours do not start on 16 bytes.
__device__ __forceinline__ float4 load_neighbours(const float* address) {
    return make_float4(__ldg(address), __ldg(address + 1), __ldg(address + 2), __ldg(address + 3));
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
// With QUICK_SCALARS, operands that do not start on 16 bytes are read without guards inside the matrix, too.
template <int ROWS, int BK, int THREADS, bool QUICK_SCALARS>
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
        const bool along_rows = source.along_rows();
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
        if (active) {
            const bool quick = source.vectors() || (QUICK_SCALARS && source.run != 0);
            if (rows_inside && k_left >= BK && quick) {
                const int64_t step = source.along_k() ? source.row_stride : source.k_stride;
#pragma unroll
                for (int piece = 0; piece < kEach; ++piece) {
                    const float* from = address + piece * kRowStep * source.row_stride;
#pragma unroll
                    for (int i = 0; i < kVec; ++i)
                        staged[piece][i] = !QUICK_SCALARS || source.vectors() ? load_vector(from + i * step) : load_neighbours(from + i * step);
                }
            } else {
                fetch_guarded(k_left - k);
            }
        }
        address += BK * source.k_stride;
    }

    __device__ __forceinline__ void fetch_guarded(int k_left) {
        const bool along_rows = source.along_rows();
        const int64_t step = along_rows ? source.k_stride : source.row_stride;
        const int64_t inner = along_rows ? source.row_stride : source.k_stride;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float* from = address + piece * kRowStep * source.row_stride;
            const int rows = rows_left - piece * kRowStep;
            const int outer_left = along_rows ? k_left : rows;
            const int inner_left = along_rows ? rows : k_left;
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                const int valid = i < outer_left ? inner_left : 0;
                if (valid >= kVec && source.vectors()) {
                    staged[piece][i] = load_vector(from + i * step);
                } else {
                    staged[piece][i] = load_guarded(from + i * step, inner, valid);
                }
            }
        }
    }

    // Registers → shared memory.
    __device__ __forceinline__ void commit(float (*tile)[ROWS]) const {
        if (!active) return;
#pragma unroll
        for (int piece = 0; piece < kEach; ++piece) {
            const float4* v = staged[piece];
            float* to = &tile[k][(row + piece * kRowStep) ^ chunk_swizzle<ROWS>(k) * kVec];
            if (source.along_rows()) {
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

__device__ __forceinline__ void add(float4& sum, float4 part) {
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
}

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

    // For the epilogue: which lane has the next n of the same m.
    static constexpr bool kBeside = true;
    static __device__ __forceinline__ int next(int lane) {
        if (n(lane) == LN - 1) return kNoLane;
        constexpr int kPairs = LM == 2 ? 4 : 8;   // lanes between n and n + 2 where LM is small
        return LM >= 8 ? lane + 2 : lane % 2 == 0 ? lane + 1 : lane + kPairs - 1;
    }
    static __device__ __forceinline__ bool is_first(int lane) { return n(lane) == 0; }
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

    // The same for tiles that lie as A and B say: `a` and `b` point to the thread's first chunks in line 0. B comes first
    // because the compiler then spreads the reads over the step; in clumps they take 3 % more time.
    template <typename A, typename B>
    __device__ __forceinline__ void load(int buffer, const float* from_a, const float* from_b, int k) {
#pragma unroll
        for (int j = 0; j < TN; j += kVec)
            *reinterpret_cast<float4*>(&b[buffer][j]) = *reinterpret_cast<const float4*>(from_b + B::offset(k, col(j)));
#pragma unroll
        for (int i = 0; i < TM; i += kVec)
            *reinterpret_cast<float4*>(&a[buffer][i]) = *reinterpret_cast<const float4*>(from_a + A::offset(k, row(i)));
    }

    // Columns in turn, up and down the rows. See quad().
    __device__ __forceinline__ void multiply(int buffer) {
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

// Whether the epilogue is α alone, and rows of D can be written 16 bytes at a time.
__device__ __forceinline__ bool stores_plainly(const GemmArgs& args) {
    return args.beta == 0.0f && args.alpha_at == nullptr && args.beta_at == nullptr && args.bias == nullptr &&
           args.residual.data == nullptr && args.activation == kIdentity && args.d_access == kRowVector;
}

__device__ __forceinline__ void store_scaled(float* to, float alpha, float4 sums) {
    *reinterpret_cast<float4*>(to) = make_float4(alpha * sums.x, alpha * sums.y, alpha * sums.z, alpha * sums.w);
}

__device__ __forceinline__ constexpr int largest_part(int all, int most) {
    int part = all < most ? all : most;
    while (all % part != 0) --part;
    return part;
}

// Stores a block's tile. THREADS threads hold it in registers, `in_group` is this one's number among them and (row, col)
// its first output; all GROUPS · THREADS threads of the block come along.
//
// The sums pass through shared memory, a 4 × 4 piece of each thread at a time, so that there is one copy of the epilogue's
// large code, and for the reason that ThreadTile::quad() gives: `room` is ROOM bytes of shared memory that nobody uses any
// more, and a tile that needs more passes through it in parts.
//
// Where k is cut, the slices of a tile are the blocks of a cluster (compute capability 9.0 and newer). Each leaves its sums
// in its shared memory, and each adds up and stores its share of the tile, always in the order of k: no workspace, no
// second launch, the same bits every time.
template <int THREADS, int GROUPS, int ROOM, int LM, int LN, int TM, int TN>
__device__ __forceinline__ void store_tile(const ThreadTile<LM, LN, TM, TN>& tile, const GemmArgs& args, const WorkUnit& work,
                                           int group, int in_group, int row, int col, float4* room) {
    using Tile = ThreadTile<LM, LN, TM, TN>;
    constexpr int kAcross = TN / kVec;                                    // pieces beside each other
    constexpr int kPieces = TM / kVec * kAcross;                          // of a thread
    constexpr int kFit = ROOM / (THREADS * kVec * static_cast<int>(sizeof(float4)));
    constexpr int kPart = largest_part(kPieces, kFit);                    // pieces that pass at a time
    const Epilogue epilogue(args, work.batch);
    [[maybe_unused]] const bool split = args.split_k > 1;   // there are clusters from sm_90 on
    float4* mine = room + in_group;
#pragma unroll
    for (int first = 0; first < kPieces; first += kPart) {
        if (group == 0) {
#pragma unroll
            for (int v = 0; v < kPart * kVec; ++v)
                mine[v * THREADS] =
                    tile.quad((first + v / kVec) / kAcross * kVec, (first + v / kVec) % kAcross * kVec + v % kVec);
        }
        // q: four columns of four rows each, as quad() turned them.
        const auto store = [&](int piece, const float4 (&q)[kVec]) {
            const int first_row = row + Tile::row((first + piece) / kAcross * kVec);
            const int first_col = col + Tile::col((first + piece) % kAcross * kVec);
            const float4 rows[] = {make_float4(q[0].y, q[1].y, q[2].y, q[3].y),
                                   make_float4(q[0].x, q[1].x, q[2].x, q[3].x),
                                   make_float4(q[0].w, q[1].w, q[2].w, q[3].w),
                                   make_float4(q[0].z, q[1].z, q[2].z, q[3].z)};
            epilogue.store_rows(args, first_row, first_col, rows);
        };
        if (GROUPS > 1) __syncthreads();   // the groups share the work
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (split) ptx::cluster_sync();
#endif
#pragma unroll 1
        for (int piece = work.slice + group * args.split_k; piece < kPart; piece += GROUPS * args.split_k) {
            const float4* from = mine + piece * kVec * THREADS;
            float4 q[kVec];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
            if (split) {
#pragma unroll
                for (int j = 0; j < kVec; ++j) q[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
                for (int slice = 0; slice < args.split_k; ++slice) {
                    const uint32_t theirs = ptx::cluster_address(from, slice);
#pragma unroll
                    for (int j = 0; j < kVec; ++j) {
                        const float4 part = ptx::load_cluster_vector(theirs + j * THREADS * sizeof(float4));
                        q[j].x += part.x;
                        q[j].y += part.y;
                        q[j].z += part.z;
                        q[j].w += part.w;
                    }
                }
                store(piece, q);
                continue;
            }
#endif
#pragma unroll
            for (int j = 0; j < kVec; ++j) q[j] = from[j * THREADS];
            store(piece, q);
        }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (split) ptx::cluster_sync();   // the room is free again, and no block leaves while another reads its sums
#endif
        if (GROUPS > 1) __syncthreads();
    }
}

}  // namespace ffma_gemm
