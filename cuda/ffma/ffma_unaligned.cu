// Strict FP32 GEMM for operands at any alignment whose sums are long enough to keep the multiply-adds busy: copies of single words beside
// the multiply-adds.
//
// ffma_words.cu starts all copies of a portion of k at once. All warps of a block do so at the same time, after the same barrier: the
// queue of memory instructions fills up, and until it is empty nobody multiplies. Here a portion is 16 of k, and its steps start the
// copies for the portion after next, in two parts:
//
//        step 0           a half of the copies │ LDS step 1 │ 64 FFMA
//        steps 1 … 7                           │ LDS next   │ 64 FFMA
//        steps 8 … 14     the same again
//        step 15          wait, barrier        │ LDS of the next portion │ 64 FFMA
//
// An FFMA leaves no issue slot for anything else, so the loop counts instructions, and what they wait for:
//   - a thread's outputs are 8 × 8 (4 × 8, 4 × 4) in pieces of 4 × 4, so both operands are read 16 bytes at a time: 4 reads of shared memory
//     for 64 FFMA (thread_tile.cuh);
//   - each of the four layouts has a main loop of its own, so that the distances between a thread's copies are constants. Several copies
//     then share an address, and there is a predicate for each at most (WordCopies);
//   - copies that follow a read of shared memory wait for it in three instructions of their own. So they come in two parts and not
//     beside each step. With four parts the compiler chose worse registers, too;
//   - what has to be guarded, the end of k and operands with gaps, is copied by code of its own in front of the steps;
//   - the end of k takes half a portion where that is enough;
//   - sums leave as columns of four, through shared memory, and are stored row by row, 128 neighbouring bytes at once wherever a row of D
//     starts. Columns of four are ThreadTile::quad(), which keeps accumulators and operands in different banks of registers: stored as
//     rows of four, 500 to 660 of the 1024 FFMA conflicted, now 140 to 180.
//
// These loops are 20 KB long, and a block whose k is short goes through them once or twice, beside its start and its end: for k = 56 there is
// no instruction to issue in 28 % of a scheduler's cycles (6 % for k = 534; Nsight Compute, H200). So 64 × 128 and 128 × 64 are there a
// second time (…_short_k), with a portion in two rounds of a loop half as long: 5 % more instructions, and up to a tenth less time below
// k = 100.
//
// Where k is short, what counts is when the first portion is there, and it comes sooner where the copies of the second are not yet in its way.
// So up to 128 or 256 steps of k copies are one portion ahead (SHORT): 3 % less time for k up to 80 and 1.5 % up to 128 for tiles of 64 × 64 (H200,
// geometric means; docs/unaligned.md). To choose between two waits costs the tiles with most registers 2 % wherever k is long, so 64 × 128,
// 128 × 64, 128 × 96 and 128 × 80 don't.
//
// For 64 × 128 that is about 1200 instructions for 1024 FFMA. Three stages are better than four: two portions ahead are enough, and a
// block starts to multiply earlier (four: 4 % slower).
//
// An operand along k is copied in pieces of 64 bytes of a row, half a line of the L2: portions of other rows, and of other blocks, come before
// the other half. So these copies ask the L2 for whole lines. Where A is read once, as with 32 columns, memory otherwise gives
// half of its rate at most: NN 25 × (3114×32×3114) took 639 µs with 128 × 32 on an H100, and takes 486.
//
// Tiles of 64 × 64 or 128 × 32 and smaller are for tall products with a short k, or for small ones. There FFMA are not the limit, but what is
// waited for: the first portions, the end of a tile. More blocks on a multiprocessor are worth more than more outputs a thread or more stages.
// So 128 × 32 has two stages and five blocks, and 64 × 32, 32 × 32 and 16 × 32 have 4 × 4 outputs a thread (docs/unaligned.md has the times).
// Tiles with 48 rows or columns, 64 × 96, 96 × 64 and 32 × 96 have 4 × 12 or 12 × 4 outputs a thread, for what 64 and 128 would leave
// half empty, and tiles with 80 columns 4 × 20, for heads of 80 and 160. 128 × 96 has 8 × 12, the fewest instructions for an FFMA.
// Tiles with 16 columns or rows have 4 × 4 or 8 × 4, for 9 to 16 of them, of which 32 would leave half empty.
//
// Sliced-K (…_sliced_k). Where there is a tile a multiprocessor or less, a block of two or four warps keeps a scheduler busy for a third of
// the time. There groups of warps, each with a ring of its own, take a part of k each, and add up their sums through shared memory.
//
// H200, 312 drawn products with an operand off 16 bytes, k of 60 to 1200 and at least 120 tiles of 64 × 128; stand-alone runs, geometric
// means: the best tile takes 0.93 of cuBLAS's time, and 1.05 with copies beside each step, as these kernels had them before.
#include "../epilogue/epilogue.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"
#include "store_columns.cuh"

