// timing.cu on the emulator, its special registers replaced; block n runs on SM n + 1 of four.
#include "driver.hpp"
#include "twins.hpp"

inline unsigned int sm_number() { return (blockIdx.x + 1) % 4; }

#include SOURCE

using driver::Launch;

int main()
{
    return driver::serve({
        {"hold",
         [](Launch& asked) {
             return asked.run([&] { hold(static_cast<unsigned long long>(asked.whole(0))); });
         }},
        {"tick",
         [](Launch& asked) {
             return asked.run([&] { tick(asked.buffer<unsigned long long>(0)); });
         }},
        {"step",
         [](Launch& asked) {
             return asked.run([&] { step(asked.buffer<unsigned long long>(0)); });
         }},
    });
}
