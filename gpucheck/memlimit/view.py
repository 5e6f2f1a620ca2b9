"""Terminal view of `gpucheck memlimit`: the limits, what enforces them, a run and the proofs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpucheck.drivers.python.frameworks import Software
from gpucheck.inventory.columns import ABSENT
from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    LimitedRun,
    Mechanism,
    MemoryLimit,
    Overhead,
    Strength,
    Verification,
    Way,
)
from gpucheck.memlimit.outcome import (
    FrameworkOutcome,
    framework_outcomes,
    group_by_mechanism,
    is_set,
    outcome_lines,
)
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, binary_bytes, exports, printable, ranges

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

#: On terminals narrower than this, tables become lines.
NARROW = 64
STRENGTH_STYLES = {
    Strength.HARD: "green",
    Strength.ALLOCATOR: "green",
    Strength.SOFT: "yellow",
    Strength.NONE: "red",
}
_UNKNOWN = (
    "A GPU's total memory is unknown: an amount in bytes, such as 8GiB, limits more frameworks."
)
_TRAP = (
    "TensorFlow's memory_limit counts MiB: 0.3 there means 0 bytes, not 30 %."
    " --code tensorflow prints the right lines."
)
_NEXT = (
    "-- COMMAND at the end runs it limited and watched; --verify proves the limit.",
    "--format shell prints the variables, --code FRAMEWORK the code for a program.",
    "-v shows how each framework is limited, how strictly, and why.",
)


def build(report: Report, view: View) -> RenderableType:
    """Return the whole report as one renderable."""
    from rich.console import Group
    from rich.text import Text

    limit = report.result
    if not isinstance(limit, MemoryLimit):
        raise TypeError(type(limit).__name__)
    title = f"{printable(limit.request.text)} of each visible GPU"
    parts: list[RenderableType] = [Text(title, style="bold", overflow="fold")]
    alike = [[gpu] for gpu in limit.gpus] if view.verbosity > 0 else group_alike(limit.gpus)
    parts.append(_gpu_blocks(alike) if view.width < NARROW else _gpu_table(alike))
    if limit.run is not None:
        parts.extend(_run_outcome(limit.run))
    parts.extend(_details(limit, view) if view.verbosity > 0 else _summary(limit, view))
    return Group(*parts)


def _run_outcome(run: LimitedRun) -> Iterator[RenderableType]:
    from rich.text import Text

    first, *others = outcome_lines(run)
    yield Text(printable(first), style="bold", overflow="fold")
    yield from (_indented(Text(printable(line), overflow="fold")) for line in others)


def _summary(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield what the limit means, and what to type next unless a command has been run."""
    from rich.text import Text

    if limit.verifications:
        yield from _proofs(limit, view)
        return
    hints = view.verbosity >= 0 and limit.run is None
    if hints and any(gpu.limit_bytes is None for gpu in limit.gpus):
        yield Text(_UNKNOWN, style="yellow", overflow="fold")
    elif limit.overhead is not None and hints:
        yield Text(_beyond_allocators(limit.gpus, limit.overhead), overflow="fold")
    yield from _framework_outcomes(limit, view, hints=hints)


def _details(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    from rich.text import Text

    if limit.overhead is not None:
        yield from _budgets(limit.gpus, limit.overhead)
    if limit.software is not None:
        yield Text(_software_line(limit.software), overflow="fold")
    if limit.verifications:
        yield from _proofs(limit, view)
    yield from _mechanisms(limit, view)
    if limit.overhead is not None:
        yield Text("\nThe overhead is an estimate:", style="dim")
        yield from (Text(f"  {line}", style="dim") for line in limit.overhead.sources)


def _software_line(software: Software) -> str:
    where = printable(_software_name(software))
    if software.frameworks is None:
        return f"For {where}: {printable(software.reason or 'its frameworks are unknown')}"
    found = ", ".join(
        printable(f"{name} {version}".strip()) for name, version in software.frameworks.items()
    )
    return f"For {where}: {found or 'none of the frameworks (--python names another Python)'}"


def _indented(text: Text, columns: int = 2) -> RenderableType:
    """Return a text whose lines all begin some columns to the right."""
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, columns))


# ---------------------------------------------------------------------------------------- the GPUs


