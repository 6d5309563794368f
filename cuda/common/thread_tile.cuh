// What one thread computes: TM × TN elements of C in registers, as groups of 4 × 4 that are spread over the tile.
//
//        ┌──────────────┬──────────────┐
//        │ ▪ . . . . .  │ ▪ . . . . .  │      ▪ the groups of one thread, ROW_STEP and COL_STEP apart;
//        │ . . . . . .  │ . . . . . .  │      . those of its neighbours
//        ├──────────────┼──────────────┤
//        │ ▪ . . . . .  │ ▪ . . . . .  │
//        │ . . . . . .  │ . . . . . .  │
//        └──────────────┴──────────────┘
//
// Threads that are neighbours read four floats next to each other, so a 16-byte read of shared memory by a warp covers
// whole rows of banks, whatever TM and TN are. Contiguous TM × TN tiles would make neighbours read TN floats apart.
#pragma once

#include "tile.cuh"

template <int TM, int TN, int ROW_STEP, int COL_STEP>
struct ThreadTile {
    static_assert(TM % kVector == 0 && TN % kVector == 0, "groups are four by four");

    // A column of A's tile and a row of B's: what is multiplied at one k.
    struct Fragment {
        float a[TM];
        float b[TN];
    };

    float sum[TM][TN];

    // Row and column of element `i` of a fragment, counted from the thread's first.
    static __device__ __forceinline__ constexpr int row_of(int i) { return i / kVector * ROW_STEP + i % kVector; }
    static __device__ __forceinline__ constexpr int col_of(int i) { return i / kVector * COL_STEP + i % kVector; }

    // `a` and `b` point to this thread's first element in the rows of the two tiles at one k.
    static __device__ __forceinline__ void read(Fragment& fragment, const float* a, const float* b) {
#pragma unroll
        for (int i = 0; i < TM; i += kVector) {
            *reinterpret_cast<float4*>(&fragment.a[i]) = *reinterpret_cast<const float4*>(a + row_of(i));
        }
#pragma unroll
        for (int i = 0; i < TN; i += kVector) {
            *reinterpret_cast<float4*>(&fragment.b[i]) = *reinterpret_cast<const float4*>(b + col_of(i));
        }
    }

    __device__ __forceinline__ void multiply_add(const Fragment& fragment) {
#pragma unroll
        for (int row = 0; row < TM; ++row) {
#pragma unroll
            for (int col = 0; col < TN; ++col) sum[row][col] += fragment.a[row] * fragment.b[col];
        }
    }

    // D ← α·sum + β·C, where the thread's first element is (row, col) of the matrices and the last one is still
    // within int. `whole` says that no element of the block's tile lies outside.
    __device__ __forceinline__ void store(const GemmArgs& args, int batch, int row, int col, bool whole) const {
        const BatchMember<> member(args, batch);
        if (whole && args.d_access == kRowVector && (args.beta == 0.0f || args.c_access == kRowVector)) {
            store_vectors(args, member, row, col);
        } else {
            store_scalars(args, member, row, col);
        }
    }

private:
    __device__ __forceinline__ void store_vectors(const GemmArgs& args, const BatchMember<>& member, int row,
                                                  int col) const {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int64_t at = row + row_of(i);
            float* d = member.d + at * args.d.row_stride + col;
            const float* c = member.c + at * args.c.row_stride + col;
#pragma unroll
            for (int j = 0; j < TN; j += kVector) {
                float4 value = make_float4(args.alpha * sum[i][j], args.alpha * sum[i][j + 1],
                                           args.alpha * sum[i][j + 2], args.alpha * sum[i][j + 3]);
                if (args.beta != 0.0f) {
                    const float4 old = *reinterpret_cast<const float4*>(c + col_of(j));
                    value.x += args.beta * old.x;
                    value.y += args.beta * old.y;
                    value.z += args.beta * old.z;
                    value.w += args.beta * old.w;
                }
                *reinterpret_cast<float4*>(d + col_of(j)) = value;
            }
        }
    }

    __device__ __forceinline__ void store_scalars(const GemmArgs& args, const BatchMember<>& member, int row,
                                                  int col) const {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int64_t at = row + row_of(i);
            if (at >= args.m) continue;
            float* d = member.d + at * args.d.row_stride + col;
            const float* c = member.c + at * args.c.row_stride + col * args.c.col_stride;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                if (col_of(j) >= args.n - col) continue;
                float value = args.alpha * sum[i][j];
                if (args.beta != 0.0f) value += args.beta * c[col_of(j) * args.c.col_stride];
                d[col_of(j)] = value;
            }
        }
    }
};
