// Launches from stdin, answers on stdout; one program serves a whole test session.
//
// A launch is a line "kernel order seed grid block cluster buffers scalars", a line with the
// scalars, and for each buffer a line "bytes offset" and its bytes. The answer is a line with the
// total of the bytes that follow, or "error TEXT", and then every buffer as the kernel left it.
// `offset` is a buffer's distance from a multiple of 16 bytes.
#ifndef GPUCHECK_EMULATOR_DRIVER
#define GPUCHECK_EMULATOR_DRIVER

#include "emulator.hpp"

namespace driver {

constexpr size_t guard_bytes = 64;
constexpr int guard = 0xff;  // NaN in every format

// Buffer that ends where its memory ends, behind a guard of NaN.
class Buffer {
public:
    Buffer(size_t bytes, size_t offset) : bytes_(bytes), front_(guard_bytes + offset)
    {
        memory_ = static_cast<unsigned char*>(std::malloc(front_ + bytes_));
        if (memory_ == nullptr || reinterpret_cast<uintptr_t>(memory_) % 16) std::abort();
        std::memset(memory_, guard, front_);
    }
    Buffer(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept
        : bytes_(other.bytes_), front_(other.front_), memory_(std::exchange(other.memory_, nullptr))
    {
    }
    ~Buffer()
    {
        if (memory_ == nullptr) return;
        ASAN_UNPOISON_MEMORY_REGION(memory_, front_);
        std::free(memory_);
    }

    template <typename T>
    T* as() { return reinterpret_cast<T*>(memory_ + front_); }
    size_t bytes() const { return bytes_; }

    void close() { ASAN_POISON_MEMORY_REGION(memory_, front_ & ~size_t{7}); }
    bool front_is_whole()
    {
        ASAN_UNPOISON_MEMORY_REGION(memory_, front_);
        return std::all_of(memory_, memory_ + front_, [](unsigned char c) { return c == guard; });
    }

private:
    size_t bytes_, front_;
    unsigned char* memory_;
};

struct Launch {
    std::string kernel;
    unsigned int order = 0, seed = 0, grid = 1, block = 1, cluster = 1;
    std::vector<double> scalars;
    std::vector<Buffer> buffers;

    long long whole(size_t number) const { return static_cast<long long>(scalars.at(number)); }
    float real(size_t number) const { return static_cast<float>(scalars.at(number)); }
    template <typename T>
    T* buffer(size_t number) { return buffers.at(number).as<T>(); }

    std::string run(const std::function<void()>& body)
    {
        return emulator::launch(grid, block, cluster, static_cast<emulator::Order>(order), seed,
                                body);
    }
};

ONCE bool read_launch(Launch& made)
{
    char name[64];
    unsigned int buffers = 0, scalars = 0;
    if (std::scanf("%63s %u %u %u %u %u %u %u", name, &made.order, &made.seed, &made.grid,
                   &made.block, &made.cluster, &buffers, &scalars) != 8)
        return false;
    made.kernel = name;
    for (unsigned int i = 0; i < scalars; ++i) {
        double value = 0;
        if (std::scanf("%lf", &value) != 1) return false;
        made.scalars.push_back(value);
    }
    for (unsigned int i = 0; i < buffers; ++i) {
        size_t bytes = 0, offset = 0;
        if (std::scanf("%zu %zu", &bytes, &offset) != 2 || std::getchar() != '\n') return false;
        made.buffers.emplace_back(bytes, offset);
        if (std::fread(made.buffers.back().as<char>(), 1, bytes, stdin) != bytes) return false;
    }
    return true;
}

using Kernels = std::map<std::string, std::function<std::string(Launch&)>>;

ONCE int serve(const Kernels& kernels)
{
    for (;;) {
        Launch asked;
        if (!read_launch(asked)) return 0;
        const auto found = kernels.find(asked.kernel);
        std::string error = "no kernel of that name";
        if (found != kernels.end()) {
            for (Buffer& buffer : asked.buffers) buffer.close();
            error = found->second(asked);
            for (Buffer& buffer : asked.buffers)
                if (!buffer.front_is_whole()) error = "written in front of a buffer";
        }
        size_t bytes = 0;
        for (const Buffer& buffer : asked.buffers) bytes += buffer.bytes();
        if (!error.empty()) {
            std::printf("error %s\n", error.c_str());
        } else {
            std::printf("%zu\n", bytes);
            for (Buffer& buffer : asked.buffers)
                std::fwrite(buffer.as<char>(), 1, buffer.bytes(), stdout);
        }
        std::fflush(stdout);
    }
}

}  // namespace driver

#endif  // GPUCHECK_EMULATOR_DRIVER
