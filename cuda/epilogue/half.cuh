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
            const uint32_t both = *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + at);
            return make_float2(ptx::low_to_float<TYPE>(both), ptx::high_to_float<TYPE>(both));
        }
        return make_float2(count >= 1 ? load(at) : 0.0f, count >= 2 ? load(at + col_stride) : 0.0f);
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
                int64_t at = operand.place(row + half * 8, col);
#pragma unroll
                for (int i = 0; i < COUNT; i += 4, at += 8 * operand.col_stride) {
                    const float2 pair = operand.load_pair(at, left - i * 2);
                    act(x[i + half * 2], pair.x);
                    act(x[i + half * 2 + 1], pair.y);
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
            int64_t at = col * bias.col_stride;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4, at += 8 * bias.col_stride) {
                const float2 add = bias.load_pair(at, args.n - col - i * 2);
                x[i] += add.x;
                x[i + 1] += add.y;
                x[i + 2] += add.x;
                x[i + 3] += add.y;
            }
        }
    }
};
