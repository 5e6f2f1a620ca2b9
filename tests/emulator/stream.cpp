// stream.cu on the emulator. Scalars: packs; for triad the factor before it.
#include "driver.hpp"
#include "twins.hpp"

#include SOURCE

using driver::Launch;

int main()
{
    return driver::serve({
        {"copy",
         [](Launch& asked) {
             return asked.run([&] {
                 copy(asked.buffer<float4>(0), asked.buffer<float4>(1), asked.whole(0));
             });
         }},
        {"triad",
         [](Launch& asked) {
             return asked.run([&] {
                 triad(asked.buffer<float4>(0), asked.buffer<float4>(1), asked.buffer<float4>(2),
                       asked.real(0), asked.whole(1));
             });
         }},
    });
}
