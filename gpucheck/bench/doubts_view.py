"""Doubts of a benchmark's rows: a line for each cause, and with -v their full texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.doubt_table import find_wording, read_wordings
from gpucheck.bench.model import Measurement
from gpucheck.bench.rows_view import devices_text
from gpucheck.report.blocks import Line
from gpucheck.report.envelope import CheckStatus


def in_doubt(rows: Sequence[Measurement], *, settled: bool = True) -> list[Line]:
    """Return a line for each cause of doubt, the gravest first.

    Without `settled`, how well medians are known is left out: the run was interrupted.
    """
    measured = [row for row in rows if row.median_s is not None]
    order = list(read_wordings())
    found = [(doubt.code, row) for row in measured for doubt in row.doubts]
    found.sort(key=lambda one: order.index(one[0]) if one[0] in order else -1)
    doubtful: dict[tuple[str, str], dict[int, Measurement]] = {}
    for code, row in found:
        words = find_wording(code)
        if settled or words.get("about") != "precision":
            doubtful.setdefault((words["short"], words["short_next"]), {})[id(row)] = row
    return [
        Line(f"{what} ({_where([*of.values()], measured)}): {step}", CheckStatus.WARN, indent=2)
        for (what, step), of in doubtful.items()
    ]


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
