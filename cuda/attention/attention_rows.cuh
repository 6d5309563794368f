// What the kernels for few queries share: keys over lanes, warps and the blocks of a cluster. attention_rows.cu says how.
#pragma once

#include "../epilogue/lane_sum.cuh"
#include "../ptx/cluster.cuh"
#include "operands.cuh"

namespace attention_rows {

using attention::Type;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kMostBlocks = 8;   // of a cluster: as many as every GPU with clusters allows
static_assert(kWarps == kVector, "a vector has a number of each warp");
static_assert(kWarp % kMostBlocks == 0, "lanes that add up the parts of a cluster are of one warp");

template <Type TYPE, int ROWS_, int WIDTH_, int KEYS_>
struct Shape {
    using Element = attention::Element<TYPE>;
    using Stored = typename Element::Stored;
    static constexpr int ROWS = ROWS_, WIDTH = WIDTH_;
    static constexpr int KEYS = KEYS_;   // of a group of lanes, in a turn
    static constexpr int VECTOR = Element::kVectorElements;
    static constexpr int LANES = WIDTH / VECTOR, GROUPS = kWarp / LANES;
    static constexpr int WARP_KEYS = GROUPS * KEYS, BLOCK_KEYS = kWarps * WARP_KEYS;
    static constexpr int SCORES = KEYS * ROWS;                              // of a group, in a turn
    static constexpr int OWNED = SCORES > LANES ? SCORES / LANES : 1;       // of a lane
    static constexpr int SUMS = ROWS * VECTOR, OWNED_SUMS = SUMS / GROUPS;  // weighted values: of a lane's keys, and of its warp's
    static constexpr int PIECE = OWNED_SUMS < kVector ? OWNED_SUMS : kVector;
    static_assert(LANES * GROUPS == kWarp, "a row's lanes are a power of two, a warp at most");
    static_assert(SUMS % GROUPS == 0 && OWNED_SUMS % PIECE == 0 && VECTOR % PIECE == 0, "a lane ends up with whole pieces of rows");

    struct alignas(16) Shared {
        float scores[kWarps][GROUPS][SCORES];
        float values[kWarps][ROWS][WIDTH];
        alignas(16) float largest[ROWS][kWarps], total[ROWS][kWarps];
    };
};

// ---- the blocks of a cluster ---------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
__device__ __forceinline__ int blocks_of_cluster() { return 1; }
__device__ __forceinline__ int rank_in_cluster() { return 0; }
__device__ __forceinline__ void sync_cluster() { __syncthreads(); }
__device__ __forceinline__ float4 load_vector_of(int, const float* from) { return *reinterpret_cast<const float4*>(from); }
#else
__device__ __forceinline__ int blocks_of_cluster() { return static_cast<int>(ptx::cluster_size()); }
__device__ __forceinline__ int rank_in_cluster() { return static_cast<int>(ptx::cluster_rank()); }
__device__ __forceinline__ void sync_cluster() { ptx::cluster_sync(); }
// What block `rank` has in its shared memory where this block has `from`.
__device__ __forceinline__ float4 load_vector_of(int rank, const float* from) {
    return ptx::load_cluster_vector(ptx::cluster_address(from, rank));
}
#endif

// ---- load ----------------------------------------------------------------------------------------------------------

// What a lane asks for in a turn.
template <typename SHAPE>
struct Turn {
    uint4 key[SHAPE::KEYS], value[SHAPE::KEYS];
    float mask[SHAPE::OWNED];
};

// 16 bytes of a row, zeros for what is outside.
template <typename STORED>
__device__ __forceinline__ uint4 load_vector(const STORED* from, bool inside) {
    return inside ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Where a lane stands.
template <typename SHAPE>
struct Place {
    int warp, lane, group;
    int column;   // its first
    int owned;    // its first score of a turn: key · ROWS + row

    __device__ __forceinline__ Place()
        : warp(threadIdx.x / kWarp), lane(threadIdx.x % kWarp), group(lane / SHAPE::LANES),
          column(lane % SHAPE::LANES * SHAPE::VECTOR), owned(LaneSum<SHAPE::SCORES, SHAPE::LANES / 2>::owned(lane)) {}

    // The number of a group's key, from the warp's first in this turn. Groups have neighbours, so that a load reads them in one piece.
    __device__ __forceinline__ int key(int i) const { return i * SHAPE::GROUPS + group; }
};

// The heads that a block reads. What derives from it may have other queries, and keys that are not in memory.
template <typename SHAPE>
struct Operands {
    using Stored = typename SHAPE::Stored;
    const AttentionArgs& args;
    const Stored *query, *key, *value, *mask;
    Stored* out;
    int keys;   // that are seen; as many as lie in memory, or fewer

    __device__ __forceinline__ Operands(const AttentionArgs& args, int unit) : args(args), keys(args.keys) {
        const int batch = unit / args.heads, head = unit - batch * args.heads;
        query = attention::head_of<Stored>(args.query, batch, head);
        key = attention::head_of<Stored>(args.key, batch, head);
        value = attention::head_of<Stored>(args.value, batch, head);
        mask = args.mask.data == nullptr ? nullptr : attention::head_of<Stored>(args.mask, batch, head);
        out = attention::head_of<Stored>(args.out, batch, head);
    }

    using Queries = float[SHAPE::ROWS][SHAPE::VECTOR];

    // Asks for the queries, and for the first keys, and waits for the queries.
    __device__ __forceinline__ void begin(int first, const Place<SHAPE>& place, Turn<SHAPE>& turn, Queries& queries) {
        uint4 rows[SHAPE::ROWS];
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row) rows[row] = query_row(row, place.column, place);
        fetch(first, place, turn);
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row) SHAPE::Element::unpack(rows[row], queries[row]);
    }

