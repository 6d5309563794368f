// Up to eight rows of 16-bit numbers times a matrix of weights that is stored n × k: D (m ≤ 8) = X · Wᵀ, at the speed of memory.
//
// gemv_half.cu reads weights as mma.sync wants them, 64 neighbouring bytes of eight lines at a time, and memory hands out small pieces more
// slowly. gemv_stream.cu reads 512 neighbouring bytes, but has a multiplication for each row, which is too slow for more than two.
// Here a warp copies 512 neighbouring bytes of a line at a time by cp.async, into a ring in shared memory that is its own, and reads
// them from there as fragments. What is under way takes no registers, and warps meet only where lines are complete.
//
//   W                                        ring of a warp                    mma m16n8k16
//   ┌─ 256 k ─┬─ 256 k ─┬─ …                 8 lines × 256 k                   rows of X × a group of lines;
//   │ warp 0  │ warp 1  │  …      cp.async   ├─────────┤          16 bytes     a round's X stays in registers
//   └─────────┴─────────┴─ …     ─────────→  ├─────────┤ STAGES  ─────────→
//
// Blocks are persistent, each with an equal share of the groups of eight lines (line_stream.cuh). Warps share k in slices of 256. Where there
// are more slices than warps, a unit of GROUPS groups takes several rounds, each of which begins with its part of X. Where half of the warps or
// fewer have a slice, there are several teams of warps, to which the groups are dealt in turn.
//
// X comes through the ring as well, as a group of eight lines that has places before the round's first one.
//
// Which k a register of a fragment stands for does not matter as long as both operands agree: a lane's 16 bytes, eight neighbours in k, are
// its fragments of two products, (first pair, second pair) and (third pair, fourth pair), for X as for W.
//
// Floor: bytes of W ÷ bandwidth. On an H200, where a copy moves 4.2 TB/s, 14336 × 4096 weights take 28.0 µs, and with eight rows 29.3 to
// 29.8 are reached in a row of launches: the rest is the start, as no two blocks of 200 KB fit on a multiprocessor.
//
// Sums are FP32. A warp adds up rounds in their order, and what warps leave is added in the order of k: results are the same from run to
// run.
//
// Launch. One matrix. At most as many blocks as the multiprocessors hold. It may start while the kernel before still runs.

#include "../epilogue/half.cuh"
#include "../ptx/barriers.cuh"
#include "../ptx/copies.cuh"
#include "../ptx/half.cuh"
#include "../ptx/mma.cuh"
#include "line_stream.cuh"

namespace {

using Number = uint16_t;
constexpr int kVectorNumbers = kVectorBytes / sizeof(Number);
constexpr int kGroup = 8;                                        // lines of a group, and rows of X
constexpr int kSliceK = kWarp * kVectorNumbers;                  // of a line, what a warp copies at once
constexpr int kLineBytes = kWarp * kVectorBytes;                 // of a stage
constexpr int kStageBytes = kGroup * kLineBytes;
constexpr int kReservedBytes = 1024;                             // of shared memory, that CUDA takes with each block
constexpr int kMembers = 4;                                      // lanes that read a line's fragments
constexpr int kLoadBytes = kMembers * kVectorBytes;              // of a line, what they read at once
constexpr int kLoads = kLineBytes / kLoadBytes;
static_assert(kGroup * kMembers == kWarp, "lane 4·g + t has line g and the vectors t, t + 4, …");

// Warps, stages of a ring, groups of a unit that a team has, blocks a multiprocessor.
template <Half TYPE_, int WARPS_, int STAGES_, int GROUPS_, int BLOCKS_>
struct Shape {
    static constexpr Half TYPE = TYPE_;
    static constexpr int WARPS = WARPS_, STAGES = STAGES_, GROUPS = GROUPS_, BLOCKS = BLOCKS_;
    static constexpr int ROUND_K = WARPS * kSliceK;
    static constexpr int THREADS = WARPS * kWarp, LINES = GROUPS * kGroup;
    static constexpr int RING_BYTES = STAGES * kStageBytes;
    static constexpr int SUMS = kGroup * LINES;   // that a warp leaves of a unit

    struct Shared {
        char ring[WARPS][RING_BYTES];
        float sums[2][WARPS][SUMS];   // of this unit and the one before
        uint64_t complete;            // counts the warps that have left the sums of a unit
    };
    static constexpr int SHARED_BYTES = sizeof(Shared);

    // Of a sum among those of a warp. Half a warp writes two sums a lane, of four rows, which lie in different banks.
    static constexpr int SHIFTED_ROWS = 4;
    static __device__ __forceinline__ int place(int row, int line) { return row * LINES + (line ^ row % SHIFTED_ROWS * kGroup); }

