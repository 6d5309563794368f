// What one thread computes: TM × TN elements of D in registers, as groups of 4 × 4 that are spread over the tile.
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
// With GROUP = 1 the elements lie one by one and are read one by one.
//
// (The ThreadTile of ffma/thread_tile.cuh has its own fragments, reads swizzled rows as well, and hands sums out as columns of four.)
#pragma once

#include "../ptx/machine.cuh"

// In which order an outer product is summed up. It decides which registers meet in an instruction, after the compiler
// has chosen them: which way is faster differs from kernel to kernel, and was measured for each.
enum class Walk {
    kShortSide,   // lines along the shorter side of the thread's tile
    kRows,        // lines along its rows
};

template <int TM, int TN, int ROW_STEP, int COL_STEP, int GROUP = kVector>
struct GroupedTile {
    static_assert(GROUP == 1 || GROUP == kVector, "a group is read with one instruction, of 4 or of 16 bytes");
    static_assert(TM % GROUP == 0 && TN % GROUP == 0, "groups must fill the thread's tile");

    static constexpr int kRows = TM, kCols = TN, kGroup = GROUP;

    // A column of A's tile and a row of B's: what is multiplied at one k.
    struct Fragment {
        float a[TM];
        float b[TN];
    };

    float sum[TM][TN];

    // Row and column of element `i` of a fragment, counted from the thread's first.
    static __device__ __forceinline__ constexpr int row_of(int i) { return i / GROUP * ROW_STEP + i % GROUP; }
    static __device__ __forceinline__ constexpr int col_of(int i) { return i / GROUP * COL_STEP + i % GROUP; }

    // `a` and `b` point to this thread's first element in the rows of the two tiles at one k.
    static __device__ __forceinline__ void read(Fragment& fragment, const float* a, const float* b) {
#pragma unroll
        for (int i = 0; i < TM; i += GROUP) read_group(&fragment.a[i], a + row_of(i));
#pragma unroll
        for (int i = 0; i < TN; i += GROUP) read_group(&fragment.b[i], b + col_of(i));
    }

    // The outer product of the fragment's two halves. A multiply-add reads three registers, and the register file
    // serves about two a clock, so a multiprocessor keeps pace only where one operand still stands in the reuse cache
    // of the instruction before. Going there and back again keeps one there at every turn, along whichever side.
    template <Walk WALK = Walk::kShortSide>
    __device__ __forceinline__ void multiply_add(const Fragment& fragment) {
        constexpr bool kAlongRows = WALK == Walk::kRows || TM >= TN;
        constexpr int kLines = kAlongRows ? TM : TN;
        constexpr int kSteps = kAlongRows ? TN : TM;
#pragma unroll
        for (int line = 0; line < kLines; ++line) {
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int place = line % 2 == 0 ? step : kSteps - 1 - step;
                const int row = kAlongRows ? line : place;
                const int col = kAlongRows ? place : line;
                sum[row][col] += fragment.a[row] * fragment.b[col];
            }
        }
    }

private:
    static __device__ __forceinline__ void read_group(float* to, const float* from) {
        if (GROUP == kVector) {
            *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
        } else {
            *to = *from;
        }
    }
};
