"""Ceiling of a processor's arithmetic: a row that is faster did not compute what it names.

Operations per second = cores x clock x operations per cycle of the instruction sets in
/proc/cpuinfo. It is generous, and so nothing to be compared with: every hardware thread counts as a
core with two fused multiply-add units, at a clock that no processor reaches. (The kernel often does
not know the highest clock, in a virtual machine never.)
"""

from __future__ import annotations

from types import MappingProxyType

from gpucheck.bench.model import DtypeSpec
from gpucheck.drivers.host.cpu import CpuFacts

#: Clock above that of every processor (6.2 GHz in 2026).
_HIGHEST_HZ = 6.5e9
#: float32 operations per cycle of a core by instruction set, the newest first: two units of 16, 8
#: and 8 numbers, the last one without fused multiply-add; SSE has one product and one sum of 4.
_PER_CYCLE = MappingProxyType({"avx512f": 64, "avx2": 32, "avx": 16, "sse2": 8})
#: The same in these formats' arithmetic, as a share of float32's. Others may run on other units.
_SHARES = MappingProxyType({"fp32": 1.0, "fp64": 0.5})


def most_flops_per_s(cpu: CpuFacts, dtype: DtypeSpec) -> float | None:
    """Return what all usable cores together cannot exceed; None for an unknown processor."""
    sets, share = cpu.instruction_sets, _SHARES.get(dtype.math_mode)
    per_cycle = next((rate for name, rate in _PER_CYCLE.items() if name in sets), None)
    if per_cycle is None or share is None:
        return None
    return cpu.usable_cores * _HIGHEST_HZ * per_cycle * share
