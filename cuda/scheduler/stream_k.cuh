// Stream-K: the multiprocessors share the steps of k of all tiles equally, whatever the number of tiles.
//
// With one tile a block, 140 tiles take as long on 132 multiprocessors as 264 do. So only the tiles of whole waves are
// computed by one block each. The steps of k of all others are laid end to end and cut into ranges of equal length, one a
// block. A range then ends within a tile and the next one begins there: a tile is the sum of pieces from several blocks.
//
//   tiles    |------0------|------1------|------2------|
//   ranges   |----0----|----1----|----2----|----3------|     of blocks 3, 2, 1, 0
//
// How pieces come together. A block whose range goes on with another tile writes its piece to the workspace (block 2 the end
// of tile 0), raises a flag, and is done with that tile. The others are the tile's *finishers*: they wait until all pieces
// are there, then each adds up and stores its share of the tile; of its own piece it writes only what the others add up.
// Sums are always added in the order of k: the same bits every time.
//
// (16-bit products in 2-CTA clusters have a fix-up of their own, in tensor_core/half_work_sm90.cuh: the owner finishes alone.)
//
// Nothing can hang. CUDA does not say in which order blocks start, and other work on the device may keep some of them waiting
// for a multiprocessor. Therefore blocks draw their numbers as they start (draw_number()), only a tile's *owner*, the block that
// has its first steps, waits as long as it takes, and ranges are dealt out from the last number down: an owner waits only for
// blocks that drew before it, and these run. Another finisher loses patience after kPatience looks at the flags: it writes what it had kept to the workspace, says so, and
// leaves its share to the owner.
//
// Flags need no memset. They are in the workspace, whose old contents may be anything, and are raised to the epoch of the
// launch, a 64-bit number that no other launch has. When a CUDA graph repeats a launch, its epoch is the same again: so the
// owner takes all flags down, as soon as every finisher has said what it does and will not look at them any more.
// (A workspace that a stream keeps was cleared once, when it was allocated, for the sake of tools that look for reads of memory
// that was never written: said() reads flags that nobody has raised yet.)
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/machine.cuh"

namespace stream_k {

// Steps [begin, end) of the k of a tile.
struct Piece {
    int tile, begin, end;
};

// The counter that numbers are drawn from lies so far before the workspace, as src/gemm/launch/workspace.rs lays it out. It is
// 0 before and after every launch, for the last block to draw sets it back. A launch that has started early may draw as well:
// all blocks of the one before it have started, and so drawn.
constexpr int kTicketBytes = 256, kCounterBytes = 1 << 16;

// The number of this block, or cluster, of so many: how many have started before it. One thread calls this. Where no tile is cut nobody
// waits for others, and there may be no workspace: any number will do.
__device__ __forceinline__ int draw_number(const GemmArgs& args, uint32_t of) {
    if (args.stream_ranges == 0) return static_cast<int>(blockIdx.x);
    char* counter = static_cast<char*>(args.workspace) - kCounterBytes - kTicketBytes;
    return static_cast<int>(ptx::increment_or_wrap(reinterpret_cast<uint32_t*>(counter), of - 1));
}
__device__ __forceinline__ int draw_number(const GemmArgs& args) { return draw_number(args, gridDim.x); }

// The steps of k of the tiles that are cut, in ranges.
struct Ranges {
    int steps;     // of a tile
    int all;       // of all tiles that are cut
    int share;     // of a range
    int longer;    // ranges [0, longer) have one step more

    __device__ __forceinline__ void of(const GemmArgs& args, int cut_tiles, int tile_steps) {
        steps = tile_steps;
        all = cut_tiles * steps;
        share = args.stream_ranges == 0 ? 0 : all / args.stream_ranges;
        longer = all - share * args.stream_ranges;
    }

    // The first step of a range, and the range of a step.
    __device__ __forceinline__ int first_step(int of_range) const {
        return min(all, of_range * share + min(of_range, longer));
    }
    __device__ __forceinline__ int range_of(int step) const {
        return step < longer * (share + 1) ? step / (share + 1) : (step - longer) / share;
    }
};

// What a block computes. src/gemm/schedule/stream_k.rs mirrors the arithmetic, and tests it.
struct Schedule : Ranges {
    int whole;     // tiles [0, whole) are computed by one block each: every gridDim.x-th by this one
    int block;     // the number that this block drew
    int range;     // the number of its range

    __device__ __forceinline__ Schedule(const GemmArgs& args, int number, int tiles, int tile_steps) {
        block = number;
        whole = args.stream_ranges == 0 ? tiles : args.whole_tiles;
        of(args, tiles - whole, tile_steps);
        range = static_cast<int>(gridDim.x) - 1 - block;
    }

