// Memory bandwidth: copy y = x and triad y = a x + z, on packs of four float32 numbers.
//
// `packs` counts float4; the arrays' length is a multiple of four. Each thread moves one pack at a
// time and strides over the grid, so that neighbouring threads touch neighbouring memory.

extern "C" __global__ void copy(const float4* __restrict__ x, float4* __restrict__ y, long long packs)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride)
        y[i] = x[i];
}

extern "C" __global__ void triad(
    const float4* __restrict__ x, const float4* __restrict__ z, float4* __restrict__ y, float a,
    long long packs)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < packs; i += stride) {
        const float4 one = x[i], other = z[i];
        y[i] = make_float4(
            a * one.x + other.x, a * one.y + other.y, a * one.z + other.z, a * one.w + other.w);
    }
}
