// What a block of the 16-bit kernels for Hopper computes: tiles and slices of k, and with stream-K pieces of the last units, with what they
// leave behind for each other. gemm_half_sm90.cu has the reasons.
#pragma once

#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/machine.cuh"
#include "../ptx/memory.cuh"
#include "../scheduler/slices.cuh"
#include "../scheduler/stream_k.cuh"
#include "half_layout_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

constexpr int kLeftBarrier = 2;   // all consumers have written the piece that they leave behind

// How many rows before its first one, row_r, a tile of R is fetched: as many as reach beyond the matrix, in whole steps, if the matrix has so many
// before it and a stage has so many behind it. Of a tile, all BM rows that are fetched count, of which a narrower one has fewer (ROWS).
template <typename CONFIG>
__device__ __forceinline__ int shift_r(const GemmArgs& args, int row_r) {
    constexpr int kStep = CONFIG::SHIFT_STEP;
    const int beyond = row_r + CONFIG::BM - (CONFIG::SWAPPED ? args.n : args.m);
    return beyond > 0 && beyond < CONFIG::BM ? min(min(beyond, CONFIG::MOST_SHIFT), row_r) / kStep * kStep : 0;
}

// The tiles of this launch in the order in which clusters take them, and this block's part of each.
template <typename CONFIG>
struct Work {
    int units_r, units_s;        // a unit is PAIR tiles that share one operand, one a block
    int group;                   // units of R that are walked together
    int unit, step, units;       // this cluster's current unit, how far apart its units are, all units that are not cut
    int all_units;
    int rank;                    // of this block in its cluster
    int k_begin, k_end;

    __device__ __forceinline__ explicit Work(const GemmArgs& args) {
        const int rows_r = CONFIG::SWAPPED ? args.n : args.m, rows_s = CONFIG::SWAPPED ? args.m : args.n;
        const int tiles_r = (rows_r + CONFIG::ROWS - 1) / CONFIG::ROWS, tiles_s = (rows_s + CONFIG::BN - 1) / CONFIG::BN;
        units_r = (tiles_r + CONFIG::PAIR_R - 1) / CONFIG::PAIR_R;
        units_s = (tiles_s + CONFIG::PAIR_S - 1) / CONFIG::PAIR_S;
        group = min(max(args.group_m, 1), units_r);
        all_units = units_r * units_s * args.batch;
        units = streams(args) ? args.whole_tiles : all_units;
        rank = static_cast<int>(ptx::cluster_rank());
        unit = static_cast<int>(ptx::cluster_index());
        step = static_cast<int>(ptx::cluster_count());
        k_begin = 0;
        k_end = args.k;
        if (CONFIG::PAIR == 1) {   // a cluster may have more blocks than k has slices
            k_begin = min(slice_begin(args, cut() ? rank : 0), args.k);
            k_end = slice_end(args, k_begin);
        }
    }
    // Whether the blocks of the cluster have slices of k; the plan gave each cluster exactly one tile then.
    static __device__ __forceinline__ bool cut() { return CONFIG::CUTS && ptx::cluster_size() > 1; }
    static __device__ __forceinline__ int apart() { return CONFIG::PAIR == 1 ? slice_apart() : 0; }
    // Whether clusters share the last units by ranges of k.
    static __device__ __forceinline__ bool streams(const GemmArgs& args) { return CONFIG::STREAMS && args.stream_ranges > 0; }
    __device__ __forceinline__ bool more() const { return unit < units; }
    // Units from here on.
    __device__ __forceinline__ int left() const { return (units - unit + step - 1) / step; }
    __device__ __forceinline__ bool several() const { return step < units - unit; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ int stages() const { return (k_end - k_begin + BK - 1) / BK; }

    // First row of R and S of this block's tile, and the matrix of the batch (or of the slices).
    __device__ __forceinline__ void locate(int& row_r, int& row_s, int& batch) const {
        const int rank_r = CONFIG::PAIR_R > 1 ? rank : 0, rank_s = CONFIG::PAIR_S > 1 ? rank : 0;
        if (units_s == 1 && all_units == units_r) {   // few rows: no divisions before the first copy
            batch = apart();
            row_r = (unit * CONFIG::PAIR_R + rank_r) * CONFIG::ROWS;
            row_s = rank_s * CONFIG::BN;
            return;
        }
        const int per_matrix = units_r * units_s, matrix = unit / per_matrix;
        batch = matrix + apart();
        const int index = unit - matrix * per_matrix;
        const int per_group = group * units_s;
        const int first = index / per_group * group;
        const int height = min(group, units_r - first);
        const int inside = index % per_group;
        const int unit_r = first + inside % height;
        row_r = (unit_r * CONFIG::PAIR_R + rank_r) * CONFIG::ROWS;
        int unit_s = inside / height;
        // Every other group is walked backwards, so that it begins with the tiles of S that the L2 still holds.
        if (CONFIG::PAIR > 1 && index / per_group % 2 == 1) unit_s = units_s - 1 - unit_s;
        row_s = (unit_s * CONFIG::PAIR_S + rank_s) * CONFIG::BN;
    }
};

// The pieces of this cluster's range: the end of a unit, whole units, the beginning of one. Work::unit, k_begin and k_end are those of the
// current piece.
template <typename CONFIG>
struct Pieces : Work<CONFIG> {
    using Work<CONFIG>::unit, Work<CONFIG>::k_begin, Work<CONFIG>::k_end;
    stream_k::Ranges ranges;
    int whole;      // units that are not cut
    int range;
    int piece;      // the unit of the current piece, among those that are cut

