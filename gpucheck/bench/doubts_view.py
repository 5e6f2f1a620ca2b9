"""Doubts of a benchmark: a line for each cause in few words, or with -v in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.doubt_table import find_wording, read_wordings
from gpucheck.bench.model import BenchResult, Comparison, Measurement
from gpucheck.bench.rows_view import devices_text, named_rows
from gpucheck.report.blocks import Line
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.text import View


def in_doubt(result: BenchResult, view: View) -> Iterator[Line]:
    """Yield each doubt about rows and comparisons once, the gravest first.

    Of an interrupted run, how well medians are known is left out.
    """
    full = view.verbosity > 0
    measured = [row for row in result.measurements if row.median_s is not None]
    subjects: list[Measurement | Comparison] = [*measured, *result.comparisons]
    found = [(doubt, one) for one in subjects for doubt in one.doubts]
    # A run without a doubt reads no table.
    order = list(read_wordings()) if found else []
    found.sort(key=lambda one: order.index(one[0].code) if one[0].code in order else -1)
    doubtful: dict[tuple[str, str], dict[int, Measurement | Comparison]] = {}
    for doubt, one in found:
        words = find_wording(doubt.code)
        if full:
            said = (doubt.message, doubt.next)
        elif "short" in words and not (result.interrupted and words.get("about") == "precision"):
            said = (words["short"], words["short_next"])
        else:
            continue
        doubtful.setdefault(said, {})[id(one)] = one
    for (what, step), of in doubtful.items():
        where = _where([*of.values()], measured, full=full)
        yield Line(f"{what} ({where}): {step}", CheckStatus.WARN, indent=2)


def _where(
    found: Sequence[Measurement | Comparison], measured: Sequence[Measurement], *, full: bool
) -> str:
    """Return which rows or comparisons these are: how many, and their device or kernel."""
    rows = [one for one in found if isinstance(one, Measurement)]
    if not rows:
        return ", ".join(dict.fromkeys(f"{one.kernel} {one.dtype.format}" for one in found))
    if full and len(rows) < len(measured):
        return "; ".join(named_rows(rows))
    count = f"{len(rows)} of {len(measured)} rows" if len(measured) > 1 else "the row"
    devices = {row.device for row in rows}
    if devices != {row.device for row in measured} and "," not in devices_text(devices):
        return f"{count}, on {devices_text(devices)}"
    kernels = {row.kernel for row in rows}
    several = kernels != {row.kernel for row in measured}
    return f"{count}, in {kernels.pop()}" if several and len(kernels) == 1 else count