    // The lane's part of a query, from this column on.
    __device__ __forceinline__ uint4 query_row(int row, int column, const Place<SHAPE>& place) const {
        return load_vector(query + row * args.query.row_stride + column, row < args.queries && place.column < args.width);
    }

    // What has come of the keys from `first` on.
    __device__ __forceinline__ void arrived(int, const Place<SHAPE>&, Turn<SHAPE>&) const {}

    __device__ __forceinline__ void fetch(int first, const Place<SHAPE>& place, Turn<SHAPE>& to) const {
#pragma unroll
        for (int i = 0; i < SHAPE::KEYS; ++i) {
            const int at = first + place.key(i);
            to.key[i] = load_vector(key + at * args.key.row_stride + place.column, at < args.keys && place.column < args.width);
        }
        if (mask != nullptr) {
#pragma unroll
            for (int i = 0; i < SHAPE::OWNED; ++i) {
                const int row = (place.owned + i) % SHAPE::ROWS, at = first + place.key((place.owned + i) / SHAPE::ROWS);
                const bool inside = at < args.keys && row < args.queries;
                const Stored* const from = mask + row * args.mask.row_stride + at * args.mask_key_stride;
                to.mask[i] = inside ? SHAPE::Element::load(from) : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < SHAPE::KEYS; ++i) {
            const int at = first + place.key(i);
            to.value[i] =
                load_vector(value + at * args.value.row_stride + place.column, at < args.keys && place.column < args.value_width);
        }
    }
};

// ---- compute -------------------------------------------------------------------------------------------------------

// What a lane knows of its rows: of the keys that its group has seen, the largest score, the sum of weights and that of weighted values.
template <typename SHAPE>
struct State {
    float largest[SHAPE::ROWS], total[SHAPE::ROWS];
    float values[SHAPE::SUMS];   // row · VECTOR + column

    __device__ __forceinline__ State() {
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row) largest[row] = -INFINITY, total[row] = 0.0f;
#pragma unroll
        for (int i = 0; i < SHAPE::SUMS; ++i) values[i] = 0.0f;
    }

    // Takes a larger maximum of a row, and returns what scores of that row are compared with.
    __device__ __forceinline__ float raise(int row, float to) {
        const float base = attention::base_of(to), factor = attention::weight_of(largest[row], base);
        largest[row] = to;
        total[row] *= factor;
#pragma unroll
        for (int i = 0; i < SHAPE::VECTOR; ++i) values[row * SHAPE::VECTOR + i] *= factor;
        return base;
    }
};

