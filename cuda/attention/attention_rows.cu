// Attention of few queries, as a step of a decoder has them: softmax(scale · Q · Kᵀ + mask) · V for at most 8 rows of Q a head.
//
// Such a kernel takes as long as its chain of dependent steps. A step of a Llama of 1 billion parameters has 8 heads of keys, 4 queries
// each, 256 keys of width 64: 1 MiB of FP32 numbers, 0.2 µs of an H200's memory. So the keys of a head are spread over the warps of a
// block and over the blocks of a cluster, and a lane asks for all that it needs of K, V, Q and mask at once: one round trip to memory,
// with up to 2 · KEYS vectors of 16 bytes a lane under way. Longer sequences come in turns, of which the next is under way while one
// is worked on.
//
// LANES lanes have a row of K or V, 16 bytes each; the GROUPS = 32 / LANES such groups of a warp have KEYS keys a turn. A lane multiplies
// its columns of KEYS keys with those of ROWS queries, and KEYS · ROWS sums over the group (LaneSum, about as many shuffles) leave each
// lane with its share of the scores. It scales and masks them, and by way of shared memory every lane gets all scores of its group.
// Weights are computed by every lane of a group alike: KEYS · ROWS exponentials in place of another exchange. They multiply the columns
// of V that the lane holds already.
//
// In the end the groups of a warp add up, and the parts of all warps of the cluster (the largest score, sum of weights, weighted
// values) meet in shared memory, each block's read by the others: a block has its share of the result's columns. Parts are added in
// the order of their numbers: results are the same from run to run.
//
// Needs: at most ROWS queries; at most WIDTH columns; rows without gaps on 16 bytes.
// Traffic: K, V, Q and mask are read once, the result is written once. Arithmetic: 2 · ROWS multiply-adds a number of K and V.
// Floor of the step above: 2.5 µs: 1.3 µs from the end of one kernel to the first instructions of the next and its own end, 0.8 µs to
// memory and back, 0.4 µs of barriers of the cluster and reads across it. Predicted: 3.0 µs, where three kernels take 8.8.
//
// Launch. A cluster of up to kMostBlocks blocks a head; one block where there are no clusters. It may start while the kernel before
// still runs.

#include "../epilogue/lane_sum.cuh"
#include "../ptx/cluster.cuh"
#include "operands.cuh"

namespace {

using attention::Type;

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kMostBlocks = 8;   // of a cluster: as many as every GPU with clusters allows
constexpr int kMostParts = kMostBlocks * kWarps;
static_assert(kMostParts <= kWarp, "a warp has a lane for each part");

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
        float largest[kWarps][ROWS], total[kWarps][ROWS];
        float weights[ROWS][kMostParts];
    };
};

// ---- the blocks of a cluster ---------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
__device__ __forceinline__ int blocks_of_cluster() { return 1; }
__device__ __forceinline__ int rank_in_cluster() { return 0; }
__device__ __forceinline__ void sync_cluster() { __syncthreads(); }
__device__ __forceinline__ float load_of(int, const float* from) { return *from; }
__device__ __forceinline__ float4 load_vector_of(int, const float* from) { return *reinterpret_cast<const float4*>(from); }
#else
__device__ __forceinline__ int blocks_of_cluster() { return static_cast<int>(ptx::cluster_size()); }
__device__ __forceinline__ int rank_in_cluster() { return static_cast<int>(ptx::cluster_rank()); }
__device__ __forceinline__ void sync_cluster() { ptx::cluster_sync(); }
// What block `rank` has in its shared memory where this block has `from`.
__device__ __forceinline__ float load_of(int rank, const float* from) {
    return ptx::load_cluster(ptx::cluster_address(from, rank));
}
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

// The heads that a block reads.
template <typename SHAPE>
struct Operands {
    using Stored = typename SHAPE::Stored;
    const AttentionArgs& args;
    const Stored *query, *key, *value, *mask;
    Stored* out;

