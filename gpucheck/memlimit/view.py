"""View of `gpucheck memlimit`: the limit, how to run under it, what enforces it, and the proofs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from gpucheck.drivers.python.frameworks import Software
from gpucheck.inventory.memory import capped_sentences
from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    Mechanism,
    MemoryLimit,
    Overhead,
    Strength,
    Verification,
    Way,
)
from gpucheck.memlimit.outcome import (
    FrameworkOutcome,
    caps_of,
    framework_outcomes,
    group_by_mechanism,
    hard_sentences,
    is_set,
    outcome_lines,
)
from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Gap,
    Line,
    Row,
    Span,
    Table,
    counted,
    opening,
)
from gpucheck.report.envelope import CheckStatus, Failure, Report
from gpucheck.report.text import ABSENT, View, binary_bytes, exports, group_by, ranges

INDENT = 2
#: A card's name in a table is cut to fit, but never below this.
SHORTEST_NAME = 12
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
    "--verify proves the limit; --code FRAMEWORK and --format shell are for programs of your own;"
    " -v says how each framework is limited, how strictly, and why."
)
_ESTIMATE = "The context and the libraries are estimates; --json names the sources."
#: Reference to an issue, which nobody reads on a screen.
_ISSUE = re.compile(r",? ?[\w-]+#[0-9]+")


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the view of a limit: a run or the limit first, then its mechanisms or the proofs."""
    limit = report.result_as(MemoryLimit)
    yield from opening(report, view, counted(gpu.name for gpu in limit.gpus))
    yield from (Line(text, CheckStatus.WARN) for text in capped_sentences(caps_of(limit)))
    if limit.run is not None:
        run = limit.run
        first, *others = outcome_lines(run)
        mark = CheckStatus.WARN if run.exceeded else None
        yield Line(first, mark, style="bold")
        yield from (Line(line, indent=INDENT) for line in others)
    if limit.hard is not None:
        hard = limit.hard
        start, end = hard_sentences(hard)
        yield Line(f"{start}.")
        yield Line(f"{end[0].upper()}{end[1:]}.", None if hard.removed else CheckStatus.WARN)
        if view.verbosity > 0:
            yield Line(f"{hard.cgroup} ({hard.place})", indent=INDENT, style="dim")
        return
    yield from _limits(limit, view)
    if view.verbosity > 0:
        yield from _details(limit, report.error)
    elif limit.verifications:
        yield from _proofs(limit, report.error)
    elif view.verbosity == 0:
        yield from _summary(limit)


def _summary(limit: MemoryLimit) -> Iterator[Block]:
    """Yield the meaning of the limit, how to run under it, and its mechanisms."""
    if limit.run is None:
        if any(gpu.limit_bytes is None for gpu in limit.gpus):
            yield Line(_UNKNOWN, style="yellow")
        elif limit.overhead is not None:
            yield Line(_explain_excess(limit.gpus, limit.overhead))
        yield Line("To run a program under it and watch its peak:")
        yield Command(f"{_command(limit)} -- CMD")
        yield Gap()
    yield from _frameworks(limit)
    if limit.run is None:
        yield Gap()
        yield Line(_NEXT, style="dim")


def _command(limit: MemoryLimit) -> str:
    """Return the command line that asks for this limit."""
    words = ["gpucheck", "memlimit", limit.request.text]
    if "CUDA_VISIBLE_DEVICES" in limit.environment:  # by --gpu
        words += [word for gpu in limit.gpus for word in ("--gpu", gpu.uuid or "")]
    if limit.overhead is not None and limit.overhead.included:
        words.append("--include-overhead")
    return shlex.join(words)


# ---------------------------------------------------------------------------------------- the GPUs


