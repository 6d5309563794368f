// The end of a tile whose sums lie as wgmma leaves them: the epilogue, and stores in whole sectors.
//
// A consumer warpgroup has 64 rows of R by all rows of S of the block's tile. Element (r, s) is one of D, or, where the kernel
// computes Dᵀ (SWAPPED), element (s, r).
#pragma once

#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/execution.cuh"
#include "activation.cuh"
#include "epilogue.cuh"
#include "partial_sums.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int kConsumerBarrier = 1;  // named barrier of the consumers
constexpr int kStagingBarrier = 3;   // the first of those of single consumer warpgroups
constexpr int kStagedRows = 32;      // of S whose results are staged at a time
constexpr int kStagingBytes = kWgmmaRows * kStagedRows * 4;   // of a consumer warpgroup

// Where a consumer thread's accumulators lie in the block's tile.
struct WgmmaPlace {
    int lane, warp, group, quad;   // warp of the consumers; lane = 4·group + quad

    __device__ __forceinline__ explicit WgmmaPlace(int thread)
        : lane(thread % kWarp), warp(thread / kWarp), group(lane / 4), quad(lane % 4) {}

    // Row of the tile of R for the accumulators of `group` (half 0) and `group + 8` (half 1).
    __device__ __forceinline__ int row(int half) const { return row(half, group); }
    __device__ __forceinline__ int row(int half, int of_group) const { return warp * 16 + half * 8 + of_group; }
    // Row of the tile of S that accumulator `index` belongs to.
    __device__ __forceinline__ int column(int index) const { return column(index, quad); }
    __device__ __forceinline__ int column(int index, int of_quad) const {
        return index / 4 * 8 + of_quad * 2 + index % 2;
    }
};

// Walks an m × n operand in the order of `COUNT` accumulators: element (r, s) of the tile is (r, s) of the matrix, or
// (s, r) when swapped. A running pointer and two offsets serve every access.
template <bool SWAPPED, int COUNT, typename T, typename VISIT>
__device__ __forceinline__ void walk(const GemmOperand& operand, T* base, int r, int s, int half_rows,
                                     VISIT visit) {
    const int64_t step_r = SWAPPED ? operand.col_stride : operand.row_stride;
    const int64_t step_s = SWAPPED ? operand.row_stride : operand.col_stride;
    T* at = base + r * step_r + s * step_s;
    const int64_t half = half_rows * step_r;
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) {
        visit(i, at);
        visit(i + 1, at + step_s);
        visit(i + 2, at + half);
        visit(i + 3, at + half + step_s);
        at += 8 * step_s;
    }
}

// Stores a consumer's results, which lie scattered over its threads, in runs of LANE_FLOATS numbers a lane and at least 128
// bytes a row of D. They pass through shared memory, 32 rows of S at a time; its 16-byte chunks are permuted so that neither
// side meets bank conflicts. With four numbers a lane, rows of D start on 16 bytes, and n is a multiple of four.
template <typename PLACE, bool SWAPPED, int LANE_FLOATS, int COUNT>
__device__ __forceinline__ void store_staged(const GemmArgs& args, int thread, char* staging, float* d, int row_r,
                                             int row_s, const float (&x)[COUNT]) {
    constexpr int kRowsS = 2 * COUNT;   // of the tile
    constexpr int kWarps = kWarpgroup / kWarp, kPasses = kStagedRows / 2 / LANE_FLOATS;
    static_assert(LANE_FLOATS == 1 || LANE_FLOATS == kVector, "a lane's numbers stay together");
    const auto store = [&](int row, int col, const float* from) {
        if (row < args.m && col < args.n) {
            float* to = d + row * args.d.row_stride + col;
            if constexpr (LANE_FLOATS == 1) *to = *from;
            else *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        }
    };
#pragma unroll
    for (int first = 0; first < kRowsS; first += kStagedRows) {
        const PLACE place(ptx::recompute(thread));   // addresses are not worth registers from turn to turn
        const int warpgroup = place.warp / kWarps, warp = place.warp % kWarps;
        float* staged = reinterpret_cast<float*>(staging + warpgroup * kStagingBytes);
        const auto value = [&](int i) { return x[first / 2 + i]; };   // two a row of S and thread
        if constexpr (SWAPPED) {
            // Rows of D are rows of S, and have a row of staging each: 64 numbers, the warpgroup's rows of R.
            ptx::named_barrier_sync(kStagingBarrier + warpgroup, kWarpgroup);
#pragma unroll
            for (int i = 0; i < kStagedRows / 2; ++i) {
                const int r = place.row(i / 2 % 2) % kWgmmaRows;
                staged[place.column(i) * kWgmmaRows + (r ^ place.quad * kVector)] = value(i);
            }
            ptx::named_barrier_sync(kStagingBarrier + warpgroup, kWarpgroup);
            constexpr int kLanes = kWgmmaRows / LANE_FLOATS;   // of a row
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int number = (pass * kWarps + warp) * kWarp + place.lane;
                const int s = number / kLanes, r = number % kLanes * LANE_FLOATS;
                store(row_s + first + s, row_r + warpgroup * kWgmmaRows + r,
                      staged + s * kWgmmaRows + (r ^ s / 2 % 4 * kVector));
            }
        } else {
            // Rows of D are rows of R. A warp stores its own 16, so it need not wait for the others.
            float* mine = staged + warp * (kStagingBytes / 4 / kWarps);
            __syncwarp();
#pragma unroll
            for (int i = 0; i < kStagedRows / 2; i += 2) {
                const int line = i / 2 % 2 * 8 + place.group;
                *reinterpret_cast<float2*>(mine + line * kStagedRows + (place.column(i) ^ line % 4 * 8)) =
                    make_float2(value(i), value(i + 1));
            }
            __syncwarp();
            constexpr int kLanes = kStagedRows / LANE_FLOATS;
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int line = pass * (kWarp / kLanes) + place.lane / kLanes;
                const int s = place.lane % kLanes * LANE_FLOATS;
                store(row_r + place.row(line / 8, line % 8), row_s + first + s,
                      mine + line * kStagedRows + (s ^ line % 4 * 8));
            }
        }
    }
}

