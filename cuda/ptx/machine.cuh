// Numbers of the machine.
#pragma once

constexpr int kWarp = 32;                     // threads of a warp
constexpr unsigned kWholeWarp = 0xffffffff;   // all of its lanes
constexpr int kWarpgroup = 128;               // threads that issue a wgmma together
constexpr int kWgmmaRows = 64;                // of its first operand
constexpr int kVectorBytes = 16;              // the widest access of a thread
constexpr int kVector = kVectorBytes / 4;     // floats of it

// Of compute capability 9.0:
constexpr int kRegisters = 65536;             // of a multiprocessor
constexpr int kSharedMemory = 228 * 1024;     // bytes of shared memory of a multiprocessor
constexpr int kSharedReserved = 1024;         // of them, for each block
constexpr int kSharedLimit = kSharedMemory - kSharedReserved;   // that a block may have

// Registers of a thread when a block starts that has a multiprocessor for itself.
constexpr int registers_at_launch(int threads) { return kRegisters / threads / 8 * 8; }

// Where a grid has no more blocks than an H200 has multiprocessors, it pays to let the next kernel in at once: small products of 16-bit
// numbers take 1.1 to 1.17 times as long otherwise (stand-alone runs). With some hundred blocks those of the next kernel take places
// unevenly, and some kernels take a tenth longer.
constexpr int kFewBlocks = 132;

// Kernels whose blocks share a multiprocessor tell the compiler how many do, and so how many registers a thread may have: as many as
// was best on Hopper, and so many fewer elsewhere, where the same code needs more registers and would spill. A quarter of the registers
// belongs to each scheduler, so fewer blocks leave more of them only where each scheduler has a warp less: of blocks of two warps that
// takes two.
constexpr int kSchedulers = 4;
constexpr int warps_of_scheduler(int blocks, int threads) { return (blocks * threads / kWarp + kSchedulers - 1) / kSchedulers; }
constexpr int blocks_that_share(int hopper, int threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    int blocks = hopper;
    while (blocks > 1 && warps_of_scheduler(blocks, threads) >= warps_of_scheduler(hopper, threads)) --blocks;
    return blocks;
#else
    return hopper;
#endif
}

// Of a kernel: blocks that share a multiprocessor, threads of a block.
#define LAUNCH_BOUNDS_SHARED_BY(BLOCKS, ...) __launch_bounds__((__VA_ARGS__), blocks_that_share(BLOCKS, (__VA_ARGS__)))
