// Attention of some dozens to some hundreds of queries: softmax(scale · Q · Kᵀ + mask) · V by register tiles.
//
// A block has BM queries of a head and takes its keys BN at a time. Its 128 threads are 8 × 16: of a tile of scores, BM × BN, a thread has
// the rows ty, ty + 8, … and the keys tx, tx + 16, …, and of the result, BM × WIDTH, the same rows and WIDTH / 16 columns. The 16 threads
// of a row are half a warp: its maximum is four shuffles away, and weights go from the layout of scores to that of a factor by way of
// shared memory without a barrier of the block. Sums of weights stay with the threads until the end.
//
// Tiles are FP32 in shared memory. Of FP32 operands cp.async brings the next K while weights multiply V, and the next V while Q
// multiplies K; numbers of 16 bits are converted on their way there, once instead of at every use, and other blocks fill the wait. Rows of
// Q, K and weights have 4 floats of padding: 8 threads that read 16 bytes of 8 neighbouring rows, and the two rows of Q or of weights
// that a warp reads, meet different banks.
//
// For every 4 columns a thread reads TM + TN vectors and makes 4 · TM · TN multiply-adds: with 4 × 4, 8 reads for 64, about 12 of 16
// cycles that the multiply-adds of four warps leave to shared memory.
//
// Needs: at most WIDTH columns; rows without gaps on 16 bytes. Any number of queries and keys.
// Traffic: Q once, K and V once for every BM queries, mostly from the L2; scores never leave the multiprocessor. Arithmetic: 2 · WIDTH
// multiply-adds a query and key, of whole tiles.
// Floor of 12 heads of 16 queries and keys of width 32 (MiniLM, a short text): 2.2 µs, of which 1.3 are start and end, 0.6 one round trip
// to the L2, 0.3 arithmetic. Predicted: 2.8 µs, where three kernels take 9. Of 96 heads of 128 × 128 × 32 (8 texts of 128): 3.4 µs at the
// rate of FP32 multiply-adds and half of it reached, so 8 µs, where three kernels write and read 25 MB of scores besides.
//
// Launch. A block for BM queries of a head, queries first. It may start while the kernel before still runs.

#include "../ptx/copies.cuh"
#include "operands.cuh"

namespace {

using attention::Type;

constexpr int kRowThreads = 8, kColumnThreads = 16, kThreads = kRowThreads * kColumnThreads;
constexpr int kPadding = 4;   // floats a row

template <Type TYPE_, int BM_, int BN_, int WIDTH_>
struct Tile {
    static constexpr Type TYPE = TYPE_;
    using Element = attention::Element<TYPE>;
    using Stored = typename Element::Stored;
    static constexpr int BM = BM_, BN = BN_, WIDTH = WIDTH_;
    static constexpr int TM = BM / kRowThreads, TN = BN / kColumnThreads;   // scores of a thread
    static constexpr int COLUMNS = WIDTH / kColumnThreads;                  // of the result, of a thread
    static constexpr int PIECE = COLUMNS < kVector ? COLUMNS : kVector;     // of them, neighbours
    static_assert(BM % kRowThreads == 0 && BN % kColumnThreads == 0, "every thread has as many scores");
    static_assert(COLUMNS == PIECE || COLUMNS % PIECE == 0, "every thread has whole pieces");
    static_assert(BN % kVector == 0 && WIDTH % (2 * kVector) == 0, "rows of tiles are whole vectors, of 16-bit numbers, too");

