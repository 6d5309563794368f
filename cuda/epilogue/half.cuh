// The epilogue of kernels with 16-bit operands:
//
//   D ← round(activation(α·acc + β·C + bias) + residual)        or times the residual
//
// Everything is FP32 until D is stored, which rounds once. C, bias, residual and D are each of the operands' type or FP32, as the
// arguments say at run time.
//
// It works on fragments: what a thread holds of 16 rows of a result of mma.sync or wgmma. x[4c + 2h + e] belongs to the element
// (8h, 8c + e) from the thread's first, which is (lane / 4, lane % 4 · 2) of the warp's. Neighbours e are read and written
// together where addresses allow. Where the product was computed as Dᵀ, the fragment is the same with rows and columns
// exchanged, and neighbours are a row apart.
#pragma once

#include "../ptx/half.cuh"
#include "epilogue.cuh"

using ptx::Half;

constexpr int kFragmentRows = 16, kFragmentColumns = 8;   // of the warp; the latter for four numbers a thread

template <Half TYPE>
constexpr ElementType kElementOf = TYPE == Half::kBF16 ? kBF16 : kF16;

// ---- activations ---------------------------------------------------------------------------------------------------
//
// The results keep 8 or 11 bits, so the quick exponential and reciprocal, with errors of 2^-22 to 2^-18, are accurate enough.
// They have no branches: values overlap each other's latencies, and code is short.

// σ(t) is computed as so many times itself, for the reciprocal flushes results below 2^-126 to 0: t·σ(t) can still be a number of BF16.
constexpr float kLog2Up = 16.0f, kDown = 0x1p-16f;

__device__ __forceinline__ float quick_sigmoid(float t) {
    constexpr float kMinusLog2E = -1.4426950408889634f;
    return ptx::reciprocal(kDown + ptx::exp2_approximate(fmaf(t, kMinusLog2E, -kLog2Up))) * kDown;
}

// x·Φ(x), from Φ(−t) = e^(−t²/2)·q·p(q) with q = 1/(1 + 0.3·t): the polynomial p, fitted to least relative error, is within 1.3e-7
// up to t = 13.5, beyond which FP32 has nothing left of e^(−t²/2). So negative x keep their relative accuracy.
__device__ __forceinline__ float quick_gelu_erf(float x) {
    constexpr float kScale = 0.3f, kMinusHalfLog2E = -0.72134752044448170f;
    constexpr float kFar = 30.0f;   // e^(−t²/2) is 0 from here on, and ∞ · 0 is to be 0
    constexpr float kPolynomial[] = {0.03593172610909184f, -0.15827596692216747f, 0.20820655574426628f,
                                     -0.055393807467680634f, 0.1294691832258893f, 0.09963749727801419f,
                                     0.12079835790410558f, 0.11962638974590846f};
    const float t = fabsf(x), q = ptx::reciprocal(fmaf(t, kScale, 1.0f));
    float p = kPolynomial[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) p = fmaf(p, q, kPolynomial[i]);
    const float lower = p * q * ptx::exp2_approximate(x * x * kMinusHalfLog2E);   // Φ(−t)
    return fmaf(-fminf(t, kFar), lower, x < 0.0f ? 0.0f : x);
}

