// The end of a tile of the 16-bit kernels for Hopper: from the sums of a warp, or of the blocks of a cluster that cuts k, to D.
// gemm_half_sm90.cu says which tiles take which way.
#pragma once

#include <cuda.h>

#include "../epilogue/half.cuh"
#include "../pipeline/batch_coordinates.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/cluster.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/half.cuh"
#include "../ptx/machine.cuh"
#include "half_layout_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

// TMA stores rows of so many elements, 16 bytes: where rows end amid a word of 4 bytes, an H200 writes all of the word.
constexpr int kWholeRows = 8;
constexpr int kSector = 32;      // bytes that the L2 keeps together
constexpr int kRowsAtOnce = 4;   // that a warp has under way from shared memory to D

// Columns of D.
template <typename CONFIG>
__device__ __forceinline__ int columns_of_d(const GemmArgs& args) {
    return CONFIG::GATED ? args.n / 2 : args.n;
}

template <typename CONFIG>
using EpilogueOf = HalfEpilogue<CONFIG::TYPE, CONFIG::SWAPPED, (CONFIG::ROWS < CONFIG::BM)>;

// The epilogue of a tile whose first row of R is `row_r`.
template <typename CONFIG>
__device__ __forceinline__ EpilogueOf<CONFIG> epilogue_of(const GemmArgs& args, int batch, int row_r) {
    EpilogueOf<CONFIG> epilogue(args, batch);
    if constexpr (CONFIG::ROWS < CONFIG::BM) epilogue.tile_end = row_r + CONFIG::ROWS;
    return epilogue;
}

// Where a warp's results go: through its staging buffers, by TMA or, where rows of D start anywhere, row by row; or from registers.
template <typename CONFIG>
struct Output {
    const GemmArgs& args;
    const CUtensorMap& map;
    const Shared<CONFIG>& shared;
    int warp, lane;
    bool mapped;      // the map describes D
    bool plain;       // so it does, and α is all that there is to the epilogue
    bool whole;       // the map describes D, whose rows start on sectors of the L2, so that boxes are whole sectors
    int buffer = 0;   // that is next; goes on from tile to tile, for TMA may still read the others

    __device__ __forceinline__ Output(const GemmArgs& args_, const CUtensorMap& map_, const Shared<CONFIG>& shared_, int warp_,
                                      int lane_)
        : args(args_),
          map(map_),
          shared(shared_),
          warp(warp_),
          lane(lane_),
          mapped(!CONFIG::SWAPPED && args_.d_type == kElementOf<CONFIG::TYPE> && args_.d_access == kRowVector &&
                 columns_of_d<CONFIG>(args_) % kWholeRows == 0),
          plain(!CONFIG::GATED && mapped && Scalars(args_).beta == 0.0f && args_.bias == nullptr && args_.residual.data == nullptr &&
                args_.activation == kIdentity),
          whole(mapped && reinterpret_cast<uint64_t>(args_.d.data) % kSector == 0 &&
                (args_.d.row_stride | args_.d.batch_stride[1] | args_.d.batch_stride[2] | args_.d.batch_stride[3]) %
                        static_cast<int>(kSector / sizeof(Bits)) == 0) {}

    // The whole epilogue, if it is plain. row: of this warp.
    template <int COUNT>
    __device__ __forceinline__ void scale_and_store(const BatchCoordinates& at, int row, int col, float (&x)[COUNT]) {
        Scalars(args).scale_all(x);
        store_boxes(at, row, col, x);
    }
    template <int COUNT>
    __device__ __forceinline__ void scale_and_store(const Place& place, float (&x)[COUNT]) {
        scale_and_store(place.at, place.row_r + warp * kFragmentRows, place.row_s, x);
    }

    // A tile's box of the values from x[first] on.
    template <int COUNT>
    __device__ __forceinline__ void store_values(const Place& place, const float (&x)[COUNT], int first, int box) {
        store_box(place.at, place.row_r + warp * kFragmentRows, place.row_s + box * CONFIG::BOX, rounding(x, first));
    }