    // From the piece of this index on.
    __device__ __forceinline__ Pieces(const GemmArgs& args, int number, int index) : Work<CONFIG>(args), whole(args.whole_tiles) {
        ranges.of(args, this->all_units - whole, (ptx::recompute(args.k) + BK - 1) / BK);
        range = this->step - 1 - number;
        piece = from() / ranges.steps + index;
        find(args);
    }
    __device__ __forceinline__ int from() const { return ranges.first_step(range); }
    __device__ __forceinline__ int to() const { return ranges.first_step(range + 1); }
    __device__ __forceinline__ bool more() const { return piece * ranges.steps < to(); }
    __device__ __forceinline__ void next(const GemmArgs& args) {
        ++piece;
        find(args);
    }
    // Whether the piece is not the unit's first: then its sums are left behind.
    __device__ __forceinline__ bool left() const { return k_begin > 0; }
    // The pieces that follow this one, the unit's first, in ranges of their own.
    __device__ __forceinline__ int others() const { return ranges.range_of((piece + 1) * ranges.steps - 1) - range; }

private:
    __device__ __forceinline__ void find(const GemmArgs& args) {
        unit = whole + piece;
        const int first = piece * ranges.steps;
        k_begin = max(from() - first, 0) * BK;
        k_end = min(min(to() - first, ranges.steps) * BK, args.k);
    }
};

// What the piece that a range begins with leaves behind in the workspace: a flag, and the sums of this block, a thread's vectors CONSUMERS
// apart. The flags of all ranges come first.
template <typename CONFIG>
struct Left {
    static constexpr int kVectors = CONFIG::VECTORS * CONFIG::CONSUMERS;
    uint64_t* flag;
    float4* sums;

    __device__ __forceinline__ Left(const GemmArgs& args, int range, int rank) {
        flag = static_cast<uint64_t*>(args.workspace) + range * CONFIG::PAIR + rank;
        // Range 0 begins with a whole unit, or its first piece.
        sums = static_cast<float4*>(args.workspace) + static_cast<int>(ptx::cluster_count()) +
               static_cast<int64_t>((range - 1) * CONFIG::PAIR + rank) * kVectors;
    }
    static_assert(!CONFIG::STREAMS || CONFIG::PAIR * sizeof(uint64_t) == sizeof(float4), "the flags of a range take the room of a vector");
};

// A thread draws the number of this cluster and sends it to all of its blocks.
template <typename CONFIG>
__device__ __forceinline__ void draw(const GemmArgs& args, const Shared<CONFIG>& shared) {
    const float number = __int_as_float(stream_k::draw_number(args, ptx::cluster_count()));
    for (int block = 0; block < CONFIG::PAIR; ++block) {
        ptx::store_cluster_async(ptx::cluster_address(shared.number(), block), make_float4(number, 0.0f, 0.0f, 0.0f),
                                 ptx::cluster_address(shared.numbered(), block));
    }
}

template <typename CONFIG>
__device__ __forceinline__ int drawn(const Shared<CONFIG>& shared) {
    ptx::mbarrier_wait(shared.numbered(), 0);
    return __float_as_int(shared.number()->x);
}

// Tells the owner, once the consumers have left a piece behind. Only a range's first piece can be one.
template <typename CONFIG>
__device__ __forceinline__ void tell_owner(const GemmArgs& args, const Pieces<CONFIG>& pieces, int lane) {
    if (!pieces.more() || !pieces.left()) return;
    ptx::named_barrier_sync(kLeftBarrier, CONFIG::CONSUMERS + kWarp);
    if (lane == 0) ptx::store_release_gpu(Left<CONFIG>(args, pieces.range, pieces.rank).flag, args.epoch + stream_k::kReady);
}

}  // namespace

#endif  // sm_90a
