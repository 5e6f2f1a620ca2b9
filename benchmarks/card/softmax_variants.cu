// Kernels of the row softmax that have not yet been compared on a card with those of softmax.cu.
// This is compiled behind softmax.cu, which explains arguments and macros, with one of
//
//   SOFTMAX_AHEAD    softmax_long, with blocks that serve several rows and prefetch the next one
//   SOFTMAX_CLUSTER  CLUSTER blocks to a row, which exchange maxima and sums (sm_90 and later); with
//                    PREFETCH 1, clusters that serve several rows and prefetch the next one

#define MOST_CLUSTER 8

#ifndef EMULATED
__device__ __forceinline__ void prefetch(const element* from)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}

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

// Prefetch a row's packs into the L2 cache, which fetches 32 bytes at once.
template <int packs, bool aligned>
__device__ __forceinline__ void prefetch_row(
    const element* from, int begin, int step, int columns)
{
    const int skew = skew_of<aligned>(from);
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const int first = (begin + i * step) * PER_PACK - skew;
        if (threadIdx.x % 2 == 0 && is_whole<aligned>(first, columns)) prefetch(from + first);
    }
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
            prefetch_row<packs, aligned>(from + gridDim.x * columns, thread, BLOCK, width);
        const float top = block_max(held.highest(), tops);
        const float sum = block_sum(held.raise(top, factor), sums);
        held.template write<aligned>(y + row * columns, thread, BLOCK, width, 1.0f / sum);
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
        const element* from = x + row * columns;
        Held<packs> held;
        held.template read<aligned>(from, begin, step, width);
        if (ahead && row + clusters < rows)
            prefetch_row<packs, aligned>(from + clusters * columns, begin, step, width);
        // No block may write into one that has not begun; reading goes on meanwhile.
        if (row == first) cluster_all_begun();
        const float top = cluster_max(held.highest(), tops);
        // After this exchange no block writes into another, which may have ended.
        const float sum = cluster_sum(held.raise(top, factor), sums);
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