// The keys from `first` on.
template <typename SHAPE>
__device__ __forceinline__ void take(const AttentionArgs& args, int keys, const Place<SHAPE>& place, int first, const Turn<SHAPE>& turn,
                                     const float (&query)[SHAPE::ROWS][SHAPE::VECTOR], float (&shared)[SHAPE::SCORES],
                                     State<SHAPE>& state) {
    using Sum = LaneSum<SHAPE::SCORES, SHAPE::LANES / 2>;
    float scores[SHAPE::SCORES];
#pragma unroll
    for (int i = 0; i < SHAPE::KEYS; ++i) {
        float key[SHAPE::VECTOR];
        SHAPE::Element::unpack(turn.key[i], key);
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row) {
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < SHAPE::VECTOR; ++e) sum = fmaf(query[row][e], key[e], sum);
            scores[i * SHAPE::ROWS + row] = sum;
        }
    }
    Sum::add(scores, place.lane);
    if (Sum::speaks(place.lane)) {
#pragma unroll
        for (int i = 0; i < SHAPE::OWNED; ++i) {
            const int at = first + place.key((place.owned + i) / SHAPE::ROWS);
            const float mask = args.mask.data == nullptr ? 0.0f : turn.mask[i];
            shared[place.owned + i] = at < keys ? fmaf(scores[i], args.scale, mask) : -INFINITY;
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < SHAPE::SCORES; ++i) scores[i] = shared[i];
    __syncwarp();   // the next turn writes there

#pragma unroll
    for (int row = 0; row < SHAPE::ROWS; ++row) {
        float largest = state.largest[row];
#pragma unroll
        for (int i = 0; i < SHAPE::KEYS; ++i) largest = fmaxf(largest, scores[i * SHAPE::ROWS + row]);
        const float base = state.raise(row, largest);
#pragma unroll
        for (int i = 0; i < SHAPE::KEYS; ++i) {
            float& score = scores[i * SHAPE::ROWS + row];
            score = attention::weight_of(score, base);
            state.total[row] += score;
        }
    }
#pragma unroll
    for (int i = 0; i < SHAPE::KEYS; ++i) {
        float value[SHAPE::VECTOR];
        SHAPE::Element::unpack(turn.value[i], value);
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row)
#pragma unroll
            for (int e = 0; e < SHAPE::VECTOR; ++e) {
                float& sum = state.values[row * SHAPE::VECTOR + e];
                sum = fmaf(scores[i * SHAPE::ROWS + row], value[e], sum);
            }
    }
}

// ---- store ---------------------------------------------------------------------------------------------------------

// The groups of a warp add up, and leave its part in shared memory.
template <typename SHAPE>
__device__ __forceinline__ void leave_part(const Place<SHAPE>& place, State<SHAPE>& state, typename SHAPE::Shared& shared) {
#pragma unroll
    for (int row = 0; row < SHAPE::ROWS; ++row) {
        float largest = state.largest[row];
#pragma unroll
        for (int bit = kWarp / 2; bit >= SHAPE::LANES; bit /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, bit));
        state.raise(row, largest);
#pragma unroll
        for (int bit = kWarp / 2; bit >= SHAPE::LANES; bit /= 2)
            state.total[row] += __shfl_xor_sync(kWholeWarp, state.total[row], bit);
        if (place.lane == 0) {
            shared.largest[row][place.warp] = largest;
            shared.total[row][place.warp] = state.total[row];
        }
    }
    using Sum = LaneSum<SHAPE::SUMS, kWarp / 2, SHAPE::LANES>;
    Sum::add(state.values, place.lane);
    const int owned = Sum::owned(place.lane);
#pragma unroll
    for (int i = 0; i < SHAPE::OWNED_SUMS; i += SHAPE::PIECE) {
        const int row = (owned + i) / SHAPE::VECTOR, column = place.column + (owned + i) % SHAPE::VECTOR;
        float* const to = &shared.values[place.warp][row][column];
        if constexpr (SHAPE::PIECE == kVector) {
            *reinterpret_cast<float4*>(to) =
                make_float4(state.values[i], state.values[i + 1], state.values[i + 2], state.values[i + 3]);
        } else {
#pragma unroll
            for (int e = 0; e < SHAPE::PIECE; ++e) to[e] = state.values[i + e];
        }
    }
}

