"""Figures of a card and how they are taken: ours and a rival's alternating, medians, bars."""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

#: Work is repeated until one sample takes this long: the microseconds until the first kernel of a
#: graph or stream begins are then less than a thousandth.
SAMPLE_S = 10e-3
ROUNDS = 7
#: Operations in one sample: the driver queues about a thousand launches.
MOST_LOOPS = 500

#: Exit code of a part whose GPU no longer answers.
LOST = 4
#: Error of a figure for which no time was left.
NO_TIME = "the time was over"

#: Runs the work the given number of times and returns the device's seconds for all of them.
Timed = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Least ratio of a figure to `what`: the name of a rival or of the limit."""

    what: str
    least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Row of the table: values in `unit` (higher is better, except for `s`), None if not taken.

    `rivals` are by name. `limit` is the rate that memory or the link allows, measured in the same
    run if possible. `scatter` is the widest range of one side's rounds, as a share of its median.
    `error` says why there is no value, `failures` why a rival has none.
    """

    part: str
    name: str
    unit: str
    ours: float | None = None
    rivals: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None
    limit_name: str | None = None
    bars: Sequence[Bar] = ()
    scatter: float | None = None
    verified: bool | None = None
    error: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    def ratio(self, what: str) -> float | None:
        """Return ours over a rival's value or the limit, above 1 if ours is better."""
        other = self.limit if what == self.limit_name else self.rivals.get(what)
        if not self.ours or not other:
            return None
        return other / self.ours if self.unit == "s" else self.ours / other

    @property
    def verdict(self) -> str:
        """Return `ok`, `below`, `wrong`, or what a verdict lacks."""
        if self.error is not None or self.ours is None:
            return "no figure"
        if self.verified is False:
            return "wrong"
        ratios = [(self.ratio(bar.what), bar.least) for bar in self.bars]
        if any(ratio is not None and ratio < least for ratio, least in ratios):
            return "below"
        if not self.bars:
            return ""
        return "ok" if all(ratio is not None for ratio, _ in ratios) else "half"


class Notebook:
    """Record of the figures, written at once, so that no later failure loses them.

    It also names the figure in progress. If the process hangs or crashes, the next process of the
    part skips this figure and all before it.
    """

    def __init__(self, path: Path, part: str, seconds: float) -> None:
        self._path = path
        self._part = part
        self._end_s = time.monotonic() + seconds
        self._known = {figure.name for figure in read_figures(path)}

    @property
    def left_s(self) -> float:
        """Return the seconds until the part should end."""
        return self._end_s - time.monotonic()

    def take(self, name: str, unit: str, measure: Callable[[], Figure]) -> None:
        """Measure and record a missing figure; an error is recorded in its place.

        Raises:
            SystemExit: the GPU no longer answers this process; a new one may go on.
        """
        if name in self._known:
            return
        if self.left_s <= 0:
            self._write(asdict(self._without(name, unit, NO_TIME)))
            return
        self._write({"begun": name, "unit": unit})
        print(f"{self._part}: {name}", file=sys.stderr, flush=True)
        try:
            figure = measure()
        except Exception as error:
            traceback.print_exc()
            self._write(asdict(self._without(name, unit, first_line(error))))
            if getattr(error, "code", None) == "gpu-lost":
                raise SystemExit(LOST) from error
            return
        self._write(asdict(figure))

    def _without(self, name: str, unit: str, error: str) -> Figure:
        return Figure(part=self._part, name=name, unit=unit, error=error)

    def _write(self, line: Mapping[str, object]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return a notebook's entries, without an incomplete line."""
    found: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def read_figures(path: Path) -> list[Figure]:
    """Return a notebook's figures."""
    return [figure_of(line) for line in read_lines(path) if "begun" not in line]


def give_up_unfinished(path: Path, part: str, why: str) -> str | None:
    """Record why the figure in progress has no value, and return its name if there is one."""
    lines = read_lines(path)
    if not lines or "begun" not in lines[-1]:
        return None
    name, unit = lines[-1]["begun"], lines[-1]["unit"]
    figure = Figure(part=part, name=name, unit=unit, error=why)
    with path.open("a", encoding="utf-8") as file:
        # The line before may be incomplete.
        file.write("\n" + json.dumps(asdict(figure)) + "\n")
    return str(name)


def figure_of(raw: Mapping[str, Any]) -> Figure:
    """Return a figure from its JSON, without its computed values."""
    own = {field.name: raw[field.name] for field in fields(Figure) if field.name in raw}
    return Figure(**{**own, "bars": [Bar(**bar) for bar in raw["bars"]]})


def first_line(error: Exception) -> str:
    """Return an error's class and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Median seconds of one operation for each side, ours first, and why a rival has none.

    `scatter` is the widest range of one side's rounds, as a share of its median.
    """

    seconds: Mapping[str, float]
    failures: Mapping[str, str]
    scatter: float

    @property
    def ours(self) -> float:
        """Return ours."""
        return next(iter(self.seconds.values()))

    def rate(self, work: float) -> float:
        """Return our rate."""
        return work / self.ours

    def bars(self, least: float) -> list[Bar]:
        """Return the bar for this share of every rival, including failed ones."""
        _, *others = self.seconds
        return [Bar(what=name, least=least) for name in (*others, *self.failures)]

    def rival_rates(self, work: float) -> dict[str, float]:
        """Return the rates of the rivals."""
        _, *others = self.seconds.items()
        return {name: work / taken for name, taken in others}


def compete(sides: Mapping[str, Timed], rounds: int = ROUNDS) -> Outcome:
    """Time the sides alternately, in changing order, and return their medians.

    A rival that fails is left out with the reason. The first side is ours: its error is raised.
    """
    ours = next(iter(sides))
    loops: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, timed in sides.items():
        try:
            timed(1)  # compiles, loads, allocates
            seconds = max(timed(2) / 2, 1e-7)
            count = max(1, min(MOST_LOOPS, round(SAMPLE_S / seconds)))
            timed(count)  # a graph of this length is captured outside the samples
        except Exception as error:
            if name == ours:
                raise
            failures[name] = first_line(error)
            continue
        loops[name] = count
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        for name in sorted(samples, reverse=bool(number % 2)):
            try:
                samples[name].append(sides[name](loops[name]) / loops[name])
            except Exception as error:
                if name == ours:
                    raise
                failures[name] = first_line(error)
                del samples[name]
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    scatter = max((max(taken) - min(taken)) / medians[name] for name, taken in samples.items())
    return Outcome(seconds=medians, failures=failures, scatter=scatter)