// The same for a result that is rounded to TYPE, without a reciprocal: Φ(−t) = 2^g(t), the polynomial g fitted to least error up to kEnd, where nothing
// is left of t·Φ(−t) in TYPE. Relative error of Φ: F16 2^-18; BF16 2^-14 up to t = 5, and 2^-11 where results are below 2^-19.
template <Half TYPE>
__device__ __forceinline__ float gelu_erf_of(float x) {
    constexpr bool kWide = TYPE == Half::kBF16;   // its exponents
    constexpr float kEnd = kWide ? 13.5f : 5.9f;
    constexpr int kDegree = kWide ? 8 : 7;
    constexpr float kBF16s[] = {3.38067951e-08f, -2.07998578e-06f, 5.48972962e-05f, -8.22842548e-04f, 7.88154638e-03f,
                                -5.22394666e-02f, -4.60645233e-01f, -1.15022095e+00f, -1.00007753e+00f};
    constexpr float kF16s[] = {-1.83296158e-06f, 6.15667718e-05f, -9.30317850e-04f, 8.50723205e-03f,
                               -5.39590215e-02f, -4.58465161e-01f, -1.15125084e+00f, -9.99995303e-01f};
    const float t = fminf(fabsf(x), kEnd);
    float g = kWide ? kBF16s[0] : kF16s[0];
#pragma unroll
    for (int i = 1; i <= kDegree; ++i) g = fmaf(g, t, kWide ? kBF16s[i] : kF16s[i]);
    return fmaf(-t, ptx::exp2_approximate(g), ptx::max_or_nan(x, 0.0f));
}

template <Activation ACTIVATION>
__device__ __forceinline__ float quickly_activated(float x) {
    constexpr float kTwoSqrtTwoOverPi = 1.59576912160573071176f, kGeluCubic = 0.044715f;
    if constexpr (ACTIVATION == kGeluErf) return quick_gelu_erf(x);
    if constexpr (ACTIVATION == kGeluTanh) return x * quick_sigmoid(kTwoSqrtTwoOverPi * x * (1.0f + kGeluCubic * x * x));
    if constexpr (ACTIVATION == kSilu) return x * quick_sigmoid(x);
    if constexpr (ACTIVATION == kSigmoid) return quick_sigmoid(x);
    return activated<ACTIVATION>(x);
}

template <Activation ACTIVATION, int COUNT>
__device__ __forceinline__ void activate_quickly(float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) x[i] = quickly_activated<ACTIVATION>(x[i]);
}

// One jump for all the values.
template <int COUNT>
__device__ __forceinline__ void activate_quickly(Activation activation, float (&x)[COUNT]) {
    switch (activation) {
        case kRelu: return activate_quickly<kRelu>(x);
        case kGeluTanh: return activate_quickly<kGeluTanh>(x);
        case kGeluErf: return activate_quickly<kGeluErf>(x);
        case kSilu: return activate_quickly<kSilu>(x);
        case kTanh: return activate_quickly<kTanh>(x);
        case kSigmoid: return activate_quickly<kSigmoid>(x);
        default: return;
    }
}

// Hands out values part by part: visit(number of the part, its values). They pass by like a drum, so that there is one copy of
// what visit does, which the instruction cache keeps.
template <int PART, int COUNT, typename VISIT>
__device__ __forceinline__ void in_turn(float (&x)[COUNT], const VISIT& visit) {
    static_assert(COUNT % PART == 0, "every turn of the drum has a part");
#pragma unroll 1
    for (int part = 0; part < COUNT / PART; ++part) {
        float now[PART];
#pragma unroll
        for (int i = 0; i < PART; ++i) now[i] = x[i];
#pragma unroll
        for (int i = 0; i + PART < COUNT; ++i) x[i] = x[i + PART];
        visit(part, now);
    }
}

// ---- operands of either type ---------------------------------------------------------------------------------------

// What a word holds.
template <Half TYPE>
__device__ __forceinline__ float2 pair_of(uint32_t word) {
    return make_float2(ptx::low_to_float<TYPE>(word), ptx::high_to_float<TYPE>(word));
}

// C, the residual, the bias or D, from the first element of a matrix on.
template <Half TYPE>
struct Elements {
    void* data;   // nullptr: there is none
    int64_t row_stride, col_stride;
    bool wide;    // FP32 rather than TYPE
    bool pairs;   // an element in an even column and the next one start on the bytes that both take

