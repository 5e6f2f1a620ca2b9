"""Doubts of a benchmark's rows: a line for each cause, and with -v their full texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.model import LARGER_SIZE, MORE_TIME, Measurement
from gpucheck.bench.rows_view import devices_text
from gpucheck.report.blocks import Line
from gpucheck.report.envelope import CheckStatus

#: Doubts about how well a median is known; one line covers them all.
PRECISION = (
    "unconverged",
    "too-few-samples",
    "rounds-differ",
    "drifting",
    "autocorrelated",
)
#: Each doubt in few words, and what to do; the gravest come first.
SHORT = {
    "new-errors": ("the GPU counted new errors", "run gpucheck detect"),
    "above-peak": ("faster than the card can be", "do not trust these rows"),
    "above-link": ("faster than the PCIe link can be", "do not trust these rows"),
    "loops-missing": ("a batch may skip some work", "do not trust these rows"),
    "other-precision": ("computed in another precision", "unset what chooses the arithmetic"),
    "accuracy-differs": ("a framework learns otherwise", "do not compare its speed"),
    "reduced-precision": ("a framework computes in less precision", "use --same-math"),
    "throttled": ("GPU slowed down by heat or hardware", "check fans and power supply"),
    "host-busy": ("busy machine, so the speeds may be too low", "run it when the machine is idle"),
    "quota-reached": ("CPU quota used up", "raise the quota"),
    "gpu-shared": ("GPU shared with other processes", "see gpucheck list --processes"),
    "gpu-claimed": ("GPU claimed by another process", "see gpucheck place --claims"),
    "far-from-gpu": ("no CPU near the GPU", "start it without a CPU mask"),
    "pcie-narrow": ("slow PCIe link", "check the slot, the riser and the BIOS settings"),
    "blas-older-than-cpu": ("BLAS older than the processor", "update NumPy"),
    "threads-differ": ("other number of threads", "unset what limits them"),
    "compiled-again": ("may have compiled again", "compare p90 and the median with -v"),
    "tensor-cores-unused": ("tensor cores not used", "see -v"),
    "clock-low": ("low clock without a reason", "run nvidia-smi -q -d CLOCK,PERFORMANCE,POWER"),
    "clocks-locked": ("fixed clocks", "compare only with runs at the same clocks"),
    "starved": ("the GPU may have waited for the host", LARGER_SIZE),
    "": ("not settled", MORE_TIME),
    "bimodal": ("two groups of samples", "compare p10 and p90 with -v"),
    "cache-resident": ("data that may stay in the cache", LARGER_SIZE),
    "l2-resident": ("data that may stay in the L2 cache", LARGER_SIZE),
    "above-copy": ("faster than the fastest copy", "see -v"),
    "peak-uncertain": ("the peak itself is in doubt", "see -v"),
    "energy-window-short": ("energy counted too briefly", MORE_TIME),
    "zeros": ("arrays of zeros", "omit --fill zeros"),
    "power-capped": ("at the power limit", "normal for random numbers"),
}


def in_doubt(rows: Sequence[Measurement], *, settled: bool = True) -> list[Line]:
    """Return a line for each cause of doubt, the gravest first.

    Without `settled`, how well medians are known is left out: the run was interrupted.
    """
    measured = [row for row in rows if row.median_s is not None]
    doubtful: dict[str, list[Measurement]] = {}
    for row in measured:
        codes = ("" if doubt.code in PRECISION else doubt.code for doubt in row.doubts)
        for code in dict.fromkeys(code for code in codes if code or settled):
            doubtful.setdefault(code, []).append(row)
    order = list(SHORT)
    lines = []
    for code in sorted(doubtful, key=lambda code: order.index(code) if code in order else 0):
        what, remedy = SHORT.get(code, (code, "see -v"))
        where = _where(doubtful[code], measured)
        lines.append(Line(f"{what} ({where}): {remedy}", CheckStatus.WARN, indent=2))
    return lines


def _where(found: Sequence[Measurement], rows: Sequence[Measurement]) -> str:
    """Return how many rows it is, and which if one word says it."""
    count = f"{len(found)} of {len(rows)} rows" if len(rows) > 1 else "the row"
    if len(found) == len(rows):
        return count
    kernels = list(dict.fromkeys(row.kernel for row in found))
    devices = devices_text(sorted({row.device for row in found}))
    some = {row.device for row in found} != {row.device for row in rows}
    if some and "," not in devices:
        return f"{count}, on {devices}"
    several = len({row.kernel for row in rows}) > 1
    return f"{count}, in {kernels[0]}" if several and len(kernels) == 1 else count


def full_doubts(rows: Sequence[Measurement], named: Sequence[str]) -> Iterator[Line]:
    """Yield each doubt of a table in full, with its rows."""
    about: dict[str, list[str]] = {}
    for row, name in zip(rows, named, strict=True):
        for doubt in row.doubts:
            about.setdefault(f"{doubt.message}; {doubt.next}", []).append(name)
    measured = sum(row.median_s is not None for row in rows)
    for text, names in about.items():
        who = "all rows" if len(names) == measured > 1 else " | ".join(names)
        yield Line(f"{who}: {text}", CheckStatus.WARN, indent=4)
