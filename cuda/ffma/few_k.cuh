// Sums of at most MOST_K products: D is all that there is to move.
//
// A kernel with stages in shared memory waits for two round trips there, to memory and through the block, before it may store: more than all
// else of such a product. Here a thread reads what it needs of A and B straight into registers, everything at once, whatever the strides,
// multiplies and stores.
//
//   thread: TM outputs of one column, BM / TM rows apart     A: TM × k, which the threads of a row share (L1)
//   warp:   neighbours along a row of D, then rows           B: k of its column
//
// Registers bound it to few k. The products of an output are added in the order of k.
//
// Launch. One block a tile. It may start while the kernel before still runs.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/execution.cuh"
#include "../scheduler/tiles.cuh"

namespace ffma_gemm {

// TYPE says what an element of A and B is, how it becomes a float, and what stores an element of D, inside or outside of the matrix:
// Element, to_float(), Epilogue and store().
template <typename TYPE, int BM, int BN, int MOST_K, int TM>
struct FewK {
    using Element = typename TYPE::Element;
    static constexpr int kThreads = BM / TM * BN;
    static constexpr int kRowsApart = BM / TM;   // from one output of a thread to the next
    static_assert(BM % TM == 0, "threads share the rows of a tile evenly");
    static_assert(kThreads % kWarp == 0, "blocks have whole warps");

    static __device__ __forceinline__ void run(const GemmArgs& args) {
        const WorkUnit work = work_unit<BM, BN>(args, TileGrid::of<BM, BN>(args), blockIdx.x);
        const int row = work.row + threadIdx.x / BN, col = work.col + threadIdx.x % BN;
        const Element* a[TM];
        bool inside[TM];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            a[i] = static_cast<const Element*>(args.a.data) + batch_offset(args, args.a, work.batch) + (row + i * kRowsApart) * args.a.row_stride;
            inside[i] = row + i * kRowsApart < args.m;
        }
        const Element* b = static_cast<const Element*>(args.b.data) + batch_offset(args, args.b, work.batch) + col * args.b.col_stride;
        ptx::wait_for_previous_kernels();   // all before needs the arguments alone

        Element of_a[MOST_K][TM], of_b[MOST_K];
#pragma unroll
        for (int k = 0; k < MOST_K; ++k) {
            of_b[k] = 0;
            if (k < args.k && col < args.n) of_b[k] = *b;
            b += args.b.row_stride;
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                of_a[k][i] = 0;
                if (k < args.k && inside[i]) of_a[k][i] = *a[i];
                a[i] += args.a.col_stride;
            }
        }
        float sum[TM] = {};
#pragma unroll
        for (int k = 0; k < MOST_K; ++k)
            if (k < args.k) {
#pragma unroll
                for (int i = 0; i < TM; ++i) sum[i] = fmaf(TYPE::to_float(of_a[k][i]), TYPE::to_float(of_b[k]), sum[i]);
            }
        // Sums pass by like a drum, for one copy of the epilogue's code: what takes 2 µs waits for each line of instructions.
        const typename TYPE::Epilogue epilogue(args, work.batch);
#pragma unroll 1
        for (int out = row; out < row + BM; out += kRowsApart) {
            TYPE::store(epilogue, args, out, col, sum[0]);
#pragma unroll
            for (int i = 0; i + 1 < TM; ++i) sum[i] = sum[i + 1];
        }
    }
};

}  // namespace ffma_gemm
