// The place of the largest number of each row: y ← the first i with x[i] = max x, as uint32_t.
//
// A decoder looks for the likeliest word in one row of 32000 numbers or more, which the product before has just written: 128 KB in FP32,
// in the L2. A multiprocessor gets 64 bytes a clock from there, so one block would take 1.0 µs for that, and the blocks of a cluster
// share a long row: a piece of it, 16 bytes a thread, begins with the first block and ends with the last. A thread asks for PIECES
// pieces at once: 128 KB in eight blocks of 256 threads with four pieces each, 512 KB in blocks of 512 with eight, which also look at
// more in vain where a row is shorter. So a vocabulary of 131072 words is one trip to memory; longer rows come in turns. Short rows have
// a warp each.
//
// A warp sends what it has found to the first block, whose first warp looks at all of them after one barrier of the cluster. The barrier
// that says that the first block is there to be written to is begun before the row is asked for.
//
// Candle's rule on the CPU, to the index: of equal numbers the first counts; −0 equals 0; a NaN is passed over, but for one in the first
// place, which no number is compared with greater than, so it stays. Threads start from −∞ in place 0, which loses against everything
// that is there, and the NaN in the first place becomes +∞, which wins against all behind it.
//
// Needs: rows whose elements are neighbours, at most 2³⁰ of them, from any address on: what lies before the first 16 bytes of a row and
// behind the last goes to lanes of its first warp, one element each.
// Traffic: x is read once.
// Floor of 32000 numbers in FP32: 2.1 µs: 1.0 µs from the end of one kernel to the first instructions of the next and its own end, 0.6 to
// memory and back, 0.13 for the L2, 0.3 for a barrier of the cluster, 0.1 to compare over lanes twice. Predicted, not measured.

#include "../ptx/cluster.cuh"
#include "row.cuh"

namespace {

constexpr int kMostBlocks = 8;   // of a cluster: as many as every GPU with clusters allows

// ---- the blocks of a cluster ---------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
// A row has one block there.
__device__ __forceinline__ int row_of_block() { return static_cast<int>(blockIdx.x); }
__device__ __forceinline__ int blocks_of_row() { return 1; }
__device__ __forceinline__ int rank_in_row() { return 0; }
__device__ __forceinline__ void started() {}
__device__ __forceinline__ void arrive() {}
__device__ __forceinline__ void wait() {}
__device__ __forceinline__ void send_to_first(uint64_t* to, uint64_t value) { *to = value; }
#else
__device__ __forceinline__ int row_of_block() { return static_cast<int>(ptx::cluster_index()); }
__device__ __forceinline__ int blocks_of_row() { return static_cast<int>(ptx::cluster_size()); }
__device__ __forceinline__ int rank_in_row() { return static_cast<int>(ptx::cluster_rank()); }
__device__ __forceinline__ void started() { ptx::cluster_arrive_relaxed(); }
__device__ __forceinline__ void arrive() { ptx::cluster_arrive(); }
__device__ __forceinline__ void wait() { ptx::cluster_wait(); }
// To the counterpart of `to` in the first block.
__device__ __forceinline__ void send_to_first(uint64_t* to, uint64_t value) { ptx::store_cluster(ptx::cluster_address(to, 0), value); }
#endif

// ---- numbers and their places --------------------------------------------------------------------------------------

// A number and its place as one, which is greater where the number is, or where that is equal and comes earlier. 0 is less than all.
using Found = uint64_t;

// The number is no NaN.
__device__ __forceinline__ Found found_at(float value, int place) {
    constexpr uint32_t kSign = 0x80000000u;
    const uint32_t bits = __float_as_uint(value + 0.0f);   // −0 + 0 is 0
    const uint32_t ordered = (bits & kSign) != 0 ? ~bits : bits | kSign;
    return static_cast<Found>(ordered) << 32 | ~static_cast<uint32_t>(place);
}

__device__ __forceinline__ uint32_t place_of(Found found) { return ~static_cast<uint32_t>(found); }

// Every lane of a warp gets the greatest.
__device__ __forceinline__ Found over_warp(Found own) {
    const uint32_t number = static_cast<uint32_t>(own >> 32), largest = __reduce_max_sync(kWholeWarp, number);
    const uint32_t place = __reduce_max_sync(kWholeWarp, number == largest ? static_cast<uint32_t>(own) : 0u);
    return static_cast<Found>(largest) << 32 | place;
}

// ---- a row ---------------------------------------------------------------------------------------------------------

// A row, cut where vectors start.
template <typename SHAPE>
struct Row {
    using Stored = typename SHAPE::Stored;
    static constexpr int kHalf = kWarp / 2, kNowhere = -1;
    static_assert(SHAPE::WIDTH <= kHalf, "half a warp has what lies before the first vector, half of it what lies behind the last");
    const Stored* data;
    int width, before, vectors;

    __device__ __forceinline__ Row(const RowwiseArgs& args, int64_t row)
        : data(static_cast<const Stored*>(args.x) + row * args.x_stride), width(args.width) {
        const int past = static_cast<int>(reinterpret_cast<uintptr_t>(data) % kVectorBytes / sizeof(Stored));
        before = min((SHAPE::WIDTH - past) % SHAPE::WIDTH, width);
        vectors = (width - before) / SHAPE::WIDTH;
    }

