// Sums over the lanes of a warp, of many values at a time.
#pragma once

#include "../ptx/machine.cuh"

// Adds COUNT values over lanes that differ in the bits BIT, BIT / 2, … LOW of their number. Halving the values with every
// step where it can, it takes about COUNT shuffles instead of as many a bit. A lane ends up with COUNT values over the number
// of lanes, one at least, in values[0] and so on; owned() is the number of the first of them.
template <int COUNT, int BIT, int LOW = 1>
struct LaneSum {
    static __device__ __forceinline__ void add(float* values, int lane) {
        if constexpr (BIT >= LOW) {
            if constexpr (COUNT > 1) {
                const bool upper = (lane & BIT) != 0;
#pragma unroll
                for (int i = 0; i < COUNT / 2; ++i) {
                    const float give = upper ? values[i] : values[i + COUNT / 2];
                    const float keep = upper ? values[i + COUNT / 2] : values[i];
                    values[i] = keep + __shfl_xor_sync(kWholeWarp, give, BIT);
                }
                LaneSum<COUNT / 2, BIT / 2, LOW>::add(values, lane);
            } else {
                values[0] += __shfl_xor_sync(kWholeWarp, values[0], BIT);
                LaneSum<1, BIT / 2, LOW>::add(values, lane);
            }
        }
    }
    static __device__ __forceinline__ int owned(int lane) {
        if constexpr (BIT >= LOW && COUNT > 1) {
            return ((lane & BIT) != 0 ? COUNT / 2 : 0) + LaneSum<COUNT / 2, BIT / 2, LOW>::owned(lane);
        }
        return 0;
    }
    // Lanes that hold the same value (LOW is 1): all but the first of them (its remaining bits zero) are silent.
    static __device__ __forceinline__ bool speaks(int lane) {
        if constexpr (BIT >= LOW) {
            if constexpr (COUNT > 1) return LaneSum<COUNT / 2, BIT / 2, LOW>::speaks(lane);
            return (lane & (2 * BIT - 1)) == 0;
        }
        return true;
    }
};