// Stores the half of a thread's results that lies in one row of D, which begins anywhere: two neighbours at a time, of every
// eight columns. Where the row starts on an odd multiple of four bytes, a lane stores its second number with the first of the
// lane after it, the last of four lanes with the one that the first lane has of the next eight columns. `left` columns from
// the thread's first on are inside.
template <int COUNT, typename PLACE>
__device__ __forceinline__ void store_pairs(float* line, int left, const PLACE& place, int half, const float (&x)[COUNT]) {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    constexpr int kColumns = 8, kLanes = 4, kLast = COUNT / 4 - 1;
    const bool odd = reinterpret_cast<uintptr_t>(line) % sizeof(float2) != 0;
    const int next = place.lane / kLanes * kLanes + (place.quad + 1) % kLanes;
    if (odd && place.quad == 0 && left > 0) line[0] = x[2 * half];
#pragma unroll
    for (int j = 0; j <= kLast; ++j) {
        const float even = x[4 * j + 2 * half], own = x[4 * j + 2 * half + 1];
        const float ahead = j < kLast ? x[4 * (j < kLast ? j + 1 : j) + 2 * half] : 0.0f;
        const float taken = __shfl_sync(kAll, place.quad == 0 ? ahead : even, next);
        const int col = kColumns * j + odd;
        const bool alone = odd && j == kLast && place.quad == kLanes - 1;   // nobody has its neighbour
        const float2 pair = odd ? make_float2(own, taken) : make_float2(even, own);
        if (col + 1 < left && !alone) *reinterpret_cast<float2*>(line + col) = pair;
        else if (col < left) line[col] = pair.x;
    }
}

