"""The figures of a card and how they are taken: ours and a rival's in turn, medians, bars."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: Work is repeated until one sample takes this long, well above the resolution of CUDA's events.
SAMPLE_S = 2e-3
ROUNDS = 7
#: Operations in one sample: the driver queues about a thousand launches.
MOST_LOOPS = 500

#: The error of a figure that the time did not reach.
NO_TIME = "the time was over"

#: Runs the work so many times and returns the seconds of the device for all of them.
Timed = Callable[[int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The least ratio that a figure must reach, to `what`: a rival's name or the limit's."""

    what: str
    least: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: values in `unit` (higher is better, but for `s`), None if not taken.

    `rivals` are by name, `limit` is what memory or the link allows, measured in the same run where
    there is a way to; `error` says why there is no value, `failures` why a rival has none.
    """

    part: str
    name: str
    unit: str
    ours: float | None = None
    rivals: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None
    limit_name: str | None = None
    bars: Sequence[Bar] = ()
    verified: bool | None = None
    error: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    def ratio(self, what: str) -> float | None:
        """Return ours over a rival's value or the limit, above 1 where ours is better."""
        other = self.limit if what == self.limit_name else self.rivals.get(what)
        if not self.ours or not other:
            return None
        return other / self.ours if self.unit == "s" else self.ours / other

    @property
    def verdict(self) -> str:
        """Return `ok`, `below`, `wrong`, or what is missing for a verdict."""
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
    """Writes every figure down as soon as it is there, so that what comes later cannot lose it."""

    def __init__(self, path: Path, part: str, seconds: float) -> None:
        self._path = path
        self._part = part
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Return the seconds until the part should end."""
        return self._end_s - time.monotonic()

    def take(self, name: str, unit: str, measure: Callable[[], Figure]) -> Figure:
        """Measure and note a figure; what goes wrong is noted in its place."""
        if self.left_s <= 0:
            figure = Figure(part=self._part, name=name, unit=unit, error=NO_TIME)
        else:
            try:
                figure = measure()
            except Exception as error:
                figure = Figure(part=self._part, name=name, unit=unit, error=first_line(error))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(figure)) + "\n")
        return figure


def read_figures(path: Path) -> list[Figure]:
    """Return what a notebook holds; a line that was cut off is left out."""
    found: list[Figure] = []
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            raw = json.loads(line)
        except ValueError:
            continue
        raw["bars"] = [Bar(**bar) for bar in raw["bars"]]
        found.append(Figure(**raw))
    return found


def first_line(error: Exception) -> str:
    """Return an error's class and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Each side's median seconds for one operation, ours first; why a rival has none."""

    seconds: Mapping[str, float]
    failures: Mapping[str, str]

    @property
    def ours(self) -> float:
        """Return our own."""
        return next(iter(self.seconds.values()))

    def rate(self, work: float) -> float:
        """Return how much of the work we do in a second."""
        return work / self.ours

    def rival_rates(self, work: float) -> dict[str, float]:
        """Return how much the others do."""
        _, *others = self.seconds.items()
        return {name: work / taken for name, taken in others}


def compete(sides: Mapping[str, Timed], rounds: int = ROUNDS) -> Outcome:
    """Let the sides take turns, in changing order, and return their medians.

    A rival that fails is left out and says why; the first side is ours: its error is raised.
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
        for name in sorted(loops, reverse=bool(number % 2)):
            samples[name].append(sides[name](loops[name]) / loops[name])
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    return Outcome(seconds=medians, failures=failures)
