// What a GPU's tensor cores make of TF32 operands that tell one arithmetic from another: cancellation, wide exponents,
// subnormal numbers, infinities, sums at the edge of what is kept. The emulator's arithmetic is compared with it bit by bit.
//
//   nvcc -O2 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o generate generate.cu && ./generate > tf32-GPU.txt
//
// A line has the instruction, the class of its operands, a checksum of them, and the result, row by row, in hexadecimal.
// Operands are not stored: they come from a generator of integers that ../tests/samples.rs has too. `./generate --inputs`
// prints the checksums alone, and needs no GPU.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

constexpr int kClasses = 16;
constexpr int kDepth = 8, kColumns = 8;

struct Random {
    uint64_t state;
    uint64_t next() {
        state += 0x9E3779B97F4A7C15ull;
        uint64_t z = state;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        return z ^ z >> 31;
    }
};

enum Role { kA, kB, kC };

// The bits of an operand of this class, from a random number.
uint32_t number(int kind, Role role, uint64_t r) {
    const uint32_t sign = static_cast<uint32_t>(r & 1) << 31, fraction = static_cast<uint32_t>(r >> 8) & 0x7FFFFF;
    const uint64_t high = r >> 32;
    const auto with = [&](uint64_t exponent, uint32_t bits) {
        return sign | static_cast<uint32_t>(exponent) << 23 | bits;
    };
    switch (kind) {
        case 0: return with(126 - high % 4, fraction);                       // about 1
        case 1: return with(97 + high % 61, fraction);                       // 2^-30 to 2^30
        case 2: return with(1 + high % 253, fraction);                       // any finite, normal number
        case 3: return with(120 + high % 8, fraction);                       // neighbours cancel: see below
        case 4: return with(high % 2 == 0 ? 0 : 127, fraction);              // subnormal numbers
        case 5: return with(role == kC ? high % 30 : 52 + high % 14, fraction);     // subnormal products
        case 6: return with(role == kC ? 147 + high % 6 : 120 + high % 8, fraction);   // the addend is large
        case 7: return with(role == kC ? 100 + high % 10 : 125 + high % 6, fraction);  // the addend is small
        case 8:                                                              // infinities and NaN
            if ((r >> 40) % 16 == 0) return sign | ((r >> 50) % 2 == 0 ? 0x7F800000 : 0x7FC00000);
            return with(126 - high % 4, fraction);
        case 9: return with(role == kC ? 252 + high % 3 : 189 + high % 3, fraction);   // about to overflow
        case 10: return with(role == kC ? 127 : 113 + high % 15, 0);         // powers of two at the edge of what is kept
        case 11: return (r >> 40) % 3 == 0 ? sign : with(1 + high % 253, fraction);    // zeros beside large numbers
        case 12: case 13: {                                                  // small whole numbers
            const float x = static_cast<float>(static_cast<int>(high % 17) - 8) * (kind == 13 && role == kC ? 4194304.0f : 1.0f);
            uint32_t bits;
            memcpy(&bits, &x, 4);
            return bits;
        }
        case 14: return number(static_cast<int>((r >> 56) % 11), role, r);   // all of these
        default: return static_cast<uint32_t>(high);                         // any bits
    }
}

struct Operands {
    std::vector<uint32_t> a, b, c;   // rows × 8, 8 × 8 (by rows of k), rows × 8

    Operands(int seed, int kind, int rows) : a(rows * kDepth), b(kDepth * kColumns), c(rows * kColumns) {
        Random random{static_cast<uint64_t>(seed) * 1000 + kind};
        for (auto& x : a) x = number(kind, kA, random.next());
        for (auto& x : b) x = number(kind, kB, random.next());
        for (auto& x : c) x = number(kind, kC, random.next());
        if (kind != 3) return;
        for (int row = 0; row < rows; ++row)
            for (int k = 1; k < kDepth; k += 2) a[row * kDepth + k] = a[row * kDepth + k - 1] ^ 0x80000000;
        for (int k = 1; k < kDepth; k += 2)
            for (int column = 0; column < kColumns; ++column) {
                const uint64_t r = random.next();
                b[k * kColumns + column] = b[(k - 1) * kColumns + column] ^ (r % 4 == 0 ? 1u << 13 : 0);
            }
        for (auto& x : c) {
            if (random.next() % 2 == 0) x = 0;
        }
    }