def _limits(limit: MemoryLimit, view: View) -> Iterator[Block]:
    """Yield the limit of equal GPUs as a sentence, of unlike ones as a table."""
    groups = group_alike(limit.gpus)
    exact = view.verbosity > 0
    if len(groups) == 1:
        yield Line(_limit_line(limit.request.text, groups[0], exact=exact), style="bold green")
        return
    yield Line(f"{limit.request.text} of each visible GPU", style="bold")
    columns = [
        Column("GPU"),
        Column("CUDA"),
        Column("name", least=SHORTEST_NAME),
        Column("limit", right=True),
        Column("of", right=True),
    ]
    columns += [Column("bytes", right=True)] * exact
    rows = []
    for group in groups:
        first = group[0]
        name = first.name or first.uuid or f"GPU {first.index}"
        names = f"{len(group)} × {name}" if len(group) > 1 else name
        cells = [_ranges(gpu.index for gpu in group), _ranges(gpu.cuda_index for gpu in group)]
        cells += [names, _size(first.limit_bytes), _size(first.memory_total_bytes)]
        cells += [ABSENT if first.limit_bytes is None else str(first.limit_bytes)] * exact
        rows.append(Row(cells))
    yield Table(columns, rows, names=3)


def group_alike(gpus: Sequence[GpuMemoryLimit]) -> list[list[GpuMemoryLimit]]:
    """Put GPUs of one name, size and limit together, in the order of the first of each."""
    alike = group_by(
        gpus,
        lambda gpu: (
            gpu.name or gpu.uuid,
            gpu.memory_total_bytes,
            gpu.limit_bytes,
            gpu.mig_instance,
        ),
    )
    return list(alike.values())


def _limit_line(text: str, group: Sequence[GpuMemoryLimit], *, exact: bool) -> str:
    """Return the limit of equal GPUs: "30% is 7.2 GiB of the 24.0 GiB on GPU 0"."""
    first = group[0]
    kind = "MIG instance" if first.mig_instance else "GPU"
    number = _ranges(gpu.number for gpu in group)
    many = f"each of {len(group)} {kind}s ({number})"
    which = many if len(group) > 1 else kind if number == ABSENT else f"{kind} {number}"
    total, size = first.memory_total_bytes, first.limit_bytes
    whole = f"the {binary_bytes(total)}" if total is not None else "an unknown total"
    if first.memory_limit_bytes is not None and first.memory_limit_bytes == first.whole_bytes:
        whole = f"the {binary_bytes(first.memory_limit_bytes)} that your cgroup may use"
    if size is None:
        return f"{text} of {whole} on {which}"
    amount = binary_bytes(size)
    spelled = amount.replace(".0 ", "").replace(" ", "") == text
    amount += f" ({size} bytes)" if exact else ""
    if spelled and total and not exact:
        # "8GiB is 8.0 GiB" says nothing.
        share = f"{100 * size / total:.0f} %" if 200 * size >= total else "less than 1 %"
        return f"{text} is {share} of {whole} on {which}"
    return f"{text} is {amount} of {whole} on {which}"


def _explain_excess(
    gpus: Sequence[GpuMemoryLimit], overhead: Overhead, *, exact: bool = False
) -> str:
    """Return the excess that nvidia-smi will show over the allocators' limit."""
    size, where = _about(overhead.total_bytes), "the CUDA context and libraries"
    if exact:
        context, libraries = _about(overhead.context_bytes), _about(overhead.library_bytes)
        where = f"the CUDA context ({context}) and libraries ({libraries})"
    if overhead.included:
        return f"About {size} of that is reserved for {where}."
    advice = "; --include-overhead counts that in"
    if any(gpu.limit_bytes is not None and gpu.limit_bytes <= overhead.total_bytes for gpu in gpus):
        advice = ", more than the limit itself"
    elif any(
        gpu.allocator_limit_bytes is not None
        and gpu.memory_total_bytes is not None
        and gpu.allocator_limit_bytes + overhead.total_bytes > gpu.memory_total_bytes
        for gpu in gpus
    ):
        advice = ", more than the card has"
    return f"nvidia-smi shows about {size} more, for {where}{advice}."


def _ranges(numbers: Iterable[int | None]) -> str:
    return ranges({number for number in numbers if number is not None}) or ABSENT


def _size(value: int | None) -> str:
    return ABSENT if value is None else binary_bytes(value)


