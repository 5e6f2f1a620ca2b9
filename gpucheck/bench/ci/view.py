"""View of `gpucheck compare`: the table of changes, each cause once, and the verdict last."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpucheck.bench.ci.change_view import (
    about,
    change_table,
    change_verdict,
    row_names,
)
from gpucheck.bench.ci.compare import SHOWN, gate_of_row
from gpucheck.bench.ci.gates_view import gate_blocks, verdict_line, verdict_word
from gpucheck.bench.ci.model import ComparedRow, ComparedRun, RunComparison
from gpucheck.bench.model import GateStatus
from gpucheck.bench.rows_view import devices_text
from gpucheck.report.blocks import Block, Gap, Head, Line, remedies
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield both runs, the changes, what is wrong with them, and the verdict."""
    found = report.result
    if not isinstance(found, RunComparison):
        raise TypeError(type(found).__name__)
    if view.verbosity >= 0:
        yield Head((_run("before", found.first), _run("now", found.second)))
        yield Gap()
    if any(row.first_count and row.second_count for row in found.rows):
        yield from _compared(report, found, view)
        return
    yield from _differences(found, every=True)
    word, style = verdict_word(report, list(map(gate_of_row, found.rows)))
    failure = report.error
    yield verdict_line(word, style, failure.message if failure else "no row in common")
    if failure is not None:
        yield from remedies(failure.remedy, indent=2)


def in_table(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return SHOWN


def _compared(report: Report, found: RunComparison, view: View) -> Iterator[Block]:
    gates = list(map(gate_of_row, found.rows))
    yield from change_table(gates, view)
    yield Gap()
    if view.verbosity > 0:
        yield from _reasons(found.rows)
    yield from gate_blocks(gates, view, in_table=gates)
    yield from _differences(found, every=view.verbosity > 0)
    yield Gap()
    yield verdict_line(*verdict_word(report, gates), change_verdict(gates, found.first))


def _run(which: str, run: ComparedRun) -> str:
    more = [run.host or "unknown host", *([f"profile {run.profile}"] if run.profile else [])]
    return f"{which}: {about(run)} of {', '.join(more)}"


def _reasons(rows: Sequence[ComparedRow]) -> Iterator[Block]:
    """Yield why each row passed."""
    names = row_names(row.id for row in rows)
    for row in rows:
        if row.status is GateStatus.PASS:
            yield Line(f"{names[row.id]} on {row.device}: {row.reason}", style="dim")


def _differences(found: RunComparison, *, every: bool) -> Iterator[Block]:
    """Yield the keys that differ; the reasons of undecided rows name those that forbid."""
    by_text: dict[str, list[str]] = {}
    for device, texts in found.differences.items():
        for text in texts:
            by_text.setdefault(text, []).append(device)
    for text, devices in by_text.items():
        allowed = text.partition(":")[0] in found.allowed
        if allowed or every:
            where = f"{devices_text(devices)} differs in {text}"
            yield Line(f"{where} (allowed)" if allowed else where, style="dim")
