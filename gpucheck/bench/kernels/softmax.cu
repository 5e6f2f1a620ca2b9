// Row softmax with a temperature: y = exp2((x - max) * factor) / sum, factor = log2(e) / T.
//
// x and y hold `rows` rows of `columns` numbers without gaps. They do not overlap, and both begin
// equally far behind a multiple of 16 bytes. The arithmetic is in float32; powers below 2^-126
// count as zero. As with torch.softmax(x / T), a row with NaN or +inf, or with only -inf, becomes
// NaN, and -inf among finite numbers becomes 0. Unlike there, x / T is never formed, so a T near 0
// cannot overflow.
//
//   softmax_short   a row in the registers of LANES lanes of a warp: no barrier
//   softmax_long    a row in the registers of a block
//   softmax_online  a row that no block holds: a block takes maximum and sum in one pass over it,
//                   and writes in a second
//
// A pack is the 16 bytes that one thread moves at once. softmax.py chooses the kernel by the length
// of the rows, and the source is compiled for that launch alone, with these macros:
//
//   SOFTMAX_SHORT, SOFTMAX_LONG or SOFTMAX_ONLINE   the kernel
//   ELEMENT        0 float32, 1 float16, 2 bfloat16; the last two are handled as bits
//   ALIGNED        1 if all rows begin and end at multiples of 16 bytes, 0 if anywhere
//   EXACT          1 if aligned rows fill every pack of every thread, so that none is checked
//                  (softmax_long)
//   BLOCK          threads in a block, a multiple of 32
//   BLOCKS_PER_SM  the fewest that must fit an SM at once, which bounds the registers
//   PACKS          packs of a row in a thread's registers (softmax_short and softmax_long)
//   LANES          lanes to a row (softmax_short)
//
// No header is included, so NVRTC alone compiles this.

#ifndef EXACT
#define EXACT 0
#endif

#define FULL_WARP 0xffffffffu
#define ONLINE_PACKS 4  // packs of a thread in each step of softmax_online

#if ELEMENT == 0
typedef float element;
#define PER_PACK 4
#else
typedef unsigned short element;
#define PER_PACK 8
#endif

// GPU instructions. tests/emulator has a twin of each, so that the rest runs on a CPU.
#ifndef EMULATED
#define SHARED(type, name, count) __shared__ type name[count]

// Read-only and read once: bypasses the L1 cache, so that it keeps nothing. Loads before Volta have
// no such option.
#if __CUDA_ARCH__ >= 700
#define PAST_L1 ".L1::no_allocate"
#else
#define PAST_L1 ""
#endif
__device__ __forceinline__ uint4 load_pack(const element* from)
{
    uint4 raw;
    asm("ld.global.nc" PAST_L1 ".v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
        : "l"(from));
    return raw;
}

// Written once and not read again: evicted first from the L2 cache.
__device__ __forceinline__ void store_pack(element* to, uint4 raw)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"(raw.x), "r"(raw.y), "r"(raw.z), "r"(raw.w) : "memory");
}

// The GPU's own instruction, off by two units in the last place; subnormal results are zero.
__device__ __forceinline__ float power_of_two(float value)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

__device__ __forceinline__ float half_to_float(unsigned short bits)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

