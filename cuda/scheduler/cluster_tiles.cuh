// The tiles of a launch in the order in which persistent clusters take them, and a block's part of each.
//
// A tile is TILE_R rows of one operand, R, by TILE_S rows of the other, S: A and B, or, where the kernel computes Dᵀ (SWAPPED), B
// and A. A cluster takes a unit at a time: CLUSTER_R tiles along R by CLUSTER_S along S, one a block. Where CUT says so, its blocks
// are several times as many, and k is cut into as many slices, or a second kernel adds up slices; STEP_K is the k of a stage.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/cluster.cuh"
#include "slices.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <int TILE_R, int TILE_S, int CLUSTER_R, int CLUSTER_S, bool CUT, bool SWAPPED, int STEP_K>
struct ClusterTiles {
    static constexpr int kUnit = CLUSTER_R * CLUSTER_S;   // tiles, and blocks that have the same slice of k
    int rows_r, rows_s;        // of a matrix of the batch
    int units_r, units_s;
    int group;                 // units of R that are walked together, to share S in the L2
    int unit, step, units;     // this cluster's current unit, how far apart its units are, all units
    int rank;                  // of this block in its cluster
    int k_begin, k_end;

    __device__ __forceinline__ explicit ClusterTiles(const GemmArgs& args) {
        rows_r = SWAPPED ? args.n : args.m;
        rows_s = SWAPPED ? args.m : args.n;
        const int tiles_r = (rows_r + TILE_R - 1) / TILE_R;
        units_r = (tiles_r + CLUSTER_R - 1) / CLUSTER_R;
        const int tiles_s = (rows_s + TILE_S - 1) / TILE_S;
        units_s = (tiles_s + CLUSTER_S - 1) / CLUSTER_S;
        group = min(max(args.group_m, 1), units_r);
        units = units_r * units_s * args.batch;
        rank = static_cast<int>(ptx::cluster_rank());
        unit = static_cast<int>(ptx::cluster_index());
        step = static_cast<int>(ptx::cluster_count());
        k_begin = 0;
        k_end = args.k;
        if (CUT) {   // a cluster may have more blocks than k has slices
            k_begin = min(slice_begin(args, slice()), args.k);
            k_end = slice_end(args, k_begin);
        }
    }
    // Which tile of the unit is this block's, and which slice of k.
    __device__ __forceinline__ int along_r() const { return kUnit == 1 ? 0 : CUT || CLUSTER_S > 1 ? rank % CLUSTER_R : rank; }
    __device__ __forceinline__ int along_s() const { return CLUSTER_S == 1 ? 0 : rank / CLUSTER_R % CLUSTER_S; }
    __device__ __forceinline__ int slice() const { return CUT ? rank / kUnit : 0; }

    __device__ __forceinline__ bool more() const { return unit < units; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ int stages() const { return (k_end - k_begin + STEP_K - 1) / STEP_K; }

    // First row of R and S of this block's tile, and the matrix of the batch (or of the slices).
    __device__ __forceinline__ void locate(int& row_r, int& row_s, int& batch) const {
        if (units_s == 1 && units == units_r) {   // few rows: no divisions before the first copy
            batch = CUT ? slice_apart() : 0;
            row_r = (unit * CLUSTER_R + (CLUSTER_R > 1 ? along_r() : 0)) * TILE_R;
            row_s = (CLUSTER_S > 1 ? along_s() : 0) * TILE_S;
            return;
        }
        const int per_matrix = units_r * units_s, matrix = unit / per_matrix;
        batch = matrix + (CUT ? slice_apart() : 0);
        const int index = unit - matrix * per_matrix;
        const int per_group = group * units_s;
        const int first = index / per_group * group;
        const int height = min(group, units_r - first);
        const int inside = index % per_group;
        row_r = ((first + inside % height) * CLUSTER_R + (CLUSTER_R > 1 ? along_r() : 0)) * TILE_R;
        row_s = (inside / height * CLUSTER_S + (CLUSTER_S > 1 ? along_s() : 0)) * TILE_S;
    }
};

#endif  // sm_90