    struct alignas(16) Shared {
        float query[BM][WIDTH + kPadding];
        float key[BN][WIDTH + kPadding];
        float value[BN][WIDTH];
        float weights[BM][BN + kPadding];
    };
};

// Row or column `i` of a thread; neighbouring threads have neighbours.
__device__ __forceinline__ int row_of(int i) { return threadIdx.x / kColumnThreads + i * kRowThreads; }
__device__ __forceinline__ int key_of(int i) { return threadIdx.x % kColumnThreads + i * kColumnThreads; }
template <typename TILE>
__device__ __forceinline__ int column_of(int piece) {
    return (threadIdx.x % kColumnThreads + piece * kColumnThreads) * TILE::PIECE;
}

// ---- load ----------------------------------------------------------------------------------------------------------

// Rows from `first` on, zeros beyond the last of `rows` and beyond `width`.
template <typename TILE, int ROWS, int PITCH>
__device__ __forceinline__ void stage(float (&to)[ROWS][PITCH], const typename TILE::Stored* from, int64_t row_stride, int first,
                                      int rows, int width) {
    using Element = typename TILE::Element;
    constexpr int kElements = Element::kVectorElements, kRowVectors = TILE::WIDTH / kElements, kVectors = ROWS * kRowVectors;
    constexpr int kEach = (kVectors + kThreads - 1) / kThreads;
    const int thread = ptx::recompute(threadIdx.x);   // addresses of all vectors of all turns would fill the registers
    const auto place = [&](int i, int& row, int& column) {
        const int at = thread + i * kThreads;
        row = at / kRowVectors, column = at % kRowVectors * kElements;
        return at < kVectors;
    };
    const auto source = [&](int row, int column, bool& inside) {
        inside = first + row < rows && column < width;
        return inside ? from + (first + row) * row_stride + column : from;
    };
    if constexpr (TILE::TYPE == Type::kF32) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            int row, column;
            bool inside;
            if (!place(i, row, column)) continue;
            const float* const at = source(row, column, inside);
            ptx::cp_async_16(&to[row][column], at, inside ? kVectorBytes : 0);
        }
    } else {
        uint4 staged[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            int row, column;
            bool inside;
            if (!place(i, row, column)) continue;
            const auto* const at = source(row, column, inside);
            staged[i] = inside ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            int row, column;
            if (!place(i, row, column)) continue;
            float x[kElements];
            Element::unpack(staged[i], x);
#pragma unroll
            for (int e = 0; e < kElements; e += kVector)
                *reinterpret_cast<float4*>(&to[row][column + e]) = make_float4(x[e], x[e + 1], x[e + 2], x[e + 3]);
        }
    }
}

// Closes the group of copies that were asked for since the last one. Numbers of 16 bits have arrived when stage() returns.
template <typename TILE>
__device__ __forceinline__ void commit() {
    if constexpr (TILE::TYPE == Type::kF32) ptx::cp_async_commit();
}

// Waits for all groups but the last.
template <typename TILE>
__device__ __forceinline__ void wait_for_all_but_the_last() {
    if constexpr (TILE::TYPE == Type::kF32) ptx::cp_async_wait<1>();
}

