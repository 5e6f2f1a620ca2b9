// All of the emulator: what the compiler reads once for all programs.
#include "driver.hpp"
#include "twins.hpp"
