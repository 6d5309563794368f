// The register operand of the Hopper kernels: which rows of its tile a consumer thread multiplies, and how it reads them.
#pragma once

#include "../epilogue/wgmma_store.cuh"
#include "../pipeline/tma_tiles.cuh"
#include "layout_sm90.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace {

// Where a consumer thread's fragments and accumulators lie in the block's tile.
template <typename CONFIG>
struct Place : WgmmaPlace {
    __device__ __forceinline__ explicit Place(int thread) : WgmmaPlace(thread) {}

    // Row of the tile of R for the fragment rows `group` (half 0) and `group + 8` (half 1). For an MN-major R the rows
    // are dealt out so that the 32 lanes of a load hit 32 banks: lanes of equal quad differ in the chunk bit that the
    // swizzle of k = quad leaves alone.
    __device__ __forceinline__ int row(int half) const { return row(half, group); }
    __device__ __forceinline__ int row(int half, int of_group) const {
        if constexpr (CONFIG::MAJOR == Major::kK) return WgmmaPlace::row(half, of_group);
        return warp / 2 * 32 + of_group / 4 * 16 + warp % 2 * 8 + half * 4 + of_group % 4;
    }
};

// Calls visit(step, part, word) for the 16 words of a tile of R that are this thread's operands of the wgmma of a
// stage: parts are (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4).
template <typename CONFIG, typename VISIT>
__device__ __forceinline__ void visit_fragments(const char* tile, const Place<CONFIG>& place, VISIT visit) {
    uint32_t origin;
    if constexpr (CONFIG::MAJOR == Major::kK) {
        origin = place.row(0) * kTileRow + place.group * kChunk + place.quad * 4;
    } else {
        const int row = place.row(0);
        origin = row / 32 * kBoxBytes<float> + place.quad * kTileRow + (row % 32 / 4 ^ place.quad) * kChunk + row % 4 * 4;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int half = part % 2, far = part / 2;
            uint32_t offset;
            if constexpr (CONFIG::MAJOR == Major::kK) {
                offset = (origin ^ (step * 2 + far) * kChunk) + half * 8 * kTileRow;
            } else {
                offset = (origin ^ (far * 4 ^ half) * kChunk) + (step * kStepK + far * 4) * kTileRow;
            }
            visit(step, part, *reinterpret_cast<const float*>(tile + offset));
        }
    }
}

}  // namespace

#endif  // sm_90a
