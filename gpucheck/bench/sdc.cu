// Bitwise comparison of a result with the first one, and a digest of one array.
//
// ELEMENT is the format: 0 float32, 1 float16, 2 bfloat16, 3 float64, 4 int32. Numbers are handled
// as bits, so that NaN equals itself and -0 differs from +0. bench/bits.py is the twin in
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

// Packs of 16 bytes that a thread loads from each array before it compares, and words of a pack.
#define UNROLL 4
#define PER_PACK (16 / (int)sizeof(word))

__device__ __forceinline__ word word_of(const uint4 &pack, int number)
{
    const unsigned int words[4] = {pack.x, pack.y, pack.z, pack.w};
#if ELEMENT == 1 || ELEMENT == 2
    return (word)(words[number / 2] >> (16 * (number % 2)));
#elif ELEMENT == 3
    return (word)words[2 * number + 1] << 32 | words[2 * number];
#else
    return words[number];
#endif
}

// Differing words of one thread: their number, the index of the first, the largest distance in
// units in the last place, and the number of pairs with a NaN (which has no distance).
struct Differences {
    wide count = 0, first = ~0ull, most = 0, nans = 0;

    __device__ __forceinline__ void compare(word one, word other, long long index)
    {
        if (one == other) return;
        if (count++ == 0) first = (wide)index;
        if (is_nan(one) || is_nan(other)) {
            ++nans;
            return;
        }
        const wide distance = ulps_between(one, other);
        if (distance > most) most = distance;
    }
};

// Compare `other` with `one`, add to `found` what Differences has, and leave poison in `other`:
// words that a product which was not computed would leave there. Both begin at multiples of 16
// bytes.
extern "C" __global__ void differ(
    const word *__restrict__ one, word *__restrict__ other, long long count, wide *found)
{
#if ELEMENT == 4
    const unsigned int poison = 0x80808080u;  // a conspicuous number
#else
    const unsigned int poison = 0xffffffffu;  // NaN
#endif
    const long long stride = (long long)gridDim.x * blockDim.x;
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long packs = count / PER_PACK;
    Differences own;
    // NOTE: loops of their own, so that all loads are in flight before the first comparison.
    for (long long low = thread; low < packs; low += UNROLL * stride) {
        uint4 expected[UNROLL], computed[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const long long pack = low + i * stride;
            expected[i] = computed[i] = make_uint4(0, 0, 0, 0);
            if (pack < packs) {
                expected[i] = ((const uint4 *)one)[pack];
                computed[i] = ((const uint4 *)other)[pack];
            }
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const long long pack = low + i * stride;
            if (pack < packs) ((uint4 *)other)[pack] = make_uint4(poison, poison, poison, poison);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const unsigned int changed = (expected[i].x ^ computed[i].x) |
                (expected[i].y ^ computed[i].y) | (expected[i].z ^ computed[i].z) |
                (expected[i].w ^ computed[i].w);
            if (!changed) continue;
#pragma unroll
            for (int number = 0; number < PER_PACK; ++number)
                own.compare(word_of(expected[i], number), word_of(computed[i], number),
                            (low + i * stride) * PER_PACK + number);
        }
    }
#pragma unroll 1
    for (long long i = packs * PER_PACK + thread; i < count; i += stride) {
        own.compare(one[i], other[i], i);
        other[i] = (word)(poison | (wide)poison << 32);
    }
    if (own.count) {
        atomicAdd(found, own.count);
        atomicMin(found + 1, own.first);
        atomicMax(found + 2, own.most);
        atomicAdd(found + 3, own.nans);
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
