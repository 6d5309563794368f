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
