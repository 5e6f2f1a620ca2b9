"""Doubts of a benchmark, each shown once with its rows and its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpucheck.bench.model import Doubt, Measurement
from gpucheck.report.text import printable

#: Doubts about how well a median is known; one line covers them all.
PRECISION = (
    "unconverged",
    "too-few-samples",
    "rounds-differ",
    "drifting",
    "autocorrelated",
)
#: Most rows that are named one by one; more are counted.
_MOST_NAMED = 2

Namer = Callable[[Measurement], str]


def said_of_all(rows: Sequence[Measurement]) -> frozenset[str]:
    """Return the codes not shown at single rows: those of most rows, and those of precision."""
    measured = [row for row in rows if row.median_s is not None]
    counts = Counter(doubt.code for row in measured for doubt in row.doubts)
    often = {code for code, count in counts.items() if 2 * count > len(measured)}
    whole: set[str] = set()
    for device in {row.device for row in measured}:
        here = [{doubt.code for doubt in row.doubts} for row in measured if row.device == device]
        whole |= set.intersection(*here)
    return frozenset(often | whole | set(PRECISION))


def legend(
    rows: Sequence[Measurement], named: Namer, plus_minus: str
) -> Iterator[tuple[str, str, str]]:
    """Yield each doubt once: its code with its rows, its message, and the remedy.

    The message is that of its first row; a remedy that was already shown is left out.
    """
    measured = [row for row in rows if row.median_s is not None]
    said: set[str] = set()
    others = list(_others(measured, named))
    # Doubts about every row mostly explain why the rest did not settle.
    everywhere = [one for one in others if "every row" in one[0]]
    rest = [one for one in others if "every row" not in one[0]]
    for head, words, next_step in [*everywhere, *_precision(measured, named, plus_minus), *rest]:
        steps = [step for step in next_step.split("; ") if step not in said]
        said.update(steps)
        yield head, words, "; ".join(steps)


def _precision(
    rows: Sequence[Measurement], named: Namer, plus_minus: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the number of medians known less well than wanted, the widest, and why."""
    found = [(row, doubt) for row in rows for doubt in row.doubts if doubt.code in PRECISION]
    if not found:
        return
    counts = Counter(doubt.code for _, doubt in found)
    doubtful = {id(row) for row, _ in found}
    head = ", ".join(f"{code} ({counts[code]})" for code in PRECISION if counts[code])
    few = f"{len(doubtful)} of {len(rows)} rows" if len(rows) > 1 else "the row"
    least = _least_known([row for row in rows if id(row) in doubtful], named, plus_minus)
    steps = dict.fromkeys(step for _, doubt in found for step in doubt.next.split("; "))
    yield head, f"{few} did not settle in the time{least}", "; ".join(list(steps)[:2])


def _least_known(rows: Sequence[Measurement], named: Namer, plus_minus: str) -> str:
    """Return the row with the widest interval, and how many have none."""
    widths = [(half_width(row), number) for number, row in enumerate(rows)]
    known = [(width, number) for width, number in widths if width is not None]
    without = len(rows) - len(known)
    text = ""
    if known and len(rows) > 1:
        width, number = max(known)
        row = rows[number]
        text = f", {row.kernel} {named(row)} the least ({spread_text(width, plus_minus)})"
    if without:
        who = "it" if len(rows) == 1 else str(without)
        text += f"; {who} had too few rounds for an interval ({plus_minus}?)"
    return text


def half_width(row: Measurement) -> float | None:
    """Return half the interval for a further run as a share of the median, if there is one."""
    if row.repeat95_s is None or not row.median_s:
        return None
    return (row.repeat95_s[1] - row.repeat95_s[0]) / 2 / row.median_s


def spread_text(width: float | None, plus_minus: str) -> str:
    """Return half an interval in percent, with as many digits as are significant."""
    if width is None:
        return f"{plus_minus}?"
    percent = 100 * width
    if percent >= 99.5:
        return ">99%"
    return f"{plus_minus}{percent:.{1 if percent < 9.95 else 0}f}%"


def _others(rows: Sequence[Measurement], named: Namer) -> Iterator[tuple[str, str, str]]:
    about: dict[str, list[tuple[Measurement, Doubt]]] = {}
    for row in rows:
        for doubt in row.doubts:
            if doubt.code not in PRECISION:
                about.setdefault(doubt.code, []).append((row, doubt))
    for code, found in about.items():
        where = _where([row for row, _ in found], rows, named)
        message = found[0][1].message
        if len({doubt.message for _, doubt in found}) > 1:
            message = f"for example, {message}"
        steps = dict.fromkeys(doubt.next for _, doubt in found)
        yield f"{code} ({where})", message, "; ".join(steps)


def _where(found: Sequence[Measurement], rows: Sequence[Measurement], named: Namer) -> str:
    """Return the shortest description of these rows among all rows."""
    if len(found) == len(rows):
        return "every row"
    counts = Counter(row.device for row in rows)
    whole = [
        device
        for device, count in Counter(row.device for row in found).items()
        if count == counts[device]
    ]
    if whole:
        rest = sum(row.device not in whole for row in found)
        return f"every row of {', '.join(whole)}" + (f", and {rest} more" if rest else "")
    kernels = list(dict.fromkeys(row.kernel for row in found))
    if len(found) == sum(row.kernel in kernels for row in rows) > 1:
        return f"all of {', '.join(kernels)}"
    if len(found) <= _MOST_NAMED:
        return " | ".join(f"{row.kernel} {named(row)}" for row in found)
    return f"{len(found)} rows of {', '.join(kernels)}"


def in_full(rows: Sequence[Measurement], named: Namer) -> Iterator[str]:
    """Yield each doubt of a group in full, with its rows."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for doubt in row.doubts:
            about.setdefault(f"{doubt.message}; {doubt.next}", []).append(named(row))
    measured = sum(row.median_s is not None for row in rows)
    for text, names in about.items():
        who = "all rows" if len(names) == measured > 1 else " | ".join(names)
        yield printable(f"{who}: {text}")


def in_short(rows: Sequence[Measurement], known: frozenset[str]) -> str:
    """Return the codes of a group's own doubts, without those shown for all rows."""
    measured = [row for row in rows if row.median_s is not None]
    counts = Counter(doubt.code for row in measured for doubt in row.doubts)
    said = [
        code if count == len(measured) else f"{code} ({count})"
        for code, count in counts.items()
        if code not in known
    ]
    return ", ".join(said)