def _about(value: int) -> str:
    """Return an estimate, in MiB without decimals: "576 MiB"."""
    return binary_bytes(value, digits=0 if value < 1 << 30 else 1)


# ----------------------------------------------------------------------------- frameworks in a run


def _frameworks(limit: MemoryLimit) -> Iterator[Block]:
    """Yield the limits of each installed framework, or of all if none is, and the unlimited."""
    outcomes = framework_outcomes(limit)
    if not outcomes:
        return
    yield Line(_title(limit.software, outcomes))
    if any(outcome.installed for outcome in outcomes):
        rows = [(outcome.framework, outcome.by) for outcome in outcomes if outcome.by is not None]
    else:
        rows = [*group_by_mechanism(outcomes)]
    for name, by in rows:
        yield Line(f"{name}: {by}", indent=INDENT)
        yield from _warnings(outcomes, name)
    for outcome in outcomes:
        if outcome.by is None and outcome.way is Way.NOBODY:
            yield Line(f"{outcome.framework}: {outcome.note}", indent=INDENT, style="dim")
        elif outcome.by is None:
            yield Line(f"{outcome.framework} is not limited: {outcome.note}", CheckStatus.WARN)
    installed = [outcome.framework for outcome in outcomes if outcome.installed]
    if limit.request.fraction is not None and any(
        name.startswith("tensorflow") for name in installed
    ):
        yield Line(_TRAP)


def _warnings(outcomes: Sequence[FrameworkOutcome], name: str) -> Iterator[Block]:
    """Yield the warnings about a framework that is limited."""
    for outcome in outcomes:
        if outcome.framework == name and outcome.note:
            soft = "a soft limit: " if outcome.soft else ""
            yield Line(f"{soft}{outcome.note}", CheckStatus.WARN, indent=2 * INDENT)


def _title(software: Software | None, outcomes: Sequence[FrameworkOutcome]) -> str:
    if software is None or software.frameworks is None:
        reason = (software.reason if software else None) or "not checked"
        return f"What limits each framework (installed: {reason}):"
    where = _software_name(software)
    if any(outcome.installed for outcome in outcomes):
        return f"What limits each framework of {where}:"
    return (
        f"Your Python, {where}, has none of these frameworks; --python chooses another."
        " What would limit them:"
    )


def _software_name(software: Software) -> str:
    """Return the Python of a plan, and why it was chosen."""
    named = {None: "", "gpucheck": " (gpucheck's own)"}
    by = named.get(software.named_by, f" (by {software.named_by})")
    return f"{software.interpreter or 'an unknown Python'}{by}"


# --------------------------------------------------------------------------------- every mechanism


def _details(limit: MemoryLimit, error: Failure | None) -> Iterator[Block]:
    if limit.overhead is not None:
        yield Line(_explain_excess(limit.gpus, limit.overhead, exact=True))
    if limit.software is not None:
        yield Line(_software_line(limit.software))
    if limit.verifications:
        yield from _proofs(limit, error)
    yield Gap()
    yield from _mechanisms(limit)
    if limit.overhead is not None:
        yield Gap()
        yield Line(_ESTIMATE, style="dim")
        yield from (
            Line(_ISSUE.sub("", line).replace(" ()", ""), indent=INDENT, style="dim")
            for line in limit.overhead.sources
        )


def _software_line(software: Software) -> str:
    where = _software_name(software)
    if software.frameworks is None:
        return f"For {where}: {software.reason or 'its frameworks are unknown'}"
    names = ", ".join(f"{name} {version}".strip() for name, version in software.frameworks.items())
    return f"For {where}: {names or 'none of the frameworks (--python chooses another Python)'}"


