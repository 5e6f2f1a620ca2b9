"""View of `gpucheck compare`: the verdict, the table of changes, and what explains them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpucheck.bench.ci.change_view import (
    about,
    change_table,
    change_verdict,
)
from gpucheck.bench.ci.compare import SHOWN, gate_of_row
from gpucheck.bench.ci.gates_view import gate_blocks, verdict_line
from gpucheck.bench.ci.model import ComparedRun, RunComparison
from gpucheck.bench.rows_view import devices_text
from gpucheck.report.blocks import Block, Gap, Head, Line, remedies
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield both runs, the verdict, the changes, and what is wrong with them."""
    found = report.result
    if not isinstance(found, RunComparison):
        raise TypeError(type(found).__name__)
    if view.verbosity >= 0:
        yield Head((_run("before", found.first), _run("now", found.second)))
        yield Gap()
    gates = list(map(gate_of_row, found.rows))
    compared = any(row.first_count and row.second_count for row in found.rows)
    if compared:
        yield verdict_line(report, gates, change_verdict(gates, found.first))
        yield Gap()
        yield change_table(gates)
        yield Gap()
        yield from gate_blocks(gates, view, notes=False)
    else:
        failure = report.error
        yield verdict_line(report, gates, failure.message if failure else "no row in common")
        yield from remedies(failure.remedy if failure else (), indent=2)
        yield Gap()
    yield from _differences(found, every=view.verbosity > 0 or not compared)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows."""
    return SHOWN


def _run(which: str, run: ComparedRun) -> str:
    more = [run.host or "unknown host", *([f"profile {run.profile}"] if run.profile else [])]
    return f"{which}: {about(run)} of {', '.join(more)}"


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