namespace ffma_gemm {

// Where element `i` of step k lies in a panel whose rows of k are PITCH words apart.
template <int PITCH>
struct Pitched {
    static __device__ __forceinline__ constexpr int offset(int k, int i) { return k * PITCH + i; }
};

// How THREADS threads copy EXTENT rows of A (columns of B) by DEPTH steps of k, as panel[DEPTH][PITCH]. A thread's copies go in groups of
// neighbours: a group has one address, and the rest is known to the compiler. From group to group it is the same distance, in memory and
// in the panel.
//   along k:     kLanesK threads beside each other read a run of a row; a group is what a thread reads of this row, the next one is rows on
//   along rows:  kAcross threads beside each other read a run of one k; a group is a thread's part of this k, the next one is steps on
template <int EXTENT, int DEPTH, int THREADS, int PITCH, bool ALONG_K>
struct WordCopies {
    static constexpr int kWord = sizeof(float);
    static constexpr int kLanesK = 8, kRowsAtOnce = THREADS / kLanesK;   // four rows of eight steps use each bank once
    static constexpr int kAcross = EXTENT % kWarp == 0 ? kWarp : kWarp / 2, kStepsAtOnce = THREADS / kAcross;
    static constexpr int kGroups = ALONG_K ? EXTENT / kRowsAtOnce : DEPTH / kStepsAtOnce;
    static constexpr int kInGroup = ALONG_K ? DEPTH / kLanesK : EXTENT / kAcross;
    static constexpr int kFurther = ALONG_K ? kLanesK : kAcross;   // steps or rows from neighbour to neighbour of a group
    static constexpr int kNextPlace = (ALONG_K ? kRowsAtOnce : kStepsAtOnce * PITCH) * kWord;
    static constexpr int kFurtherPlace = (ALONG_K ? kFurther * PITCH : kFurther) * kWord;
    static_assert(DEPTH % kLanesK == 0 && EXTENT % kRowsAtOnce == 0, "threads along k fill whole rows");
    static_assert(EXTENT % kAcross == 0 && DEPTH % kStepsAtOnce == 0, "threads along rows fill whole steps");

    const float* next;        // the first word of this thread's next group
    int64_t step, advance;    // from group to group, and more of it after the last one of a portion
    int64_t further;          // from neighbour to neighbour of a group, where the operand has gaps
    uint32_t place;           // bytes from the panel's start to the first copy's place
    int k;                    // the first copy's, in the panel
    int rows_left;            // from its row on

    __device__ __forceinline__ WordCopies(const Source& source, int first_row, int first_k, unsigned thread) {
        const int row = ALONG_K ? thread / kLanesK : thread % kAcross;
        k = ALONG_K ? thread % kLanesK : thread / kAcross;
        rows_left = source.rows - first_row - row;
        place = (k * PITCH + row) * kWord;
        step = ALONG_K ? kRowsAtOnce * source.row_stride : kStepsAtOnce * source.k_stride;
        advance = DEPTH * source.k_stride - kGroups * step;
        further = kFurther * (ALONG_K ? source.k_stride : source.row_stride);
        next = source.data + (first_row + row) * source.row_stride + (first_k + k) * source.k_stride;
    }