def _mechanisms(limit: MemoryLimit) -> Iterator[Block]:
    """Yield each mechanism with its reason, the settings and the lines of code."""
    rows = [
        Row(
            [
                row.framework,
                (Span(row.strength.value, STRENGTH_STYLES[row.strength]),),
                _applies(row, limit),
                row.reason if row.by is Way.NOBODY else row.mechanism,
            ],
            below=()
            if row.by is Way.NOBODY
            else (Line(row.reason, _mark(row), indent=2 * INDENT, style="dim"),),
        )
        for row in limit.mechanisms
    ]
    columns = (Column("framework"), Column("strength"), Column("applies"), Column("by"))
    yield Table(columns, rows)
    if limit.environment:
        yield Gap()
        yield Line("The settings (--format shell prints only these lines):", style="dim")
        for name, value in limit.environment.items():
            yield Command(f"export {name}={shlex.quote(value)}", 0)
    lines = [row for row in limit.mechanisms if row.by is Way.CODE and row.setting]
    if lines and not all(row.applies for row in lines):
        yield Gap()
        yield Line("In a program that is not run with -- CMD:", style="dim")
        yield from (Command(row.setting or "", 0) for row in lines if not row.applies)


def _applies(row: Mechanism, limit: MemoryLimit) -> str:
    """Return yes, no, or `not here` if it is set but this Python lacks the framework."""
    if row.applies:
        return "yes"
    return "not here" if row.installed is False and is_set(row, limit) else "no"


def _mark(row: Mechanism) -> CheckStatus | None:
    """Return a warning for a framework that is there, and that its variable does not limit."""
    missing = not row.applies and row.installed is True and row.by is not Way.CODE
    return CheckStatus.WARN if missing else None


# -------------------------------------------------------------------------------------- the proofs


def _proofs(limit: MemoryLimit, error: Failure | None) -> Iterator[Block]:
    """Yield the outcomes; GPUs with the same outcome share one, and the error stands by itself."""
    of_one = ("uuid", "cuda_index", "nvml_bytes", "nvml_most_bytes", "overhead_bytes", "peak_bytes")
    same = group_by(limit.verifications, lambda proof: replace(proof, **dict.fromkeys(of_one)))
    for group in same.values():
        untried = group[0].reason if group[0].held is None and len(group) == 1 else None
        if not (untried and error is not None and untried in error.message):
            yield from _proof(group, limit.gpus)


def _proof(group: Sequence[Verification], gpus: Sequence[GpuMemoryLimit]) -> Iterator[Block]:
    first = group[0]
    verdicts: dict[bool | None, tuple[CheckStatus | None, str, str]] = {
        True: (None, "green", "the limit holds"),
        False: (CheckStatus.FAIL, "red", "the limit does not hold"),
        None: (CheckStatus.UNKNOWN, "yellow", "not proven"),
    }
    mark, style, verdict = verdicts[first.held]
    name = f"{first.framework} {first.version or ''}".strip()
    by_cuda: dict[int | None, int | None] = {
        gpu.cuda_index: gpu.number for gpu in gpus if gpu.cuda_index is not None
    }
    numbers = _ranges(by_cuda.get(proof.cuda_index, proof.cuda_index) for proof in group)
    where = f" on GPU {numbers}" if numbers != ABSENT and len(gpus) > 1 else ""
    yield Line(f"{name}: {verdict}{where}", mark, style=f"bold {style}")
    yield from (Line(line, indent=2 * INDENT) for line in _proof_lines(first, group))


def _proof_lines(first: Verification, group: Sequence[Verification]) -> Iterator[str]:
    if first.mechanism:
        yield f"by {first.mechanism}"
    if first.reason:
        yield first.reason
    if first.limit_bytes is not None and first.allocated_bytes is not None:
        allocated, limit = binary_bytes(first.allocated_bytes), binary_bytes(first.limit_bytes)
        yield f"{allocated} of {limit} allocated"
    if first.refused_bytes is not None:
        error = first.refused_with or "an error"
        yield f"{binary_bytes(first.refused_bytes)} more refused with {error}{_deviation(first)}"
    extra = [proof.overhead_bytes for proof in group if proof.overhead_bytes is not None]
    if extra:
        yield f"{binary_bytes(max(extra))} outside the allocator, by NVML"
    elif first.held and all(proof.nvml_bytes is None for proof in group):
        yield "NVML does not report what the process took: only the allocator's own count is known"


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
