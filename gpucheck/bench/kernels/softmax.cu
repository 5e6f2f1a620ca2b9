// Row softmax with a temperature: y = exp2((x - max) * factor) / sum, factor = log2(e) / T.
//
// x and y hold `rows` rows of `columns` numbers of the format that ELEMENT names; rows begin
// `x_stride` and `y_stride` elements apart, at any address that suits an element. They must not
// overlap. The arithmetic is in float32; powers below 2^-126 count as zero. As with
// torch.softmax(x / T), a row with NaN or +inf, or with only -inf, becomes NaN, and -inf among
// finite numbers becomes 0. Unlike there, x / T is never formed, so a T near 0 cannot overflow.
//
//   softmax_short    LANES lanes to a row (several rows to a warp), PACKS packs in each one's
//                    registers: rows of at most LANES * PACKS packs
//   softmax_long     a block to a row, PACKS packs in each thread's registers
//   softmax_cluster  CLUSTER blocks to a row, which exchange their maxima and sums (sm_90 and later)
//   softmax_online   a block to a row of any length: maximum and sum in one pass, then a second
//
// A pack is the 16 bytes that one thread moves at once. All kernels but the last read and write a
// row once. The source is compiled for each launch: ALIGNED means that all rows begin at multiples
// of 16 bytes and consist of whole packs; without it rows begin and end anywhere.
// No header is included, so NVRTC alone compiles this.

#ifndef ELEMENT
#define ELEMENT 0  // 0 float32, 1 float16, 2 bfloat16; the last two handled as bits
#endif
#ifndef KERNEL
#define KERNEL 0  // kernel to compile, from 1 in the order above; 0 for all
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef PACKS
#define PACKS 4
#endif
#ifndef BLOCK
#define BLOCK 128  // threads in a block, a multiple of 32
#endif
#ifndef CLUSTER
#define CLUSTER 2  // blocks to a row, at most 8
#endif
#ifndef ALIGNED
#define ALIGNED 0
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1  // the fewest that must fit an SM at once, which bounds the registers
#endif
#ifndef PREFETCH
#define PREFETCH 0  // softmax_long, softmax_cluster: prefetch the next row while this one is written
#endif

#define FULL_WARP 0xffffffffu
#define MOST_CLUSTER 8
#define ONLINE_PACKS 4

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

__device__ __forceinline__ void prefetch(const element* from)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
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

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned int cluster_rank()
{
    unsigned int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Every thread of the cluster waits here for all others, and then sees what they have written.
__device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// The same in two halves that order no memory: each thread arrives, and later waits until all have
// arrived. The fence of a full barrier would take as long as reading from memory.
__device__ __forceinline__ void cluster_begun()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void cluster_all_begun()
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Write into the shared memory of another block of the cluster, where `place` is in this one's.
__device__ __forceinline__ void send(float* place, unsigned int rank, float value)
{
    const unsigned int own = (unsigned int)__cvta_generic_to_shared(place);
    unsigned int remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(remote), "f"(value) : "memory");
}
#endif
#endif

#if ELEMENT == 2
// By shuffles, which every architecture supports.
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

__device__ __forceinline__ unsigned int bits_of(element value)
{
#if ELEMENT == 0
    return __float_as_uint(value);
#else
    return value;
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

// Elements between the address and the multiple of 16 bytes before it.
__device__ __forceinline__ int skew_of(const element* place)
{
    return (int)((unsigned long long)place % 16 / sizeof(element));
}

// A row of x or y cut at the multiples of 16 bytes. Pack k begins at element k * PER_PACK - skew;
// the first and the last may reach beyond the row, where nothing is read or written.
template <bool aligned, typename number>
__device__ __forceinline__ number first_of(number pack_number, int skew)
{
    return aligned ? pack_number * PER_PACK : pack_number * PER_PACK - skew;
}

template <bool aligned, typename number>
__device__ __forceinline__ bool is_whole(number first, number columns)
{
    return aligned ? first < columns : first >= 0 && first + PER_PACK <= columns;
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
                const unsigned int bits = bits_of(from[first + i]);
#if ELEMENT == 0
                words[i] = bits;
#else
                const int shift = 16 * (i % 2);
                words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | bits << shift;
#endif
            }
        }
        raw = make_uint4(words[0], words[1], words[2], words[3]);
    }
    return raw;
}