    // A tile's first boxes, as many as there are buffers or fewer, can be left in shared memory and stored later: empty_staging(), stage_values() for each
    // of them, send_staged() for all. Nothing else is stored in between.
    __device__ __forceinline__ void empty_staging() const { wait_for_buffers<0>(); }
    template <int COUNT>
    __device__ __forceinline__ void stage_values(const float (&x)[COUNT], int first) {
        stage(rounding(x, first));
    }
    // The last BOXES that were staged, as those of a tile from `first` on.
    template <int BOXES>
    __device__ __forceinline__ void send_staged(const Place& place, int first) {
        ptx::fence_async_proxy();
        __syncwarp();
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            send(place.at, place.row_r + warp * kFragmentRows, place.row_s + (first + box) * CONFIG::BOX,
                 shared.staging(warp, (buffer + CONFIG::BUFFERS - BOXES + box) % CONFIG::BUFFERS));
        }
    }

    // Boxes of a tile from `first` on whose values come in turns of COUNT, of which a box has one or several: those of this turn. Nothing else is stored amid
    // a box.
    template <int COUNT>
    __device__ __forceinline__ void store_in_turn(const Place& place, int first, int turn, const float (&x)[COUNT]) {
        constexpr int kTurns = CONFIG::BOX / 2 / COUNT, kChunks = CONFIG::D_BOX * 2 / kChunk / kTurns;
        if (turn % kTurns == 0) wait_for_buffers<CONFIG::BUFFERS - 1>();
        write<kChunks>(shared.staging(warp, buffer), turn % kTurns * kChunks, rounding(x, 0));
        if (turn % kTurns == kTurns - 1) {
            buffer = (buffer + 1) % CONFIG::BUFFERS;
            send_staged<1>(place, first + turn / kTurns);
        }
    }

    // Box `box` of a tile whose values are rounded, two a word.
    template <int WORDS>
    __device__ __forceinline__ void store_rounded(const Place& place, const uint32_t (&words)[WORDS], int box) {
        store_box(place.at, place.row_r + warp * kFragmentRows, place.row_s + box * CONFIG::BOX,
                  [&words, box](int i) { return words[box * (CONFIG::BOX / 4) + i]; });
    }

    // COUNT values a thread of 16 rows from `row` on and of the columns from `col` on; the warp's, not the thread's.
    template <int COUNT>
    __device__ __forceinline__ void store(const EpilogueOf<CONFIG>& epilogue,
                                          const BatchCoordinates& at, int row, int col, const float (&x)[COUNT]) {
        if constexpr (!CONFIG::SWAPPED) {
            if (mapped) return store_boxes(at, row, col, x);
        }
        store_without_map(epilogue, row, col, x);
    }
    template <int COUNT>
    __device__ __forceinline__ void store_without_map(const EpilogueOf<CONFIG>& epilogue, int row, int col,
                                                      const float (&x)[COUNT]) {
        if constexpr (CONFIG::SWAPPED) {   // 16 columns of D
            epilogue.store(args, row + lane % 4 * 2, col + lane / 4, x);
        } else if (CONFIG::WARPS <= kWarpgroupWarps || epilogue.d.wide) {
            epilogue.store(args, row + lane / 4, col + lane % 4 * 2, x);
        } else if constexpr (CONFIG::WARPS > kWarpgroupWarps) {
#pragma unroll
            for (int first = 0; first < COUNT; first += CONFIG::BOX / 2) store_rows(epilogue.d, row, col + first * 2, x, first);
        }
    }

    // COUNT values a thread of 16 rows from `row` on and of gated columns from `col` on; those of D, and the warp's. x[2 · i + h] is in row 8 · h and
    // column 4 · i from the thread's first one, (lane / 4, lane % 4).
    template <int COUNT>
    __device__ __forceinline__ void store_gated(const EpilogueOf<CONFIG>& epilogue, const BatchCoordinates& at, int row, int col,
                                                const float (&x)[COUNT]) {
        if (!mapped) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int r = row + lane / 4 + i % 2 * 8, c = col + lane % 4 + i / 2 * 4;
                if (r < args.m && c < columns_of_d<CONFIG>(args)) epilogue.d.store(epilogue.d.place(r, c), x[i]);
            }
            return;
        }
        // Of eight columns lane t of a row has t and 4 + t, and boxes are written by lanes that have 2 · t and 2 · t + 1.
        const int from = lane - lane % 4 + lane * 2 % 4;
        uint32_t words[COUNT / 2];
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const int first = i / 2 * 4 + i % 2;
            const uint32_t mine = ptx::round_pair<CONFIG::TYPE>(x[first], x[first + 2]);
            const uint32_t even = __shfl_sync(kWholeWarp, mine, from), odd = __shfl_sync(kWholeWarp, mine, from + 1);
            words[i] = lane % 4 < 2 ? ptx::pair_of(even, odd) : ptx::pair_of_high(even, odd);
        }