    __device__ __forceinline__ Operands(const AttentionArgs& args, int unit) : args(args) {
        const int batch = unit / args.heads, head = unit - batch * args.heads;
        query = attention::head_of<Stored>(args.query, batch, head);
        key = attention::head_of<Stored>(args.key, batch, head);
        value = attention::head_of<Stored>(args.value, batch, head);
        mask = args.mask.data == nullptr ? nullptr : attention::head_of<Stored>(args.mask, batch, head);
        out = attention::head_of<Stored>(args.out, batch, head);
    }

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
__device__ __forceinline__ void take(const AttentionArgs& args, const Place<SHAPE>& place, int first, const Turn<SHAPE>& turn,
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
            shared[place.owned + i] = at < args.keys ? fmaf(scores[i], args.scale, mask) : -INFINITY;
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
            shared.largest[place.warp][row] = largest;
            shared.total[place.warp][row] = state.total[row];
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

// What each part counts in a row, of which a warp has every kWarps-th. Rows whose scores are all −∞ get 0 / 0.
template <typename SHAPE>
__device__ __forceinline__ void weigh_parts(const Place<SHAPE>& place, int parts, typename SHAPE::Shared& shared) {
    for (int row = place.warp; row < SHAPE::ROWS; row += kWarps) {
        const int rank = place.lane / kWarps, warp = place.lane % kWarps;
        const bool is_part = place.lane < parts;
        const float own_largest = is_part ? load_of(rank, &shared.largest[warp][row]) : -INFINITY;
        const float own_total = is_part ? load_of(rank, &shared.total[warp][row]) : 0.0f;
        float largest = own_largest;
#pragma unroll
        for (int bit = kWarp / 2; bit >= 1; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(kWholeWarp, largest, bit));
        const float factor = attention::weight_of(own_largest, attention::base_of(largest));
        float total = factor * own_total;
#pragma unroll
        for (int bit = kWarp / 2; bit >= 1; bit /= 2) total += __shfl_xor_sync(kWholeWarp, total, bit);
        shared.weights[row][place.lane] = factor / total;
    }
}

// This block's share of the result: every vector of four columns whose number, counted over the threads of the cluster, is its own.
template <typename SHAPE>
__device__ __forceinline__ void store(const Operands<SHAPE>& operands, int blocks, int rank, const typename SHAPE::Shared& shared) {
    constexpr int kRowVectors = SHAPE::WIDTH / kVector;
    for (int item = threadIdx.x * blocks + rank; item < SHAPE::ROWS * kRowVectors; item += kThreads * blocks) {
        const int row = item / kRowVectors, column = item % kRowVectors * kVector;
        if (row >= operands.args.queries || column >= operands.args.value_width) continue;
        float sum[kVector] = {};
        for (int from = 0; from < blocks; ++from) {
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) {
                const float weight = shared.weights[row][from * kWarps + warp];
                const float4 part = load_vector_of(from, &shared.values[warp][row][column]);
                sum[0] = fmaf(weight, part.x, sum[0]);
                sum[1] = fmaf(weight, part.y, sum[1]);
                sum[2] = fmaf(weight, part.z, sum[2]);
                sum[3] = fmaf(weight, part.w, sum[3]);
            }
        }
        SHAPE::Element::store(operands.out + row * operands.args.out.row_stride + column, sum);
    }
}

template <typename SHAPE>
__device__ __forceinline__ void attend(const AttentionArgs& args, typename SHAPE::Shared& shared) {
    const int blocks = blocks_of_cluster(), rank = rank_in_cluster();
    const Operands<SHAPE> operands(args, blockIdx.x / blocks);
    const Place<SHAPE> place;
    ptx::wait_for_previous_kernels();
    ptx::let_next_kernel_start();

    uint4 rows[SHAPE::ROWS];
#pragma unroll
    for (int row = 0; row < SHAPE::ROWS; ++row) {
        const bool inside = row < args.queries && place.column < args.width;
        rows[row] = load_vector(operands.query + row * args.query.row_stride + place.column, inside);
    }
    const int turn_keys = blocks * SHAPE::BLOCK_KEYS;
    int first = rank * SHAPE::BLOCK_KEYS + place.warp * SHAPE::WARP_KEYS;
    Turn<SHAPE> turn;
    operands.fetch(first, place, turn);
    float query[SHAPE::ROWS][SHAPE::VECTOR];
#pragma unroll
    for (int row = 0; row < SHAPE::ROWS; ++row) SHAPE::Element::unpack(rows[row], query[row]);

    State<SHAPE> state;
#pragma unroll 1
    for (; first < args.keys; first += turn_keys) {
        const Turn<SHAPE> now = turn;
        if (first + turn_keys < args.keys) operands.fetch(first + turn_keys, place, turn);
        take<SHAPE>(args, place, first, now, query, shared.scores[place.warp][place.group], state);
    }
    leave_part<SHAPE>(place, state, shared);
    sync_cluster();
    weigh_parts<SHAPE>(place, blocks * kWarps, shared);
    __syncthreads();
    store<SHAPE>(operands, blocks, rank, shared);
    sync_cluster();   // a block ends when nobody reads its shared memory any more
}

}  // namespace

// Name, queries, columns, keys of a group of lanes in a turn.
#define ATTENTION_ROWS_OF(NAME, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) NAME(const __grid_constant__ AttentionArgs args) {       \
        __shared__ Shape<__VA_ARGS__>::Shared shared;                                                                  \
        attend<Shape<__VA_ARGS__>>(args, shared);                                                                      \
    }
#define ATTENTION_ROWS(TILE, ...)                                                                                      \
    ATTENTION_ROWS_OF(attention_rows_f32_##TILE, Type::kF32, __VA_ARGS__)                                              \
    ATTENTION_ROWS_OF(attention_rows_f16_##TILE, Type::kF16, __VA_ARGS__)                                              \
    ATTENTION_ROWS_OF(attention_rows_bf16_##TILE, Type::kBF16, __VA_ARGS__)

ATTENTION_ROWS(q1_w64, 1, 64, 4)
ATTENTION_ROWS(q4_w64, 4, 64, 4)
ATTENTION_ROWS(q8_w64, 8, 64, 2)
ATTENTION_ROWS(q1_w128, 1, 128, 4)
ATTENTION_ROWS(q4_w128, 4, 128, 4)
ATTENTION_ROWS(q8_w128, 8, 128, 2)
