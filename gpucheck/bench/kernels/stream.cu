// Memory bandwidth: copy y = x and triad y = a x + z, on packs of four float32 numbers.
//
// `packs` counts the packs of each array; arrays begin at multiples of 16 bytes and do not overlap.
// A block takes tiles of BLOCK * UNROLL packs: each thread has UNROLL loads (triad: twice as many)
// in flight before it waits for the first. The blocks stride over the tiles, so any grid works.
// No header is included, so NVRTC alone compiles this.

#ifndef BLOCK
#define BLOCK 256
#endif
#ifndef UNROLL
#define UNROLL 4
#endif

// GPU instructions; tests/emulator has a twin of each.
#ifndef EMULATED
// Read-only and read once: bypasses the L1 cache, so that it keeps nothing. Loads before Volta have
// no such option.
#if __CUDA_ARCH__ >= 700
#define PAST_L1 ".L1::no_allocate"
#else
#define PAST_L1 ""
#endif
__device__ __forceinline__ uint4 load_pack(const float4* from)
{
    uint4 raw;
    asm("ld.global.nc" PAST_L1 ".v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "l"(from));
    return raw;
}

// Written once and not read again: evicted first from the L2 cache.
__device__ __forceinline__ void store_pack(float4* to, uint4 raw)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w) : "memory");
}
#endif

__device__ __forceinline__ unsigned int scale_and_add(float a, unsigned int one, unsigned int other)
{
    return __float_as_uint(a * __uint_as_float(one) + __uint_as_float(other));
}

// Only the last tile checks whether each pack exists.
#define FOR_EACH_TILE(work) \
    const long long tile = (long long)BLOCK * UNROLL; \
    for (long long low = blockIdx.x * tile; low < packs; low += gridDim.x * tile) { \
        const long long first = low + threadIdx.x; \
        if (low + tile <= packs) { work(true) } \
        else { work(first + i * BLOCK < packs) } \
    }

extern "C" __global__ void __launch_bounds__(BLOCK) copy(
    const float4* __restrict__ x, float4* __restrict__ y, long long packs)
{
#define COPY_TILE(there) \
    uint4 held[UNROLL]; \
    _Pragma("unroll") \
    for (int i = 0; i < UNROLL; ++i) \
        if (there) held[i] = load_pack(x + first + i * BLOCK); \
    _Pragma("unroll") \
    for (int i = 0; i < UNROLL; ++i) \
        if (there) store_pack(y + first + i * BLOCK, held[i]);
    FOR_EACH_TILE(COPY_TILE)
}

extern "C" __global__ void __launch_bounds__(BLOCK) triad(
    const float4* __restrict__ x, const float4* __restrict__ z, float4* __restrict__ y, float a,
    long long packs)
{
#define TRIAD_TILE(there) \
    uint4 one[UNROLL], other[UNROLL]; \
    _Pragma("unroll") \
    for (int i = 0; i < UNROLL; ++i) { \
        if (!(there)) continue; \
        one[i] = load_pack(x + first + i * BLOCK); \
        other[i] = load_pack(z + first + i * BLOCK); \
    } \
    _Pragma("unroll") \
    for (int i = 0; i < UNROLL; ++i) { \
        if (!(there)) continue; \
        const uint4 result = make_uint4( \
            scale_and_add(a, one[i].x, other[i].x), scale_and_add(a, one[i].y, other[i].y), \
            scale_and_add(a, one[i].z, other[i].z), scale_and_add(a, one[i].w, other[i].w)); \
        store_pack(y + first + i * BLOCK, result); \
    }
    FOR_EACH_TILE(TRIAD_TILE)
}