#pragma unroll
        for (int first = 0; first < COUNT; first += CONFIG::D_BOX / 2)
            store_box(at, row, col + first * 2, [&words, first](int i) { return words[first / 2 + i]; });
    }

    // The same through the map.
    template <int COUNT>
    __device__ __forceinline__ void store_boxes(const BatchCoordinates& at, int row, int col, const float (&x)[COUNT]) {
#pragma unroll
        for (int first = 0; first < COUNT; first += CONFIG::BOX / 2) store_box(at, row, col + first * 2, rounding(x, first));
    }

    // Waits until TMA has read what it was given.
    __device__ __forceinline__ void finish() const {
        if (!CONFIG::SWAPPED && lane == 0) ptx::bulk_wait_read<0>();
    }

private:
    // Where the swizzle of a map puts a chunk of a box's row: within 128 bytes of a row by row % 8, 64 bytes by row / 2 % 4, or
    // 32 bytes by row / 4 % 2.
    static __device__ __forceinline__ int swizzled(int line, int chunk) {
        constexpr int kRowBytes = CONFIG::D_BOX * 2, kChunks = kRowBytes / kChunk;
        return line * kRowBytes + (chunk ^ (line * kRowBytes / kTileRow % kChunks)) * kChunk;
    }

    // Writes COUNT chunks of each row of a box from `first` on. pair(i): the values 2·i and 2·i + 1 of the thread there, rounded.
    template <int COUNT, typename PAIRS>
    __device__ __forceinline__ void write(const char* staging, int first, PAIRS&& pair) const {
        const int line = lane % kFragmentRows, half = lane / kFragmentRows;
#pragma unroll
        for (int chunk = 0; chunk < COUNT; chunk += 2) {
            const int i = chunk * 2;
            ptx::store_matrices(ptx::shared_address(staging) + swizzled(line, first + chunk + half), pair(i), pair(i + 1), pair(i + 2), pair(i + 3));
        }
    }
    // Writes a box into the next staging buffer, which nobody reads any more.
    template <typename PAIRS>
    __device__ __forceinline__ const char* stage(PAIRS&& pair) {
        const char* const staging = shared.staging(warp, buffer);
        buffer = (buffer + 1) % CONFIG::BUFFERS;
        write<CONFIG::D_BOX * 2 / kChunk>(staging, 0, pair);
        return staging;
    }
    // The box whose first value is x[first].
    template <int COUNT>
    static __device__ __forceinline__ auto rounding(const float (&x)[COUNT], int first) {
        return [&x, first](int i) { return ptx::round_pair<CONFIG::TYPE>(x[first + 2 * i], x[first + 2 * i + 1]); };
    }

    // Waits until TMA has read all buffers of this warp but LEFT.
    template <int LEFT>
    __device__ __forceinline__ void wait_for_buffers() const {
        if (lane == 0) ptx::bulk_wait_read<LEFT>();
        __syncwarp();
    }

    template <typename PAIRS>
    __device__ __forceinline__ void store_box(const BatchCoordinates& at, int row, int col, PAIRS&& pair) {
        wait_for_buffers<CONFIG::BUFFERS - 1>();
        const char* const staging = stage(pair);
        ptx::fence_async_proxy();
        __syncwarp();
        send(at, row, col, staging);
    }

    // Has TMA store a buffer, as a group of its own.
    __device__ __forceinline__ void send(const BatchCoordinates& at, int row, int col, const char* staging) const {
        if (lane == 0) {
            if (row < args.m && col < columns_of_d<CONFIG>(args))
                ptx::tma_store_5d(&map, ptx::shared_address(staging), col, row, at.x, at.y, at.z);
            ptx::bulk_commit();
        }
    }

    // Lanes store neighbours. From registers a warp would store two elements each of four places in eight rows at a time.
    template <int COUNT>
    __device__ __forceinline__ void store_rows(const Elements<CONFIG::TYPE>& d, int row, int col, const float (&x)[COUNT], int first) {
        constexpr int kWidth = CONFIG::BOX < kWarp ? CONFIG::BOX : kWarp;   // elements of a row that lanes store at a time
        constexpr int kTurnLines = kWarp / kWidth;
        const char* const staging = stage(rounding(x, first));
        __syncwarp();   // also: all lanes have read the other buffer, which is written next
#pragma unroll
        for (int left = 0; left < CONFIG::BOX; left += kWidth) {
            const int column = left + lane % kWidth;
            if (col + column >= args.n) break;
            int line = lane / kWidth;
            Bits* to = static_cast<Bits*>(d.data) + d.place(row + line, col + column);
#pragma unroll kRowsAtOnce
            for (int turn = 0; turn < kFragmentRows / kTurnLines; ++turn, line += kTurnLines, to += kTurnLines * d.row_stride) {
                const char* const from = staging + swizzled(line, column * 2 / kChunk) + column * 2 % kChunk;
                if (row + line < args.m) *to = *reinterpret_cast<const Bits*>(from);
            }
        }
    }
};