    // Starts part `part` of PARTS of the copies of a portion that is all inside of the slice. `rows` is rows_left, or 0 to copy nothing.
    // Rows outside of the matrix are not copied: what lies in their place goes to outputs that are outside, too.
    template <int PARTS>
    __device__ __forceinline__ void start(uint32_t panel, int part, int rows) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            if (group < kGroups * part / PARTS || group >= kGroups * (part + 1) / PARTS) continue;
#pragma unroll
            for (int i = 0; i < kInGroup; ++i) {
                const int outside = ALONG_K ? group * kRowsAtOnce : i * kFurther;   // where so many rows are left or fewer
                ptx::cp_async_4_if<ALONG_K>(outside < rows, panel + place + group * kNextPlace + i * kFurtherPlace, next + i * kFurther);
            }
            next = ptx::compute_now(next + step);   // or else the compiler keeps as many addresses as there are groups
        }
    }

    // How far the copies of one of PARTS equal parts are from those of the part before, in the panel and in rows. Where those are added to
    // `panel` and taken from `rows`, a part starts like the first.
    template <int PARTS>
    static __device__ __forceinline__ constexpr uint32_t places_of_part() {
        static_assert(kGroups % PARTS == 0, "parts are equal");
        return kGroups / PARTS * kNextPlace;
    }
    template <int PARTS>
    static __device__ __forceinline__ constexpr int rows_of_part() { return ALONG_K ? kGroups / PARTS * kRowsAtOnce : 0; }

    // Starts all copies of a portion that has `k_left` steps before its slice ends, or whose operand has gaps.
    __device__ __forceinline__ void start_guarded(uint32_t panel, int k_left) const {
        const float* from = next;
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
            const int rows = ALONG_K ? rows_left - group * kRowsAtOnce : rows_left;
            const int steps = ALONG_K ? k_left - k : k_left - k - group * kStepsAtOnce;
#pragma unroll
            for (int i = 0; i < kInGroup; ++i) {
                const bool inside = ALONG_K ? rows > 0 && i * kFurther < steps : i * kFurther < rows && steps > 0;
                ptx::cp_async_4_or_zero<ALONG_K>(panel + place + group * kNextPlace + i * kFurtherPlace, from + i * further, inside);
            }
            from += step;
        }
    }
};

// A block's tile: BM × BN in portions of BK along k, WM × WN of it a warp and TM × TN a thread. ROLLED: a portion's two parts are rounds of
// a loop. SHORT: up to so many steps of k, copies are one portion ahead and not STAGES − 1. GROUPS: so many groups of warps share k, each
// with a ring of its own and BLOCK_K / GROUPS steps a portion.
template <int BM, int BN, int BLOCK_K, int WM, int WN, int TM, int TN, int STAGES, bool ROLLED, int SHORT = 0, int GROUPS = 1>
struct Unaligned {
    static constexpr int BK = BLOCK_K / GROUPS;
    using Store = ColumnStore<BM, BN, WM, WN, TM, TN, GROUPS>;
    using Thread = typename Store::Thread;
    static constexpr int kThreads = Store::kThreads, kGroupThreads = Store::kGroupThreads;
    static_assert(STAGES >= 2, "one stage is read while another is filled");
    static_assert(GROUPS == 1 || !ROLLED, "groups may have no part of k at all, which the rolled loop doesn't ask for");
    static constexpr int kFirstBarrier = 1;   // a group's barrier; 0 is the block's

    // Up to so many steps of k copies are one portion ahead. Elsewhere than on Hopper nobody has measured it, and on compute capability 12.0 the
    // branch is one too many for the registers of 64 × 64.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    static constexpr int kShort = 0;
#else
    static constexpr int kShort = SHORT;
#endif

    // A portion's copies start in parts. Each part costs three instructions that wait for the reads of shared memory before it.
    static constexpr int kStepsOfPart = 8, kParts = BK / kStepsOfPart, kHalf = BK / 2;
    static_assert(BK % kStepsOfPart == 0, "parts fill a portion, and fragments alternate between two sets of registers");

    // Rows of k are padded by a vector: words that are transposed land four banks apart.
    static constexpr int kPitchA = BM + kVector, kPitchB = BN + kVector;
    using A = Pitched<kPitchA>;
    using B = Pitched<kPitchB>;

