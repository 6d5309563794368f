// Sums of at most MOST_K products whose results are large: D is what there is to move, and it leaves as a stream.
//
// An outer product of 2487 × 32 has 3 % of its bytes in the operands. A tiled kernel waits for these once a tile, then for its sums, and
// stores all of them at once: while it waits, nothing is stored. FewK asks the L1 for an operand of each product. Here a block has its
// columns of B in registers, all k of them, and its rows of A in shared memory; then it walks down the rows:
//
//                 lane:  4 columns of B, all k             a row of A is read by all lanes at once (a broadcast), four of k at a time,
//                 ├────┼────┼────┼────┤                    and a row of D is stored as soon as it is multiplied. Stores wait for nothing,
//     row of A ─→ │    │    │    │    │ ─→ row of D        so a block has one round trip to memory in all, and other blocks store meanwhile.
//     next row ─→ │    │    │    │    │ ─→ next row
//
// Where rows of D start on 16 bytes, a lane has four neighbouring columns and stores them at once; elsewhere it has columns a row of lanes
// apart, and lanes store neighbours. Narrow tiles have several rows a warp. The products of an output are added in the order of k.
//
// Launch. One block a tile. It may start while the kernel before still runs.
#pragma once

#include "../epilogue/scalars.cuh"
#include "../ptx/element.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"
#include "../scheduler/tiles.cuh"

namespace ffma_gemm {

// NUMBERS: what the elements of A and B are (kType), the epilogue, and how it stores an element (store()).
template <typename NUMBERS, int BM, int BN, int MOST_K, int WARPS>
struct Outer {
    using Element = element::Element<NUMBERS::kType>;
    using Stored = typename Element::Stored;
    static constexpr int kThreads = WARPS * kWarp;
    static constexpr int kLanes = BN / kVector;             // lanes along a row of D
    static constexpr int kRowsAtOnce = kThreads / kLanes;   // of the block
    static constexpr int kChunks = MOST_K / kVector;        // of k
    static constexpr int kPitchA = MOST_K + kVector;        // rows that a warp reads at once begin in different banks
    static constexpr int kPitchB = BN + kVector;
    static_assert(kWarp % kLanes == 0 && BN % kVector == 0, "a warp has whole rows of the tile");
    static_assert(BM % kRowsAtOnce == 0, "a block's rows are all walked by as many lanes");
    static_assert(MOST_K == 8 || MOST_K == 16, "elements along k are told by two to four bits of their numbers");

    struct Shared {
        float a[BM * kPitchA];       // [row][k]
        float b[MOST_K * kPitchB];   // [k][column]
    };

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        __shared__ __align__(16) Shared shared;
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        const Stored* a = static_cast<const Stored*>(args.a.data) + batch_offset(args, args.a, work.batch) + work.row * args.a.row_stride;
        const Stored* b = static_cast<const Stored*>(args.b.data) + batch_offset(args, args.b, work.batch) + work.col * args.b.col_stride;
        ptx::wait_for_previous_kernels();   // all before needs the arguments alone
        const auto of_a = [&] { return Fetch<BM, kPitchA, 1>(a, args.a.row_stride, args.a.col_stride, args.m - work.row, args.k); };
        const auto of_b = [&] { return Fetch<BN, 1, kPitchB>(b, args.b.col_stride, args.b.row_stride, args.n - work.col, args.k); };
        // The smaller one first: otherwise the compiler stores the larger one before it asks for the other.
        if constexpr (BM <= BN) {
            const auto small = of_a();
            const auto large = of_b();
            small.store(shared.a);
            large.store(shared.b);
        } else {
            const auto small = of_b();
            const auto large = of_a();
            small.store(shared.b);
            large.store(shared.a);
        }
        __syncthreads();

        const Scalars scalars(args);
        const bool bare = scalars.beta == 0.0f && args.bias == nullptr && args.residual.data == nullptr && args.activation == kIdentity &&
                          args.d_type == args.a_type;
        const int rows = min(BM, args.m - work.row), cols = min(BN, args.n - work.col);
        if (bare) {
            Stored* const d = static_cast<Stored*>(args.d.data) + batch_offset(args, args.d, work.batch) + work.row * args.d.row_stride + work.col;
            const auto one = [&](int row, int col, float x) {
                const float number[1] = {scalars.scale(x)};
                if (col < cols) Element::store(d + row * args.d.row_stride + col, number);
            };
            const auto four = [&](int row, int col, const float (&x)[kVector]) {
                const float numbers[kVector] = {scalars.scale(x[0]), scalars.scale(x[1]), scalars.scale(x[2]), scalars.scale(x[3])};
                if (col + kVector <= cols) {
                    Element::store(d + row * args.d.row_stride + col, numbers);
                } else {
#pragma unroll
                    for (int i = 0; i < kVector; ++i) one(row, col + i, x[i]);
                }
            };
            multiply(args, shared, rows, one, four);
        } else {
            const typename NUMBERS::Epilogue epilogue(args, work.batch);
            const auto one = [&](int row, int col, float x) {
                if (col < cols) NUMBERS::store(epilogue, args, work.row + row, work.col + col, x);
            };
            const auto four = [&](int row, int col, const float (&x)[kVector]) {
                if (col < cols) epilogue.store_vector(args, work.row + row, work.col + col, make_float4(x[0], x[1], x[2], x[3]));
            };
            multiply(args, shared, rows, one, four);
        }
    }

private:
    // LINES of an operand, `inside` of which exist, all of their k, and zeros outside. Neighbouring threads bring
    // neighbours. All that a thread brings is under way at once, and only then stored: PITCH_LINE and PITCH_K apart.
    template <int LINES, int PITCH_LINE, int PITCH_K>
    struct Fetch {
        static constexpr int kElements = LINES * MOST_K / kThreads;   // of a thread
        static constexpr int kLinesAtOnce = LINES < kThreads ? LINES : kThreads, kAtOnce = kThreads / kLinesAtOnce;
        static_assert(kElements * kThreads == LINES * MOST_K && kAtOnce * kLinesAtOnce == kThreads, "threads bring as many elements each");
        Stored element[kElements];
        int line, k, lines_apart, k_apart;   // of this thread: its first element, and from one to the next

