// CUDA on a CPU, as far as this project's kernels use it: a way to check them without a GPU.
//
// The threads of a block (or of a cluster of blocks) are fibers. Each runs until it reaches a
// barrier or an exchange between lanes. The launch's order then chooses the next one: forwards,
// backwards, or at random. So a result that depends on the order differs between orders.
// Shared memory is checked too: two threads that touch one place between the same two barriers, one
// of them writing, are a race in any order; so is reading a place that nobody wrote. The address
// and undefined-behaviour sanitizers check global memory.
#ifndef GPUCHECK_EMULATOR_EMULATOR
#define GPUCHECK_EMULATOR_EMULATOR

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(place, size) ((void)(place), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(place, size) ((void)(place), (void)(size))
#endif

// Code that is compiled once (`shared_by_all` in emulated.py) and linked to all programs.
#ifdef COMPILED_HERE
#define ONCE
#else
#define ONCE extern inline __attribute__((gnu_inline))
#endif

#define EMULATED 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define BLOCK (static_cast<int>(emulator::run().block_threads))
#define CLUSTER (static_cast<int>(emulator::run().cluster_blocks))
#define SHARED(type, name, count) auto& name = emulator::shared<type>(__LINE__, count)

struct uint3 { unsigned int x, y, z; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w)
{
    return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

enum class Order { forwards, backwards, random };
enum class Waits { nothing, lanes, block, cluster, mail };

constexpr size_t stack_bytes = 256 * 1024;

struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    unsigned int thread = 0, block = 0;  // block: its number in the cluster
    unsigned int exchanges = 0;
    Waits waits = Waits::nothing;
    bool arrived = false;  // at the cluster's barrier, and has not waited there yet
    unsigned int arrived_in = 0;  // the barrier's phase then
    bool done = false;
};

struct Warp {
    uint64_t values[2][32];
    unsigned int arrived[2] = {0, 0};
};

// Word of shared memory: the thread that touched it last, and between which barriers.
struct Touch {
    int thread = -1;
    unsigned int epoch = 0;
};
struct Word {
    Touch written, read;
    bool read_by_many = false;
};

struct Block {
    unsigned int arrived = 0, epoch = 0;
    std::vector<Warp> warps;
    std::map<int, std::shared_ptr<void>> shared;
};

struct Run {
    unsigned int grid = 1, block_threads = 1, cluster_blocks = 1, first_block = 0;
    Order order = Order::forwards;
    std::mt19937 chance{1};
    std::vector<Fiber> fibers;
    std::vector<Block> blocks;
    std::deque<unsigned int> ready;
    unsigned int cluster_arrived = 0, cluster_phases = 0;
    Fiber* running = nullptr;
    ucontext_t scheduler;
    void* scheduler_fake = nullptr;
    const void* scheduler_stack = nullptr;
    size_t scheduler_stack_size = 0;
    const std::function<void()>* kernel = nullptr;
    uint64_t nanoseconds = 0;
    std::string error;

    void complain(const std::string& text)
    {
        if (error.empty()) error = text;
    }
};

ONCE Run& run()
{
    static Run the_run;
    return the_run;
}

inline Fiber& self() { return *run().running; }
inline Block& own_block() { return run().blocks[self().block]; }

ONCE void arrive_at_fiber(void* fake)
{
#if defined(__SANITIZE_ADDRESS__)
    Run& all = run();
    __sanitizer_finish_switch_fiber(fake, &all.scheduler_stack, &all.scheduler_stack_size);
#else
    (void)fake;
#endif
}

// Let another thread run until this one is ready again.
ONCE void pause(Waits why)
{
    Fiber& fiber = self();
    fiber.waits = why;
    void* fake = nullptr;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake, run().scheduler_stack, run().scheduler_stack_size);
#endif
    swapcontext(&fiber.context, &run().scheduler);
    arrive_at_fiber(fake);
}

ONCE void wake(unsigned int first, unsigned int count, Waits why)
{
    Run& all = run();
    for (unsigned int i = first; i < first + count; ++i) {
        Fiber& fiber = all.fibers[i];
        if (&fiber == all.running || fiber.done || fiber.waits != why) continue;
        fiber.waits = Waits::nothing;
        all.ready.push_back(i);
    }
}

ONCE unsigned int own_number()
{
    return self().block * run().block_threads + self().thread;
}

// Go on only after the others, so that the last one has no advantage.
ONCE void step_back()
{
    run().ready.push_back(own_number());
    pause(Waits::nothing);
}

