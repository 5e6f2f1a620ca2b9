// Bitwise comparison of two arrays of one shape, and a digest of one array.
//
// ELEMENT is the format: 0 float32, 1 float16, 2 bfloat16, 3 float64, 4 int32. Numbers are handled
// as bits, so that NaN equals itself and -0 differs from +0. bench/sdc.py is the twin in
// NumPy. No header is included, so NVRTC alone compiles this.

#ifndef ELEMENT
#define ELEMENT 0
#endif

typedef unsigned long long wide;

#if ELEMENT == 1 || ELEMENT == 2
typedef unsigned short word;
#elif ELEMENT == 3
typedef unsigned long long word;
#else
typedef unsigned int word;
#endif

// Bits of infinity: all ones in the exponent. Larger magnitudes are NaN.
#if ELEMENT == 0
#define INFINITE 0x7f800000u
#define SIGN 0x80000000u
#elif ELEMENT == 1
#define INFINITE 0x7c00u
#define SIGN 0x8000u
#elif ELEMENT == 2
#define INFINITE 0x7f80u
#define SIGN 0x8000u
#elif ELEMENT == 3
#define INFINITE 0x7ff0000000000000ull
#define SIGN 0x8000000000000000ull
#endif

// Distance of two numbers that are not NaN, in numbers of the format; both zeros are one number.
__device__ __forceinline__ wide ulps_between(word one, word other)
{
#if ELEMENT == 4
    const long long difference = (long long)(int)one - (long long)(int)other;
    return (wide)(difference < 0 ? -difference : difference);
#else
    const wide low = one & (word)~SIGN, high = other & (word)~SIGN;
    if ((one ^ other) & SIGN) return low + high;
    return low < high ? high - low : low - high;
#endif
}

__device__ __forceinline__ bool is_nan(word bits)
{
#if ELEMENT == 4
    (void)bits;
    return false;
#else
    return (word)(bits & (word)~SIGN) > (word)INFINITE;
#endif
}

// found: number of differing words, index of the first, largest difference in units in the last
// place, and number of differing pairs with a NaN (which has no distance).
extern "C" __global__ void differ(
    const word *one, const word *other, long long count, wide *found)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    wide differing = 0, first = ~0ull, most = 0, nans = 0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const word a = one[i], b = other[i];
        if (a == b) continue;
        if (differing++ == 0) first = (wide)i;
        if (is_nan(a) || is_nan(b)) {
            ++nans;
            continue;
        }
        const wide distance = ulps_between(a, b);
        if (distance > most) most = distance;
    }
    if (differing) {
        atomicAdd(found, differing);
        atomicMin(found + 1, first);
        atomicMax(found + 2, most);
        atomicAdd(found + 3, nans);
    }
}

// Sum, modulo 2^64, of a mix of each word and its place. The mix is a bijection (splitmix64's
// finaliser; Steele, Lea and Flood 2014), so a single wrong word always shows. The order in which
// the threads add does not matter.
extern "C" __global__ void digest(const word *values, long long count, wide *sum)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    wide own = 0;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        wide mixed = (wide)values[i] + (wide)(i + 1) * 0x9e3779b97f4a7c15ull;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
        own += mixed ^ (mixed >> 31);
    }
    if (own) atomicAdd(sum, own);
}
