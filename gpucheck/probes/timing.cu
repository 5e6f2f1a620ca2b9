// What the timing itself runs on a GPU: a kernel that only waits, and one that reads two clocks.
// No header is included, so NVRTC alone compiles this.

// Keep the stream busy, so that the host can queue work up behind it.
extern "C" __global__ void hold(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

// Write SM 0's time in nanoseconds and its count of cycles. Launched with a block for each SM, so
// that one of them runs on SM 0; cycles between two launches over the time is the real clock.
extern "C" __global__ void tick(unsigned long long* out)
{
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (sm != 0) return;
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    out[0] = now;
    out[1] = clock64();
}
