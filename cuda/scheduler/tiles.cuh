// Where a block works: tiles of D, in bands of rows, and slices of k.
#pragma once

#include "../abi/gemm_args.cuh"
#include "slices.cuh"

struct WorkUnit {
    int batch, row, col;       // the matrix of the batch (or of the slices), the first row and column of the tile
    int k_begin, k_end;        // the slice of k
    int slice;                 // its number in the cluster
    int tile;                  // the number of the tile over the whole batch
};

struct TileGrid {
    int tiles_m, tiles_n;

    template <int BM, int BN>
    static __device__ __forceinline__ TileGrid of(const GemmArgs& args) {
        return {(args.m - 1) / BM + 1, (args.n - 1) / BN + 1};
    }
    __device__ __forceinline__ int units(const GemmArgs& args) const {
        return tiles_m * tiles_n * args.batch * args.split_k;
    }
};

// Units count slices first, then tiles, then matrices. Tiles are walked in bands of group_m rows, column by column
// within a band, so that blocks that run together share columns of B and rows of A in the L2.
template <int BM, int BN>
__device__ __forceinline__ WorkUnit work_unit(const GemmArgs& args, TileGrid grid, int unit) {
    WorkUnit work;
    work.slice = unit % args.split_k;
    work.tile = unit / args.split_k;
    const int tiles = grid.tiles_m * grid.tiles_n;
    const int matrix = work.tile / tiles;
    work.batch = matrix + slice_apart();
    const int tile = work.tile - matrix * tiles;
    const int band_tiles = args.group_m * grid.tiles_n;
    const int band = tile / band_tiles;
    const int first_m = band * args.group_m;
    const int band_rows = min(args.group_m, grid.tiles_m - first_m);
    const int in_band = tile - band * band_tiles;
    const int tile_n = in_band / band_rows;
    work.row = (first_m + in_band - tile_n * band_rows) * BM;
    work.col = tile_n * BN;
    work.k_begin = slice_begin(args, work.slice);
    work.k_end = slice_end(args, work.k_begin);
    return work;
}