ONCE void block_barrier()
{
    Run& all = run();
    Block& block = own_block();
    if (++block.arrived < all.block_threads) return pause(Waits::block);
    block.arrived = 0;
    ++block.epoch;
    wake(self().block * all.block_threads, all.block_threads, Waits::block);
    step_back();
}

// First half of the cluster's barrier, which orders no memory.
ONCE void cluster_arrive()
{
    Run& all = run();
    Fiber& fiber = self();
    if (fiber.arrived) return all.complain("arrived twice at the cluster's barrier");
    fiber.arrived = true;
    fiber.arrived_in = all.cluster_phases;
    const unsigned int threads = all.block_threads * all.cluster_blocks;
    if (++all.cluster_arrived < threads) return;
    all.cluster_arrived = 0;
    ++all.cluster_phases;
    wake(0, threads, Waits::cluster);
}

// Second half: a GPU that waits without having arrived hangs, or is a barrier ahead.
ONCE void cluster_wait()
{
    Run& all = run();
    Fiber& fiber = self();
    if (!fiber.arrived) return all.complain("waits at the cluster's barrier without an arrival");
    const bool open = all.cluster_phases == fiber.arrived_in;
    if (open) pause(Waits::cluster);
    fiber.arrived = false;
    if (!open) step_back();
}

template <typename T>
T exchange(T value, unsigned int other_lane)
{
    static_assert(sizeof(T) <= 8, "a lane exchanges at most 8 bytes");
    Run& all = run();
    Fiber& fiber = self();
    const unsigned int number = fiber.thread / 32, lane = fiber.thread % 32;
    const unsigned int lanes = std::min(32u, all.block_threads - number * 32);
    const unsigned int turn = fiber.exchanges++ % 2;
    Warp& warp = own_block().warps[number];
    warp.values[turn][lane] = 0;
    std::memcpy(&warp.values[turn][lane], &value, sizeof value);
    if (++warp.arrived[turn] < lanes) {
        pause(Waits::lanes);
    } else {
        warp.arrived[turn] = 0;
        wake(fiber.block * all.block_threads + number * 32, lanes, Waits::lanes);
    }
    T found;
    std::memcpy(&found, &warp.values[turn][other_lane < lanes ? other_lane : lane], sizeof found);
    return found;
}

ONCE Touch touch_here()
{
    return {static_cast<int>(self().thread), own_block().epoch};
}

// Whether two touches are unordered: no barrier of the block between them.
ONCE bool unordered(const Touch& before, const Touch& now)
{
    if (before.thread < 0) return false;
    return before.thread != now.thread && before.epoch == now.epoch;
}

template <typename T>
class Shared {
public:
    explicit Shared(size_t count) : values_(count), words_(count) {}

    T read(size_t index)
    {
        if (!inside(index)) return T();
        Word& word = words_[index];
        const Touch now = touch_here();
        if (word.written.thread < 0) run().complain("shared memory is read that nobody wrote");
        if (unordered(word.written, now)) run().complain("race: read beside another thread's write");
        word.read_by_many = unordered(word.read, now) || (word.read_by_many && !later(word.read, now));
        word.read = now;
        return values_[index];
    }

    void write(size_t index, T value)
    {
        if (!inside(index)) return;
        Word& word = words_[index];
        const Touch now = touch_here();
        if (unordered(word.written, now)) run().complain("race: two threads write one place");
        if (unordered(word.read, now) || (word.read_by_many && !later(word.read, now)))
            run().complain("race: written beside another thread's read");
        word.written = now;
        values_[index] = value;
    }

    struct Reference {
        Shared* memory;
        size_t index;
        operator T() const { return memory->read(index); }
        Reference& operator=(T value)
        {
            memory->write(index, value);
            return *this;
        }
        Reference& operator=(const Reference& other) { return *this = static_cast<T>(other); }
        Reference& operator+=(T value) { return *this = static_cast<T>(*this) + value; }
    };

    Reference operator[](size_t index) { return {this, index}; }

private:
    static bool later(const Touch& before, const Touch& now)
    {
        return before.epoch != now.epoch;
    }

    bool inside(size_t index)
    {
        if (index >= values_.size()) run().complain("shared memory is left");
        return index < values_.size();
    }

    std::vector<T> values_;
    std::vector<Word> words_;
};