def group_alike(gpus: Sequence[GpuMemoryLimit]) -> list[list[GpuMemoryLimit]]:
    """Put GPUs of one name, size and limit together, in the order of the first of each."""
    groups: dict[object, list[GpuMemoryLimit]] = {}
    for gpu in gpus:
        key = (gpu.name or gpu.uuid, gpu.memory_total_bytes, gpu.limit_bytes, gpu.mig_instance)
        groups.setdefault(key, []).append(gpu)
    return list(groups.values())


def _beyond_allocators(gpus: Sequence[GpuMemoryLimit], overhead: Overhead) -> str:
    """Return what nvidia-smi will show beyond what the allocators may take."""
    size = _size(overhead.total_bytes)
    if overhead.included:
        return f"About {size} of that is reserved for the CUDA context and libraries."
    advice = "; --include-overhead includes it"
    if any(gpu.limit_bytes is not None and gpu.limit_bytes <= overhead.total_bytes for gpu in gpus):
        advice = ", more than the limit itself"
    return f"nvidia-smi shows about {size} more for the CUDA context and libraries{advice}."


def _budgets(gpus: Sequence[GpuMemoryLimit], overhead: Overhead) -> Iterator[Text]:
    """Yield one budget for each size: eight equal cards share one."""
    groups: dict[object, list[GpuMemoryLimit]] = {}
    for gpu in gpus:
        groups.setdefault((gpu.memory_total_bytes, gpu.limit_bytes), []).append(gpu)
    for group in groups.values():
        yield _budget(group[0], overhead, f" of GPU {_ordinals(group)}" if len(groups) > 1 else "")


def _budget(gpu: GpuMemoryLimit, overhead: Overhead, which: str) -> Text:
    from rich.text import Text

    if gpu.allocator_limit_bytes is None:
        return Text(f"Budget{which}: unknown without the GPU's total")
    whole = gpu.allocator_limit_bytes + overhead.total_bytes
    advice, style = "", ""
    if gpu.memory_total_bytes is not None and whole > gpu.memory_total_bytes:
        advice, style = ", more than the card has", "yellow"
    elif not overhead.included:
        advice = "; --include-overhead keeps that within the limit"
    return Text(
        f"Budget{which}: {_size(gpu.allocator_limit_bytes)} for allocators, about"
        f" {_size(overhead.context_bytes)} for the context and {_size(overhead.library_bytes)}"
        f" for libraries: nvidia-smi shows about {_size(whole)}{advice}.",
        style=style,
    )


