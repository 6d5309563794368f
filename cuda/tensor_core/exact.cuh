// FP32 sums for the elements where the tensor core's are no use: those that are not finite.
//
// Splitting or rounding an operand may turn Inf into Inf + NaN and a number near FLT_MAX into Inf, so a sum that saw one
// may be NaN, or Inf, where FP32 arithmetic says something else; but it is never finite. So what is finite is right, and
// the rest is computed again, by the warp that holds it, from global memory.
//
// A warp goes through its sums in parts of 16 rows of R by 16 rows of S (a few kernels take 8). Where few of the rows, or few
// of the columns, of a part have something to compute again, as after one Inf in an operand, it takes these one by one; else
// all 256 sums at once, 16 a lane, so that 8 loads of 16 bytes feed 64 FFMA. Lanes that share sums take different k, and
// neighbours in k lie in neighbouring lanes: what is contiguous along k is read in whole sectors. The order of additions
// depends on nothing but the places of what is not finite.
//
// Most such sums are known early. One that is NaN stays NaN, so nobody goes on when all are; and where all are NaN or Inf, one
// look at the rest of both operands (their signs, zeros, infinities) often tells that no product to come can change an Inf.
#pragma once

#include "../ptx/execution.cuh"
#include "../ptx/machine.cuh"

namespace {

constexpr float kNaN = __builtin_nanf("");

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e+38f; }

// One of the two matrices that a block multiplies, over its slice of k.
struct ExactOperand {
    const float* data;              // (row 0, first k)
    int64_t row_stride, k_stride;
    int rows;
    bool vectors;                   // k_stride is 1, and rows start on 16 bytes
    bool row_vectors;               // row_stride is 1, and every fourth row starts on 16 bytes at every k

    // Past the last row: that one, whose sums nobody takes.
    __device__ __forceinline__ const float* at(int row, int k) const {
        return data + min(row, rows - 1) * row_stride + k * k_stride;
    }
    // Four neighbours in k, and goes on to those after `step` of k.
    template <int STEP>
    __device__ __forceinline__ float4 take(const float*& at) const {
        if (vectors) {
            const float4 x = *reinterpret_cast<const float4*>(at);
            at += STEP;
            return x;
        }
        float x[kVector];
#pragma unroll
        for (int i = 0; i < kVector; ++i) {   // one address at a time, none of them kept
            x[i] = *at;
            at += i + 1 < kVector ? k_stride : (STEP - kVector + 1) * k_stride;
        }
        return make_float4(x[0], x[1], x[2], x[3]);
    }
};

// Rows of an operand that lie anywhere, each at this lane's next k.
template <int COUNT>
struct AnyRows {
    const float* at[COUNT];

    // Four neighbours in k of each, and goes on by STEP of k.
    template <int STEP>
    __device__ __forceinline__ void take(const ExactOperand& from, float4 (&x)[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = from.take<STEP>(at[i]);
    }
    __device__ __forceinline__ void take_one(const ExactOperand&, float (&x)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) x[i] = *at[i];
    }
    __device__ __forceinline__ void go_on(const ExactOperand& from, int k) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] += k * from.k_stride;
    }
};

// Neighbouring rows of an operand whose k can be read four at a time: one address for all. Of those past the last, that one.
template <int COUNT>
struct NeighbourRows {
    const float* first;
    int inside;

    template <typename VISIT>
    __device__ __forceinline__ void visit(const ExactOperand& from, const VISIT& visit) const {
        const float* at = first;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            visit(i, at);
            if (i + 1 < inside) at += from.row_stride;
        }
    }
    template <int STEP>
    __device__ __forceinline__ void take(const ExactOperand& from, float4 (&x)[COUNT]) {
        visit(from, [&](int i, const float* at) { x[i] = *reinterpret_cast<const float4*>(at); });
        first += STEP;
    }
    __device__ __forceinline__ void take_one(const ExactOperand& from, float (&x)[COUNT]) const {
        visit(from, [&](int i, const float* at) { x[i] = *at; });
    }
    __device__ __forceinline__ void go_on(const ExactOperand&, int k) { first += k; }
};

