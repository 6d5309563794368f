// Threads that an SM holds, for launch bounds that ask for so many blocks an SM: CUDA C++ Programming Guide, technical specifications per
// compute capability. A file that includes this is compiled for each of these apart.
#pragma once

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr int kThreadsPerSm = 1536;
#else
constexpr int kThreadsPerSm = 2048;
#endif