template <int COUNT>
__device__ __forceinline__ void read(float (&to)[COUNT], const float* from) {
    if constexpr (COUNT == kVector) {
        const float4 x = *reinterpret_cast<const float4*>(from);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else {
        static_assert(COUNT == 2, "two numbers or four are read together");
        const float2 x = *reinterpret_cast<const float2*>(from);
        to[0] = x.x, to[1] = x.y;
    }
}

// ---- compute -------------------------------------------------------------------------------------------------------

template <typename TILE>
using Stored = typename TILE::Stored;

template <typename TILE>
using Scores = float[TILE::TM][TILE::TN];

// What is added to a tile of scores: the mask, and −∞ for keys beyond the last.
template <typename TILE>
__device__ __forceinline__ void load_mask(const AttentionArgs& args, const Stored<TILE>* mask, int first_row, int first_key,
                                          Scores<TILE>& to) {
#pragma unroll
    for (int i = 0; i < TILE::TM; ++i)
#pragma unroll
        for (int j = 0; j < TILE::TN; ++j) to[i][j] = first_key + key_of(j) < args.keys ? 0.0f : -INFINITY;
    if (mask == nullptr) return;
    const int own_row = ptx::recompute(first_row + row_of(0)), own_key = ptx::recompute(first_key + key_of(0));
#pragma unroll
    for (int i = 0; i < TILE::TM; ++i) {
        const int row = own_row + i * kRowThreads;
        const Stored<TILE>* const from = mask + row * args.mask.row_stride;
#pragma unroll
        for (int j = 0; j < TILE::TN; ++j) {
            const int key = own_key + j * kColumnThreads;
            if (row < args.queries && key < args.keys) to[i][j] = TILE::Element::load(from + key * args.mask_key_stride);
        }
    }
}

template <typename TILE>
__device__ __forceinline__ void multiply_keys(const typename TILE::Shared& shared, Scores<TILE>& scores) {
#pragma unroll 4
    for (int column = 0; column < TILE::WIDTH; column += kVector) {
        float query[TILE::TM][kVector], key[TILE::TN][kVector];
#pragma unroll
        for (int i = 0; i < TILE::TM; ++i) read(query[i], &shared.query[row_of(i)][column]);
#pragma unroll
        for (int j = 0; j < TILE::TN; ++j) read(key[j], &shared.key[key_of(j)][column]);
#pragma unroll
        for (int e = 0; e < kVector; ++e)
#pragma unroll
            for (int i = 0; i < TILE::TM; ++i)
#pragma unroll
                for (int j = 0; j < TILE::TN; ++j) scores[i][j] = fmaf(query[i][e], key[j][e], scores[i][j]);
    }
}

// What a thread knows of its rows: the largest score, its part of the sum of weights, and its columns of the weighted values.
template <typename TILE>
struct State {
    float largest[TILE::TM], total[TILE::TM];
    float values[TILE::TM][TILE::COLUMNS];

    __device__ __forceinline__ State() {
#pragma unroll
        for (int i = 0; i < TILE::TM; ++i) {
            largest[i] = -INFINITY, total[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < TILE::COLUMNS; ++c) values[i][c] = 0.0f;
        }
    }

    // Scores become weights, which the threads of a row leave in shared memory.
    __device__ __forceinline__ void weigh(const Scores<TILE>& scores, typename TILE::Shared& shared) {
#pragma unroll
        for (int i = 0; i < TILE::TM; ++i) {
            float now = largest[i];
#pragma unroll
            for (int j = 0; j < TILE::TN; ++j) now = fmaxf(now, scores[i][j]);
#pragma unroll
            for (int bit = kColumnThreads / 2; bit >= 1; bit /= 2) now = fmaxf(now, __shfl_xor_sync(kWholeWarp, now, bit));
            const float base = attention::base_of(now), factor = attention::weight_of(largest[i], base);
            largest[i] = now;
            total[i] *= factor;
#pragma unroll
            for (int c = 0; c < TILE::COLUMNS; ++c) values[i][c] *= factor;
#pragma unroll
            for (int j = 0; j < TILE::TN; ++j) {
                const float weight = attention::weight_of(scores[i][j], base);
                total[i] += weight;
                shared.weights[row_of(i)][key_of(j)] = weight;
            }
        }
    }

    __device__ __forceinline__ void multiply_values(const typename TILE::Shared& shared) {
        constexpr int kPieces = TILE::COLUMNS / TILE::PIECE;
#pragma unroll 2
        for (int key = 0; key < TILE::BN; key += kVector) {
            float weight[TILE::TM][kVector];
#pragma unroll
            for (int i = 0; i < TILE::TM; ++i) read(weight[i], &shared.weights[row_of(i)][key]);
#pragma unroll
            for (int e = 0; e < kVector; ++e)
#pragma unroll
                for (int piece = 0; piece < kPieces; ++piece) {
                    float value[TILE::PIECE];
                    read(value, &shared.value[key + e][column_of<TILE>(piece)]);
#pragma unroll
                    for (int i = 0; i < TILE::TM; ++i)
#pragma unroll
                        for (int c = 0; c < TILE::PIECE; ++c) {
                            float& sum = values[i][piece * TILE::PIECE + c];
                            sum = fmaf(weight[i][e], value[c], sum);
                        }
                }
        }
    }

    // ---- store. Rows whose scores are all −∞ get 0 · ∞.
    __device__ __forceinline__ void store(const AttentionArgs& args, typename TILE::Stored* out, int first_row) {
#pragma unroll
        for (int i = 0; i < TILE::TM; ++i) {
            float sum = total[i];
#pragma unroll
            for (int bit = kColumnThreads / 2; bit >= 1; bit /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, bit);
            const float scale = 1.0f / sum;
            const int row = first_row + row_of(i);
            if (row >= args.queries) continue;
#pragma unroll
            for (int piece = 0; piece < TILE::COLUMNS / TILE::PIECE; ++piece) {
                const int column = column_of<TILE>(piece);
                float x[TILE::PIECE];
#pragma unroll
                for (int c = 0; c < TILE::PIECE; ++c) x[c] = values[i][piece * TILE::PIECE + c] * scale;
                if (column < args.value_width) TILE::Element::store(out + row * args.out.row_stride + column, x);
            }
        }
    }
};

template <typename TILE>
__device__ __forceinline__ void attend(const AttentionArgs& args, typename TILE::Shared& shared) {
    using Stored = typename TILE::Stored;
    const int tiles = (args.queries - 1) / TILE::BM + 1, unit = blockIdx.x / tiles;
    const int first_row = (blockIdx.x - unit * tiles) * TILE::BM, batch = unit / args.heads, head = unit - batch * args.heads;
    const Stored* const query = attention::head_of<Stored>(args.query, batch, head);
    const Stored* const key = attention::head_of<Stored>(args.key, batch, head);
    const Stored* const value = attention::head_of<Stored>(args.value, batch, head);
    const Stored* const mask = args.mask.data == nullptr ? nullptr : attention::head_of<Stored>(args.mask, batch, head);

    ptx::wait_for_previous_kernels();
    ptx::let_next_kernel_start();
    stage<TILE>(shared.query, query, args.query.row_stride, first_row, args.queries, args.width);
    stage<TILE>(shared.key, key, args.key.row_stride, 0, args.keys, args.width);
    commit<TILE>();
    stage<TILE>(shared.value, value, args.value.row_stride, 0, args.keys, args.value_width);
    commit<TILE>();

    State<TILE> state;
#pragma unroll 1
    for (int first = 0; first < args.keys; first += TILE::BN) {
        const int next = first + TILE::BN;
        Scores<TILE> masks, scores = {};
        load_mask<TILE>(args, mask, first_row, first, masks);
        wait_for_all_but_the_last<TILE>();   // K is here, V may be under way
        __syncthreads();
        multiply_keys<TILE>(shared, scores);
        __syncthreads();           // nobody reads K any more
        if (next < args.keys) stage<TILE>(shared.key, key, args.key.row_stride, next, args.keys, args.width);
        commit<TILE>();
#pragma unroll
        for (int i = 0; i < TILE::TM; ++i)
#pragma unroll
            for (int j = 0; j < TILE::TN; ++j) scores[i][j] = fmaf(scores[i][j], args.scale, masks[i][j]);
        state.weigh(scores, shared);
        wait_for_all_but_the_last<TILE>();   // V is here, the next K may be under way
        __syncthreads();
        state.multiply_values(shared);
        __syncthreads();           // nobody reads V or weights any more
        if (next < args.keys) stage<TILE>(shared.value, value, args.value.row_stride, next, args.keys, args.value_width);
        commit<TILE>();
    }
    state.store(args, attention::head_of<Stored>(args.out, batch, head), first_row);
}

}  // namespace

