// train.cu on the emulator; the scalars are the kernels' own, in their order.
#include "driver.hpp"
#include "twins.hpp"

#include SOURCE

using driver::Launch;

int main()
{
    return driver::serve({
        {"forward",
         [](Launch& asked) {
             return asked.run([&] {
                 forward(asked.buffer<float>(0), asked.buffer<float>(1), asked.buffer<float>(2),
                         asked.buffer<float>(3), asked.whole(0));
             });
         }},
        {"project",
         [](Launch& asked) {
             return asked.run([&] {
                 project(asked.buffer<float>(0), asked.buffer<float>(1), asked.buffer<float>(2),
                         asked.real(0), static_cast<int>(asked.whole(1)), asked.whole(2));
             });
         }},
        {"gradient",
         [](Launch& asked) {
             return asked.run([&] {
                 gradient(asked.buffer<float>(0), asked.buffer<float>(1), asked.whole(0));
             });
         }},
        {"merge",
         [](Launch& asked) {
             return asked.run([&] {
                 merge(asked.buffer<float>(0), asked.buffer<float>(1),
                       static_cast<int>(asked.whole(0)), asked.whole(1));
             });
         }},
    });
}