template <typename T>
Shared<T>& shared_of(unsigned int block, int line, size_t count)
{
    auto& held = run().blocks[block].shared[line];
    if (!held) held = std::make_shared<Shared<T>>(count);
    return *static_cast<Shared<T>*>(held.get());
}

template <typename T>
Shared<T>& shared(int line, size_t count)
{
    // Those of the other blocks exist at once: a peer may write before the owner gets here.
    for (unsigned int block = 0; block < run().cluster_blocks; ++block)
        shared_of<T>(block, line, count);
    return shared_of<T>(self().block, line, count);
}

// A number from each block of the cluster, and the barrier (mbarrier) that counts their bytes. Its
// phase ends when a thread of the block has said that it expects them and all have come.
struct Mail {};

template <>
class Shared<Mail> {
public:
    explicit Shared(size_t) : numbers_(run().cluster_blocks) {}

    void prepare()
    {
        if (prepared_) run().complain("a mail is prepared twice");
        prepared_ = true;
    }

    void expect()
    {
        if (!prepared_) run().complain("a mail is used that nobody has prepared");
        if (expected_) run().complain("a mail is expected twice in one phase");
        expected_ = true;
        end_phase();
    }

    // Send a number to the mail of block `rank`.
    void post(unsigned int rank, float number)
    {
        Run& all = run();
        if (rank >= all.cluster_blocks) return all.complain("sent to a block that is not there");
        if (all.cluster_phases == 0) all.complain("sent to a block that may not have begun");
        for (auto& [line, held] : own_block().shared)
            if (held.get() == this)
                static_cast<Shared*>(all.blocks[rank].shared[line].get())->take(number);
    }

    // Wait for the end of the phase, the parity of whose number is given.
    void await(unsigned int parity)
    {
        while (phases_ % 2 == parity) pause(Waits::mail);
    }

    float read(size_t rank)
    {
        const size_t warps = run().block_threads / 32;
        if (phases_ == 0 || ++reads_ > warps * numbers_.size())
            run().complain("a mail is read that has not come");
        return numbers_[rank];
    }

private:
    void take(float number)
    {
        if (!prepared_) run().complain("a mail is used that nobody has prepared");
        if (phases_ > 0 && reads_ < run().block_threads / 32 * numbers_.size())
            run().complain("race: a number comes before all have read the one before");
        numbers_[self().block] = number;
        ++come_;
        end_phase();
    }

    void end_phase()
    {
        if (!expected_ || come_ < numbers_.size()) return;
        expected_ = false;
        come_ = reads_ = 0;
        ++phases_;
        wake(0, run().block_threads * run().cluster_blocks, Waits::mail);
    }

    std::vector<float> numbers_;
    bool prepared_ = false, expected_ = false;
    size_t come_ = 0, reads_ = 0;
    unsigned int phases_ = 0;
};

ONCE void start()
{
    arrive_at_fiber(nullptr);
    (*run().kernel)();
    self().done = true;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(nullptr, run().scheduler_stack, run().scheduler_stack_size);
#endif
    setcontext(&run().scheduler);
}

ONCE void resume(Fiber& fiber)
{
    Run& all = run();
    all.running = &fiber;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&all.scheduler_fake, fiber.stack, stack_bytes);
#endif
    swapcontext(&all.scheduler, &fiber.context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(all.scheduler_fake, nullptr, nullptr);
#endif
    all.running = nullptr;
}

ONCE char* stack_number(size_t number)
{
    static std::vector<char*> stacks;
    while (stacks.size() <= number) {
        void* made = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED) std::abort();
        stacks.push_back(static_cast<char*>(made));
    }
    ASAN_UNPOISON_MEMORY_REGION(stacks[number], stack_bytes);
    return stacks[number];
}

ONCE unsigned int next_ready()
{
    Run& all = run();
    if (all.order == Order::random)
        std::swap(all.ready.front(), all.ready[all.chance() % all.ready.size()]);
    const bool last = all.order == Order::backwards;
    const unsigned int number = last ? all.ready.back() : all.ready.front();
    if (last) all.ready.pop_back();
    else all.ready.pop_front();
    return number;
}