    static __device__ __forceinline__ Elements of(const GemmArgs& args, const GemmOperand& operand, ElementType type,
                                                  Access access, int batch) {
        const bool wide = type == kF32;
        char* data = static_cast<char*>(operand.data) + batch_offset(args, operand, batch) * (wide ? 4 : 2);
        return {data, operand.row_stride, operand.col_stride, wide, access == kRowVector};
    }
    static __device__ __forceinline__ Elements none() { return {nullptr, 0, 0, false, false}; }
    static __device__ __forceinline__ Elements bias_of(const GemmArgs& args) {
        const bool wide = args.bias_type == kF32;
        const bool aligned = reinterpret_cast<uintptr_t>(args.bias) % (wide ? 8 : 4) == 0;
        return {const_cast<void*>(args.bias), 0, args.bias_stride, wide, args.bias_stride == 1 && aligned};
    }

    __device__ __forceinline__ int64_t place(int row, int col) const { return row * row_stride + col * col_stride; }

    __device__ __forceinline__ float load(int64_t at) const {
        if (wide) return static_cast<const float*>(data)[at];
        return ptx::low_to_float<TYPE>(static_cast<const uint16_t*>(data)[at]);
    }
    // This element and the one in the next column, of which `count` are inside; 0 for the others.
    __device__ __forceinline__ float2 load_pair(int64_t at, int count) const {
        if (pairs && count >= 2) {
            if (wide) return *reinterpret_cast<const float2*>(static_cast<const float*>(data) + at);
            return pair_of<TYPE>(*reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + at));
        }
        return make_float2(count >= 1 ? load(at) : 0.0f, count >= 2 ? load(at + col_stride) : 0.0f);
    }
    // Pairs of a row, kFragmentColumns apart, with `count` columns inside from the first one on. All are asked for before one is looked at: a branch
    // for each would wait for each.
    template <int PAIRS>
    __device__ __forceinline__ void load_pairs(int64_t at, int count, float2 (&x)[PAIRS]) const {
        if (pairs && count >= (PAIRS - 1) * kFragmentColumns + 2) {
            if (wide) {
                const float* const from = static_cast<const float*>(data) + at;
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) x[i] = *reinterpret_cast<const float2*>(from + i * kFragmentColumns);
            } else {
                const uint16_t* const from = static_cast<const uint16_t*>(data) + at;
                uint32_t words[PAIRS];
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) words[i] = *reinterpret_cast<const uint32_t*>(from + i * kFragmentColumns);
#pragma unroll
                for (int i = 0; i < PAIRS; ++i) x[i] = pair_of<TYPE>(words[i]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) x[i] = load_pair(at + i * kFragmentColumns * col_stride, count - i * kFragmentColumns);
    }
    __device__ __forceinline__ void store(int64_t at, float x) const {
        if (wide) static_cast<float*>(data)[at] = x;
        else static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(ptx::round_pair<TYPE>(x, 0.0f));
    }
    __device__ __forceinline__ void store_pair(int64_t at, int count, float x, float y) const {
        if (pairs && count >= 2) {
            if (wide) *reinterpret_cast<float2*>(static_cast<float*>(data) + at) = make_float2(x, y);
            else *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(data) + at) = ptx::round_pair<TYPE>(x, y);
            return;
        }
        if (count >= 1) store(at, x);
        if (count >= 2) store(at + 1, y);
    }
};

// ---- the epilogue of one matrix of the batch -------------------------------------------------------------------------

// What a bias adds to the rows of a fragment.
template <int COUNT>
__device__ __forceinline__ void add_to_rows(const float2 (&adds)[COUNT / 4], float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT / 4; ++i) {
        x[4 * i] += adds[i].x;
        x[4 * i + 1] += adds[i].y;
        x[4 * i + 2] += adds[i].x;
        x[4 * i + 3] += adds[i].y;
    }
}

// The epilogue that most layers have: a bias of TYPE or none, and one activation of three, where D is of TYPE and has an even number of columns.
// It is short enough to have its code once for every PART of a thread's values.
template <Half TYPE, int PART>
struct ShortEpilogue {
    uint32_t bias[PART / 4];   // of the next part, two columns a word