// This block's share of the result: every vector of four columns whose number, counted over the cluster, is its own. As many
// neighbouring lanes as the cluster has blocks have one of them, each the parts of one block, which it asks for at once. Rows whose
// scores are all −∞ get 0 / 0.
template <typename SHAPE>
__device__ __forceinline__ void store(const Operands<SHAPE>& operands, int blocks, int rank, const typename SHAPE::Shared& shared) {
    constexpr int kRowVectors = SHAPE::WIDTH / kVector, kItems = SHAPE::ROWS * kRowVectors;
    static_assert(kItems % kMostBlocks == 0, "every block of a cluster has as many");
#pragma unroll 1
    for (int turn = 0; turn < kItems; turn += kThreads) {
        const int unit = turn + threadIdx.x, from = unit & (blocks - 1), item = min(unit, kItems - 1) / blocks * blocks + rank;
        const int row = item / kRowVectors, column = item % kRowVectors * kVector;
        const float4 largest_of = load_vector_of(from, shared.largest[row]), total_of = load_vector_of(from, shared.total[row]);
        float4 parts[kWarps];
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) parts[warp] = load_vector_of(from, &shared.values[warp][row][column]);

        // The parts of one block …
        const float largest[] = {largest_of.x, largest_of.y, largest_of.z, largest_of.w};
        const float totals[] = {total_of.x, total_of.y, total_of.z, total_of.w};
        float all = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
        for (int bit = 1; bit < blocks; bit *= 2) all = fmaxf(all, __shfl_xor_sync(kWholeWarp, all, bit));
        const float base = attention::base_of(all);
        float total = 0.0f, sum[kVector] = {};
#pragma unroll
        for (int warp = 0; warp < kWarps; ++warp) {
            const float weight = attention::weight_of(largest[warp], base);
            total = fmaf(weight, totals[warp], total);
            sum[0] = fmaf(weight, parts[warp].x, sum[0]);
            sum[1] = fmaf(weight, parts[warp].y, sum[1]);
            sum[2] = fmaf(weight, parts[warp].z, sum[2]);
            sum[3] = fmaf(weight, parts[warp].w, sum[3]);
        }
        // … and of all of them. Both lanes of a pair add the same two numbers, so all end up with the same sums.
        for (int bit = 1; bit < blocks; bit *= 2) {
            total += __shfl_xor_sync(kWholeWarp, total, bit);
#pragma unroll
            for (int i = 0; i < kVector; ++i) sum[i] += __shfl_xor_sync(kWholeWarp, sum[i], bit);
        }
        if (from != 0 || unit >= kItems || row >= operands.args.queries || column >= operands.args.value_width) continue;
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] /= total;
        SHAPE::Element::store(operands.out + row * operands.args.out.row_stride + column, sum);
    }
}

template <typename OPERANDS, typename SHAPE>
__device__ __forceinline__ void attend(OPERANDS& operands, int blocks, int rank, typename SHAPE::Shared& shared) {
    const Place<SHAPE> place;
    const int turn_keys = blocks * SHAPE::BLOCK_KEYS;
    int first = rank * SHAPE::BLOCK_KEYS + place.warp * SHAPE::WARP_KEYS;
    Turn<SHAPE> turn;
    float query[SHAPE::ROWS][SHAPE::VECTOR];
    operands.begin(first, place, turn, query);

    State<SHAPE> state;
#pragma unroll 1
    for (; first < operands.keys; first += turn_keys) {
        Turn<SHAPE> now = turn;
        if (first + turn_keys < operands.keys) operands.fetch(first + turn_keys, place, turn);
        operands.arrived(first, place, now);
        take<SHAPE>(operands.args, operands.keys, place, first, now, query, shared.scores[place.warp][place.group], state);
    }
    leave_part<SHAPE>(place, state, shared);
    sync_cluster();
    store<SHAPE>(operands, blocks, rank, shared);
    sync_cluster();   // a block ends when nobody reads its shared memory any more
}

// ---- the kernels ---------------------------------------------------------------------------------------------------

// A block of a kernel whose operands are OPERANDS<SHAPE>, as its arguments say.
template <template <typename> class OPERANDS, typename SHAPE, typename ARGS>
__device__ __forceinline__ void run(const ARGS& args, typename SHAPE::Shared& shared) {
    const int blocks = blocks_of_cluster(), rank = rank_in_cluster();
    OPERANDS<SHAPE> operands(args, blockIdx.x / blocks);
    ptx::wait_for_previous_kernels();
    ptx::let_next_kernel_start();
    attend<OPERANDS<SHAPE>, SHAPE>(operands, blocks, rank, shared);
}

}  // namespace attention_rows

// The kernels of a file: MAKE makes one of a name, a type, queries, columns, and keys of a group of lanes in a turn.
#define ATTENTION_KERNELS_OF(MAKE, KERNEL, TILE, ...)                                                                  \
    MAKE(KERNEL##_f32_##TILE, Type::kF32, __VA_ARGS__)                                                                 \
    MAKE(KERNEL##_f16_##TILE, Type::kF16, __VA_ARGS__)                                                                 \
    MAKE(KERNEL##_bf16_##TILE, Type::kBF16, __VA_ARGS__)
#define ATTENTION_KERNELS(MAKE, KERNEL)                                                                                \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q1_w64, 1, 64, 4)                                                               \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q4_w64, 4, 64, 4)                                                               \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q8_w64, 8, 64, 2)                                                               \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q1_w128, 1, 128, 4)                                                             \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q4_w128, 4, 128, 4)                                                             \
    ATTENTION_KERNELS_OF(MAKE, KERNEL, q8_w128, 8, 128, 2)
