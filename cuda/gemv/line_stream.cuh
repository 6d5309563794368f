// The frame of kernels that stream the lines of a matrix past few vectors at the speed of memory: as many blocks as the
// multiprocessors hold, each with an equal share of the lines, one *group* of neighbouring lines after the other.
//
// A block takes a group in portions of k, its *slabs*. While it multiplies one slab, all loads of the next are under way, into registers,
// so nothing but the first one's latency is ever waited for: there are no blocks that begin or end amid the stream. Sums of finished
// groups gather in shared memory until there are enough for all threads: an epilogue a group would be waited for that often.
//
// A launch that follows another one may start before that ends (PDL). Until it may read, it has the L2 fetch what its blocks will read
// first. That is no read: if the kernel before writes there, the loads behind the wait find what it wrote.
#pragma once

#include "../abi/gemm_args.cuh"
#include "../ptx/execution.cuh"
#include "../ptx/memory.cuh"
#include "../ptx/machine.cuh"

namespace line_stream {

// Lines whose sums gather.
constexpr int kGatheredLines = 64;
// Bytes of a multiprocessor's first lines that the L2 fetches ahead. Twice as many cost a step of a decoder 3 % on an H200, also where the
// kernel before leaves memory idle.
constexpr int kAheadBytes = 32 * 1024;
constexpr int kAheadPiece = 1024;   // bytes that a thread asks for
constexpr int kMostLineBytes = 1 << 30;   // of a line, as far as it may be fetched ahead: their number is an int

// A block's share of the groups of so many lines.
struct Share {
    int first, end;

    __device__ __forceinline__ Share(int n, int lines) {
        const int groups = (n - 1) / lines + 1, block = blockIdx.x, blocks = gridDim.x;
        const int each = groups / blocks, rest = groups % blocks;
        first = block * each + min(block, rest);
        end = first + each + (block < rest ? 1 : 0);
    }
};

// Lines of B and rows of A, both contiguous along k. What lies beyond the last is read as the last one again, and not stored.
template <typename T>
__device__ __forceinline__ const T* line_of(const GemmArgs& args, int line) {
    return static_cast<const T*>(args.b.data) + min(line, args.n - 1) * args.b.col_stride;
}
template <typename T>
__device__ __forceinline__ const T* row_of(const GemmArgs& args, int row) {
    return static_cast<const T*>(args.a.data) + min(row, args.m - 1) * args.a.row_stride;
}

// Has the L2 fetch the first lines, from `first` to `end`, of a block, and of all blocks together the rows of A.
template <int BLOCKS, typename T>
__device__ __forceinline__ void fetch_ahead(const GemmArgs& args, int first, int end) {
    constexpr int kAsking = kAheadBytes / BLOCKS / kAheadPiece;   // threads
    constexpr int kElement = static_cast<int>(sizeof(T));
    const int thread = threadIdx.x, bytes = min(args.k, kMostLineBytes / kElement) * kElement / kVectorBytes * kVectorBytes;
    const int pieces = bytes / kAheadPiece + 1;
    if (thread > kAsking) return;
    const bool of_row = thread == kAsking;
    const int number = of_row ? blockIdx.x : thread, at = number % pieces * kAheadPiece, line = number / pieces + (of_row ? 0 : first);
    if (line >= (of_row ? args.m : end) || at >= bytes) return;
    const T* const from = of_row ? row_of<T>(args, line) : line_of<T>(args, line);
    ptx::prefetch_l2(reinterpret_cast<const char*>(from) + at, min(kAheadPiece, bytes - at));
}

// A slab of a group.
struct Place {
    int group, slab;
    __device__ __forceinline__ void advance(int slabs) {
        if (++slab < slabs) return;
        slab = 0;
        ++group;
    }
};

// Walks the slabs of groups `first` to `end`: fetch(place, registers) starts the loads of one, use(place, registers) multiplies it, and
// where it is a group's last leaves sums in shared memory. store(first, end) stores what is there, of MOST groups at most.
template <int MOST, typename REGISTERS, typename FETCH, typename USE, typename STORE>
__device__ __forceinline__ void walk(int first, int end, int slabs, const FETCH& fetch, const USE& use, const STORE& store) {
    static_assert(MOST >= 2, "two groups may be finished before what is gathered is stored");
    if (first >= end) return;
    REGISTERS even, odd;
    Place next = {first, 0}, now = next;
    int stored = first;
    fetch(next, even);
    next.advance(slabs);
#pragma unroll 1
    while (true) {
        if (next.group < end) fetch(next, odd);
        next.advance(slabs);
        use(now, even);
        now.advance(slabs);
        if (now.group < end) {
            if (next.group < end) fetch(next, even);
            next.advance(slabs);
            use(now, odd);
            now.advance(slabs);
            if (now.group < end && now.group - stored + 2 <= MOST) continue;
        }
        __syncthreads();
        store(stored, now.group);
        if (now.group >= end) return;
        __syncthreads();
        stored = now.group;
    }
}

}  // namespace line_stream
