// Tiles of an operand that TMA brings in 128-byte swizzle: rows of 128 bytes along the direction that is contiguous in memory, of
// which 16-byte chunk c of row r lies at c ^ r % 8.
#pragma once

#include <cuda.h>

#include "../ptx/copies.cuh"
#include "batch_coordinates.cuh"

constexpr int kTileRow = 128;                       // bytes of a row: the width of the swizzle
constexpr int kChunk = 16;                          // bytes that the swizzle moves as one
constexpr int kSwizzle = 8;                         // rows after which its pattern repeats
constexpr int kTileAlign = kSwizzle * kTileRow;     // bytes on which a tile starts

// Orientation of an operand in memory: K-major rows, or "MN-major" (consecutive rows are neighbours).
enum class Major { kK, kRows };

// Rows of the operand in an MN-major box, which is as many elements of k high as it is wide.
template <typename T>
constexpr int kBox = kTileRow / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kBoxBytes = kBox<T> * kTileRow;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// One operand's part of a stage: ROWS rows from `row`, 128 bytes of k. With MULTICAST, all blocks of the cluster whose bit is set in
// `blocks` receive it, each in the same place.
template <typename T, Major MAJOR, int ROWS, bool MULTICAST>
__device__ __forceinline__ void load_tile(char* tile, const CUtensorMap& map, uint64_t* full, uint16_t blocks, int row, int k,
                                          const BatchCoordinates& at) {
    constexpr int kBoxRows = MAJOR == Major::kK ? ROWS : kBox<T>;
#pragma unroll
    for (int first = 0; first < ROWS; first += kBoxRows) {
        const int x = MAJOR == Major::kK ? k : row + first, y = MAJOR == Major::kK ? row + first : k;
        if constexpr (MULTICAST) {
            ptx::tma_load_5d_multicast(tile + first * kTileRow, &map, full, blocks, x, y, at.x, at.y, at.z);
        } else {
            ptx::tma_load_5d(tile + first * kTileRow, &map, full, x, y, at.x, at.y, at.z);
        }
    }
}

#endif  // sm_90