    // The block's piece of this number, if it has so many: whole tiles come first.
    __device__ __forceinline__ bool take(int number, Piece& piece) const {
        const int blocks = static_cast<int>(gridDim.x);
        if (block + number * blocks < whole) {
            piece = {block + number * blocks, 0, steps};
            return true;
        }
        const int from = first_step(range), to = first_step(range + 1);
        if (from == to) return false;
        const int tile = from / steps + number - (block < whole ? (whole - 1 - block) / blocks + 1 : 0);
        piece = {whole + tile, max(from - tile * steps, 0), min(to - tile * steps, steps)};
        return piece.end > 0;
    }

    __device__ __forceinline__ bool is_whole(const Piece& piece) const { return piece.end - piece.begin == steps; }
};

// Which ranges have pieces of a tile: `pieces` of them, from `first` on. The last one may be left behind; the others finish.
struct Contributors {
    int first, pieces, finishers;

    static __device__ __forceinline__ Contributors of(const Schedule& schedule, const Piece& piece) {
        if (schedule.is_whole(piece)) return {schedule.range, 1, 1};
        const int tile_begin = (piece.tile - schedule.whole) * schedule.steps;
        const int tile_end = tile_begin + schedule.steps;
        const int first = schedule.range_of(tile_begin), last = schedule.range_of(tile_end - 1);
        const int pieces = last - first + 1;
        return {first, pieces, pieces - (schedule.first_step(last + 1) > tile_end)};
    }
};

// What a flag says, beside the epoch, which is a multiple of 4: the piece is there; its block stores its share of the tile; or all of
// the piece is there, and the share is left to the owner.
constexpr uint64_t kReady = 1, kStays = 2, kLeft = 3;

constexpr int kPatience = 128;   // looks at the flags, each about a microsecond

// The end of a tile: THREADS threads have its sums, QUADS vectors each, of which GROUP are stored together. BARRIER is the
// number of a named barrier that these threads have for themselves.
template <int THREADS, int QUADS, int GROUP, int BARRIER>
class Finish {
public:
    static constexpr int kWarps = THREADS / kWarp;
    static constexpr int kUnits = QUADS / GROUP * kWarps;   // a tile is shared in units of one warp's group of vectors
    static constexpr int kAhead = 4;                        // groups that are on their way from memory at a time
    static_assert(THREADS % kWarp == 0 && QUADS % GROUP == 0, "a tile is made of whole units");
    using Sums = float4[QUADS][THREADS];             // in shared memory
    using Ahead = float4[kAhead][GROUP][THREADS];    // in shared memory, only used after the block's last piece

    __device__ __forceinline__ Finish(const GemmArgs& args, const Schedule& schedule, const Piece& piece, Sums& sums, int thread)
        : args(args), tile(Contributors::of(schedule, piece)), mine(schedule.range - tile.first), thread(thread),
          sums(&sums[0][0]) {}

    // Where a thread leaves its sums, GROUP vectors at [0], [THREADS], [2 · THREADS], …: in shared memory what its block is
    // going to store, in the workspace what others are.
    __device__ __forceinline__ float4* place(int group) const {
        const int unit = group * kWarps + thread / kWarp;
        const bool keep = tile.pieces == 1 ||
                          (mine < tile.finishers && unit >= first_unit(mine) && unit < first_unit(mine + 1));
        return (keep ? sums : room(mine)) + group * GROUP * THREADS + thread;
    }

    // Stores the tile, or this block's share of it. `store(group, warp, sums)` takes the vectors of one group, those of the
    // thread that has this lane in `warp`.
    template <typename Store>
    __device__ __forceinline__ void run(Ahead& ahead, const Store& store) const {
        if (tile.pieces > 1) {
            raise(kReady);
            if (mine >= tile.finishers) return;   // left behind
            if (!all_there()) {
                give_up();
                return;
            }
            if (mine > 0 && thread == 0) ptx::store_release_gpu(flag(mine), args.epoch + kStays);
        }
        int finisher = mine;
        do {
            if (tile.pieces > 1) add_up(finisher, ahead);
            const int end = first_unit(finisher + 1);
#pragma unroll 1
            for (int unit = first_unit(finisher) + thread / kWarp; unit < end; unit += kWarps) {
                float4 vectors[GROUP];
#pragma unroll
                for (int i = 0; i < GROUP; ++i) vectors[i] = sums[start(unit) + i * THREADS];
                store(unit / kWarps, unit % kWarps, vectors);
            }
            if (mine > 0 || tile.pieces == 1 || (finisher == 0 && all_stay())) break;
            do ++finisher; while (finisher < tile.finishers && said(finisher) == kStays);
        } while (finisher < tile.finishers);
        if (mine == 0 && tile.pieces > 1) {
            ptx::named_barrier_sync(BARRIER, THREADS);   // all have read the flags
            for (int piece = thread; piece < tile.pieces; piece += THREADS) *flag(piece) = 0;
        }
    }

private:
    const GemmArgs& args;
    const Contributors tile;
    const int mine;      // the number of this block's piece; 0: the owner
    const int thread;
    float4* const sums;

