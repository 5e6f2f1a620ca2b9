// Softmax regression, INPUTS numbers of an image to CLASSES classes: the parts of a training step.
//
//   forward   G = softmax(X W) - targets, a warp to an image
//   project   out = scale X' G, or out += scale X' G: a warp to 32 inputs and part of the images, a
//             block to 32 inputs; summed in a fixed order
//   gradient  a row of logits becomes softmax(row) - target; a thread to a row
//   merge     subtracts the sum of the towers' steps from the weights; a thread to a weight
//
// A single step is `forward` and `project` into the weights: two launches without a library, so any
// number of steps can be replayed as one graph. `gradient` goes between two matrix products of a
// library. All arrays are row-major float32 and begin at multiples of 16
// bytes. No header is included, so NVRTC alone compiles this.

#define CLASSES 10
#define INPUTS 785
#define FORWARD_BLOCK 128
#define PROJECT_BLOCK 512
#define PROJECT_WARPS (PROJECT_BLOCK / 32)
#define FULL_WARP 0xffffffffu

// GPU instruction; tests/emulator has a twin.
#ifndef EMULATED
#define SHARED(type, name, count) __shared__ type name[count]
#endif

// Softmax of a row minus its target, in place; `values` holds the row's logits.
__device__ __forceinline__ void softmax_less(float* values, const float* target)
{
    float top = values[0];
#pragma unroll
    for (int i = 1; i < CLASSES; ++i) top = fmaxf(top, values[i]);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) {
        values[i] = expf(values[i] - top);
        sum += values[i];
    }
    const float scale = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) values[i] = values[i] * scale - target[i];
}

extern "C" __global__ void __launch_bounds__(FORWARD_BLOCK, 8) forward(
    const float* __restrict__ images, const float* __restrict__ weights,
    const float* __restrict__ targets, float* __restrict__ gradients, long long rows)
{
    const int lane = threadIdx.x % 32;
    const long long warps = (long long)gridDim.x * (FORWARD_BLOCK / 32);
    long long row = (long long)blockIdx.x * (FORWARD_BLOCK / 32) + threadIdx.x / 32;
    for (; row < rows; row += warps) {  // the whole warp
        const float* image = images + row * INPUTS;
        float values[CLASSES] = {};
#pragma unroll 5
        for (int k = lane; k < INPUTS; k += 32) {
            const float pixel = image[k];
            // An input's weights begin at a multiple of 8 bytes, so two are read at once.
            const float2* its = (const float2*)(weights + k * CLASSES);
#pragma unroll
            for (int i = 0; i < CLASSES / 2; ++i) {
                const float2 two = its[i];
                values[2 * i] += pixel * two.x;
                values[2 * i + 1] += pixel * two.y;
            }
        }
#pragma unroll
        for (int i = 0; i < CLASSES; ++i)
#pragma unroll
            for (int other = 16; other > 0; other /= 2)
                values[i] += __shfl_xor_sync(FULL_WARP, values[i], other);
        softmax_less(values, targets + row * CLASSES);
#pragma unroll
        for (int i = 0; i < CLASSES; ++i)
            if (lane == i) gradients[row * CLASSES + i] = values[i];
    }
}

extern "C" __global__ void __launch_bounds__(PROJECT_BLOCK, 2) project(
    const float* __restrict__ images, const float* __restrict__ gradients, float* __restrict__ out,
    float scale, int added, long long rows)
{
    SHARED(float, parts, PROJECT_WARPS * CLASSES * 32);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int input = blockIdx.x * 32 + lane;
    float sums[CLASSES] = {};
#pragma unroll 4
    for (long long row = warp; row < rows; row += PROJECT_WARPS) {
        const float pixel = input < INPUTS ? images[row * INPUTS + input] : 0.0f;
        const float2* its = (const float2*)(gradients + row * CLASSES);
#pragma unroll
        for (int i = 0; i < CLASSES / 2; ++i) {
            const float2 two = its[i];
            sums[2 * i] += pixel * two.x;
            sums[2 * i + 1] += pixel * two.y;
        }
    }
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) parts[(warp * CLASSES + i) * 32 + lane] = sums[i];
    __syncthreads();
    for (int class_number = warp; class_number < CLASSES; class_number += PROJECT_WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PROJECT_WARPS; ++i) sum += parts[(i * CLASSES + class_number) * 32 + lane];
        if (input < INPUTS) {
            float* place = out + input * CLASSES + class_number;
            *place = added ? *place + scale * sum : scale * sum;
        }
    }
}

extern "C" __global__ void gradient(
    float* __restrict__ logits, const float* __restrict__ targets, long long rows)
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float* values = logits + row * CLASSES;
    float kept[CLASSES];
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) kept[i] = values[i];
    softmax_less(kept, targets + row * CLASSES);
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) values[i] = kept[i];
}

extern "C" __global__ void merge(
    float* __restrict__ weights, const float* __restrict__ steps, int towers, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int tower = 0; tower < towers; ++tower) sum += steps[tower * count + i];
    weights[i] -= sum;
}