// Kinds of numbers, as bits.
enum Kind : unsigned { kNegative = 1, kPositive = 2, kZero = 4, kInfinite = 8, kNotANumber = 16, kUnseen = 32 };

// Whether sums that are Inf stay what they are, whichever products of numbers of these kinds are added.
__device__ __forceinline__ bool infinities_stay(unsigned r, unsigned s, bool positive_sums, bool negative_sums) {
    const auto both = [&](unsigned of_r, unsigned of_s) { return (r & of_r) != 0 && (s & of_s) != 0; };
    if (((r | s) & kNotANumber) != 0 || both(kInfinite, kZero) || both(kZero, kInfinite)) return false;
    if (((r | s) & kInfinite) == 0) return true;
    const bool positive = both(kPositive, kPositive) || both(kNegative, kNegative);
    const bool negative = both(kPositive, kNegative) || both(kNegative, kPositive);
    return !(positive_sums && negative) && !(negative_sums && positive);
}

// The numbers that a lane has seen.
struct Seen {
    float low = 0.0f, high = 0.0f;
    uint32_t least = ~0u, most = 0;   // of the bits without the sign, which are in the order of the numbers

    __device__ __forceinline__ void see(float x) {
        const uint32_t bits = __float_as_uint(fabsf(x));
        low = fminf(low, x), high = fmaxf(high, x);
        least = min(least, bits), most = max(most, bits);
    }
    __device__ __forceinline__ void see(const float4& x) { see(x.x), see(x.y), see(x.z), see(x.w); }

    // The kinds that the warp has seen.
    __device__ __forceinline__ unsigned kinds() const {
        constexpr uint32_t kInfinity = 0x7F800000u;
        const unsigned mine = (low < 0.0f ? kNegative : 0) | (high > 0.0f ? kPositive : 0) | (least == 0 ? kZero : 0) |
                              (most == kInfinity ? kInfinite : 0) | (most > kInfinity ? kNotANumber | kInfinite : 0);
        return __reduce_or_sync(kWholeWarp, mine);
    }
};

// The kinds of numbers in ROWS rows of an operand, those of row_of(0 to ROWS - 1), from `first_k` to before `end_k`, with FLIGHT
// loads of a lane under way together. Four neighbours of row_of's from a multiple of four on are neighbours in the operand.
// Where enough(kinds so far) says so after a row, it does without the others.
template <int ROWS, int FLIGHT, typename ROW_OF, typename ENOUGH>
__device__ __forceinline__ unsigned kinds_of(const ExactOperand& from, const ROW_OF& row_of, int first_k, int end_k,
                                             const ENOUGH& enough) {
    constexpr int kRowVectors = ROWS / kVector, kFlight = FLIGHT > 0 ? FLIGHT : 1;
    const int lane = ptx::recompute(threadIdx.x) % kWarp;
    Seen seen;
    if (from.vectors) {   // row after row, the lanes at neighbouring vectors of k
        const int vectors = (end_k - first_k) / kVector;
#pragma unroll 1
        for (int row = 0; row < ROWS; ++row) {
            const float* at = from.at(row_of(row), first_k);
#pragma unroll kFlight
            for (int i = lane; i < vectors; i += kWarp) seen.see(reinterpret_cast<const float4*>(at)[i]);
            for (int k = vectors * kVector + lane; k < end_k - first_k; k += kWarp) seen.see(at[k]);
            if (enough(seen.kinds())) break;
        }
    } else if (from.row_vectors && __all_sync(kWholeWarp, row_of(lane % kRowVectors * kVector) + kVector <= from.rows)) {
        constexpr int kLanes = kWarp / kRowVectors;   // that share their rows
        const float* at = from.at(row_of(lane % kRowVectors * kVector), first_k + lane / kRowVectors);
#pragma unroll kFlight
        for (int k = first_k + lane / kRowVectors; k < end_k; k += kLanes, at += kLanes * from.k_stride)
            seen.see(*reinterpret_cast<const float4*>(at));
    } else {
        constexpr int kLanes = kWarp / ROWS;
        const float* at = from.at(row_of(lane % ROWS), first_k + lane / ROWS);
#pragma unroll kFlight
        for (int k = first_k + lane / ROWS; k < end_k; k += kLanes, at += kLanes * from.k_stride) seen.see(*at);
    }
    return seen.kinds();
}

