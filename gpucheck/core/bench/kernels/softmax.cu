// Row softmax with a temperature, y = exp2((x - max) * factor) / sum, factor = log2(e) / T.
//
// x and y are (rows, columns), row-major, of the format that ELEMENT names; the arithmetic is in
// float32. A row that holds NaN or +inf, or nothing but
// -inf, becomes NaN, as the formula says: fmaxf passes NaN by, but exp2f(NaN) then reaches the sum.
// No header is included, so NVRTC alone compiles this.
//
//   softmax_warp_V     a warp to a row, V values in each lane's registers: columns <= 32 V
//   softmax_block_V    a block to a row, V values in each thread's registers
//   softmax_packed_V   the same with loads of four numbers: columns a multiple of 4
//   softmax_online     a block to a row of any length: maximum and sum in one pass, then a second
//
// All but the last read a row once from memory and write it once.

// ELEMENT: 0 float32, 1 float16, 2 bfloat16. The 16-bit formats are handled as their bits, because
// CUDA's headers for them are not everywhere that NVRTC is.
#ifndef ELEMENT
#define ELEMENT 0
#endif

#define FULL_WARP 0xffffffffu

#if ELEMENT == 0
typedef float element;
typedef float4 element4;
#else
typedef unsigned short element;
typedef ushort4 element4;
#endif

__device__ __forceinline__ float widen(element value)
{
#if ELEMENT == 0
    return value;
#elif ELEMENT == 1
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value));
    return wide;
#else
    return __uint_as_float((unsigned int)value << 16);
#endif
}

// To nearest, ties to even. bfloat16 by hand: its conversion instruction came with sm_80.
__device__ __forceinline__ element narrow(float value)
{
#if ELEMENT == 0
    return value;
#elif ELEMENT == 1
    element bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const unsigned int bits = __float_as_uint(value);
    if (value != value) return (element)0x7fc0;
    return (element)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

__device__ __forceinline__ float4 widen4(element4 value)
{
    return make_float4(widen(value.x), widen(value.y), widen(value.z), widen(value.w));
}

__device__ __forceinline__ element4 narrow4(float4 value)
{
    element4 packed;
    packed.x = narrow(value.x);
    packed.y = narrow(value.y);
    packed.z = narrow(value.z);
    packed.w = narrow(value.w);
    return packed;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float warp_max(float value)
{
    for (int lane = 16; lane > 0; lane >>= 1)
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, lane));
    return value;
}

__device__ __forceinline__ float warp_sum(float value)
{
    for (int lane = 16; lane > 0; lane >>= 1)
        value += __shfl_xor_sync(FULL_WARP, value, lane);
    return value;
}

// The block's threads each bring a value and each get the result. `shared` holds 32 floats; the
// leading barrier lets one array serve several calls.
__device__ __forceinline__ float block_max(float value, float* shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = warp_max(value);
    __syncthreads();
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return warp_max(lane < warps ? shared[lane] : minus_infinity());
}

__device__ __forceinline__ float block_sum(float value, float* shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    value = warp_sum(value);
    __syncthreads();
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : 0.0f);
}

template <int VALUES>
__device__ __forceinline__ void softmax_warp(
    const element* __restrict__ x, element* __restrict__ y, long long rows, long long columns,
    float factor)
{
    const int lane = threadIdx.x & 31;
    const long long row = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= rows) return;  // the whole warp leaves together
    const element* from = x + row * columns;
    element* to = y + row * columns;

    float values[VALUES];
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int column = lane + 32 * i;
        values[i] = column < columns ? widen(from[column]) : minus_infinity();
        top = fmaxf(top, values[i]);
    }
    top = warp_max(top);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        values[i] = exp2f((values[i] - top) * factor);
        if (lane + 32 * i < columns) sum += values[i];
    }
    const float scale = 1.0f / warp_sum(sum);

#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int column = lane + 32 * i;
        if (column < columns) to[column] = narrow(values[i] * scale);
    }
}

template <int VALUES>
__device__ __forceinline__ void softmax_block(
    const element* __restrict__ x, element* __restrict__ y, long long columns, float factor)
{
    __shared__ float shared[32];
    const element* from = x + (long long)blockIdx.x * columns;
    element* to = y + (long long)blockIdx.x * columns;

    float values[VALUES];
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int column = threadIdx.x + blockDim.x * i;
        values[i] = column < columns ? widen(from[column]) : minus_infinity();
        top = fmaxf(top, values[i]);
    }
    top = block_max(top, shared);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        values[i] = exp2f((values[i] - top) * factor);
        if (threadIdx.x + blockDim.x * i < columns) sum += values[i];
    }
    const float scale = 1.0f / block_sum(sum, shared);

