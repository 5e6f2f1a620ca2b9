// sdc.cu on the emulator, in one format (ELEMENT). Scalars: how many words.
#include "driver.hpp"
#include "twins.hpp"

#include SOURCE

using driver::Launch;

int main()
{
    return driver::serve({
        {"differ",
         [](Launch& asked) {
             return asked.run([&] {
                 differ(asked.buffer<word>(0), asked.buffer<word>(1), asked.whole(0),
                        asked.buffer<wide>(2));
             });
         }},
        {"digest",
         [](Launch& asked) {
             return asked.run(
                 [&] { digest(asked.buffer<word>(0), asked.whole(0), asked.buffer<wide>(1)); });
         }},
    });
}
