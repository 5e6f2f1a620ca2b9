// The whole emulator: read once by the compiler for all programs.
#include "driver.hpp"
#include "twins.hpp"
