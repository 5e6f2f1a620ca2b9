// softmax.cu with the card's variants behind it, in one format (ELEMENT); SOURCE is the file. FEW
// keeps only rows at any address with two packs and eight lanes, for a source that is meant to be
// found wrong.
#include "driver.hpp"
#include "twins.hpp"

static bool is_exact = false;
#define EXACT is_exact
#include SOURCE

using driver::Launch;

// Scalars: rows, columns, factor, aligned, packs, lanes, exact.
#define TAKEN \
    asked.buffer<element>(0), asked.buffer<element>(1), asked.whole(0), asked.whole(1), \
        asked.real(2)

template <bool aligned, int packs>
std::string of_packs(Launch& asked)
{
    [[maybe_unused]] const auto lanes = asked.whole(5);
    is_exact = asked.whole(6) != 0;
    return asked.run([&] {
        if (asked.kernel == "softmax_long") softmax_long_rows<packs, aligned>(TAKEN);
        else if (asked.kernel == "softmax_ahead") softmax_ahead_rows<packs, aligned>(TAKEN);
        else if (asked.kernel == "softmax_cluster") softmax_cluster_rows<packs, aligned, true>(TAKEN);
#if ELEMENT != 0
        else if (asked.kernel == "softmax_raw") softmax_raw_rows<packs, aligned>(TAKEN);
#endif
#ifndef FEW
        else if (lanes == 4) softmax_short_rows<4, packs, aligned>(TAKEN);
        else if (lanes == 16) softmax_short_rows<16, packs, aligned>(TAKEN);
        else if (lanes == 32) softmax_short_rows<32, packs, aligned>(TAKEN);
#endif
        else softmax_short_rows<8, packs, aligned>(TAKEN);
    });
}

template <bool aligned>
std::string held(Launch& asked)
{
    switch (asked.whole(4)) {
#ifndef FEW
    case 1: return of_packs<aligned, 1>(asked);
    case 3: return of_packs<aligned, 3>(asked);
    case 4: return of_packs<aligned, 4>(asked);
    case 5: return of_packs<aligned, 5>(asked);
    case 6: return of_packs<aligned, 6>(asked);
    case 7: return of_packs<aligned, 7>(asked);
    case 8: return of_packs<aligned, 8>(asked);
#endif
    case 2: return of_packs<aligned, 2>(asked);
    default: return "no such number of packs";
    }
}

static std::string any_held(Launch& asked)
{
#ifndef FEW
    if (asked.whole(3)) return held<true>(asked);
#endif
    return held<false>(asked);
}

static std::string online(Launch& asked)
{
    is_exact = false;
    return asked.run([&] {
#ifndef FEW
        if (asked.whole(3)) softmax_online_rows<true>(TAKEN);
        else
#endif
            softmax_online_rows<false>(TAKEN);
    });
}

int main()
{
    return driver::serve({{"softmax_short", any_held},
                          {"softmax_long", any_held},
                          {"softmax_online", online},
                          {"softmax_ahead", any_held},
                          {"softmax_cluster", any_held},
                          {"softmax_raw", any_held}});
}