    struct Stage {
        float a[BK * kPitchA], b[BK * kPitchB];
    };
    union Shared {
        Stage stages[GROUPS][STAGES];
        typename Store::Room room;
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        extern __shared__ __align__(16) unsigned char dynamic_shared[];
        Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
        const int group = GROUPS == 1 ? 0 : threadIdx.x / kGroupThreads;
        const unsigned thread = GROUPS == 1 ? threadIdx.x : threadIdx.x % kGroupThreads;   // of the group
        const WorkUnit work = work_of_group(work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x), group);
        const int warp = thread / kWarp, lane = thread % kWarp;
        const int row = Store::first_row(warp, lane), col = Store::first_col(warp, lane);
        const Source a = Source::of_a(args, work.batch), b = Source::of_b(args, work.batch);
        // Each of the four layouts has a main loop, and an end, of its own, or else accumulators would have to be moved.
        with_layout(a, [&](auto a_along_k) {
            with_layout(b, [&](auto b_along_k) {
                Thread tile;
                tile.clear();
                if (GROUPS == 1 || work.k_begin < work.k_end)
                    multiply<a_along_k.value, b_along_k.value>(tile, work, a, b, shared, group, thread, row, col);
                if constexpr (GROUPS > 1) {
                    __syncthreads();   // no group reads its ring any more
                    Store::store_groups(tile, args, work, shared.room, group, warp, lane);
                } else {
                    Store::store(tile, args, work, shared.room, warp, lane);
                }
            });
        });
    }

