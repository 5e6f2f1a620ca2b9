// Twins of the GPU instructions that the kernels use.
#ifndef GPUCHECK_EMULATOR_TWINS
#define GPUCHECK_EMULATOR_TWINS

#include "emulator.hpp"

template <typename T>
uint4 load_pack(const T* from) { return *reinterpret_cast<const uint4*>(from); }

template <typename T>
void store_pack(T* to, uint4 raw) { *reinterpret_cast<uint4*>(to) = raw; }

inline void prefetch(const char* from, int bytes)
{
    // It fetches nothing here, but must stay within the array.
    if (reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16)
        emulator::run().complain("a prefetch that is misaligned");
    for (int at = 0; emulator::self().thread == 0 && at < bytes; at += 16) {
        volatile char looked_at = from[at];
        (void)looked_at;
    }
}

inline float power_of_two(float value)
{
    const float power = std::exp2(value);
    return power < 0x1p-126f ? 0.0f : power;
}

inline float log2_of(float value) { return std::log2(value); }

inline float half_to_float(unsigned short bits)
{
    const unsigned int sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
    const unsigned int fraction = bits & 0x3ffu;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    const float size = exponent == 0
        ? std::ldexp(static_cast<float>(fraction), -24)
        : std::ldexp(static_cast<float>(fraction + 1024), static_cast<int>(exponent) - 25);
    return sign ? -size : size;
}

inline unsigned short float_to_half(float value)
{
    const unsigned short sign = static_cast<unsigned short>(__float_as_uint(value) >> 16 & 0x8000u);
    const float size = std::fabs(value);
    if (value != value) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);
    if (size < 0x1p-14f) exponent = -13;  // subnormal numbers and zero keep one step
    const float steps = std::nearbyint(std::ldexp(size, 11 - exponent));
    const unsigned int whole = static_cast<unsigned int>(steps);
    const unsigned int bits = (static_cast<unsigned int>(exponent + 13) << 10) + whole;
    return static_cast<unsigned short>(sign | bits);
}

inline unsigned int cluster_rank() { return emulator::self().block; }
inline void cluster_begun() { emulator::cluster_arrive(); }
inline void cluster_all_begun() { emulator::cluster_wait(); }

using emulator::Mail;
using Mailbox = emulator::Shared<Mail>;
inline void prepare(Mailbox& mail) { mail.prepare(); }
inline void expect(Mailbox& mail) { mail.expect(); }
inline void post(Mailbox& mail, unsigned int rank, float number) { mail.post(rank, number); }
inline void await(Mailbox& mail, int parity) { mail.await(static_cast<unsigned int>(parity)); }
inline float number_of(Mailbox& mail, int rank) { return mail.read(static_cast<size_t>(rank)); }

#endif  // GPUCHECK_EMULATOR_TWINS