// Adds products of R and S to the sums of ROWS rows by COLS columns. The K_LANES lanes that share these sums, of which this
// one has number `k_lane`, take four k each in turn, AHEAD turns with their loads under way together; the rows are at this
// lane's first k. Returns as soon as all sums of the warp are NaN, and may be called with sums that are: NaN stays NaN. The
// first time that none is finite, it asks stays(first k of what is left, whether some are +Inf, whether some are -Inf), and
// returns if that is so.
template <int K_LANES, int AHEAD, int ROWS, int COLS, typename R_ROWS, typename S_ROWS, typename STAYS>
__device__ __forceinline__ void add_products(const ExactOperand& r, const ExactOperand& s, R_ROWS r_rows, S_ROWS s_rows,
                                             int k_lane, int k, float (&sum)[ROWS][COLS], const STAYS& stays) {
    constexpr int kTurn = K_LANES * kVector, kOnce = AHEAD * kTurn;
    constexpr int kStretch = kOnce < 32 ? 32 : kOnce;   // of k between two looks for sums that are not NaN
    static_assert(kStretch % kOnce == 0, "a stretch is whole turns");
    int left = k;
    bool ask = true;
    for (; left >= kStretch; left -= kStretch) {
#pragma unroll 1
        for (int turns = 0; turns < kStretch / kOnce; ++turns) {
            float4 x[AHEAD][ROWS], y[AHEAD][COLS];
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead) {
                r_rows.template take<kTurn>(r, x[ahead]);
                s_rows.template take<kTurn>(s, y[ahead]);
            }
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead) {
#pragma unroll
                for (int j = 0; j < COLS; ++j) {
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        sum[i][j] = fmaf(x[ahead][i].x, y[ahead][j].x, sum[i][j]);
                        sum[i][j] = fmaf(x[ahead][i].y, y[ahead][j].y, sum[i][j]);
                        sum[i][j] = fmaf(x[ahead][i].z, y[ahead][j].z, sum[i][j]);
                        sum[i][j] = fmaf(x[ahead][i].w, y[ahead][j].w, sum[i][j]);
                    }
                }
            }
        }
        float low = kNaN, high = kNaN;   // of the sums that are numbers, if there are any
        float nearest = kNaN;            // to 0
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < COLS; ++j) {
                low = fminf(low, sum[i][j]);
                high = fmaxf(high, sum[i][j]);
                nearest = fminf(nearest, fabsf(sum[i][j]));
            }
        }
        if (__all_sync(kWholeWarp, isnan(nearest))) return;
        if (ask && !__any_sync(kWholeWarp, is_finite(nearest))) {
            ask = false;
            const bool positive = __any_sync(kWholeWarp, high > 0.0f), negative = __any_sync(kWholeWarp, low < 0.0f);
            if (stays(k - left + kStretch, positive, negative)) return;
        }
    }
    // The rest of k, one at a time.
    r_rows.go_on(r, -k_lane * (kVector - 1));
    s_rows.go_on(s, -k_lane * (kVector - 1));
#pragma unroll 1
    for (int at = k_lane; at < left; at += K_LANES) {
        float x[ROWS], y[COLS];
        r_rows.take_one(r, x);
        s_rows.take_one(s, y);
        r_rows.go_on(r, K_LANES);
        s_rows.go_on(s, K_LANES);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; ++j) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
    }
}

// The sum of a number over the lanes that differ in these bits of their numbers.
template <int FIRST_BIT, int LAST_BIT>
__device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
    for (int bit = FIRST_BIT; bit <= LAST_BIT; bit *= 2) x += __shfl_xor_sync(kWholeWarp, x, bit);
    return x;
}

