// The rate of FP32 multiply-adds with nothing else to do: what no SGEMM on FFMA can exceed. Each thread walks
// independent chains of multiply-adds in registers. Block 0 also counts its clocks, so that the host learns the clock that
// the card keeps under this load.

namespace {

constexpr int kThreads = 1024;       // one block fills a multiprocessor: its clocks are those of the whole kernel
constexpr int kChains = 16;          // independent sums a thread: more than the latency of an FFMA needs
constexpr int kUnroll = 16;          // FFMAs of a chain between two loop tests
constexpr int kFlopsPerFma = 2;

static_assert(kChains * kUnroll >= 256, "the loop test must be rare beside the multiply-adds");

}  // namespace

// `work` receives the floating-point operations of one thread, `cycles` the clocks that block 0 took.
extern "C" __global__ void __launch_bounds__(kThreads)
    ffma_peak(float* sink, long long* work, long long* cycles, float x, float y, int iterations) {
    float sum[kChains];
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) sum[chain] = static_cast<float>(threadIdx.x + chain);

    const long long start = clock64();
    for (int i = 0; i < iterations; ++i) {
#pragma unroll
        for (int step = 0; step < kUnroll; ++step) {
#pragma unroll
            for (int chain = 0; chain < kChains; ++chain) sum[chain] = fmaf(sum[chain], x, y);
        }
    }
    __syncthreads();  // the scheduler may favour some warps: the last one counts
    const long long stop = clock64();

    float total = 0.0f;
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) total += sum[chain];
    // Never true for the x and y that the host passes, which the compiler does not know: the sums must be computed.
    if (total == -1.0f) *sink = total;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *work = static_cast<long long>(iterations) * kUnroll * kChains * kFlopsPerFma;
        *cycles = stop - start;
    }
}
