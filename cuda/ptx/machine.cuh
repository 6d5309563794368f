// Numbers of the machine.
#pragma once

constexpr int kWarp = 32;                     // threads of a warp
constexpr unsigned kWholeWarp = 0xffffffff;   // all of its lanes
constexpr int kVectorBytes = 16;              // the widest access of a thread
constexpr int kVector = kVectorBytes / 4;     // floats of it
