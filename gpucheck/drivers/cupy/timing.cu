// Kernels for timing: one only waits, one reads two clocks, and one measures the resolution of the
// first clock. No header is included, so NVRTC alone compiles this.

// Keep the stream busy, so that the host can queue work behind it.
extern "C" __global__ void hold(unsigned long long nanoseconds)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}

// Write SM 0's time in nanoseconds and its cycle count. It is launched with a block for each SM, so
// that one runs on SM 0. Cycles between two launches, divided by the time, give the real clock.
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

// Write the timer's smallest step in nanoseconds: 32 on some GPUs, a thousand on others, a million
// under some virtual machines; 0 if it does not step within about 30 ms.
extern "C" __global__ void step(unsigned long long* out)
{
    const long long begun = clock64();
    unsigned long long last, now, least = 0;
    int steps = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(last));
    while (steps < 4 && clock64() - begun < (1LL << 26)) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now == last) continue;
        if (least == 0 || now - last < least) least = now - last;
        last = now;
        ++steps;
    }
    out[0] = least;
}
