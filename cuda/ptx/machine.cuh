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
constexpr int kSharedLimit = 227 * 1024;      // bytes of shared memory that a block may have

// Registers of a thread when a block starts that has a multiprocessor for itself.
constexpr int registers_at_launch(int threads) { return kRegisters / threads / 8 * 8; }

// Where a grid has no more blocks than an H200 has multiprocessors, it pays to let the next kernel in at once: small products of 16-bit
// numbers take 1.1 to 1.17 times as long otherwise (stand-alone runs). With some hundred blocks those of the next kernel take places
// unevenly, and some kernels take a tenth longer.
constexpr int kFewBlocks = 132;

// Kernels whose blocks share a multiprocessor tell the compiler how many do, and so how many registers a thread may have: as many as
// was best on Hopper, and so many fewer elsewhere, where the same code needs more registers and would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
constexpr int kFewerBlocks = 1;
#else
constexpr int kFewerBlocks = 0;
#endif