    static constexpr uint32_t kNoBias = 0x80008000;   // −0 twice, in either type: what is added to it stays as it is

    static __device__ __forceinline__ bool suits(const GemmArgs& args) {
        const bool narrow = args.bias_type == kElementOf<TYPE> && args.bias_stride == 1 && reinterpret_cast<uintptr_t>(args.bias) % 4 == 0;
        return Scalars(args).beta == 0.0f && args.residual.data == nullptr && (args.bias == nullptr || narrow) &&
               (args.activation == kIdentity || args.activation == kRelu || args.activation == kGeluErf);
    }

    // Asks for a part's bias. col: of the thread's first number.
    __device__ __forceinline__ void ask(const GemmArgs& args, int col) {
        if (args.bias == nullptr) {
#pragma unroll
            for (int i = 0; i < PART / 4; ++i) bias[i] = kNoBias;
            return;
        }
        const uint16_t* const from = static_cast<const uint16_t*>(args.bias);
        const int last = args.n - 2;   // what is behind it is not stored, and counts as it
        if (col + (PART / 4 - 1) * kFragmentColumns <= last) {
#pragma unroll
            for (int i = 0; i < PART / 4; ++i) bias[i] = *reinterpret_cast<const uint32_t*>(from + col + i * kFragmentColumns);
        } else {
#pragma unroll
            for (int i = 0; i < PART / 4; ++i) bias[i] = *reinterpret_cast<const uint32_t*>(from + min(col + i * kFragmentColumns, last));
        }
    }

    // Adds the bias that was asked for.
    __device__ __forceinline__ void add(float (&part)[PART]) const {
        float2 adds[PART / 4];
#pragma unroll
        for (int i = 0; i < PART / 4; ++i) adds[i] = pair_of<TYPE>(bias[i]);
        add_to_rows(adds, part);
    }

    // The whole epilogue for values whose first part was asked for while they were multiplied: then(index of a part's first value, the part). The bias
    // of a part is asked for while the one before it is computed.
    template <int COUNT, typename THEN>
    __device__ __forceinline__ void apply(const GemmArgs& args, int col, float (&x)[COUNT], const THEN& then) {
        if (args.activation == kGeluErf) apply_as<true>(args, col, x, then);
        else apply_as<false>(args, col, x, then);
    }

    // The same where it is known whether the activation is GELU.
    template <bool GELU, int COUNT, typename THEN>
    __device__ __forceinline__ void apply_as(const GemmArgs& args, int col, float (&x)[COUNT], const THEN& then) {
        Scalars(args).scale_all(x);
#pragma unroll
        for (int first = 0; first < COUNT; first += PART) {
            float part[PART];
#pragma unroll
            for (int i = 0; i < PART; ++i) part[i] = x[first + i];
            if (args.bias != nullptr) {
                add(part);
                ptx::settle(part);   // else it would wait for the next part's bias as well
                if (first + PART < COUNT) ask(args, col + (first + PART) * 2);
            }
            activate_as<GELU>(args, part);
            then(first, part);
        }
    }

    // GELU, or what the other activations take.
    template <bool GELU, int COUNT>
    static __device__ __forceinline__ void activate_as(const GemmArgs& args, float (&x)[COUNT]) {
        if constexpr (GELU) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) x[i] = gelu_erf_of<TYPE>(x[i]);
        } else if (args.activation == kRelu) {
            activate<kRelu>(x);
        }
    }
};

// Where a tile's columns end. Some tiles compute columns that the next tile computes as well, and leave those to it: they neither store
// them nor read C and the residual there, for where C is D the next tile may be storing them.
template <bool NARROW>
struct LastColumn {
    __device__ __forceinline__ int end(const GemmArgs& args) const { return args.n; }
};
template <>
struct LastColumn<true> {
    int tile_end;   // set before the epilogue is used
    __device__ __forceinline__ int end(const GemmArgs& args) const { return min(args.n, tile_end); }
};

