// How partial sums come together.
#pragma once

__device__ __forceinline__ void add(float4& sum, float4 part) {
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
}