// `x` is what this warp's threads have of its 16 rows of R and of rows of S from row_s on: epilogue and store. SILU: that is what gates go through.
template <typename CONFIG, bool SILU = false, int COUNT>
__device__ __forceinline__ void apply_and_store(const GemmArgs& args, Output<CONFIG>& output,
                                                const EpilogueOf<CONFIG>& epilogue,
                                                const BatchCoordinates& at, int row_r, int row_s, float (&x)[COUNT]) {
    const int row = CONFIG::SWAPPED ? row_s : row_r, col = CONFIG::SWAPPED ? row_r : row_s;
    const int group = output.lane / 4, pair = output.lane % 4 * 2;
    if constexpr (CONFIG::GATED) {
        float gated[COUNT / 2];
        epilogue.template gate<SILU>(args, col + pair, x, gated);
        output.store_gated(epilogue, at, row, col / 2, gated);
    } else {
        epilogue.apply(args, row + (CONFIG::SWAPPED ? pair : group), col + (CONFIG::SWAPPED ? group : pair), x);
        output.store(epilogue, at, row, col, x);
    }
}

template <typename CONFIG>
using ShortEpilogueOf = ShortEpilogue<CONFIG::TYPE, CONFIG::PART>;

// Where a short epilogue leaves a part of a tile's values.
template <typename CONFIG>
__device__ __forceinline__ auto storing_parts(const GemmArgs& args, Output<CONFIG>& output, int row_r, int row_s, int batch) {
    const BatchCoordinates at(args, args.d, batch);
    return [&output, row_r, row_s, at](int first, const float (&part)[CONFIG::PART]) { output.store_boxes(at, row_r, row_s + first * 2, part); };
}

// The end of a tile. row_r: the first of the warp's 16 rows of R.
template <typename CONFIG>
__device__ __forceinline__ void finish(const GemmArgs& args, Output<CONFIG>& output, int row_r, int row_s, int batch,
                                       float (&sum)[CONFIG::SUMS]) {
    const BatchCoordinates at(args, args.d, batch);
    if constexpr (!CONFIG::SWAPPED && !CONFIG::GATED) {
        if (output.plain) return output.scale_and_store(at, row_r, row_s, sum);
    }
    const auto epilogue = epilogue_of<CONFIG>(args, batch, row_r - output.warp * kFragmentRows);
    if constexpr (!CONFIG::GATED) {
        if (epilogue.bare(args)) {
            epilogue.scale(sum);
            output.store_without_map(epilogue, CONFIG::SWAPPED ? row_s : row_r, CONFIG::SWAPPED ? row_r : row_s, sum);
            return;
        }
    }
    if constexpr (CONFIG::GATED) {
        // Most gates: short enough to have its code as often as there are parts.
        if (args.activation == kSilu) {
#pragma unroll
            for (int first = 0; first < CONFIG::SUMS; first += CONFIG::PART) {
                float x[CONFIG::PART];
#pragma unroll
                for (int i = 0; i < CONFIG::PART; ++i) x[i] = sum[first + i];
                apply_and_store<CONFIG, true>(args, output, epilogue, at, row_r, row_s + first * 2, x);
            }
            return;
        }
    }
    in_turn<CONFIG::PART>(sum, [&](int part, float (&x)[CONFIG::PART]) {
        apply_and_store<CONFIG>(args, output, epilogue, at, row_r, row_s + part * CONFIG::PART * 2, x);
    });
}