def _gpu_table(groups: Sequence[Sequence[GpuMemoryLimit]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("CUDA", justify="right")
    table.add_column("Name", overflow="ellipsis", no_wrap=True, min_width=8)
    table.add_column("Total", justify="right", no_wrap=True)
    table.add_column("Limit", justify="right", no_wrap=True)
    table.add_column("Bytes", justify="right", no_wrap=True)
    for group in groups:
        first = group[0]
        cells = (
            _ordinals(group),
            _gpu_name(group),
            _size(first.memory_total_bytes),
            *_limit_cells(first),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _gpu_blocks(groups: Sequence[Sequence[GpuMemoryLimit]]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[str] = []
    for group in groups:
        size, exact = _limit_cells(group[0])
        lines += [
            f"CUDA {_ordinals(group)} {_gpu_name(group)}",
            f"  {size} of {_size(group[0].memory_total_bytes)}",
            f"  {exact} bytes",
        ]
    return Group(*(Text(line, overflow="fold") for line in lines))


def _ordinals(group: Sequence[GpuMemoryLimit]) -> str:
    return ranges([gpu.cuda_index for gpu in group if gpu.cuda_index is not None]) or ABSENT


def _gpu_name(group: Sequence[GpuMemoryLimit]) -> str:
    gpu = group[0]
    name = printable(gpu.name or gpu.uuid or f"GPU {gpu.index}")
    return f"{len(group)} × {name}" if len(group) > 1 else name


def _size(value: int | None) -> str:
    return ABSENT if value is None else binary_bytes(value)


def _limit_cells(gpu: GpuMemoryLimit) -> tuple[str, str]:
    exact = ABSENT if gpu.limit_bytes is None else str(gpu.limit_bytes)
    return _size(gpu.limit_bytes), exact


# ----------------------------------------------------------------------------- frameworks in a run


def _framework_outcomes(limit: MemoryLimit, view: View, *, hints: bool) -> Iterator[RenderableType]:
    """Yield a line for each installed framework, or for all if none is, and the hints."""
    from rich.text import Text

    found = framework_outcomes(limit)
    if not found:
        return
    yield Text(_run_title(limit.software, found), overflow="fold")
    rows = _outcome_rows(found, view)
    yield _outcome_table(rows) if view.width >= NARROW else _outcome_lines(rows)
    if hints:
        names = [each.framework for each in found if each.installed]
        is_trap = limit.request.fraction is not None and any(
            name.startswith("tensorflow") for name in names
        )
        yield Text("\n".join((*[_TRAP] * is_trap, *_NEXT)), style="dim", overflow="fold")


class _OutcomeRow(NamedTuple):
    mark: str
    style: str
    name: str
    what: str
    note: str = ""


def _outcome_rows(found: Sequence[FrameworkOutcome], view: View) -> list[_OutcomeRow]:
    """Return limited frameworks first; if none is installed, grouped by what would limit them."""
    held, missing = ("✓", "✗") if view.unicode else ("+", "x")
    if any(each.installed for each in found):
        rows = [
            _OutcomeRow(*(("~", "yellow") if each.soft else (held, "green")), each.framework,
                 f"by {each.by}", each.note)
            for each in found
            if each.by is not None
        ]  # fmt: skip
    else:
        rows = [
            _OutcomeRow(held, "green", names, f"by {by}") for names, by in group_by_mechanism(found)
        ]
    rows += [
        _OutcomeRow(missing, "" if each.way is Way.NOBODY else "red", each.framework, each.note)
        for each in found
        if each.by is None
    ]
    return rows


def _outcome_table(rows: Sequence[_OutcomeRow]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        what = Text(printable(row.what), overflow="fold")
        if row.note:
            what.append(f"\n{printable(row.note)}", style="yellow")
        table.add_row(Text(f"  {row.mark} {printable(row.name)}", style=row.style), what)
    return table


def _outcome_lines(rows: Sequence[_OutcomeRow]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for row in rows:
        parts.append(Text(f"{row.mark} {printable(row.name)}", style=row.style, overflow="fold"))
        texts = filter(None, (row.what, row.note))
        parts.extend(_indented(Text(printable(text), overflow="fold")) for text in texts)
    return Group(*parts)


def _run_title(software: Software | None, found: Sequence[FrameworkOutcome]) -> str:
    where = printable(_software_name(software)) if software else ""
    if software is None or software.frameworks is None:
        reason = printable((software.reason if software else None) or "not checked")
        return f"In a run ({reason}):"
    if any(each.installed for each in found):
        return f"In a run of {where}:"
    return f"In a run, but {where} has none of these (--python names another Python):"


def _software_name(software: Software) -> str:
    """Return the Python of a plan, and why it was chosen."""
    named = {None: "", "gpucheck": " (gpucheck's own)"}
    by = named.get(software.named_by, f" (by {software.named_by})")
    return f"{software.interpreter or 'an unknown Python'}{by}"


# --------------------------------------------------------------------------------- every mechanism


def _mechanisms(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield the table with the reasons, the settings and the lines of code."""
    rows = limit.mechanisms
    yield from _mechanism_table(rows, limit, view)
    if limit.environment:
        yield _dim("\nThe settings (--format shell prints only these lines):")
        for name, value in limit.environment.items():
            yield _to_copy(printable(f"export {name}={shlex.quote(value)}"))
    lines = [row for row in rows if row.by is Way.CODE and row.setting and not row.applies]
    if lines:
        yield _dim("\nIn a program that is not run with -- CMD:")
        for row in lines:
            yield _to_copy(printable(row.setting or ""))


def _mechanism_table(
    rows: Sequence[Mechanism], limit: MemoryLimit, view: View
) -> Iterator[RenderableType]:
    """Yield a line for each mechanism, and its reason where it is not the expected one."""
    from rich.text import Text

    first = max((len(printable(row.framework)) for row in rows), default=0)
    second = max((len(row.strength.value) for row in rows), default=0)
    wide = view.width >= NARROW
    heads = f"\n  {'Framework':<{first}}  {'Strength':<{second}}  Applies "
    yield Text(f"{heads}  By" if wide else heads, style="dim", overflow="fold")
    for row in rows:
        mark, style = _mechanism_mark(row, view)
        by = row.reason if row.by is Way.NOBODY else row.mechanism
        yield Text.assemble(
            (f"{mark} {printable(row.framework):<{first}}  ", style),
            (f"{row.strength.value:<{second}}", STRENGTH_STYLES[row.strength]),
            (f"  {_applies(row, limit):<8}", style),
            f"  {printable(by)}" if wide else "",
            overflow="fold",
        )
        if not wide:
            yield _indented(Text(printable(by), overflow="fold"), 4)
        if row.by is not Way.NOBODY:
            yield _indented(Text(printable(row.reason), style="dim", overflow="fold"), 4)


def _applies(row: Mechanism, limit: MemoryLimit) -> str:
    """Return yes, no, or `not here` if it is set but this Python lacks the framework."""
    if row.applies:
        return "yes"
    return "not here" if row.installed is False and is_set(row, limit) else "no"


def _mechanism_mark(row: Mechanism, view: View) -> tuple[str, str]:
    if row.applies:
        return ("✓" if view.unicode else "+"), "green"
    if row.installed is True and row.by is not Way.CODE:
        return ("✗" if view.unicode else "x"), "red"
    return "-", "dim"


def _dim(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim", overflow="fold")


def _to_copy(text: str) -> Text:
    """Return a line that stays one line, however narrow the terminal is."""
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ignore")


# -------------------------------------------------------------------------------------- the proofs


def _proofs(limit: MemoryLimit, view: View) -> Iterator[RenderableType]:
    """Yield the outcomes; GPUs with the same outcome share a block."""
    from rich.text import Text

    groups: dict[Verification, list[Verification]] = {}
    for each in limit.verifications:
        alike = replace(
            each,
            uuid=None,
            cuda_index=None,
            nvml_bytes=None,
            nvml_most_bytes=None,
            overhead_bytes=None,
            peak_bytes=None,
        )
        groups.setdefault(alike, []).append(each)
    for group in groups.values():
        style, lines = _proof_lines(group, len(limit.gpus), view)
        yield Text(lines[0], style=style, overflow="fold")
        yield from (Text(f"    {line}", overflow="fold") for line in lines[1:])


def _proof_lines(group: Sequence[Verification], gpus: int, view: View) -> tuple[str, list[str]]:
    first = group[0]
    marks = {
        True: ("✓" if view.unicode else "+", "green", "the cap holds"),
        False: ("✗" if view.unicode else "x", "red", "the cap does not hold"),
        None: ("?", "yellow", "not proven"),
    }
    mark, style, verdict = marks[first.held]
    name = printable(f"{first.framework} {first.version or ''}".strip())
    numbers = [each.cuda_index for each in group if each.cuda_index is not None]
    where = f" on GPU {ranges(numbers)}" if numbers and gpus > 1 else ""
    lines = [f"{mark} {name}: {verdict}{where}"]
    if first.mechanism:
        lines.append(f"by {printable(first.mechanism)}")
    if first.reason:
        lines.append(printable(first.reason))
    if first.limit_bytes is not None and first.allocated_bytes is not None:
        lines.append(f"{first.allocated_bytes} of {first.limit_bytes} bytes allocated")
    if first.refused_bytes is not None:
        error = printable(first.refused_with or "an error")
        lines.append(f"{first.refused_bytes} bytes more refused with {error}{_deviation(first)}")
    extra = [each.overhead_bytes for each in group if each.overhead_bytes is not None]
    if extra:
        lines.append(f"{binary_bytes(max(extra))} outside the allocator, by NVML")
    elif first.held and all(each.nvml_bytes is None for each in group):
        lines.append(
            "NVML does not report what the process took: only the allocator's own count is known"
        )
    return style, lines


def _deviation(proof: Verification) -> str:
    """Return how far from the limit the refusal was."""
    deviation, step = proof.deviation_bytes, proof.refused_bytes
    if deviation is None or step is None:
        return ""
    if -step < deviation <= 0:
        return f": at the limit, to within {binary_bytes(step)}"
    side = "above" if deviation > 0 else "below"
    return f": {binary_bytes(abs(deviation))} {side} the limit, to within {binary_bytes(step)}"


# ---------------------------------------------------------------------------------- lines


#: Format -> the lines of a limit to copy or to evaluate.
LINES: dict[str, Callable[[MemoryLimit], str]] = {
    "code": lambda limit: limit.code or "",
    "shell": lambda limit: exports(limit.environment),
}