// Write a pack of the row; `alike` if y's rows have the same 16-byte alignment as x's.
template <bool aligned, typename number>
__device__ __forceinline__ void write_pack(
    element* to, number first, number columns, bool alike, const float* values)
{
    if (is_whole<aligned>(first, columns) && (aligned || alike)) {
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

// A thread's packs of one row, kept in registers between the single read and the single write.
template <int packs>
struct Held {
    float values[packs * PER_PACK];

    // NOTE: two loops, so that all loads are in flight before the first wait.
    template <bool aligned>
    __device__ __forceinline__ void read(
        const element* from, int begin, int step, int skew, int columns)
    {
        uint4 raw[packs];
#pragma unroll
        for (int i = 0; i < packs; ++i)
            raw[i] = read_pack<aligned>(from, first_of<aligned>(begin + i * step, skew), columns);
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

    template <bool aligned>
    __device__ __forceinline__ void write(
        element* to, int begin, int step, int skew, int columns, bool alike, float scale)
    {
#pragma unroll
        for (int i = 0; i < packs * PER_PACK; ++i) values[i] *= scale;
#pragma unroll
        for (int i = 0; i < packs; ++i)
            write_pack<aligned>(to, first_of<aligned>(begin + i * step, skew), columns, alike,
                                values + i * PER_PACK);
    }
};

// Prefetch a row's packs into the L2 cache, which fetches 32 bytes at once.
template <int packs, bool aligned>
__device__ __forceinline__ void prefetch_row(
    const element* from, int begin, int step, int columns)
{
    const int skew = aligned ? 0 : skew_of(from);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const int first = first_of<aligned>(begin + i * step, skew);
        if (threadIdx.x % 2 == 0 && is_whole<aligned>(first, columns)) prefetch(from + first);
    }
}

#define PARAMETERS \
    const element *__restrict__ x, element *__restrict__ y, long long rows, long long columns, \
        float factor, long long x_stride, long long y_stride
#define ARGUMENTS x, y, rows, columns, factor, x_stride, y_stride

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
        const element* from = x + row * x_stride;
        element* to = y + row * y_stride;
        const int skew = aligned ? 0 : skew_of(from);

        Held<packs> held;
        held.template read<aligned>(from, lane, lanes, skew, width);
        const float top = lanes_max<lanes>(held.highest());
        const float sum = lanes_sum<lanes>(held.raise(top, factor));
        held.template write<aligned>(
            to, lane, lanes, skew, width, skew == skew_of(to), 1.0f / sum);
    }
}

template <int packs, bool aligned, bool ahead>
__device__ __forceinline__ void softmax_long_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    const int width = (int)columns;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const element* from = x + row * x_stride;
        element* to = y + row * y_stride;
        const int skew = aligned ? 0 : skew_of(from);

        Held<packs> held;
        held.template read<aligned>(from, threadIdx.x, BLOCK, skew, width);
        if (ahead && row + gridDim.x < rows)
            prefetch_row<packs, aligned>(
                from + gridDim.x * x_stride, threadIdx.x, BLOCK, width);
        const float top = block_max(held.highest(), tops);
        const float sum = block_sum(held.raise(top, factor), sums);
        held.template write<aligned>(
            to, threadIdx.x, BLOCK, skew, width, skew == skew_of(to), 1.0f / sum);
    }
}

#if defined(EMULATED) || __CUDA_ARCH__ >= 900
// As within a block, but every warp sends its value to all blocks of the cluster. One barrier for
// each exchange is enough, for the same reason.
#define CLUSTER_REDUCTION(name, exchange, neutral) \
    template <typename slots_type> \
    __device__ __forceinline__ float name(float value, slots_type& slots) \
    { \
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32; \
        value = exchange<32>(value); \
        if (lane < CLUSTER) send(&slots[cluster_rank() * 32 + warp], lane, value); \
        cluster_barrier(); \
        value = neutral; \
        for (int i = lane; i < CLUSTER * 32; i += 32) \
            if (lane < BLOCK / 32) value = CLUSTER_JOIN_##exchange(value, (float)slots[i]); \
        return exchange<32>(value); \
    }
#define CLUSTER_JOIN_lanes_max(one, other) fmaxf(one, other)
#define CLUSTER_JOIN_lanes_sum(one, other) ((one) + (other))

CLUSTER_REDUCTION(cluster_max, lanes_max, minus_infinity())
CLUSTER_REDUCTION(cluster_sum, lanes_sum, 0.0f)

template <int packs, bool aligned, bool ahead>
__device__ __forceinline__ void softmax_cluster_rows(PARAMETERS)
{
    SHARED(float, tops, 32 * MOST_CLUSTER);
    SHARED(float, sums, 32 * MOST_CLUSTER);
    const int width = (int)columns, step = CLUSTER * BLOCK;
    const int begin = cluster_rank() * BLOCK + threadIdx.x;
    const long long clusters = gridDim.x / CLUSTER;
    const long long first = blockIdx.x / CLUSTER;
    cluster_begun();
    for (long long row = first; row < rows; row += clusters) {
        const element* from = x + row * x_stride;
        element* to = y + row * y_stride;
        const int skew = aligned ? 0 : skew_of(from);

        Held<packs> held;
        held.template read<aligned>(from, begin, step, skew, width);
        if (ahead && row + clusters < rows)
            prefetch_row<packs, aligned>(from + clusters * x_stride, begin, step, width);
        // No block may write into one that has not begun; reading goes on meanwhile.
        if (row == first) cluster_all_begun();
        const float top = cluster_max(held.highest(), tops);
        // After this exchange no block writes into another, which may have ended.
        const float sum = cluster_sum(held.raise(top, factor), sums);
        held.template write<aligned>(to, begin, step, skew, width, skew == skew_of(to), 1.0f / sum);
    }
}
#endif