        __device__ __forceinline__ Fetch(const Stored* from, int64_t line_stride, int64_t k_stride, int inside, int k_end) {
            const bool along_lines = line_stride == 1;
            // Along k, of which there are up to a power of two: all that is multiplied, in fours.
            const int bits = k_end <= 4 ? 2 : k_end <= 8 ? 3 : 4;
            line = along_lines ? threadIdx.x % kLinesAtOnce : threadIdx.x >> bits;
            k = along_lines ? threadIdx.x / kLinesAtOnce : threadIdx.x & ((1 << bits) - 1);
            lines_apart = along_lines ? 0 : kThreads >> bits;
            k_apart = along_lines ? kAtOnce : 0;
            const int64_t apart = lines_apart * line_stride + k_apart * k_stride;
            const Stored* at = from + line * line_stride + k * k_stride;
            visit([&](int i, int l, int kk) {
                if (i > 0 && i % kPerPass == 0 && along_lines) at += kLinesAtOnce * line_stride - kPerPass * apart;
                element[i] = ptx::load_or_zero(at, l < inside && kk < k_end);
                at += apart;
            });
        }
        __device__ __forceinline__ void store(float* to) const {
            visit([&](int i, int l, int kk) {
                if (l < LINES) to[l * PITCH_LINE + kk * PITCH_K] = Element::load(&element[i]);
            });
        }

    private:
        // Along more lines than threads, those lines that many threads have come one after the other, each with all k.
        static constexpr int kPerPass = LINES > kThreads ? MOST_K : kElements;
        template <typename ACT>
        __device__ __forceinline__ void visit(const ACT& act) const {
            int l = line, kk = k;
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                if (i > 0 && i % kPerPass == 0 && k_apart > 0) {
                    l += kLinesAtOnce;
                    kk = k;
                }
                act(i, l, kk);
                l += lines_apart;
                kk += k_apart;
            }
        }
    };

    // one(row, column, x) and four(row, column, x) store sums; `row` is inside.
    template <typename ONE, typename FOUR>
    static __device__ __forceinline__ void multiply(const GemmArgs& args, const Shared& shared, int rows, const ONE& one, const FOUR& four) {
        const int lane = threadIdx.x % kLanes;
        if (args.d_access == kRowVector) {
            walk(args, shared, rows, [&](int i) { return lane * kVector + i; },
                 [&](int row, const float (&sum)[kVector]) { four(row, lane * kVector, sum); });
        } else {
            walk(args, shared, rows, [&](int i) { return i * kLanes + lane; }, [&](int row, const float (&sum)[kVector]) {
#pragma unroll
                for (int i = 0; i < kVector; ++i) one(row, i * kLanes + lane, sum[i]);
            });
        }
    }

    template <typename COLUMN, typename STORE>
    static __device__ __forceinline__ void walk(const GemmArgs& args, const Shared& shared, int rows, const COLUMN& column, const STORE& store) {
        float b[MOST_K][kVector];
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
            if (chunk * kVector < args.k) {
#pragma unroll
                for (int j = 0; j < kVector; ++j)
#pragma unroll
                    for (int i = 0; i < kVector; ++i) b[chunk * kVector + j][i] = shared.b[(chunk * kVector + j) * kPitchB + column(i)];
            }
        }
#pragma unroll 1
        for (int row = threadIdx.x / kLanes; row < rows; row += kRowsAtOnce) {
            float sum[kVector] = {};
#pragma unroll
            for (int chunk = 0; chunk < kChunks; ++chunk) {
                if (chunk * kVector < args.k) {
                    const float4 of_a = *reinterpret_cast<const float4*>(shared.a + row * kPitchA + chunk * kVector);
                    const float x[] = {of_a.x, of_a.y, of_a.z, of_a.w};
#pragma unroll
                    for (int j = 0; j < kVector; ++j)
#pragma unroll
                        for (int i = 0; i < kVector; ++i) sum[i] = fmaf(x[j], b[chunk * kVector + j][i], sum[i]);
                }
            }
            store(row, sum);
        }
    }
};

}  // namespace ffma_gemm