    // The place of the element outside of all vectors that a lane of the first warp has. The first one always has the row's first.
    __device__ __forceinline__ int outside(int lane) const {
        if (lane < kHalf) return lane < max(before, 1) ? lane : kNowhere;
        const int place = before + vectors * SHAPE::WIDTH + lane - kHalf;
        return place < width ? place : kNowhere;
    }

    // What thread `own` of `threads` finds in its vectors.
    __device__ __forceinline__ Found in_vectors(int own, int threads) const {
        const auto* const from = reinterpret_cast<const uint4*>(data + before);
        float largest = -INFINITY, x[SHAPE::WIDTH];
        uint4 vector = {};   // that it is in
        int at = 0;          // where that is
#pragma unroll 1
        for (int first = own; first - own < vectors; first += SHAPE::PIECES * threads) {
            // Threads behind the row look at its last vector, too.
            uint4 pieces[SHAPE::PIECES];
#pragma unroll
            for (int piece = 0; piece < SHAPE::PIECES; ++piece) pieces[piece] = from[min(first + piece * threads, vectors - 1)];
            // Only a greater number replaces one, so that the first of equal ones stays. fmaxf passes over a NaN.
#pragma unroll
            for (int piece = 0; piece < SHAPE::PIECES; ++piece) {
                SHAPE::Element::unpack(pieces[piece], x);
#pragma unroll
                for (int step = SHAPE::WIDTH / 2; step >= 1; step /= 2) {
#pragma unroll
                    for (int i = 0; i < step; ++i) x[i] = fmaxf(x[i], x[i + step]);
                }
                if (x[0] > largest) largest = x[0], vector = pieces[piece], at = min(first + piece * threads, vectors - 1);
            }
        }
        int within = 0;
        SHAPE::Element::unpack(vector, x);
#pragma unroll
        for (int i = SHAPE::WIDTH - 1; i >= 0; --i) {
            if (x[i] == largest) within = i;
        }
        return found_at(largest, largest > -INFINITY ? before + at * SHAPE::WIDTH + within : 0);
    }
};

template <typename SHAPE>
__device__ __forceinline__ void argmax(const RowwiseArgs& args) {
    using OwnRow = Row<SHAPE>;
    constexpr bool kBlocks = SHAPE::WARPS > 1;   // a block or several have a row, or else a warp
    constexpr int kParts = kMostBlocks * SHAPE::WARPS;
    __shared__ Found parts[kBlocks ? kParts : 1];   // the first block's: of each warp
    const int blocks = kBlocks ? blocks_of_row() : 1, rank = kBlocks ? rank_in_row() : 0;
    const int lane = threadIdx.x % kWarp, thread = threadIdx.x % SHAPE::THREADS, warp = thread / kWarp;
    const int64_t row = kBlocks ? row_of_block() : static_cast<int64_t>(blockIdx.x) * SHAPE::ROWS + threadIdx.x / kWarp;
    if (blocks > 1) started();
    ptx::let_next_kernel_start();
    ptx::wait_for_previous_kernels();
    if (row >= args.rows) return;   // whole warps, of kernels without barriers

    const OwnRow of(args, row);
    const int outside = rank == 0 && warp == 0 ? of.outside(lane) : OwnRow::kNowhere;
    float beside = -INFINITY;
    if (outside != OwnRow::kNowhere) beside = SHAPE::Element::load(of.data + outside);
    Found found = of.in_vectors(rank * SHAPE::THREADS + thread, blocks * SHAPE::THREADS);
    if (beside != beside) beside = outside == 0 ? INFINITY : -INFINITY;
    if (beside > -INFINITY) found = max(found, found_at(beside, outside));
    found = over_warp(found);

    if constexpr (kBlocks) {
        if (blocks > 1) wait();   // for the first block to be there
        if (lane == 0) send_to_first(&parts[rank * SHAPE::WARPS + warp], found);
        if (blocks > 1) {
            arrive();
            wait();
        } else {
            __syncthreads();
        }
        if (rank != 0 || warp != 0) return;
        found = 0;
#pragma unroll
        for (int part = 0; part < kParts; part += kWarp) {
            if (part + lane < blocks * SHAPE::WARPS) found = max(found, parts[part + lane]);
        }
        found = over_warp(found);
    }
    if (lane == 0) static_cast<uint32_t*>(args.y)[row * args.y_stride] = place_of(found);
}

}  // namespace

// One block a multiprocessor is asked for: with its own idea of how many the compiler saves registers, and asks for few pieces at a time.
#define ARGMAX(NAME, THREADS, PIECES, TYPE)                                                                                     \
    extern "C" __global__ void                                                                                                  \
    __launch_bounds__(rowwise::Shape<TYPE, THREADS, PIECES, rowwise::Piece::kVector>::BLOCK, 1)                                 \
    NAME##_##THREADS##x##PIECES(const __grid_constant__ RowwiseArgs args) {                                                     \
        argmax<rowwise::Shape<TYPE, THREADS, PIECES, rowwise::Piece::kVector>>(args);                                           \
    }
#define ARGMAX_SHAPES(NAME, TYPE) \
    ARGMAX(NAME, 32, 8, TYPE)     \
    ARGMAX(NAME, 256, 4, TYPE)    \
    ARGMAX(NAME, 512, 8, TYPE)

ARGMAX_SHAPES(argmax_f32, rowwise::Type::kF32)
ARGMAX_SHAPES(argmax_f16, rowwise::Type::kF16)
ARGMAX_SHAPES(argmax_bf16, rowwise::Type::kBF16)