ONCE void run_cluster()
{
    Run& all = run();
    const unsigned int count = all.block_threads * all.cluster_blocks;
    all.fibers.assign(count, Fiber());
    all.blocks.assign(all.cluster_blocks, Block());
    for (Block& block : all.blocks) block.warps.resize((all.block_threads + 31) / 32);
    all.ready.clear();
    all.cluster_arrived = all.cluster_phases = 0;
    for (unsigned int i = 0; i < count; ++i) {
        Fiber& fiber = all.fibers[i];
        fiber.thread = i % all.block_threads;
        fiber.block = i / all.block_threads;
        fiber.stack = stack_number(i);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = stack_bytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, start, 0);
        // The address sanitizer would clear its notes of a whole stack twice at each switch.
        fiber.context.uc_stack.ss_size = 0;
        all.ready.push_back(i);
    }
    while (!all.ready.empty()) resume(all.fibers[next_ready()]);
    unsigned int left = 0, lanes = 0;
    for (const Fiber& fiber : all.fibers) {
        left += !fiber.done;
        lanes += !fiber.done && fiber.waits == Waits::lanes;
    }
    if (left)
        all.complain("deadlock: " + std::to_string(left) + " threads wait for others, " +
                     std::to_string(lanes) + " of them for lanes of their warp");
}

// Run a kernel over the whole grid, block by block (or cluster by cluster); return the error.
ONCE std::string launch(unsigned int grid, unsigned int block, unsigned int cluster, Order order,
                          unsigned int seed, const std::function<void()>& kernel)
{
    Run& all = run();
    all.grid = grid;
    all.block_threads = block;
    all.cluster_blocks = cluster;
    all.order = order;
    all.chance.seed(seed);
    all.kernel = &kernel;
    all.error.clear();
    if (cluster == 0 || grid % cluster != 0) return "the grid is no multiple of the cluster";
    if (block == 0 || block > 1024) return "a block has 1 to 1024 threads";
    std::vector<unsigned int> firsts;
    for (unsigned int first = 0; first < grid; first += cluster) firsts.push_back(first);
    if (order == Order::backwards) std::reverse(firsts.begin(), firsts.end());
    if (order == Order::random) std::shuffle(firsts.begin(), firsts.end(), all.chance);
    for (unsigned int first : firsts) {
        all.first_block = first;
        run_cluster();
        if (!all.error.empty()) break;
    }
    return all.error;
}

}  // namespace emulator

#define threadIdx (uint3{emulator::self().thread, 0, 0})
#define blockIdx (uint3{emulator::run().first_block + emulator::self().block, 0, 0})
#define blockDim (uint3{emulator::run().block_threads, 1, 1})
#define gridDim (uint3{emulator::run().grid, 1, 1})

inline void __syncthreads() { emulator::block_barrier(); }

template <typename T>
T __shfl_xor_sync(unsigned int, T value, int mask)
{
    return emulator::exchange(value, emulator::self().thread % 32 ^ static_cast<unsigned int>(mask));
}

template <typename T>
T __shfl_down_sync(unsigned int, T value, unsigned int by)
{
    return emulator::exchange(value, emulator::self().thread % 32 + by);
}

template <typename T>
T __shfl_sync(unsigned int, T value, int lane)
{
    return emulator::exchange(value, static_cast<unsigned int>(lane));
}

inline void __syncwarp(unsigned int = 0xffffffffu) { emulator::exchange(0, 0); }

// Fibers never run at the same time, so an ordinary change is atomic.
template <typename T, typename U>
T atomicAdd(T* place, U value)
{
    const T old = *place;
    *place = static_cast<T>(old + value);
    return old;
}

template <typename T, typename U>
T atomicMin(T* place, U value)
{
    const T old = *place;
    *place = std::min(old, static_cast<T>(value));
    return old;
}

template <typename T, typename U>
T atomicMax(T* place, U value)
{
    const T old = *place;
    *place = std::max(old, static_cast<T>(value));
    return old;
}

template <typename To, typename From>
To bits_as(From value)
{
    static_assert(sizeof(To) == sizeof(From), "bits keep their number");
    To found;
    std::memcpy(&found, &value, sizeof found);
    return found;
}

inline unsigned int __float_as_uint(float value) { return bits_as<unsigned int>(value); }
inline float __uint_as_float(unsigned int bits) { return bits_as<float>(bits); }
inline float __int_as_float(int bits) { return bits_as<float>(bits); }
inline float __int_as_float(unsigned int bits) { return bits_as<float>(bits); }
inline int __float_as_int(float value) { return bits_as<int>(value); }

// A thousand nanoseconds, and as many cycles, pass between two reads.
inline unsigned long long global_timer() { return emulator::run().nanoseconds += 1000; }
inline long long clock64() { return static_cast<long long>(2 * emulator::run().nanoseconds); }

#endif  // GPUCHECK_EMULATOR_EMULATOR