// To nearest, ties to even, as both conversions below.
__device__ __forceinline__ unsigned short float_to_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// bfloat16's instruction came with sm_80, together with those that convert two numbers at once.
#if __CUDA_ARCH__ >= 800
#define PAIRS_CONVERTED
__device__ __forceinline__ unsigned int narrow_pair(float low, float high)
{
    unsigned int pair;
#if ELEMENT == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}
#endif
#endif

#if ELEMENT == 2
// For one number, and for architectures without the instruction.
__device__ __forceinline__ unsigned short float_to_bfloat16(float value)
{
    const unsigned int bits = __float_as_uint(value);
    if (value != value) return (unsigned short)0x7fc0;
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#endif

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float widen(element value)
{
#if ELEMENT == 0
    return value;
#elif ELEMENT == 1
    return half_to_float(value);
#else
    return __uint_as_float((unsigned int)value << 16);
#endif
}

__device__ __forceinline__ element narrow(float value)
{
#if ELEMENT == 0
    return value;
#elif ELEMENT == 1
    return float_to_half(value);
#else
    return float_to_bfloat16(value);
#endif
}

__device__ __forceinline__ unsigned int word_of(const uint4& raw, int number)
{
    return number == 0 ? raw.x : number == 1 ? raw.y : number == 2 ? raw.z : raw.w;
}

__device__ __forceinline__ element element_of(const uint4& raw, int number)
{
#if ELEMENT == 0
    return __uint_as_float(word_of(raw, number));
#else
    return (element)(word_of(raw, number / 2) >> (16 * (number % 2)));
#endif
}

__device__ __forceinline__ void unpack(const uint4& raw, float* values)
{
#pragma unroll
    for (int i = 0; i < PER_PACK; ++i) values[i] = widen(element_of(raw, i));
}

__device__ __forceinline__ unsigned int pack_word(const float* values)
{
#if ELEMENT == 0
    return __float_as_uint(values[0]);
#elif defined(PAIRS_CONVERTED)
    return narrow_pair(values[0], values[1]);
#else
    return (unsigned int)narrow(values[0]) | (unsigned int)narrow(values[1]) << 16;
#endif
}

__device__ __forceinline__ uint4 pack(const float* values)
{
    const int step = PER_PACK / 4;
    uint4 raw;
    raw.x = pack_word(values);
    raw.y = pack_word(values + step);
    raw.z = pack_word(values + 2 * step);
    raw.w = pack_word(values + 3 * step);
    return raw;
}

// Elements between the begin of a row and the multiple of 16 bytes before it, where its first pack
// begins: pack k begins at element k * PER_PACK - skew. The first and the last may reach beyond the
// row, where nothing is read or written.
template <bool aligned>
__device__ __forceinline__ int skew_of(const element* row)
{
    return aligned ? 0 : (int)((unsigned long long)row % 16 / sizeof(element));
}

template <bool aligned, typename number>
__device__ __forceinline__ bool is_whole(number first, number columns)
{
    return aligned ? EXACT || first < columns : first >= 0 && first + PER_PACK <= columns;
}

// Return a pack of the row; elements beyond it are -inf, which changes neither maximum nor sum.
template <bool aligned, typename number>
__device__ __forceinline__ uint4 read_pack(const element* from, number first, number columns)
{
#if ELEMENT == 0
    const unsigned int nothing = 0xff800000u;
#elif ELEMENT == 1
    const unsigned int nothing = 0xfc00fc00u;
#else
    const unsigned int nothing = 0xff80ff80u;
#endif
    uint4 raw = make_uint4(nothing, nothing, nothing, nothing);
    if (is_whole<aligned>(first, columns)) {
        raw = load_pack(from + first);
    } else if (!aligned && first < columns && first + PER_PACK > 0) {
        unsigned int words[4] = {nothing, nothing, nothing, nothing};
#pragma unroll
        for (int i = 0; i < PER_PACK; ++i) {
            if (first + i >= 0 && first + i < columns) {
#if ELEMENT == 0
                words[i] = __float_as_uint(from[first + i]);
#else
                const unsigned int bits = from[first + i];
                const int shift = 16 * (i % 2);
                words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | bits << shift;
#endif
            }
        }
        raw = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return raw;
}

// Write a pack of the row: nothing beyond it.
template <bool aligned, typename number>
__device__ __forceinline__ void write_pack(
    element* to, number first, number columns, const float* values)
{
    if (is_whole<aligned>(first, columns)) {
        store_pack(to + first, pack(values));
    } else if (!aligned) {
#pragma unroll
        for (int i = 0; i < PER_PACK; ++i)
            if (first + i >= 0 && first + i < columns) to[first + i] = narrow(values[i]);
    }
}

template <int width>
__device__ __forceinline__ float lanes_max(float value)
{
#pragma unroll
    for (int lane = width / 2; lane > 0; lane /= 2)
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, lane));
    return value;
}

template <int width>
__device__ __forceinline__ float lanes_sum(float value)
{
#pragma unroll
    for (int lane = width / 2; lane > 0; lane /= 2)
        value += __shfl_xor_sync(FULL_WARP, value, lane);
    return value;
}

// Each warp of the block puts a value in `slots` before a barrier, and each thread gets the result.
// Maxima and sums have separate slots, so that a row's second barrier also keeps the next row's
// maxima from overwriting values that are still read: two barriers for each row.
#define BLOCK_REDUCTION(name, exchange, neutral) \
    template <typename slots_type> \
    __device__ __forceinline__ float name(float value, slots_type& slots) \
    { \
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32; \
        value = exchange<32>(value); \
        if (lane == 0) slots[warp] = value; \
        __syncthreads(); \
        return exchange<32>(lane < BLOCK / 32 ? (float)slots[lane] : neutral); \
    }

BLOCK_REDUCTION(block_max, lanes_max, minus_infinity())
BLOCK_REDUCTION(block_sum, lanes_sum, 0.0f)

// A thread's packs of one row: `begin` is the number of the first, and the next is `step` further.
template <int packs>
struct Held {
    float values[packs * PER_PACK];

    // NOTE: two loops, so that all loads are in flight before the first wait.
    template <bool aligned, typename number>
    __device__ __forceinline__ void read(
        const element* from, number begin, int step, number columns)
    {
        const int skew = skew_of<aligned>(from);
        uint4 raw[packs];
#pragma unroll
        for (int i = 0; i < packs; ++i)
            raw[i] = read_pack<aligned>(from, (begin + i * step) * PER_PACK - skew, columns);
#pragma unroll
        for (int i = 0; i < packs; ++i) unpack(raw[i], values + i * PER_PACK);
    }

    __device__ __forceinline__ float highest() const
    {
        float top = minus_infinity();
#pragma unroll
        for (int i = 0; i < packs * PER_PACK; ++i) top = fmaxf(top, values[i]);
        return top;
    }

    // fmaxf ignores NaN, but the power of NaN then reaches the sum. The difference comes before the
    // product: with one multiply-add the factor would overflow for a T near 0.
    __device__ __forceinline__ float raise(float top, float factor)
    {
        float sums[PER_PACK] = {};
#pragma unroll
        for (int i = 0; i < packs * PER_PACK; ++i) {
            values[i] = power_of_two((values[i] - top) * factor);
            sums[i % PER_PACK] += values[i];
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PER_PACK; ++i) sum += sums[i];
        return sum;
    }

    // NOTE: y's skew is x's, but taken from y: the places in x would need registers until here.
    template <bool aligned, typename number>
    __device__ __forceinline__ void write(
        element* to, number begin, int step, number columns, float scale)
    {
        const int skew = skew_of<aligned>(to);
#pragma unroll
        for (int i = 0; i < packs * PER_PACK; ++i) values[i] *= scale;
#pragma unroll
        for (int i = 0; i < packs; ++i)
            write_pack<aligned>(
                to, (begin + i * step) * PER_PACK - skew, columns, values + i * PER_PACK);
    }
};

#define PARAMETERS \
    const element *__restrict__ x, element *__restrict__ y, long long rows, long long columns, \
        float factor
#define ARGUMENTS x, y, rows, columns, factor

template <int lanes, int packs, bool aligned>
__device__ __forceinline__ void softmax_short_rows(PARAMETERS)
{
    const int lane = threadIdx.x % lanes, group = threadIdx.x % 32 / lanes;
    const long long warps = (long long)gridDim.x * (BLOCK / 32);
    const long long warp = (long long)blockIdx.x * (BLOCK / 32) + threadIdx.x / 32;
    const int together = 32 / lanes;
    // Exchanges need the whole warp: lanes beyond the last row use an empty row.
    for (long long first = warp * together; first < rows; first += warps * together) {
        const bool there = first + group < rows;
        const long long row = there ? first + group : 0;
        const int width = there ? (int)columns : 0;

        Held<packs> held;
        held.template read<aligned>(x + row * columns, lane, lanes, width);
        const float top = lanes_max<lanes>(held.highest());
        const float sum = lanes_sum<lanes>(held.raise(top, factor));
        held.template write<aligned>(y + row * columns, lane, lanes, width, 1.0f / sum);
    }
}

template <int packs, bool aligned>
__device__ __forceinline__ void softmax_long_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    const int width = (int)columns, thread = threadIdx.x;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        Held<packs> held;
        held.template read<aligned>(x + row * columns, thread, BLOCK, width);
        const float top = block_max(held.highest(), tops);
        const float sum = block_sum(held.raise(top, factor), sums);
        held.template write<aligned>(y + row * columns, thread, BLOCK, width, 1.0f / sum);
    }
}