    // The workspace holds two flags and room for the sums of two pieces a range: one that is left behind (the first range
    // has none) and one that is finished. Ranges of a tile or more have only whole tiles and owners' pieces to finish, and these
    // need no room.
    __device__ __forceinline__ uint64_t* flag(int piece) const {
        return static_cast<uint64_t*>(args.workspace) + 2 * (tile.first + piece) + (piece >= tile.finishers);
    }
    __device__ __forceinline__ float4* room(int piece) const {
        const int ranges = static_cast<int>(gridDim.x), range = tile.first + piece;
        const int slot = piece >= tile.finishers ? range - 1 : ranges - 1 + range;
        return static_cast<float4*>(args.workspace) + ranges + static_cast<int64_t>(slot) * (QUADS * THREADS);
    }
    static_assert(2 * sizeof(uint64_t) == sizeof(float4), "the flags of a range take the room of a vector");

    // The units that a finisher stores: first_unit(finisher) to first_unit(finisher + 1).
    __device__ __forceinline__ int first_unit(int finisher) const { return kUnits * finisher / tile.finishers; }

    // The first vector of this lane in a unit, among all of a block.
    __device__ __forceinline__ int start(int unit) const {
        return unit / kWarps * GROUP * THREADS + unit % kWarps * kWarp + thread % kWarp;
    }

    __device__ __forceinline__ void raise(uint64_t state) const {
        ptx::named_barrier_sync(BARRIER, THREADS);
        if (thread == 0) ptx::store_release_gpu(flag(mine), args.epoch + state);
    }

    // What the flag of a piece says; no state while it is not raised.
    __device__ __forceinline__ uint64_t said(int piece) const { return ptx::load_acquire_gpu(flag(piece)) - args.epoch; }

    // Waits for all pieces; false if patience was lost.
    __device__ __forceinline__ bool all_there() const {
        bool there = true;
        for (int piece = thread; piece < tile.pieces; piece += THREADS) {
            int looks = 0;
            while (there && said(piece) - kReady > kLeft - kReady) there = mine == 0 || ++looks < kPatience;
        }
        return ptx::named_barrier_and(BARRIER, THREADS, there);
    }

    // Leaves this block's share to the owner.
    __device__ __forceinline__ void give_up() const {
#pragma unroll 1
        for (int unit = first_unit(mine) + thread / kWarp; unit < first_unit(mine + 1); unit += kWarps)
#pragma unroll
            for (int i = 0; i < GROUP; ++i) room(mine)[start(unit) + i * THREADS] = sums[start(unit) + i * THREADS];
        raise(kLeft);
    }

    // Whether all other finishers store their shares; they know soon, because all pieces are there.
    __device__ __forceinline__ bool all_stay() const {
        bool stay = true;
        for (int finisher = 1 + thread; finisher < tile.finishers; finisher += THREADS) {
            uint64_t state;
            do state = said(finisher); while (state == kReady);
            stay = stay && state == kStays;
        }
        return ptx::named_barrier_and(BARRIER, THREADS, stay);
    }

    // Adds up a finisher's share of the tile, in place. A lane copies the vectors of other blocks that it is going to add to
    // shared memory, kAhead groups at a time: in registers they would cost the main loop some of its own.
    __device__ __forceinline__ void add_up(int finisher, Ahead& ahead) const {
        const int begin = first_unit(finisher) + thread / kWarp, end = first_unit(finisher + 1);
        const int kept = finisher == mine ? mine : -1;   // this block's piece, where it is still in shared memory
        int next_unit = begin, next_piece = 0, next_slot = 0;
        const auto copy_next = [&] {
            if (next_unit < end) {
                if (next_piece != kept) {
                    const float4* from = room(next_piece) + start(next_unit);
#pragma unroll
                    for (int i = 0; i < GROUP; ++i) ptx::cp_async_16(&ahead[next_slot][i][thread], from + i * THREADS);
                }
                if (++next_piece == tile.pieces) {
                    next_piece = 0;
                    next_unit += kWarps;
                }
            }
            next_slot = (next_slot + 1) % kAhead;
            ptx::cp_async_commit();
        };
#pragma unroll 1
        for (int i = 1; i < kAhead; ++i) copy_next();
        int slot = 0;
#pragma unroll 1
        for (int unit = begin; unit < end; unit += kWarps) {
            float4* own = sums + start(unit);
            float4 sum[GROUP];
#pragma unroll
            for (int i = 0; i < GROUP; ++i) sum[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
            for (int piece = 0; piece < tile.pieces; ++piece) {
                copy_next();
                ptx::cp_async_wait<kAhead - 1>();
                const float4* from = piece == kept ? own : &ahead[slot][0][thread];
                slot = (slot + 1) % kAhead;
#pragma unroll
                for (int i = 0; i < GROUP; ++i) {
                    const float4 part = from[i * THREADS];
                    sum[i].x += part.x;
                    sum[i].y += part.y;
                    sum[i].z += part.z;
                    sum[i].w += part.w;
                }
            }
#pragma unroll
            for (int i = 0; i < GROUP; ++i) own[i * THREADS] = sum[i];
        }
    }
};

}  // namespace stream_k