// ---- the end of a tile whose k is cut --------------------------------------------------------------------------

// The blocks of the cluster hold the sums of the slices of k: each adds up its shares of them, in the order of k, and stores those. A
// share is a box of D, or, swapped, 8 rows. Blocks write what the others are to add up into their rings, as soon as those are free.

// Bytes that the other blocks write here.
template <typename CONFIG>
__device__ __forceinline__ uint32_t bytes_of_others(int rank, int slices) {
    const int shares = (CONFIG::SHARES - rank + slices - 1) / slices;
    return (slices - 1) * shares * CONFIG::SHARE * CONFIG::CONSUMERS * kVectorBytes;
}

template <typename CONFIG>
__device__ __forceinline__ void reduce_and_finish(const GemmArgs& args, const Shared<CONFIG>& shared, Output<CONFIG>& output,
                                                  int row_r, int row_s, int batch, const float (&sum)[CONFIG::SUMS]) {
    // Asked for anew, and not kept while the tile is multiplied: registers are short.
    const int slices = static_cast<int>(ptx::cluster_size_now()), rank = static_cast<int>(ptx::cluster_rank_now());
    const int each = CONFIG::most_shares(slices) * CONFIG::SHARE;   // vectors of a slice
    float4* const mine = reinterpret_cast<float4*>(shared.base) + ptx::recompute(threadIdx.x);
    ptx::cluster_wait();   // all have their barriers
    ptx::mbarrier_wait(shared.vacant(), 0);
    int owner = 0, at = rank * each;
#pragma unroll
    for (int share = 0; share < CONFIG::SHARES; ++share) {
        const uint32_t theirs = ptx::cluster_address(mine + at * CONFIG::CONSUMERS, owner);
        const uint32_t summed = ptx::cluster_address(shared.summed(), owner);
#pragma unroll
        for (int i = 0; i < CONFIG::SHARE; ++i) {
            const float* const x = &sum[(share * CONFIG::SHARE + i) * kVector];
            const float4 part = make_float4(x[0], x[1], x[2], x[3]);
            if (owner == rank) mine[(at + i) * CONFIG::CONSUMERS] = part;
            else ptx::store_cluster_async(theirs + i * CONFIG::CONSUMERS * kVectorBytes, part, summed);
        }
        if (++owner == slices) owner = 0, at += CONFIG::SHARE;
    }
    ptx::mbarrier_wait(shared.summed(), 0);

    const auto epilogue = epilogue_of<CONFIG>(args, batch, row_r - output.warp * kFragmentRows);
    const BatchCoordinates at_d(args, args.d, batch);
    const float4* first_slice = mine;
#pragma unroll 1
    for (int share = rank; share < CONFIG::SHARES; share += slices, first_slice += CONFIG::SHARE * CONFIG::CONSUMERS) {
        float x[CONFIG::SHARE * kVector] = {};
        const float4* from = first_slice;
#pragma unroll 8
        for (int slice = 0; slice < slices; ++slice, from += each * CONFIG::CONSUMERS) {
#pragma unroll
            for (int i = 0; i < CONFIG::SHARE; ++i) {
                const float4 part = from[i * CONFIG::CONSUMERS];
                x[4 * i] += part.x;
                x[4 * i + 1] += part.y;
                x[4 * i + 2] += part.z;
                x[4 * i + 3] += part.w;
            }
        }
        const int first = row_s + share * CONFIG::SHARE * kFragmentColumns;
        if constexpr (!CONFIG::SWAPPED && !CONFIG::GATED) {
            if (output.plain) {
                output.scale_and_store(at_d, row_r, first, x);
                continue;
            }
        }
        apply_and_store<CONFIG>(args, output, epilogue, at_d, row_r, first, x);
    }
}

}  // namespace

#endif  // sm_90a