    uint64_t checksum() const {
        uint64_t sum = 0xCBF29CE484222325ull;
        for (const auto* list : {&a, &b, &c})
            for (const uint32_t x : *list) sum = (sum ^ x) * 0x100000001B3ull;
        return sum;
    }
};

__global__ void mma_kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
    const int group = threadIdx.x / 4, quad = threadIdx.x % 4;
    const uint32_t a0 = a[group * 8 + quad], a1 = a[(group + 8) * 8 + quad], a2 = a[group * 8 + quad + 4],
                   a3 = a[(group + 8) * 8 + quad + 4];
    const uint32_t b0 = b[quad * 8 + group], b1 = b[(quad + 4) * 8 + group];
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = c[(group + i / 2 * 8) * 8 + 2 * quad + i % 2];
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * quad + i % 2] = x[i];
}

__global__ void wgmma_kernel(const uint32_t* a, const uint32_t* b, const float* c, float* d) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    // Two core matrices of eight columns by four of k.
    __shared__ alignas(128) uint32_t tile[64];
    if (threadIdx.x < 64) {
        const int k = threadIdx.x / 8, column = threadIdx.x % 8;
        tile[k / 4 * 32 + column * 4 + k % 4] = b[k * 8 + column];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32 * 16 + lane / 4, quad = lane % 4;
    uint32_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = a[(group + i % 2 * 8) * 8 + quad + i / 2 * 4];
    float x[4];
    for (int i = 0; i < 4; ++i) x[i] = c[(group + i / 2 * 8) * 8 + 2 * quad + i % 2];
    const uint64_t address = static_cast<uint64_t>(__cvta_generic_to_shared(tile));
    const uint64_t descriptor = (address & 0x3FFFF) >> 4 | (128ull >> 4) << 16 | (256ull >> 4) << 32;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;\n}"
                 : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                 : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(descriptor), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(x[i])::"memory");
    for (int i = 0; i < 4; ++i) d[(group + i / 2 * 8) * 8 + 2 * quad + i % 2] = x[i];
#endif
}

void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(status));
    exit(1);
}

int main(int count, char** arguments) {
    const bool inputs_only = count > 1 && strcmp(arguments[1], "--inputs") == 0;
    if (!inputs_only) {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, 0));
        printf("# %s, compute capability %d.%d\n", properties.name, properties.major, properties.minor);
    }
    for (int instruction = 0; instruction < 2; ++instruction) {
        const int rows = instruction == 0 ? 16 : 64;
        for (int kind = 0; kind < kClasses; ++kind) {
            const Operands operands(instruction, kind, rows);
            printf("%s %d %016llx", instruction == 0 ? "mma" : "wgmma", kind,
                   static_cast<unsigned long long>(operands.checksum()));
            if (!inputs_only) {
                uint32_t *a, *b;
                float *c, *d;
                check(cudaMalloc(&a, operands.a.size() * 4));
                check(cudaMalloc(&b, operands.b.size() * 4));
                check(cudaMalloc(&c, operands.c.size() * 4));
                check(cudaMalloc(&d, operands.c.size() * 4));
                check(cudaMemcpy(a, operands.a.data(), operands.a.size() * 4, cudaMemcpyHostToDevice));
                check(cudaMemcpy(b, operands.b.data(), operands.b.size() * 4, cudaMemcpyHostToDevice));
                check(cudaMemcpy(c, operands.c.data(), operands.c.size() * 4, cudaMemcpyHostToDevice));
                if (instruction == 0) mma_kernel<<<1, 32>>>(a, b, c, d);
                else wgmma_kernel<<<1, 128>>>(a, b, c, d);
                check(cudaGetLastError());
                check(cudaDeviceSynchronize());
                std::vector<uint32_t> result(operands.c.size());
                check(cudaMemcpy(result.data(), d, result.size() * 4, cudaMemcpyDeviceToHost));
                for (const uint32_t x : result) printf(" %08x", x);
                for (void* pointer : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(c), static_cast<void*>(d)})
                    check(cudaFree(pointer));
            }
            printf("\n");
        }
    }
    return 0;
}