private:
    template <bool YES>
    struct Flag {
        static constexpr bool value = YES;
    };

    // Calls `act` with whether the operand is read along k, of a type that says it.
    template <typename ACT>
    static __device__ __forceinline__ void with_layout(const Source& source, const ACT& act) {
        if (source.along_rows()) act(Flag<false>());
        else act(Flag<true>());
    }

    // Equal parts of k, but that each begins where another's portion can end: the last groups may have less, or nothing.
    static __device__ __forceinline__ WorkUnit work_of_group(WorkUnit work, int group) {
        if constexpr (GROUPS > 1) {
            const int each = ((work.k_end - work.k_begin - 1) / (GROUPS * kHalf) + 1) * kHalf;
            work.k_begin = min(work.k_begin + group * each, work.k_end);
            work.k_end = min(work.k_begin + each, work.k_end);
        }
        return work;
    }

    // Waits for the threads that share a ring.
    static __device__ __forceinline__ void sync(int group) {
        if constexpr (GROUPS > 1) ptx::named_barrier_sync(kFirstBarrier + group, kGroupThreads);
        else __syncthreads();
    }

    // Waits for this thread's copies of the next portion.
    static __device__ __forceinline__ void wait_for_copies(bool is_short) {
        if (is_short) ptx::cp_async_wait<0>();
        else ptx::cp_async_wait<STAGES - 2>();
    }

    template <bool A_ALONG_K, bool B_ALONG_K>
    static __device__ __forceinline__ void multiply(Thread& tile, const WorkUnit& work, const Source& source_a, const Source& source_b,
                                                    Shared& shared, int group, unsigned thread, int row, int col) {
        WordCopies<BM, BK, kGroupThreads, kPitchA, A_ALONG_K> a(source_a, work.row, work.k_begin, thread);
        WordCopies<BN, BK, kGroupThreads, kPitchB, B_ALONG_K> b(source_b, work.col, work.k_begin, thread);
        const bool gaps = source_a.run == 0 || source_b.run == 0;
        int to_copy = work.k_end - work.k_begin;
        const bool is_short = kShort > 0 && to_copy <= kShort;
        const uint32_t ring = ptx::shared_address(shared.stages[group]);
        constexpr uint32_t kBehind = sizeof(Stage::a);   // where B lies in a stage
        uint32_t filled = ring;                          // the stage that is filled
        // A portion begins with those copies that have to be guarded: if any, all of it. So many rows are left to the others.
        int rows_a, rows_b;
        const auto begin_portion = [&] {
            rows_a = a.rows_left;
            rows_b = b.rows_left;
            if (to_copy < BK || gaps) {
                if (to_copy > 0) {
                    a.start_guarded(filled, to_copy);
                    b.start_guarded(filled + kBehind, to_copy);
                }
                rows_a = rows_b = 0;
            }
        };
        const auto end_portion = [&] {
            a.next += a.advance;
            b.next += b.advance;
            to_copy -= BK;
            ptx::cp_async_commit();   // an empty group past the end keeps the count of groups simple
            filled = filled == ring + (STAGES - 1) * sizeof(Stage) ? ring : filled + sizeof(Stage);
        };
#pragma unroll 1
        for (int ahead = is_short ? 1 : STAGES - 1; ahead > 0; --ahead) {
            begin_portion();
            a.template start<1>(filled, 0, rows_a);
            b.template start<1>(filled + kBehind, 0, rows_b);
            end_portion();
        }
        wait_for_copies(is_short);
        sync(group);   // everybody's part of the first portion has arrived
        const Stage* stage = shared.stages[group];
        tile.template load<A, B>(0, stage->a + row, stage->b + col, 0);
        if constexpr (ROLLED) {
            static_assert(kParts == 2, "a portion begins with one round and ends with the other");
            const float *from_a = stage->a + row, *from_b = stage->b + col;
            uint32_t to_a = 0, to_b = 0;   // the panels of A and B, moved on by a part
            bool second = false;
            // Steps past the end are zeros, and the last portion has one part where that is enough.
#pragma unroll 1
            for (int parts = (work.k_end - work.k_begin - 1) / kStepsOfPart + 1; parts > 0; --parts) {
                if (!second) {
                    begin_portion();
                    to_a = filled;
                    to_b = filled + kBehind;
                }
                a.template start<kParts>(to_a, 0, rows_a);
                b.template start<kParts>(to_b, 0, rows_b);
#pragma unroll
                for (int s = 0; s < kStepsOfPart - 1; ++s) {
                    tile.template load<A, B>((s + 1) % 2, from_a, from_b, s + 1);
                    tile.multiply(s % 2);
                }
                if (second) {
                    end_portion();
                    wait_for_copies(is_short);
                    sync(group);   // the next portion has arrived, and nobody reads this one any more
                    stage = stage == shared.stages[group] + STAGES - 1 ? shared.stages[group] : stage + 1;
                    from_a = stage->a + row;
                    from_b = stage->b + col;
                } else {
                    to_a += a.template places_of_part<kParts>();
                    to_b += b.template places_of_part<kParts>();
                    rows_a -= a.template rows_of_part<kParts>();
                    rows_b -= b.template rows_of_part<kParts>();
                    from_a += kStepsOfPart * kPitchA;
                    from_b += kStepsOfPart * kPitchB;
                }
                second = !second;
                tile.template load<A, B>(kStepsOfPart % 2, from_a, from_b, 0);
                tile.multiply((kStepsOfPart - 1) % 2);
            }
            __syncthreads();   // nobody reads the ring any more, and past the end nothing was copied
            return;
        }
        int left = work.k_end - work.k_begin;
#pragma unroll 1
        for (; left > kHalf; left -= BK) {
            begin_portion();
            const float *from_a = stage->a + row, *from_b = stage->b + col;
#pragma unroll
            for (int s = 0; s < BK; ++s) {
                if (s % kStepsOfPart == 0) {
                    a.template start<kParts>(filled, s / kStepsOfPart, rows_a);
                    b.template start<kParts>(filled + kBehind, s / kStepsOfPart, rows_b);
                }
                if (s + 1 < BK) {
                    tile.template load<A, B>((s + 1) % 2, from_a, from_b, s + 1);
                } else {
                    end_portion();
                    wait_for_copies(is_short);
                    sync(group);   // the next portion has arrived, and nobody reads this one any more
                    stage = stage == shared.stages[group] + STAGES - 1 ? shared.stages[group] : stage + 1;
                    tile.template load<A, B>((s + 1) % 2, stage->a + row, stage->b + col, 0);
                }
                tile.multiply(s % 2);
            }
        }
        if (left > 0) {   // half a portion or less: steps past the end are zeros
            const float *from_a = stage->a + row, *from_b = stage->b + col;
#pragma unroll
            for (int s = 0; s < kHalf; ++s) {
                if (s + 1 < kHalf) tile.template load<A, B>((s + 1) % 2, from_a, from_b, s + 1);
                tile.multiply(s % 2);
            }
        }
        if constexpr (GROUPS == 1) __syncthreads();   // nobody reads the ring any more, and past the end nothing was copied
    }
};

}  // namespace ffma_gemm