// The epilogue of `COUNT` accumulators whose first belongs to row `row_s` of S: each part of it over all of them, so
// that the common case is a row of multiplications and a row of stores. STAGED: they are all that the thread has, and pass through
// `staging`, kStagingBytes a warpgroup.
template <bool SWAPPED, bool STAGED, int COUNT, typename PLACE>
__device__ __forceinline__ void finish(const GemmArgs& args, const PLACE& place, int row_r, int row_s,
                                       int batch, char* staging, float (&x)[COUNT]) {
    const Epilogue epilogue(args, batch);
    const int rows_r = SWAPPED ? args.n : args.m;
    const int rows_s = SWAPPED ? args.m : args.n;
    const int r = row_r + place.row(0), s = row_s + place.column(0);
    const int half_rows = place.row(1) - place.row(0);
    const bool in_r[2] = {r < rows_r, r + half_rows < rows_r};
    const int left = rows_s - s;   // accumulator i is inside while its column, counted from s, is less
    const auto inside = [&](int i) { return in_r[i / 2 % 2] && i / 4 * 8 + i % 2 < left; };

#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = epilogue.scalars.scale(x[i]);
    if (epilogue.c != nullptr) {
        walk<SWAPPED, COUNT>(args.c, epilogue.c, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] = fmaf(epilogue.scalars.beta, *at, x[i]);
        });
    }
    if (epilogue.bias != nullptr) {   // one a column of D: along S, or, swapped, along R
        if constexpr (SWAPPED) {
            const float bias[2] = {in_r[0] ? epilogue.bias[r * args.bias_stride] : 0.0f,
                                   in_r[1] ? epilogue.bias[(r + half_rows) * args.bias_stride] : 0.0f};
#pragma unroll
            for (int i = 0; i < COUNT; ++i) x[i] += bias[i / 2 % 2];
        } else {
            const float* at = epilogue.bias + s * args.bias_stride;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                const float even = i / 4 * 8 < left ? at[i / 4 * 8 * args.bias_stride] : 0.0f;
                const float odd = i / 4 * 8 + 1 < left ? at[(i / 4 * 8 + 1) * args.bias_stride] : 0.0f;
                x[i] += even;
                x[i + 1] += odd;
                x[i + 2] += even;
                x[i + 3] += odd;
            }
        }
    }
    activate_in_turn<(COUNT < 16 ? COUNT : 16)>(args.activation, x);
    if (epilogue.residual != nullptr) {
        walk<SWAPPED, COUNT>(args.residual, epilogue.residual, r, s, half_rows, [&](int i, const float* at) {
            if (inside(i)) x[i] = Epilogue::combine(args, x[i], *at);
        });
    }
    if constexpr (STAGED) {
        const int thread = place.warp * kWarp + place.lane;
        if (args.d_access == kRowVector && args.n % 4 == 0) {
            store_staged<PLACE, SWAPPED, kVector>(args, thread, staging, epilogue.d, row_r, row_s, x);
        } else {
            store_staged<PLACE, SWAPPED, 1>(args, thread, staging, epilogue.d, row_r, row_s, x);
        }
        return;
    }
    if (!SWAPPED && args.d_access == kRowVector && rows_s % 2 == 0) {   // both of a pair are inside, or none
        float2* even = reinterpret_cast<float2*>(epilogue.d + r * args.d.row_stride + s);
        float2* odd = reinterpret_cast<float2*>(epilogue.d + (r + half_rows) * args.d.row_stride + s);
#pragma unroll
        for (int i = 0; i < COUNT; i += 4) {
            if (inside(i)) even[i] = make_float2(x[i], x[i + 1]);
            if (inside(i + 2)) odd[i] = make_float2(x[i + 2], x[i + 3]);
        }
        return;
    }
    if constexpr (SWAPPED) {
        walk<SWAPPED, COUNT>(args.d, epilogue.d, r, s, half_rows, [&](int i, float* at) {
            if (inside(i)) *at = x[i];
        });
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* line = epilogue.d + (r + half * half_rows) * args.d.row_stride + s;
            store_pairs<COUNT>(line, in_r[half] ? left : 0, place, half, x);
        }
    }
}

// The blocks of the cluster hold the sums of the slices of k: adds them in order and stores. The accumulators are
// dealt out to the blocks in small groups, and pass through the ring, which nobody needs any more.
template <bool SWAPPED, int CONSUMERS, int COUNT, typename PLACE>
__device__ __forceinline__ void reduce_and_store(const GemmArgs& args, char* shared, const PLACE& place, int slice, int thread,
                                                 int row_r, int row_s, int batch, const float (&sum)[COUNT]) {
    constexpr int kGroup = COUNT > 16 ? 8 : 4;
    ptx::named_barrier_sync(kConsumerBarrier, CONSUMERS);   // the other warpgroup may still read the ring
    float* mine = reinterpret_cast<float*>(shared) + thread;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) mine[i * CONSUMERS] = sum[i];
    ptx::cluster_sync();
    const int slices = static_cast<int>(ptx::cluster_size());
#pragma unroll 1
    for (int first = slice * kGroup; first < COUNT; first += slices * kGroup) {
        float total[kGroup];
        sum_over_cluster<kGroup, CONSUMERS, 8>(mine + first * CONSUMERS, slices, total);
        finish<SWAPPED, false>(args, place, row_r, row_s + first / 4 * 8, batch, nullptr, total);
    }
}

#endif  // sm_90a
