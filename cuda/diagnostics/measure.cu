// What a benchmark needs on the device beside the kernels that it measures: random operands, an FP64 reference with the
// error bound of each element, the first element outside its bound, and a pause that lets the host queue launches ahead.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace {

constexpr int kTile = 32;                        // edge of the reference's tile of D and its portion of k
constexpr int kRowsPerThread = 4;                // rows of D a thread of the reference computes
constexpr int kReferenceThreads = kTile * kTile / kRowsPerThread;
constexpr int kReferenceRows = kTile / kRowsPerThread;
constexpr int kThreads = 256;

// A well-mixed 64-bit number for each index: neighbours share nothing.
__device__ uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// An element as a double.
template <typename T>
__device__ double number(T x) {
    if constexpr (sizeof(T) == 2)
        return static_cast<double>(static_cast<float>(x));
    else
        return static_cast<double>(x);
}

// Uniform in [-1, 1), with 24 bits, so that floats and doubles get the same numbers; those of 16 bits are rounded to nearest.
template <typename T>
__device__ void fill_random(T* out, uint64_t count, uint64_t seed) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
        const double uniform = static_cast<double>(static_cast<int64_t>(mix(mix(seed) + i) >> 40) - (1 << 23)) / (1 << 23);
        out[i] = static_cast<T>(uniform);
    }
}

}  // namespace

// A product for the reference: every operand has one batch stride, D is dense and row-major. Mirrored in
// benches/support/product.rs.
struct ReferenceArgs {
    const void* a;
    const void* b;
    const void* c;          // dense like D; read where beta != 0
    double* reference;
    double* bound;
    int64_t a_row, a_col, a_batch;
    int64_t b_row, b_col, b_batch;
    int64_t m, n, k, batch;
    double alpha, beta;
    double product_error;   // of the bound, for each unit of |alpha| * sum |a||b|
    double term_error;      // of the bound, for each unit of |beta * c| + |reference|
};
static_assert(sizeof(ReferenceArgs) == 152, "product.rs mirrors this struct");

namespace {

template <typename T>
__device__ void gemm_reference(const ReferenceArgs& args) {
    __shared__ double a_tile[kTile][kTile + 1];
    __shared__ double b_tile[kTile][kTile + 1];
    const int x = threadIdx.x % kTile;
    const int y = threadIdx.x / kTile;
    const int64_t col = static_cast<int64_t>(blockIdx.x) * kTile + x;
    const int64_t tiles_m = (args.m + kTile - 1) / kTile;

    for (int64_t work = blockIdx.y; work < tiles_m * args.batch; work += gridDim.y) {
        const int64_t matrix = work / tiles_m;
        const int64_t row0 = work % tiles_m * kTile;
        const T* a = static_cast<const T*>(args.a) + matrix * args.a_batch;
        const T* b = static_cast<const T*>(args.b) + matrix * args.b_batch;
        double sum[kRowsPerThread] = {};
        double magnitude[kRowsPerThread] = {};

        for (int64_t k0 = 0; k0 < args.k; k0 += kTile) {
            for (int i = y; i < kTile; i += kReferenceRows) {
                const bool in_a = row0 + i < args.m && k0 + x < args.k;
                const bool in_b = k0 + i < args.k && col < args.n;
                a_tile[i][x] = in_a ? number(a[(row0 + i) * args.a_row + (k0 + x) * args.a_col]) : 0.0;
                b_tile[i][x] = in_b ? number(b[(k0 + i) * args.b_row + col * args.b_col]) : 0.0;
            }
            __syncthreads();
            for (int i = 0; i < kTile; ++i) {
                const double from_b = b_tile[i][x];
#pragma unroll
                for (int r = 0; r < kRowsPerThread; ++r) {
                    const double from_a = a_tile[y + r * kReferenceRows][i];
                    sum[r] = fma(from_a, from_b, sum[r]);
                    magnitude[r] = fma(fabs(from_a), fabs(from_b), magnitude[r]);
                }
            }
            __syncthreads();
        }

#pragma unroll
        for (int r = 0; r < kRowsPerThread; ++r) {
            const int64_t row = row0 + y + r * kReferenceRows;
            if (row >= args.m || col >= args.n) continue;
            const int64_t at = (matrix * args.m + row) * args.n + col;
            const double from_c = args.beta != 0.0 ? args.beta * number(static_cast<const T*>(args.c)[at]) : 0.0;
            const double value = args.alpha * sum[r] + from_c;
            args.reference[at] = value;
            args.bound[at] = args.product_error * fabs(args.alpha) * magnitude[r] +
                             args.term_error * (fabs(from_c) + fabs(value));
        }
    }
}

// The lowest index whose element is not within its bound, NaN included; integer minima have no order to depend on.
template <typename T>
__device__ void first_wrong(const T* d, const double* reference, const double* bound, uint64_t count,
                            unsigned long long* first) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
        if (!(fabs(number(d[i]) - reference[i]) <= bound[i])) {
            atomicMin(first, static_cast<unsigned long long>(i));
        }
    }
}

}  // namespace

