// A decoder's step: rotates queries and a new key, writes the key and a new value into a cache, and attends over the cache.
//
// As kernels of their own, a rotation, the writing of the cache, masks and look-ups by position take a launch each, and the attention
// begins when the last of them has ended. Here a lane that has a column of the queries asks for its partner in the rotation, half a
// row away, at the same time, and a lane that has a column of keys does the same for the new one: all of that, the cache's first keys and
// the position are one round trip; cosines and sines, which depend on the position, are a second.
//
// The new key and value take the place of what memory holds at the position: the group of lanes that has this key puts them there
// too. So nobody reads what is written in the same launch. Places behind the position are not seen, whatever they hold.
//
// Rotations are FP32, of the halves of a row (x, y): x·cos − y·sin and x·sin + y·cos. The new key is rounded to the cache's type before it
// is used, so that later steps see the same numbers; queries are rounded like it.
//
// Needs: as attention_rows.cu; rows of a whole number of vectors in each half.
// Predicted for 8 heads of 4 queries and 256 places: 3.7 µs, where the four kernels take 9.

#include <climits>

#include "../abi/attention_step_args.cuh"
#include "attention_rows.cuh"

namespace {

using namespace attention_rows;

constexpr int kNowhere = INT_MAX;   // a position behind all keys

template <typename SHAPE>
struct StepOperands : Operands<SHAPE> {
    using Base = Operands<SHAPE>;
    using Stored = typename SHAPE::Stored;
    using Queries = typename Base::Queries;
    using Columns = float[SHAPE::VECTOR];
    const AttentionStepArgs& step;
    const Stored *new_key_row, *new_value_row;
    Stored *key_place, *value_place;   // of the cache's first place
    int position;
    uint4 new_key, new_value;          // the lane's columns of them

    __device__ __forceinline__ StepOperands(const AttentionStepArgs& step, int unit) : Base(step.attention, unit), step(step) {
        const int batch = unit / step.attention.heads, head = unit - batch * step.attention.heads;
        new_key_row = attention::head_of<Stored>(step.new_key, batch, head);
        new_value_row = attention::head_of<Stored>(step.new_value, batch, head);
        key_place = attention::head_of<Stored>(step.attention.key, batch, head);
        value_place = attention::head_of<Stored>(step.attention.value, batch, head);
    }

    // These columns of a row, rotated with those half a row away, and rounded.
    __device__ __forceinline__ uint4 rotated(const uint4& own, const uint4& partner, const Columns& cosine, const Columns& sine) const {
        Columns x, y;
        SHAPE::Element::unpack(own, x);
        SHAPE::Element::unpack(partner, y);
#pragma unroll
        for (int i = 0; i < SHAPE::VECTOR; ++i) x[i] = fmaf(x[i], cosine[i], y[i] * sine[i]);
        uint4 result;
        SHAPE::Element::store(reinterpret_cast<Stored*>(&result), x);
        return result;
    }

    __device__ __forceinline__ void begin(int first, const Place<SHAPE>& place, Turn<SHAPE>& turn, Queries& queries) {
        const AttentionArgs& args = this->args;
        const int half = args.width / 2, column = place.column;
        const bool upper = column >= half, inside = column < args.width;
        const int partner = upper ? column - half : column + half;
        const uint32_t asked = *step.position;
        uint4 rows[SHAPE::ROWS], partners[SHAPE::ROWS];
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row) {
            rows[row] = this->query_row(row, column, place);
            partners[row] = this->query_row(row, partner, place);
        }
        const uint4 key = load_vector(new_key_row + column, inside), key_partner = load_vector(new_key_row + partner, inside);
        new_value = load_vector(new_value_row + column, column < args.value_width);
        this->fetch(first, place, turn);

        // Only what is there can be written and looked up.
        const bool is_place = asked < static_cast<uint32_t>(args.keys);
        const int last = is_place ? static_cast<int>(asked) : args.keys - 1;
        position = is_place ? last : kNowhere;
        this->keys = last + 1;
        const int64_t angles = static_cast<int64_t>(last) * half + (upper ? partner : column);
        Columns cosine, sine;
        SHAPE::Element::unpack(load_vector(static_cast<const Stored*>(step.cosines) + angles, inside), cosine);
        SHAPE::Element::unpack(load_vector(static_cast<const Stored*>(step.sines) + angles, inside), sine);
#pragma unroll
        for (int i = 0; i < SHAPE::VECTOR; ++i) sine[i] = upper ? sine[i] : -sine[i];
        new_key = rotated(key, key_partner, cosine, sine);
#pragma unroll
        for (int row = 0; row < SHAPE::ROWS; ++row)
            SHAPE::Element::unpack(rotated(rows[row], partners[row], cosine, sine), queries[row]);
    }

    __device__ __forceinline__ void arrived(int first, const Place<SHAPE>& place, Turn<SHAPE>& turn) const {
        const AttentionArgs& args = this->args;
#pragma unroll
        for (int i = 0; i < SHAPE::KEYS; ++i) {
            const int at = first + place.key(i);
            if (at > position) turn.value[i] = make_uint4(0, 0, 0, 0);   // its weight is 0, and 0 times whatever is there may be NaN
            if (at != position) continue;
            turn.key[i] = new_key;
            turn.value[i] = new_value;
            if (place.column < args.width)
                *reinterpret_cast<uint4*>(key_place + at * args.key.row_stride + place.column) = new_key;
            if (place.column < args.value_width)
                *reinterpret_cast<uint4*>(value_place + at * args.value.row_stride + place.column) = new_value;
        }
    }
};

}  // namespace

#define ATTENTION_STEP_OF(NAME, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) NAME(const __grid_constant__ AttentionStepArgs args) {   \
        __shared__ Shape<__VA_ARGS__>::Shared shared;                                                                  \
        run<StepOperands, Shape<__VA_ARGS__>>(args, shared);                                                           \
    }
ATTENTION_KERNELS(ATTENTION_STEP_OF, attention_step)