// TRANSPOSED: fragments are those of Dᵀ. NARROW: tile_end is set for each tile.
template <Half TYPE, bool TRANSPOSED, bool NARROW = false>
struct HalfEpilogue : LastColumn<NARROW> {
    Scalars scalars;
    Elements<TYPE> c, residual, bias, d;

    __device__ __forceinline__ HalfEpilogue(const GemmArgs& args, int batch)
        : scalars(args),
          c(scalars.beta != 0.0f ? Elements<TYPE>::of(args, args.c, args.c_type, args.c_access, batch)
                                 : Elements<TYPE>::none()),
          residual(args.residual.data != nullptr
                       ? Elements<TYPE>::of(args, args.residual, args.residual_type,
                                            static_cast<Access>(args.residual_access), batch)
                       : Elements<TYPE>::none()),
          bias(Elements<TYPE>::bias_of(args)),
          d(Elements<TYPE>::of(args, args.d, args.d_type, args.d_access, batch)) {}

    // Whether there is nothing but α to be applied.
    __device__ __forceinline__ bool bare(const GemmArgs& args) const {
        return c.data == nullptr && bias.data == nullptr && residual.data == nullptr && args.activation == kIdentity;
    }

    template <int COUNT>
    __device__ __forceinline__ void scale(float (&x)[COUNT]) const {
        scalars.scale_all(x);
    }

    // All of it but the store. (row, col) is the place in D of the thread's first number.
    template <int COUNT>
    __device__ __forceinline__ void apply(const GemmArgs& args, int row, int col, float (&x)[COUNT]) const {
        scale(x);
        if (c.data != nullptr) {
            visit(args, c, row, col, x, [&](float& value, float old) { value = fmaf(scalars.beta, old, value); });
        }
        if (bias.data != nullptr) add_bias(args, col, x);
        if (args.activation != kIdentity) activate_quickly(args.activation, x);
        if (residual.data != nullptr) {
            if (args.combine == kMultiply) visit(args, residual, row, col, x, [](float& value, float by) { value *= by; });
            else visit(args, residual, row, col, x, [](float& value, float more) { value += more; });
        }
    }