// Factor from a sum of powers relative to `from` to one relative to `to`. A thread that has seen
// only -inf (and NaN) has the sum 0 (or NaN), relative to 0, which stays unchanged.
__device__ __forceinline__ float rebase(float from, float to, float factor)
{
    return from == minus_infinity() ? 1.0f : power_of_two((from - to) * factor);
}

template <bool aligned>
__device__ __forceinline__ void softmax_online_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    const int step = BLOCK * ONLINE_PACKS;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const element* from = x + row * columns;
        const long long packs = (skew_of<aligned>(from) + columns + PER_PACK - 1) / PER_PACK;
        const long long tiles = (packs + step - 1) / step, thread = threadIdx.x;
        Held<ONLINE_PACKS> held;

        float top = minus_infinity(), sum = 0.0f;
        for (long long tile = 0; tile < tiles; ++tile) {
            held.template read<aligned>(from, tile * step + thread, BLOCK, columns);
            const float higher = fmaxf(top, held.highest());
            // Relative to -inf everything would be NaN; relative to 0, -inf adds nothing.
            const float anchor = higher == minus_infinity() ? 0.0f : higher;
            sum = sum * rebase(top, higher, factor) + held.raise(anchor, factor);
            top = higher;
        }
        const float highest = block_max(top, tops);
        sum = block_sum(sum * rebase(top, highest, factor), sums);

        // Backwards: the end of the row was read last, so the caches may still hold it.
        for (long long tile = tiles - 1; tile >= 0; --tile) {
            held.template read<aligned>(from, tile * step + thread, BLOCK, columns);
            held.raise(highest, factor);
            held.template write<aligned>(
                y + row * columns, tile * step + thread, BLOCK, columns, 1.0f / sum);
        }
    }
}

#ifdef SOFTMAX_SHORT
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_short(PARAMETERS)
{
    softmax_short_rows<LANES, PACKS, ALIGNED>(ARGUMENTS);
}
#endif

#ifdef SOFTMAX_LONG
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_long(PARAMETERS)
{
    softmax_long_rows<PACKS, ALIGNED>(ARGUMENTS);
}
#endif

#ifdef SOFTMAX_ONLINE
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_online(PARAMETERS)
{
    softmax_online_rows<ALIGNED>(ARGUMENTS);
}
#endif
