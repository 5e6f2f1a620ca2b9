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
from gpucheck.bench.model import Direction, GateStatus
from gpucheck.bench.rows_view import devices_text
from gpucheck.report.blocks import Block, Gap, Head, Line, remedies
from gpucheck.report.charts import Axis, Chart, Drawn, Panel, Series
from gpucheck.report.envelope import Report
from gpucheck.report.text import View

#: Rows of the chart: a screen full.
MOST_CHANGES = 40
#: Verdicts as the chart names them.
_WORDS = {
    GateStatus.PASS: "as fast",
    GateStatus.FAIL: "slower",
    GateStatus.INCONCLUSIVE: "undecided",
    GateStatus.SKIP: "not compared",
}


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


def charts(report: Report, view: View) -> Iterator[Chart]:
    """Yield the change of every row with its interval, the verdicts by their markers."""
    found = report.result
    if not isinstance(found, RunComparison):
        raise TypeError(type(found).__name__)
    known = [row for row in found.rows if row.ratio is not None]
    if not known:
        return
    shown = sorted(known, key=_badness)[:MOST_CHANGES]
    shown.sort(key=known.index)
    names, several = row_names(row.id for row in shown), len({row.device for row in shown}) > 1
    series = [
        _changes([(place, row) for place, row in enumerate(shown) if row.status is status], word)
        for status, word in _WORDS.items()
    ]
    ends = (-0.5, len(shown) - 0.5)
    lines = [Series("no change", (0.0, 0.0), ends, Drawn.LINE, limit=True)]
    lines.extend(
        Series("allowed", (percent, percent), ends, Drawn.LINE, limit=True)
        for percent in sorted({_allowed(row) for row in shown})
    )
    failed = sum(row.status is GateStatus.FAIL for row in known)
    some = f"The {len(shown)} worst of {len(known)} rows. " if len(shown) < len(known) else ""
    yield Chart(
        id="changes",
        title="Change from before to now",
        says=f"{some}{failed or 'None'} of {len(known)} rows fell behind by more than is allowed."
        " The bars are the 90 % intervals.",
        x=Axis("change (%)"),
        panels=(
            Panel(
                Axis(
                    "",
                    names=tuple(
                        f"{row.device} {names[row.id]}" if several else names[row.id]
                        for row in shown
                    ),
                ),
                (*lines, *(one for one in series if one.x)),
            ),
        ),
    )


def _changes(rows: Sequence[tuple[int, ComparedRow]], name: str) -> Series:
    ratios = [(row.ratio or 1.0, row.interval or (None, None)) for _, row in rows]
    return Series(
        name,
        tuple(100 * (ratio - 1) for ratio, _ in ratios),
        tuple(float(place) for place, _ in rows),
        low=tuple(None if low is None else 100 * (low - 1) for _, (low, _) in ratios),
        high=tuple(None if high is None else 100 * (high - 1) for _, (_, high) in ratios),
    )


def _badness(row: ComparedRow) -> float:
    """Return what puts the worst rows first."""
    ratio = row.ratio or 1.0
    return ratio if row.direction is Direction.HIGHER else -ratio


def _allowed(row: ComparedRow) -> float:
    return -row.tolerance_percent if row.direction is Direction.HIGHER else row.tolerance_percent


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