// The three kernels above for one type of elements.
#define CANDLE_SGEMM_MEASURE(TYPE, NAME)                                                                                   \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                                 \
        fill_random_##NAME(TYPE* out, uint64_t count, uint64_t seed) {                                                     \
        fill_random(out, count, seed);                                                                                     \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(kReferenceThreads)                                                        \
        gemm_reference_##NAME(const __grid_constant__ ReferenceArgs args) {                                                \
        gemm_reference<TYPE>(args);                                                                                        \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                                 \
        first_wrong_##NAME(const TYPE* d, const double* reference, const double* bound, uint64_t count,                    \
                           unsigned long long* first) {                                                                    \
        first_wrong(d, reference, bound, count, first);                                                                    \
    }

CANDLE_SGEMM_MEASURE(float, f32)
CANDLE_SGEMM_MEASURE(double, f64)
CANDLE_SGEMM_MEASURE(__half, f16)
CANDLE_SGEMM_MEASURE(__nv_bfloat16, bf16)

// A product of any views with a dense result, and the elements by which it is judged. Mirrored in benches/support/drawn.rs.
struct SampleArgs {
    const void* a;
    const void* b;
    const void* d;
    const uint64_t* elements;  // of D, one a block
    double* found;             // of each: the element, what it should be, and sum |a||b|
    int64_t a_row, a_col, a_batch[4];
    int64_t b_row, b_col, b_batch[4];
    int64_t m, n, k, batch_dims[4];
};
static_assert(sizeof(SampleArgs) == 192, "drawn.rs mirrors this struct");

namespace {

template <typename T>
__device__ void gemm_sample(const SampleArgs& args) {
    __shared__ double sums[kThreads];
    __shared__ double magnitudes[kThreads];
    const uint64_t element = args.elements[blockIdx.x];
    const int64_t col = static_cast<int64_t>(element % args.n);
    const int64_t row = static_cast<int64_t>(element / args.n % args.m);
    int64_t matrix = static_cast<int64_t>(element / args.n / args.m);
    const T* a = static_cast<const T*>(args.a) + row * args.a_row;
    const T* b = static_cast<const T*>(args.b) + col * args.b_col;
    for (int dim = 3; dim >= 0; --dim) {
        const int64_t index = matrix % args.batch_dims[dim];
        matrix /= args.batch_dims[dim];
        a += index * args.a_batch[dim];
        b += index * args.b_batch[dim];
    }
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t k = threadIdx.x; k < args.k; k += kThreads) {
        const double product = number(a[k * args.a_col]) * number(b[k * args.b_row]);
        sum += product;
        magnitude += fabs(product);
    }
    sums[threadIdx.x] = sum;
    magnitudes[threadIdx.x] = magnitude;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            magnitudes[threadIdx.x] += magnitudes[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        double* found = args.found + 3 * static_cast<int64_t>(blockIdx.x);
        found[0] = number(static_cast<const T*>(args.d)[element]);
        found[1] = sums[0];
        found[2] = magnitudes[0];
    }
}

}  // namespace

#define CANDLE_SGEMM_SAMPLE(TYPE, NAME)                                                                                    \
    extern "C" __global__ void __launch_bounds__(kThreads) gemm_sample_##NAME(const __grid_constant__ SampleArgs args) {   \
        gemm_sample<TYPE>(args);                                                                                           \
    }

CANDLE_SGEMM_SAMPLE(float, f32)
CANDLE_SGEMM_SAMPLE(__half, f16)
CANDLE_SGEMM_SAMPLE(__nv_bfloat16, bf16)

// The lowest index at which two buffers of bytes differ.
extern "C" __global__ void __launch_bounds__(kThreads)
    first_difference(const uint8_t* x, const uint8_t* y, uint64_t count, unsigned long long* first) {
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * kThreads;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += stride) {
        if (x[i] != y[i]) atomicMin(first, static_cast<unsigned long long>(i));
    }
}

// Keeps the stream busy for so many clocks of one multiprocessor.
extern "C" __global__ void hold(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
