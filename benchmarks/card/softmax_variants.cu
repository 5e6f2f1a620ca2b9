// Kernels of the row softmax that have not yet been compared on a card with those of softmax.cu.
// This is compiled behind softmax.cu, which explains arguments and macros, with one of
//
//   SOFTMAX_AHEAD    softmax_long, with blocks that serve several rows and prefetch the next one
//   SOFTMAX_CLUSTER  CLUSTER blocks to a row, which exchange maxima and sums (sm_90 and later); with
//                    PREFETCH 1, clusters that serve several rows and prefetch the next one
//   SOFTMAX_RAW      softmax_long for 16-bit numbers, held as they are stored: 64 in a thread where
//                    softmax_long holds 32 as float32, and their powers are computed twice

#define MOST_CLUSTER 8
#ifndef CLUSTER
#define CLUSTER 1
#endif

#ifndef EMULATED
// Prefetch bytes into the L2 cache, a multiple of 16: all threads of the block call this.
__device__ __forceinline__ void prefetch(const char* from, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(from), "r"(bytes));
#else
    for (int i = 32 * threadIdx.x; i < bytes; i += 32 * BLOCK)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(from + i));
#endif
}

__device__ __forceinline__ float log2_of(float value)
{
    float power;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned int cluster_rank()
{
    unsigned int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The cluster's barrier in two halves that order no memory: each thread arrives, and later waits
// until all have arrived. The fence of a full barrier would take as long as reading from memory.
__device__ __forceinline__ void cluster_begun()
{
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}

__device__ __forceinline__ void cluster_all_begun()
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// A number from each block of the cluster, and the barrier that counts their bytes: data and signal
// travel together, so that no fence is needed. A phase of the barrier ends when the block has said
// how many bytes it expects and all of them have come.
struct Mail {
    float numbers[MOST_CLUSTER];
    unsigned long long barrier;
};

__device__ __forceinline__ unsigned int shared_address(const void* place)
{
    return (unsigned int)__cvta_generic_to_shared(place);
}

// One thread prepares a block's mail, before it arrives at the cluster's barrier.
__device__ __forceinline__ void prepare(Mail* mail)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;"
                 :: "r"(shared_address(&mail->barrier)) : "memory");
}

__device__ __forceinline__ void expect(Mail* mail)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(&mail->barrier)), "r"(CLUSTER * (int)sizeof(float))
                 : "memory");
}

// Send this block's number to the mail of block `rank`.
__device__ __forceinline__ void post(Mail* mail, unsigned int rank, float number)
{
    asm volatile(
        "{\n\t.reg .b32 place, barrier;\n\t"
        "mapa.shared::cluster.u32 place, %0, %2;\n\tmapa.shared::cluster.u32 barrier, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [place], %3, [barrier];\n\t}"
        :: "r"(shared_address(&mail->numbers[cluster_rank()])),
           "r"(shared_address(&mail->barrier)), "r"(rank), "f"(number) : "memory");
}

// Wait for the end of the mail's phase, the parity of whose number is given.
__device__ __forceinline__ void await(Mail* mail, int parity)
{
    int ended = 0;
    while (!ended)
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.b32 %0, 1, 0, p;\n\t}"
            : "=r"(ended) : "r"(shared_address(&mail->barrier)), "r"(parity) : "memory");
}

__device__ __forceinline__ float number_of(const Mail* mail, int rank)
{
    return mail->numbers[rank];
}
#endif
#endif

// Prefetch one of the equal parts of a row, all but its last few numbers.
template <bool aligned>
__device__ __forceinline__ void prefetch_row(const element* from, int part, int parts, int columns)
{
    const int skew = skew_of<aligned>(from);
    const int bytes = (columns + skew) / (PER_PACK * parts) * 16;
    prefetch((const char*)(from - skew) + (long long)part * bytes, bytes);
}

template <int packs, bool aligned>
__device__ __forceinline__ void softmax_ahead_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    const int width = (int)columns, thread = threadIdx.x;
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const element* from = x + row * columns;
        Held<packs> held;
        held.template read<aligned>(from, thread, BLOCK, width);
        if (row + gridDim.x < rows)
            prefetch_row<aligned>(from + gridDim.x * columns, 0, 1, width);
        const float top = block_max(held.highest(), tops);
        const float sum = block_sum(held.raise(top, factor), sums);
        held.template write<aligned>(y + row * columns, thread, BLOCK, width, 1.0f / sum);
    }
}

#if ELEMENT != 0
// A thread's packs as they are stored. `zero` is 0, which the compiler cannot know: it would keep
// the widened numbers, which need twice the registers.
template <int packs>
struct RawPacks {
    uint4 raw[packs];

    template <bool aligned>
    __device__ __forceinline__ void read(const element* from, int begin, int columns)
    {
        const int skew = skew_of<aligned>(from);
#pragma unroll
        for (int i = 0; i < packs; ++i)
            raw[i] = read_pack<aligned>(from, (begin + i * BLOCK) * PER_PACK - skew, columns);
    }

    __device__ __forceinline__ void widened(int pack, unsigned int zero, float* values) const
    {
        const uint4& one = raw[pack];
        unpack(make_uint4(one.x ^ zero, one.y ^ zero, one.z ^ zero, one.w ^ zero), values);
    }