// Name, blocks of a multiprocessor, queries and keys of a tile, columns.
#define ATTENTION_TILES(NAME, BLOCKS, ...)                                                                             \
    enum : int { NAME##_shared = sizeof(Tile<__VA_ARGS__>::Shared) };                                                  \
    extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS) NAME(const __grid_constant__ AttentionArgs args) {  \
        extern __shared__ uint4 dynamic_shared[];                                                                      \
        attend<Tile<__VA_ARGS__>>(args, *reinterpret_cast<Tile<__VA_ARGS__>::Shared*>(dynamic_shared));                \
    }

ATTENTION_TILES(attention_tiles_f32_16x32_w32, 4, Type::kF32, 16, 32, 32)
ATTENTION_TILES(attention_tiles_f32_32x64_w32, 3, Type::kF32, 32, 64, 32)
ATTENTION_TILES(attention_tiles_f32_16x32_w64, 4, Type::kF32, 16, 32, 64)
ATTENTION_TILES(attention_tiles_f32_32x64_w64, 3, Type::kF32, 32, 64, 64)
ATTENTION_TILES(attention_tiles_f32_16x32_w128, 3, Type::kF32, 16, 32, 128)
ATTENTION_TILES(attention_tiles_f32_32x32_w128, 3, Type::kF32, 32, 32, 128)
ATTENTION_TILES(attention_tiles_f16_16x32_w32, 4, Type::kF16, 16, 32, 32)
ATTENTION_TILES(attention_tiles_f16_32x64_w32, 3, Type::kF16, 32, 64, 32)
ATTENTION_TILES(attention_tiles_f16_16x32_w64, 4, Type::kF16, 16, 32, 64)
ATTENTION_TILES(attention_tiles_f16_32x64_w64, 3, Type::kF16, 32, 64, 64)
ATTENTION_TILES(attention_tiles_f16_16x32_w128, 3, Type::kF16, 16, 32, 128)
ATTENTION_TILES(attention_tiles_bf16_16x32_w32, 4, Type::kBF16, 16, 32, 32)
ATTENTION_TILES(attention_tiles_bf16_32x64_w32, 3, Type::kBF16, 32, 64, 32)
ATTENTION_TILES(attention_tiles_bf16_16x32_w64, 4, Type::kBF16, 16, 32, 64)
ATTENTION_TILES(attention_tiles_bf16_32x64_w64, 3, Type::kBF16, 32, 64, 64)
ATTENTION_TILES(attention_tiles_bf16_16x32_w128, 3, Type::kBF16, 16, 32, 128)