// Which of the sums of a part, 16 rows of R by 2·COUNT rows of S (here: columns), lane 4·group + quad of a warp has: those of
// two neighbouring columns in row `group`, the same eight rows further, and so on eight columns further.
template <int COUNT>
struct ExactPart {
    static constexpr int kColumns = COUNT / 2;   // of a lane, each with two sums
    static constexpr int kQuads = 4, kGroups = kWarp / kQuads;

    static __device__ __forceinline__ constexpr int half(int i) { return i / 2 % 2; }
    static __device__ __forceinline__ constexpr int own_column(int i) { return i / 4 * 2 + i % 2; }   // of kColumns
    static __device__ __forceinline__ constexpr int index(int half, int j) { return j / 2 * 4 + half * 2 + j % 2; }
    static __device__ __forceinline__ constexpr int column(int quad, int j) { return j / 2 * 8 + quad * 2 + j % 2; }
};

// Computes the sums of a part that are not finite again. `row_of(half, group)` is a row of R, `first_s` the first row of S,
// k the length of the sums, `of_r` the kinds of numbers in the rows of R, or kUnseen.
//
// Loads of 16 bytes cost the L1 a clock for each line that eight neighbouring lanes ask for. So where four neighbours in k of S
// can be read at once in both operands (SHARED_ROWS), all lanes ask for the same row of S, and eight for the same row of R.
// AHEAD turns of loads are under way together, and FLIGHT loads while it looks at the rest of the operands, which it does not
// where FLIGHT is 0: both cost registers.
template <int AHEAD, bool SHARED_ROWS, int FLIGHT, int COUNT, typename ROW_OF>
__device__ __forceinline__ void recompute(const ExactOperand& r, const ExactOperand& s, const ROW_OF& row_of, int first_s,
                                          int k, unsigned& of_r, float (&x)[COUNT]) {
    using Part = ExactPart<COUNT>;
    constexpr int kColumns = Part::kColumns, kQuads = Part::kQuads, kGroups = Part::kGroups;
    constexpr int kFew = 4;   // rows or columns; more than about these take longer one by one than all at once
    const int lane = ptx::recompute(threadIdx.x) % kWarp;   // and what follows from it, so that nothing is kept for here
    const int group = lane / kQuads, quad = lane % kQuads;

    unsigned bad = 0, bad_rows = 0, bad_cols = 0;   // this lane's by index; the part's
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int half = Part::half(i), col = Part::column(quad, Part::own_column(i));
        if (is_finite(x[i]) || row_of(half, group) >= r.rows || first_s + col >= s.rows) continue;
        bad |= 1u << i;
        bad_rows |= 1u << (half * kGroups + group);
        bad_cols |= 1u << col;
    }
    bad_rows = __reduce_or_sync(kWholeWarp, bad_rows);
    bad_cols = __reduce_or_sync(kWholeWarp, bad_cols);
    if (bad_rows == 0) return;
    const int rows = __popc(bad_rows), cols = __popc(bad_cols);
    // Whether Inf stays Inf in all sums of the part. A glance says no soon, where the answer is no; what is seen of R, which is
    // the same for all parts, is kept.
    const auto stays = [&](int first_k, bool positive, bool negative) {
        if constexpr (FLIGHT == 0) return false;
        constexpr int kGlance = kWarp * kVector, kRows = 2 * kGroups;
        const auto row_of_r = [&](int row) { return row_of(row / kGroups, row % kGroups); };
        const auto row_of_s = [&](int row) { return first_s + row; };
        const auto all = [](unsigned) { return false; };
        const auto change = [&](unsigned of_s) { return !infinities_stay(of_r, of_s, positive, negative); };
        if (of_r == kUnseen) {
            const int end = min(first_k + kGlance, k);
            const unsigned glance = kinds_of<kRows, 1>(r, row_of_r, first_k, end, all);
            const unsigned of_s = kinds_of<2 * COUNT, 1>(s, row_of_s, first_k, end, all);
            if (!infinities_stay(glance, of_s, positive, negative)) return false;
            of_r = kinds_of<kRows, FLIGHT>(r, row_of_r, 0, k, all);
        }
        return !change(0) && !change(kinds_of<2 * COUNT, FLIGHT>(s, row_of_s, first_k, k, change));
    };
    const auto nobody_looks = [](int, bool, bool) { return false; };   // where it is not worth it
    // Where a sum starts: what nobody asks for is NaN, so that nobody waits for it.
    const auto start = [](unsigned wanted, int i) { return (wanted >> i & 1) != 0 ? 0.0f : kNaN; };

    if (rows <= min(cols, kFew)) {
        // A row: every group of lanes takes other k.
#pragma unroll 1
        for (; bad_rows != 0; bad_rows &= bad_rows - 1) {
            const int row = __ffs(bad_rows) - 1, half = row / kGroups, of_group = row % kGroups;
            const unsigned wanted = __shfl_sync(kWholeWarp, bad, of_group * kQuads + quad);
            const AnyRows<1> r_rows = {{r.at(row_of(half, of_group), group * kVector)}};
            AnyRows<kColumns> s_rows;
            float sum[1][kColumns];
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                s_rows.at[j] = s.at(first_s + Part::column(quad, j), group * kVector);
                sum[0][j] = start(wanted, Part::index(half, j));
            }
            add_products<kGroups, AHEAD + 1>(r, s, r_rows, s_rows, group, k, sum, nobody_looks);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) sum[0][j] = sum_over_lanes<kQuads, kWarp / 2>(sum[0][j]);
            const unsigned mine = group == of_group ? bad : 0;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (Part::half(i) == half && (mine >> i & 1) != 0) x[i] = sum[0][Part::own_column(i)];
            }
        }
    } else if (cols <= kFew) {
        // A column: the four lanes of a group take other k.
#pragma unroll 1
        for (; bad_cols != 0; bad_cols &= bad_cols - 1) {
            const int col = __ffs(bad_cols) - 1, of_quad = col / 2 % kQuads, j = col / 8 * 2 + col % 2;
            const unsigned wanted = __shfl_sync(kWholeWarp, bad, group * kQuads + of_quad);
            const AnyRows<2> r_rows = {{r.at(row_of(0, group), quad * kVector), r.at(row_of(1, group), quad * kVector)}};
            const AnyRows<1> s_rows = {{s.at(first_s + col, quad * kVector)}};
            float sum[2][1] = {{start(wanted, Part::index(0, j))}, {start(wanted, Part::index(1, j))}};
            add_products<kQuads, AHEAD>(r, s, r_rows, s_rows, quad, k, sum, nobody_looks);
#pragma unroll
            for (int half = 0; half < 2; ++half) sum[half][0] = sum_over_lanes<1, kQuads / 2>(sum[half][0]);
            const unsigned mine = quad == of_quad ? bad : 0;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                if (Part::own_column(i) == j && (mine >> i & 1) != 0) x[i] = sum[Part::half(i)][0];
            }
        }
    } else if constexpr (SHARED_ROWS) {
        // All: the eight lanes of two groups take other k of their four rows, and all columns, or half of them at a time.
        constexpr int kLanes = 2 * kQuads, kPasses = COUNT > 4 ? 2 : 1;
        constexpr int kOnce = COUNT / kPasses, kCols = 2 * kOnce;
        const int k_lane = lane % kLanes, of_group = group % 2, first_group = group - of_group;
        const bool upper = quad / 2 != 0, odd = quad % 2 != 0;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            if ((bad_cols >> pass * kCols & (1u << kCols) - 1) == 0) continue;
            AnyRows<4> r_rows;
#pragma unroll
            for (int i = 0; i < 4; ++i) r_rows.at[i] = r.at(row_of(i % 2, first_group + i / 2), k_lane * kVector);
            const int first_col = first_s + pass * kCols;
            const NeighbourRows<kCols> s_rows = {s.at(first_col, k_lane * kVector), s.rows - first_col};
            float sum[4][kCols];
#pragma unroll
            for (int owner = 0; owner < kLanes; ++owner) {
                const unsigned wanted = __shfl_sync(kWholeWarp, bad, first_group * kQuads + owner);
#pragma unroll
                for (int i = 0; i < kOnce; ++i)
                    sum[owner / kQuads * 2 + Part::half(i)][Part::column(owner % kQuads, Part::own_column(i))] =
                        start(wanted, pass * kOnce + i);
            }
            add_products<kLanes, 1>(r, s, r_rows, s_rows, k_lane, k, sum, stays);
#pragma unroll
            for (int i = 0; i < kOnce; ++i) {   // a lane ends up with the sums that it owns
                float part[kQuads];
#pragma unroll
                for (int of_quad = 0; of_quad < kQuads; ++of_quad) {
                    const int half = Part::half(i), col = Part::column(of_quad, Part::own_column(i));
                    const float give = of_group == 1 ? sum[half][col] : sum[2 + half][col];
                    part[of_quad] = (of_group == 1 ? sum[2 + half][col] : sum[half][col]) +
                                    __shfl_xor_sync(kWholeWarp, give, kQuads);
                }
                const float first = (upper ? part[2] : part[0]) + __shfl_xor_sync(kWholeWarp, upper ? part[0] : part[2], 2);
                const float second = (upper ? part[3] : part[1]) + __shfl_xor_sync(kWholeWarp, upper ? part[1] : part[3], 2);
                const float all = (odd ? second : first) + __shfl_xor_sync(kWholeWarp, odd ? first : second, 1);
                if ((bad >> pass * kOnce + i & 1) != 0) x[pass * kOnce + i] = all;
            }
        }
    } else {
        // All: two groups of lanes share the rows of both and take other k.
        const int odd = group % 2;
        const unsigned others = __shfl_xor_sync(kWholeWarp, bad, kQuads);
        const unsigned wanted[2] = {odd ? others : bad, odd ? bad : others};
        AnyRows<4> r_rows;
        AnyRows<kColumns> s_rows;
        float sum[4][kColumns];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r_rows.at[i] = r.at(row_of(i % 2, group - odd + i / 2), odd * kVector);
#pragma unroll
            for (int j = 0; j < kColumns; ++j) sum[i][j] = start(wanted[i / 2], Part::index(i % 2, j));
        }