    // All of it but the store where columns are gated: y[i] is made of x[2 · i] and x[2 · i + 1]. col: of the thread's first number. SILU: that is the
    // activation.
    template <bool SILU, int COUNT>
    __device__ __forceinline__ void gate(const GemmArgs& args, int col, float (&x)[COUNT], float (&y)[COUNT / 2]) const {
        scale(x);
        if (bias.data != nullptr) add_bias(args, col, x);
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) y[i] = x[2 * i];
        if (SILU) activate_quickly<kSilu>(y);
        else if (args.activation != kIdentity) activate_quickly(args.activation, y);
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) y[i] *= x[2 * i + 1];
    }

    template <int COUNT>
    __device__ __forceinline__ void store(const GemmArgs& args, int row, int col, const float (&x)[COUNT]) const {
        const int end = this->end(args);
        if constexpr (TRANSPOSED) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int r = row + i / 4 * 8 + i % 2, s = col + i / 2 % 2 * 8;
                if (r < args.m && s < end) d.store(d.place(r, s), x[i]);
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (row + half * 8 >= args.m) return;
                const int64_t line = d.place(row + half * 8, col);
#pragma unroll
                for (int i = 0; i < COUNT; i += 4)
                    d.store_pair(line + i * 2, end - col - i * 2, x[i + half * 2], x[i + half * 2 + 1]);
            }
        }
    }

    // The whole epilogue of one element, which is inside.
    __device__ __forceinline__ void store_element(const GemmArgs& args, int row, int col, float acc) const {
        float x[1] = {scalars.scale(acc)};
        if (c.data != nullptr) x[0] = fmaf(scalars.beta, c.load(c.place(row, col)), x[0]);
        if (bias.data != nullptr) x[0] += bias.load(col * bias.col_stride);
        activate_quickly(args.activation, x);
        if (residual.data != nullptr) {
            const float by = residual.load(residual.place(row, col));
            x[0] = args.combine == kMultiply ? x[0] * by : x[0] + by;
        }
        d.store(d.place(row, col), x[0]);
    }

    // The whole epilogue of columns `col`, which is even, to `col + 3` of a row, which is inside.
    __device__ __forceinline__ void store_vector(const GemmArgs& args, int row, int col, float4 acc) const {
        float x[kVector] = {scalars.scale(acc.x), scalars.scale(acc.y), scalars.scale(acc.z), scalars.scale(acc.w)};
        const int left = args.n - col;
        // act(x[i], its element of `operand`), for those inside.
        const auto each = [&](const Elements<TYPE>& operand, int64_t at, const auto& act) {
#pragma unroll
            for (int i = 0; i < kVector; i += 2) {
                const float2 pair = operand.load_pair(at + i * operand.col_stride, left - i);
                act(x[i], pair.x);
                act(x[i + 1], pair.y);
            }
        };
        if (c.data != nullptr) {
            each(c, c.place(row, col), [&](float& value, float old) { value = fmaf(scalars.beta, old, value); });
        }
        if (bias.data != nullptr) each(bias, col * bias.col_stride, [](float& value, float more) { value += more; });
        if (args.activation != kIdentity) activate_quickly(args.activation, x);
        if (residual.data != nullptr) {
            const int64_t at = residual.place(row, col);
            if (args.combine == kMultiply) each(residual, at, [](float& value, float by) { value *= by; });
            else each(residual, at, [](float& value, float more) { value += more; });
        }
#pragma unroll
        for (int i = 0; i < kVector; i += 2) d.store_pair(d.place(row, col) + i, left - i, x[i], x[i + 1]);
    }

    // Columns `col`, which is even, and the next one, both inside, as one element: where columns are gated.
    __device__ __forceinline__ void store_gated(const GemmArgs& args, int row, int col, float gate, float up) const {
        float x[1] = {scalars.scale(gate)};
        float by = scalars.scale(up);
        if (bias.data != nullptr) {
            x[0] += bias.load(col * bias.col_stride);
            by += bias.load((col + 1) * bias.col_stride);
        }
        activate_quickly(args.activation, x);
        d.store(d.place(row, col / 2), x[0] * by);
    }

private:
    // act(x[i], its element of `operand`), for those inside.
    template <int COUNT, typename ACT>
    __device__ __forceinline__ void visit(const GemmArgs& args, const Elements<TYPE>& operand, int row, int col,
                                          float (&x)[COUNT], const ACT& act) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (TRANSPOSED) {
                const int s = col + half * 8, end = this->end(args);
                int64_t at = operand.place(row, s);
#pragma unroll
                for (int i = 0; i < COUNT; i += 4, at += 8 * operand.row_stride) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if (s < end && row + i * 2 + e < args.m)
                            act(x[i + half * 2 + e], operand.load(at + e * operand.row_stride));
                    }
                }
            } else {
                const int left = row + half * 8 < args.m ? args.n - col : 0;
                float2 pairs[COUNT / 4];
                operand.load_pairs(operand.place(row + half * 8, col), left, pairs);
#pragma unroll
                for (int i = 0; i < COUNT / 4; ++i) {
                    act(x[4 * i + half * 2], pairs[i].x);
                    act(x[4 * i + half * 2 + 1], pairs[i].y);
                }
            }
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void add_bias(const GemmArgs& args, int col, float (&x)[COUNT]) const {
        if constexpr (TRANSPOSED) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int s = col + half * 8;
                const float add = s < args.n ? bias.load(s * bias.col_stride) : 0.0f;
#pragma unroll
                for (int i = 0; i < COUNT; i += 4) {
                    x[i + half * 2] += add;
                    x[i + half * 2 + 1] += add;
                }
            }
        } else {
            float2 adds[COUNT / 4];
            bias.load_pairs(col * bias.col_stride, args.n - col, adds);
            add_to_rows(adds, x);
        }
    }
};
