// Softmax regression: the parts of a training step that are not matrix products.
// No header is included, so NVRTC alone compiles this.

#define CLASSES 10

// Turn a row of logits into the gradient of its loss, softmax(row) - target; a thread to a row.
extern "C" __global__ void gradient(
    float* __restrict__ logits, const float* __restrict__ targets, long long rows)
{
    const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float* values = logits + row * CLASSES;
    const float* target = targets + row * CLASSES;
    float kept[CLASSES];
    float top = values[0];
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) {
        kept[i] = values[i];
        top = fmaxf(top, kept[i]);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) {
        kept[i] = expf(kept[i] - top);
        sum += kept[i];
    }
    const float scale = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < CLASSES; ++i) values[i] = kept[i] * scale - target[i];
}

// Subtract the sum of the towers' steps from the weights; a thread to a weight.
extern "C" __global__ void merge(
    float* __restrict__ weights, const float* __restrict__ steps, int towers, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int tower = 0; tower < towers; ++tower) sum += steps[tower * count + i];
    weights[i] -= sum;
}