// NAME, blocks that share a multiprocessor, BM, BN, portion of k, WM, WN, TM, TN, stages, rolled, k that is short, groups that share k.
#define FFMA_UNALIGNED(NAME, BLOCKS, ...)                                                                      \
    enum : int { NAME##_shared = sizeof(ffma_gemm::Unaligned<__VA_ARGS__>::Shared) };                          \
    extern "C" __global__ void                                                                                 \
        LAUNCH_BOUNDS_SHARED_BY(BLOCKS, ffma_gemm::Unaligned<__VA_ARGS__>::kThreads)                           \
        NAME(const __grid_constant__ GemmArgs args) {                                                          \
        ptx::wait_for_previous_kernels();                                                                      \
        ffma_gemm::Unaligned<__VA_ARGS__>::run(args);                                                          \
    }

FFMA_UNALIGNED(ffma_unaligned_64x128, 4, 64, 128, 16, 32, 64, 8, 8, 3, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_128x64, 4, 128, 64, 16, 64, 32, 8, 8, 3, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_64x96, 4, 64, 96, 16, 16, 96, 4, 12, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_64x80, 6, 64, 80, 16, 32, 80, 4, 20, 3, true, 256, 1)
FFMA_UNALIGNED(ffma_unaligned_96x64, 4, 96, 64, 16, 48, 32, 12, 4, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_128x128, 2, 128, 128, 16, 32, 64, 8, 8, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_128x96, 3, 128, 96, 16, 32, 96, 8, 12, 3, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_128x80, 3, 128, 80, 16, 32, 80, 4, 20, 3, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_64x128_short_k, 4, 64, 128, 16, 32, 64, 8, 8, 3, true, 256, 1)
FFMA_UNALIGNED(ffma_unaligned_128x64_short_k, 4, 128, 64, 16, 64, 32, 8, 8, 3, true, 256, 1)
FFMA_UNALIGNED(ffma_unaligned_64x64, 6, 64, 64, 16, 32, 32, 4, 8, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_64x48, 8, 64, 48, 16, 32, 48, 4, 12, 3, false, 256, 1)
FFMA_UNALIGNED(ffma_unaligned_48x64, 8, 48, 64, 16, 48, 32, 12, 4, 3, false, 256, 1)
FFMA_UNALIGNED(ffma_unaligned_32x96, 8, 32, 96, 16, 16, 96, 4, 12, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_128x32, 5, 128, 32, 16, 32, 32, 4, 8, 2, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_64x32, 7, 64, 32, 16, 16, 32, 4, 4, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_32x64, 8, 32, 64, 16, 32, 32, 4, 8, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_32x48, 13, 32, 48, 16, 32, 48, 4, 12, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_32x32, 14, 32, 32, 16, 16, 32, 4, 4, 2, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_16x32, 19, 16, 32, 16, 16, 32, 4, 4, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_256x16, 5, 256, 16, 16, 64, 16, 8, 4, 2, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_128x16, 7, 128, 16, 16, 32, 16, 4, 4, 2, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_64x16, 12, 64, 16, 16, 32, 16, 4, 4, 3, false, 128, 1)
FFMA_UNALIGNED(ffma_unaligned_16x128, 7, 16, 128, 16, 16, 32, 4, 4, 2, false, 0, 1)
FFMA_UNALIGNED(ffma_unaligned_16x64, 12, 16, 64, 16, 16, 32, 4, 4, 3, false, 128, 1)
// Sliced-K.
FFMA_UNALIGNED(ffma_unaligned_64x64_sliced_k, 2, 64, 64, 32, 32, 32, 4, 8, 3, false, 0, 2)
FFMA_UNALIGNED(ffma_unaligned_64x48_sliced_k, 2, 64, 48, 64, 32, 48, 4, 12, 3, false, 0, 4)
FFMA_UNALIGNED(ffma_unaligned_64x32_sliced_k, 2, 64, 32, 64, 32, 32, 4, 8, 3, false, 0, 4)
FFMA_UNALIGNED(ffma_unaligned_32x64_sliced_k, 2, 32, 64, 64, 32, 32, 4, 8, 3, false, 0, 4)
FFMA_UNALIGNED(ffma_unaligned_32x32_sliced_k, 4, 32, 32, 64, 32, 32, 4, 8, 2, false, 0, 4)
// (Five by registers and shared memory; an H100 holds four.)
FFMA_UNALIGNED(ffma_unaligned_16x32_sliced_k, 5, 16, 32, 64, 16, 32, 4, 4, 3, false, 0, 4)