    static_assert(GROUPS % SHIFTED_ROWS == 0, "a shifted row stays within its place");
    static_assert(BLOCKS * SHARED_BYTES <= kSharedLimit - (BLOCKS - 1) * kReservedBytes, "a multiprocessor has room for its blocks");
    static_assert(ROUND_K <= kMaxOvershoot, "the end of a round is an int");
};

// How warps share k, and which slice and groups a warp has.
struct Team {
    int rounds, slices;   // of k, and of a round: the warps of a team
    int teams, team, slice;

    __device__ __forceinline__ Team(int k, int warps, int warp) {
        const int all = (k - 1) / kSliceK + 1;
        rounds = (all - 1) / warps + 1;
        slices = (all - 1) / rounds + 1;
        teams = warps / slices;
        team = warp / slices;
        slice = warp - team * slices;
    }
};

// What a warp copies next: a group of a round of a unit, or the part of X of that round.
struct Next {
    int before, round, group;   // groups of the team before the unit; a group of -1 is X
    int left;                   // groups of the unit, none behind the last one

    __device__ __forceinline__ Next(int groups, int most) : before(0), round(0), group(-1), left(min(groups, most)) {}
    __device__ __forceinline__ void advance(int rounds, int groups, int most) {
        if (++group < left) return;
        if (++round == rounds) {
            round = 0;
            before += most;
            left = min(groups - before, most);
        }
        group = rounds > 1 ? -1 : 0;   // a single round's X stays
    }
};

template <typename SHAPE>
__device__ __forceinline__ void multiply(const GemmArgs& args, typename SHAPE::Shared& shared) {
    constexpr int WARPS = SHAPE::WARPS, STAGES = SHAPE::STAGES, GROUPS = SHAPE::GROUPS;
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, line_of_lane = lane / kMembers, member = lane % kMembers;
    if (threadIdx.x == 0) ptx::mbarrier_init(&shared.complete, WARPS);
    const line_stream::Share share(args.n, kGroup);
    const Team team(args.k, WARPS, warp);
    const int all = share.end - share.first;
    const int groups = team.team < team.teams ? (all - team.team + team.teams - 1) / team.teams : 0;   // none of a warp without a team
    const auto group_of = [&](int of_team, int number) { return share.first + number * team.teams + of_team; };

    // A lane copies one vector of each line. In odd lines, every other four vectors change places, so that eight lanes that read
    // fragments, four vectors of two lines, read from different banks.
    char* const ring = shared.ring[warp];
    const uint32_t copy_to[] = {ptx::shared_address(ring + lane * kVectorBytes), ptx::shared_address(ring + (lane ^ kMembers) * kVectorBytes)};
    const char* const own_line = ring + line_of_lane * kLineBytes + member * kVectorBytes;
    const int shift = line_of_lane % 2 * kLoadBytes;
    const char* const read_from[] = {own_line + shift, own_line - shift};   // even and odd loads

    const auto advance_stage = [](int& stage) { stage = stage + kStageBytes == SHAPE::RING_BYTES ? 0 : stage + kStageBytes; };
    int next_stage = 0, stage = 0;
    Next next(groups, GROUPS);
    const auto copy = [&] {
        if (next.left > 0) {
            const bool of_x = next.group < 0;
            const int k = (next.round * team.slices + team.slice) * kSliceK + lane * kVectorNumbers;
            const int bytes = max(0, min(args.k - k, kVectorNumbers)) * static_cast<int>(sizeof(Number));
            const int first = of_x ? 0 : group_of(team.team, next.before + next.group) * kGroup, lines = of_x ? args.m : args.n;
            const int64_t stride = of_x ? args.a.row_stride : args.b.col_stride;
            const Number* const from = static_cast<const Number*>(of_x ? args.a.data : args.b.data) + (bytes > 0 ? k : 0);
#pragma unroll
            for (int i = 0; i < kGroup; ++i) {
                const bool inside = first + i < lines;   // zeros beyond the last line, and beyond k
                ptx::cp_async_16(copy_to[i % 2] + next_stage + i * kLineBytes, from + (inside ? first + i : first) * stride, inside ? bytes : 0);
            }
            advance_stage(next_stage);
            next.advance(team.rounds, groups, GROUPS);
        }
        ptx::cp_async_commit();
    };
    // visit(i, vector): the lane's vectors of the oldest stage, whose place is then filled again.
    const auto with_stage = [&](const auto& visit) {
        ptx::cp_async_wait<STAGES - 1>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kLoads; ++i) visit(i, *reinterpret_cast<const uint4*>(read_from[i % 2] + stage + i * kLoadBytes));
        __syncwarp();
        advance_stage(stage);
        copy();
    };
    // Adds up what all warps left of a unit, and stores it.
    const auto finish = [&](int unit) {
        ptx::mbarrier_wait(&shared.complete, unit % 2);
        const HalfEpilogue<SHAPE::TYPE, false> epilogue(args, 0);
        for (int i = threadIdx.x; i < team.teams * SHAPE::SUMS; i += SHAPE::THREADS) {
            const int of_team = i / SHAPE::SUMS, row = i / SHAPE::LINES % kGroup, line = i % SHAPE::LINES;
            const int group = group_of(of_team, unit * GROUPS + line / kGroup), column = group * kGroup + line % kGroup;
            if (row >= args.m || group >= share.end || column >= args.n) continue;
            float total = 0.0f;
            for (int slice = 0; slice < team.slices; ++slice)
                total += shared.sums[unit % 2][of_team * team.slices + slice][SHAPE::place(row, line)];
            epilogue.store_element(args, row, column, total);
        }
    };