    __device__ __forceinline__ float highest() const
    {
        float top = minus_infinity(), values[PER_PACK];
#pragma unroll
        for (int i = 0; i < packs; ++i) {
            unpack(raw[i], values);
#pragma unroll
            for (int k = 0; k < PER_PACK; ++k) top = fmaxf(top, values[k]);
        }
        return top;
    }

    __device__ __forceinline__ float sum_of_powers(
        float top, float factor, unsigned int zero) const
    {
        float sums[PER_PACK] = {}, values[PER_PACK], sum = 0.0f;
#pragma unroll
        for (int i = 0; i < packs; ++i) {
            widened(i, zero, values);
#pragma unroll
            for (int k = 0; k < PER_PACK; ++k) sums[k] += power_of_two((values[k] - top) * factor);
        }
#pragma unroll
        for (int k = 0; k < PER_PACK; ++k) sum += sums[k];
        return sum;
    }

    // The quotient by the sum is the difference to its logarithm.
    template <bool aligned>
    __device__ __forceinline__ void write(element* to, int begin, int columns, float top,
                                          float factor, float sum, unsigned int zero) const
    {
        const int skew = skew_of<aligned>(to);
        const float below = -log2_of(sum);
#pragma unroll
        for (int i = 0; i < packs; ++i) {
            float values[PER_PACK];
            widened(i, zero, values);
#pragma unroll
            for (int k = 0; k < PER_PACK; ++k)
                values[k] = power_of_two((values[k] - top) * factor + below);
            write_pack<aligned>(to, (begin + i * BLOCK) * PER_PACK - skew, columns, values);
        }
    }
};

template <int packs, bool aligned>
__device__ __forceinline__ void softmax_raw_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    const int width = (int)columns, thread = threadIdx.x;
    const unsigned int zero = (unsigned int)(rows >> 62), none = (unsigned int)(columns >> 62);
    for (int row = blockIdx.x; row < (int)rows; row += gridDim.x) {
        RawPacks<packs> held;
        held.template read<aligned>(x + row * columns, thread, width);
        const float top = block_max(held.highest(), tops);
        const float sum = block_sum(held.sum_of_powers(top, factor, zero), sums);
        held.template write<aligned>(y + row * columns, thread, width, top, factor, sum, none);
    }
}
#endif

#if defined(EMULATED) || __CUDA_ARCH__ >= 900
// A block's result goes to all blocks of the cluster. Maxima and sums have separate mails: a block
// sends its next maximum only after it has the sum of all, which come when every thread has read the
// maxima; and so with the sums. Nothing is under way to a block that has its last sum.
#define CLUSTER_REDUCTION(name, exchange, neutral) \
    template <typename mail_type> \
    __device__ __forceinline__ float name(float value, mail_type& mail, int parity) \
    { \
        const int thread = threadIdx.x, lane = thread % 32; \
        if (thread == 0) expect(mail); \
        if (thread < CLUSTER) post(mail, thread, value); \
        await(mail, parity); \
        return exchange<32>(lane < CLUSTER ? number_of(mail, lane) : neutral); \
    }

CLUSTER_REDUCTION(cluster_max, lanes_max, minus_infinity())
CLUSTER_REDUCTION(cluster_sum, lanes_sum, 0.0f)

template <int packs, bool aligned, bool ahead>
__device__ __forceinline__ void softmax_cluster_rows(PARAMETERS)
{
    SHARED(float, tops, 32);
    SHARED(float, sums, 32);
    SHARED(Mail, every_top, 1);
    SHARED(Mail, every_sum, 1);
    const int width = (int)columns, step = CLUSTER * BLOCK;
    const int begin = cluster_rank() * BLOCK + threadIdx.x;
    const int clusters = gridDim.x / CLUSTER, first = blockIdx.x / CLUSTER;
    if (threadIdx.x == 0) {
        prepare(every_top);
        prepare(every_sum);
    }
    cluster_begun();
    int parity = 0;
    for (int row = first; row < (int)rows; row += clusters, parity ^= 1) {
        const element* from = x + row * columns;
        Held<packs> held;
        held.template read<aligned>(from, begin, step, width);
        if (ahead && row + clusters < (int)rows)
            prefetch_row<aligned>(from + clusters * columns, cluster_rank(), CLUSTER, width);
        // No block may write into one that has not begun; reading goes on meanwhile.
        if (row == first) cluster_all_begun();
        const float own_top = block_max(held.highest(), tops);
        const float top = cluster_max(own_top, every_top, parity);
        const float own_sum = block_sum(held.raise(top, factor), sums);
        const float sum = cluster_sum(own_sum, every_sum, parity);
        held.template write<aligned>(y + row * columns, begin, step, width, 1.0f / sum);
    }
}
#endif

#ifdef SOFTMAX_AHEAD
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_ahead(PARAMETERS)
{
    softmax_ahead_rows<PACKS, ALIGNED>(ARGUMENTS);
}
#endif

#ifdef SOFTMAX_CLUSTER
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)
__launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_cluster(PARAMETERS)
{
    softmax_cluster_rows<PACKS, ALIGNED, PREFETCH>(ARGUMENTS);
}
#endif

#ifdef SOFTMAX_RAW
extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS_PER_SM) softmax_raw(PARAMETERS)
{
    softmax_raw_rows<PACKS, ALIGNED>(ARGUMENTS);
}
#endif
