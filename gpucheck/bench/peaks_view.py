"""View of peaks: what each board can do at most, and what the figures rest on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpucheck.bench.boards import (
    BoardPeaks,
    ComputePeak,
    MemoryPeak,
    Peaks,
    is_held,
    numbers_text,
)
from gpucheck.report.blocks import (
    UNNAMED,
    Block,
    Column,
    Gap,
    Inline,
    Line,
    Row,
    Span,
    Table,
    counted,
    opening,
    remedies,
)
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import View, group_by, rate

#: What every figure means, and how it differs from what most sheets print first.
_DENSE = (
    "Dense; tensor cores sum in float32. A figure with sparsity, as sheets print it, is twice that."
)
_INDENT = 2
#: Formats whose operations are not of floating point.
_INTEGERS = frozenset(("int8",))
#: The name of the row of the memory, beside those of the dtypes.
_MEMORY = "memory"


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield each board's peaks, the GPUs that have it, and those without a board in the table."""
    peaks = report.result
    if not isinstance(peaks, Peaks):
        raise TypeError(type(peaks).__name__)
    names = [gpu.name for board in peaks.boards for gpu in board.gpus]
    names += [gpu.name for gpu in peaks.unknown]
    if names:
        yield from opening(report, view, counted(names))
    for board in peaks.boards:
        yield from _board(board, view)
        yield Gap()
    for gpu in peaks.unknown:
        yield Line(f"GPU {gpu.index} ({gpu.name or UNNAMED}): {gpu.reason}", CheckStatus.FAIL)
    if peaks.unknown and report.error is not None:
        yield from remedies(report.error.remedy)
    if view.verbosity >= 0 and peaks.boards:
        yield Gap()
        yield Line(_DENSE, style="dim")


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return (
        *("power-limit-below-board", "board-not-in-table", "gpu-not-identified"),
        "vgpu-has-a-share",
    )


def _board(board: BoardPeaks, view: View) -> Iterator[Block]:
    """Yield a board's title and a row for each figure, with what speaks against it."""
    yield Line(
        (Span(board.name, "bold"), Span(f" ({numbers_text(board.gpus)})" if board.gpus else ""))
    )
    if view.verbosity >= 0:
        yield Line(", ".join(_build(board)), indent=_INDENT)
        yield from _power(board)
    columns = [Column("peak"), Column("", right=True), Column("source")]
    yield Table(columns, [*_rows(board, view)], header=False)
    yield from (Line(f"{name}: {why}", indent=_INDENT) for name, why in board.unavailable.items())
    if view.verbosity > 0:
        yield Line(f"source: {board.source}; read {board.date}", indent=_INDENT, style="dim")
        clocks = ", ".join(f"{name} {source}" for name, source in board.clock_sources.items())
        yield Line(f"sources of the clocks: {clocks}", indent=_INDENT, style="dim")


def _power(board: BoardPeaks) -> Iterator[Line]:
    """Yield the power limit of the board's GPUs beside the board's own, a line for each limit."""
    limits = group_by(board.gpus, lambda gpu: gpu.power_limit_w)
    for limit_w, gpus in limits.items():
        if limit_w is None:
            text, mark = "power limit not read", CheckStatus.UNKNOWN
        elif is_held(gpus[0]):
            own_w = f"{board.power_limit_w:g} W"
            text, mark = f"power limit {limit_w:g} W of {own_w}: expect less", CheckStatus.WARN
        else:
            text, mark = f"power limit {limit_w:g} W, as the board is built for", CheckStatus.OK
        yield Line(
            text if len(limits) == 1 else f"{numbers_text(gpus)}: {text}", mark, indent=_INDENT
        )


def _build(board: BoardPeaks) -> Iterator[str]:
    """Yield the board's build: processors, clocks, memory, power."""
    clock = f"{board.sm_count} SMs at {board.clock_sm_mhz:g} MHz"
    if board.clock_tensor_mhz != board.clock_sm_mhz:
        clock += f" (tensor cores {board.clock_tensor_mhz:g})"
    yield clock
    yield f"{' or '.join(f'{size:g}' for size in board.memory_sizes_gb)} GB"
    yield f"{board.power_limit_w:g} W"
    yield f"PCIe {board.pcie_generation}"
    yield f"compute capability {board.compute_capability}"


def _rows(board: BoardPeaks, view: View) -> Iterator[Row]:
    """Yield a row for each dtype, then the memory's; a doubt stands below its row."""
    peaks: dict[str, ComputePeak | MemoryPeak] = {**board.compute, _MEMORY: board.memory}
    for name, peak in peaks.items():
        per_s, unit = _amount(name, peak)
        below = [] if peak.doubt is None else [Line(f"! {peak.doubt}", indent=2 * _INDENT)]
        if view.verbosity > 0 and peak.formula_percent is not None:
            off = f"SMs x clock x rate gives {peak.formula_percent:+.1f} %"
            if isinstance(peak, MemoryPeak):
                off = f"clock x bus width x 2 gives {peak.formula_percent:+.1f} %"
            below.append(Line(off, indent=2 * _INDENT, style="dim"))
        cells: list[Inline] = [
            f"{' ' * _INDENT}{name}",
            rate(per_s, unit),
            (Span(peak.source, "dim"),),
        ]
        yield Row(cells, below=tuple(below))


def _amount(name: str, peak: ComputePeak | MemoryPeak) -> tuple[float, str]:
    """Return the peak of a row and its unit; integers have no floating point."""
    if isinstance(peak, MemoryPeak):
        return peak.bytes_per_s, "B/s"
    return peak.flops_per_s, "OP/s" if name in _INTEGERS else "FLOP/s"