// Factor from a sum of powers relative to `from` to one relative to `to`. A thread that has seen
// only -inf (and NaN) has the sum 0 (or NaN), relative to 0, which stays unchanged.
__device__ __forceinline__ float rebase(float from, float to, float factor)
{
    return from == minus_infinity() ? 1.0f : power_of_two((from - to) * factor);
}

// Reads several packs of a row at once, and writes them in the second pass.
template <bool aligned>
struct Tile {
    float values[ONLINE_PACKS * PER_PACK];

    __device__ __forceinline__ void read(
        const element* from, long long begin, int skew, long long columns)
    {
        uint4 raw[ONLINE_PACKS];
#pragma unroll
        for (int i = 0; i < ONLINE_PACKS; ++i)
            raw[i] = read_pack<aligned>(
                from, first_of<aligned>(begin + i * BLOCK, skew), columns);
#pragma unroll
        for (int i = 0; i < ONLINE_PACKS; ++i) unpack(raw[i], values + i * PER_PACK);
    }
};

template <bool aligned>
__device__ __forceinline__ void softmax_online_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const element* from = x + row * x_stride;
        element* to = y + row * y_stride;
        const int skew = aligned ? 0 : skew_of(from);
        const bool alike = skew == skew_of(to);
        const long long packs = (skew + columns + PER_PACK - 1) / PER_PACK;
        const int step = BLOCK * ONLINE_PACKS;
        const long long tiles = (packs + step - 1) / step;
        Tile<aligned> tile;

        float top = minus_infinity(), sum = 0.0f;
        for (long long number = 0; number < tiles; ++number) {
            tile.read(from, number * step + threadIdx.x, skew, columns);
            float higher = top;
#pragma unroll
            for (int i = 0; i < ONLINE_PACKS * PER_PACK; ++i)
                higher = fmaxf(higher, tile.values[i]);
            // Relative to -inf everything would be NaN; relative to 0, -inf adds nothing.
            const float anchor = higher == minus_infinity() ? 0.0f : higher;
            float sums_here[PER_PACK] = {};
#pragma unroll
            for (int i = 0; i < ONLINE_PACKS * PER_PACK; ++i)
                sums_here[i % PER_PACK] += power_of_two((tile.values[i] - anchor) * factor);
            sum *= rebase(top, higher, factor);
#pragma unroll
            for (int i = 0; i < PER_PACK; ++i) sum += sums_here[i];
            top = higher;
        }
        const float highest = block_max(top, tops);
        sum = block_sum(sum * rebase(top, highest, factor), sums);
        const float scale = 1.0f / sum;

        // Backwards: the end of the row was read last, so the caches may still hold it.
        for (long long number = tiles - 1; number >= 0; --number) {
            const long long begin = number * step + threadIdx.x;
            tile.read(from, begin, skew, columns);
#pragma unroll
            for (int i = 0; i < ONLINE_PACKS * PER_PACK; ++i)
                tile.values[i] = power_of_two((tile.values[i] - highest) * factor) * scale;
#pragma unroll
            for (int i = 0; i < ONLINE_PACKS; ++i)
                write_pack<aligned>(to, first_of<aligned>(begin + i * BLOCK, skew), columns, alike,
                                    tile.values + i * PER_PACK);
        }
    }
}

#ifndef EMULATED
#if KERNEL == 0 || KERNEL == 1
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_short(PARAMETERS)
{
    softmax_short_rows<LANES, PACKS, ALIGNED>(ARGUMENTS);
}
#endif

#if KERNEL == 0 || KERNEL == 2
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_long(PARAMETERS)
{
    softmax_long_rows<PACKS, ALIGNED, PREFETCH>(ARGUMENTS);
}
#endif

#if KERNEL == 0 || KERNEL == 4
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_online(PARAMETERS)
{
    softmax_online_rows<ALIGNED>(ARGUMENTS);
}
#endif

#if (KERNEL == 0 || KERNEL == 3) && __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
__launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_cluster(PARAMETERS)
{
    softmax_cluster_rows<PACKS, ALIGNED, PREFETCH>(ARGUMENTS);
}
#endif
#endif