#pragma unroll
        for (int j = 0; j < kColumns; ++j) s_rows.at[j] = s.at(first_s + Part::column(quad, j), odd * kVector);
        add_products<2, AHEAD>(r, s, r_rows, s_rows, odd, k, sum, stays);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int half = Part::half(i), j = Part::own_column(i);
            const float even_row = sum[half][j], odd_row = sum[2 + half][j];
            const float all = (odd ? odd_row : even_row) + __shfl_xor_sync(kWholeWarp, odd ? even_row : odd_row, kQuads);
            if ((bad >> i & 1) != 0) x[i] = all;
        }
    }
}

// Whether all of these are numbers, and finite, in all lanes of the warp.
template <int COUNT>
__device__ __forceinline__ bool all_finite(const float (&x)[COUNT]) {
    float probe = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) probe = fmaf(x[i], 0.0f, probe);   // NaN if any is Inf or NaN
    return !__any_sync(kWholeWarp, isnan(probe));
}

// Hands out the sums of a warp part by part: visit(number of the part, its sums). They pass by like a drum, so that there is
// one copy of what visit does.
template <int PART, int COUNT, typename VISIT>
__device__ __forceinline__ void visit_parts(float (&sum)[COUNT], const VISIT& visit) {
    static_assert(COUNT % PART == 0, "every turn of the drum has a part");
#pragma unroll 1
    for (int part = 0; part < COUNT / PART; ++part) {
        float now[PART];
#pragma unroll
        for (int i = 0; i < PART; ++i) now[i] = sum[i];
        visit(part, now);
#pragma unroll
        for (int i = 0; i + PART < COUNT; ++i) sum[i] = sum[i + PART];
#pragma unroll
        for (int i = 0; i < PART; ++i) sum[COUNT - PART + i] = now[i];
    }
}

}  // namespace