#pragma unroll
    for (int i = 0; i < VALUES; ++i) {
        const int column = threadIdx.x + blockDim.x * i;
        if (column < columns) to[column] = narrow(values[i] * scale);
    }
}

template <int VALUES>
__device__ __forceinline__ void softmax_packed(
    const element* __restrict__ x, element* __restrict__ y, long long columns, float factor)
{
    constexpr int PACKS = VALUES / 4;
    __shared__ float shared[32];
    const element4* from = reinterpret_cast<const element4*>(x + (long long)blockIdx.x * columns);
    element4* to = reinterpret_cast<element4*>(y + (long long)blockIdx.x * columns);
    const int packs = (int)(columns / 4);

    float4 values[PACKS];
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int pack = threadIdx.x + blockDim.x * i;
        if (pack < packs) {
            values[i] = widen4(from[pack]);
            top = fmaxf(top, fmaxf(fmaxf(values[i].x, values[i].y),
                                   fmaxf(values[i].z, values[i].w)));
        }
    }
    top = block_max(top, shared);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        if ((int)(threadIdx.x + blockDim.x * i) < packs) {
            values[i].x = exp2f((values[i].x - top) * factor);
            values[i].y = exp2f((values[i].y - top) * factor);
            values[i].z = exp2f((values[i].z - top) * factor);
            values[i].w = exp2f((values[i].w - top) * factor);
            sum += (values[i].x + values[i].y) + (values[i].z + values[i].w);
        }
    }
    const float scale = 1.0f / block_sum(sum, shared);

#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int pack = threadIdx.x + blockDim.x * i;
        if (pack < packs) {
            values[i].x *= scale;
            values[i].y *= scale;
            values[i].z *= scale;
            values[i].w *= scale;
            to[pack] = narrow4(values[i]);
        }
    }
}

// A sum that counts exponentials relative to `from` becomes relative to `to` by this factor. A
// thread that has seen nothing but -inf has an empty sum: without the test it would be NaN.
__device__ __forceinline__ float rebase(float from, float to, float factor)
{
    return from == minus_infinity() ? 0.0f : exp2f((from - to) * factor);
}

#define PARAMETERS \
    const element *__restrict__ x, element *__restrict__ y, long long rows, long long columns, \
        float factor

extern "C" __global__ void __launch_bounds__(1024) softmax_online(PARAMETERS)
{
    __shared__ float shared[32];
    const element* from = x + (long long)blockIdx.x * columns;
    element* to = y + (long long)blockIdx.x * columns;

    float top = minus_infinity(), sum = 0.0f;
    for (long long column = threadIdx.x; column < columns; column += blockDim.x) {
        const float value = widen(from[column]);
        const float higher = fmaxf(top, value);
        const float term = value == minus_infinity() ? 0.0f : exp2f((value - higher) * factor);
        sum = sum * rebase(top, higher, factor) + term;
        top = higher;
    }
    const float highest = block_max(top, shared);
    // A NaN sum must stay one even if this thread has seen nothing finite.
    sum = sum == 0.0f ? 0.0f : sum * rebase(top, highest, factor);
    if (sum != sum || highest == minus_infinity()) sum = __int_as_float(0x7fc00000);
    const float scale = 1.0f / block_sum(sum, shared);

    for (long long column = threadIdx.x; column < columns; column += blockDim.x)
        to[column] = narrow(exp2f((widen(from[column]) - highest) * factor) * scale);
}

#define WARP_KERNEL(VALUES) \
    extern "C" __global__ void __launch_bounds__(256) softmax_warp_##VALUES(PARAMETERS) \
    { softmax_warp<VALUES>(x, y, rows, columns, factor); }

#define BLOCK_KERNEL(VALUES) \
    extern "C" __global__ void __launch_bounds__(1024) softmax_block_##VALUES(PARAMETERS) \
    { softmax_block<VALUES>(x, y, columns, factor); } \
    extern "C" __global__ void __launch_bounds__(1024) softmax_packed_##VALUES(PARAMETERS) \
    { softmax_packed<VALUES>(x, y, columns, factor); }

WARP_KERNEL(1)
WARP_KERNEL(2)
WARP_KERNEL(4)
WARP_KERNEL(8)
WARP_KERNEL(16)
WARP_KERNEL(32)
BLOCK_KERNEL(8)
BLOCK_KERNEL(16)
BLOCK_KERNEL(32)