    ptx::let_next_kernel_start();
    line_stream::fetch_ahead<SHAPE::BLOCKS, Number>(args, share.first * kGroup, share.end * kGroup);
    ptx::wait_for_previous_kernels();
#pragma unroll 1
    for (int i = 0; i < STAGES; ++i) copy();
    __syncthreads();   // the barrier is initialised

    uint4 x[kLoads];
    const int units = (all - 1) / team.teams / GROUPS + 1;
    // One pass more than there are units: it is in the first step of a pass that a warp stores its part of the unit before. By then it
    // need not wait for the slowest warp, which has had the time of a group.
#pragma unroll 1
    for (int unit = 0; unit <= units; ++unit) {
        const int count = unit < units ? min(groups - unit * GROUPS, GROUPS) : 0;
        float* const sums = shared.sums[unit % 2][warp];
#pragma unroll 1
        for (int round = 0; round < team.rounds; ++round) {
            if (count > 0 && (team.rounds > 1 || unit == 0)) with_stage([&](int i, uint4 rows) { x[i] = rows; });
#pragma unroll 1
            for (int group = 0; group == 0 || group < count; ++group) {
                float sum[4] = {};   // two lines of row line_of_lane, and of a row of the mma that X does not have
                if (group < count) {
                    with_stage([&](int i, uint4 w) {
                        ptx::mma_half<SHAPE::TYPE>(sum, x[i].x, 0, x[i].y, 0, w.x, w.y);
                        ptx::mma_half<SHAPE::TYPE>(sum, x[i].z, 0, x[i].w, 0, w.z, w.w);
                    });
                }
                if (group == 0 && round == 0 && unit > 0) finish(unit - 1);
                if (group >= count) break;
                // All warps have read what these sums replace: they did so before they left the unit before, for which finish() waited.
                float2* const to = reinterpret_cast<float2*>(sums + SHAPE::place(line_of_lane, group * kGroup + member * 2));
                const float2 before = round == 0 ? make_float2(0.0f, 0.0f) : *to;
                *to = make_float2(before.x + sum[0], before.y + sum[1]);
            }
            if (count <= 0) break;
        }
        __syncwarp();
        if (unit < units && lane == 0) ptx::mbarrier_arrive(&shared.complete);
    }
}

}  // namespace

// Name, warps, stages, groups of a unit, blocks a multiprocessor.
#define GEMV_RING_OF(NAME, TYPE, WARPS, STAGES, GROUPS, BLOCKS)                                                        \
    enum : int { NAME##_shared = Shape<TYPE, WARPS, STAGES, GROUPS, BLOCKS>::SHARED_BYTES };                           \
    extern "C" __global__ void __launch_bounds__(WARPS * kWarp, BLOCKS) NAME(const __grid_constant__ GemmArgs args) {  \
        using SHAPE = Shape<TYPE, WARPS, STAGES, GROUPS, BLOCKS>;                                                      \
        extern __shared__ __align__(kVectorBytes) char shared[];                                                       \
        multiply<SHAPE>(args, *reinterpret_cast<SHAPE::Shared*>(shared));                                              \
    }
#define GEMV_RING(TILE, ...)                                                                                           \
    GEMV_RING_OF(gemv_ring_f16_##TILE, Half::kF16, __VA_ARGS__)                                                        \
    GEMV_RING_OF(gemv_ring_bf16_##TILE, Half::kBF16, __VA_ARGS__)

GEMV_RING(m8, 16, 2, 8, 1)
GEMV_RING(m8_2blocks, 8, 3, 4, 2)
