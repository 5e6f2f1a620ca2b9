"""Charts of a report: what `charts` of a view gives, values and words, for a format that draws."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Axis(NamedTuple):
    """Axis of a chart; its label ends with the unit: "time (s)".

    With `names`, the values are their positions: 0 is the first one.
    """

    label: str
    log: bool = False
    names: tuple[str, ...] = ()


class Drawn(StrEnum):
    """How a series is drawn: a marker each, a line through all, or a bar from 0."""

    POINTS = "points"
    LINE = "line"
    BARS = "bars"


class Series(NamedTuple):
    """Values of one name; None leaves a gap.

    `low` and `high` are the ends of the interval of each value along the axis of the values: y, or
    x where y has names. `marked` are the places of the values to point out, each with its words.
    `limit`: it is a bound of the others, such as a roof, and drawn without a colour of its own.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    drawn: Drawn = Drawn.POINTS
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    marked: tuple[tuple[int, str], ...] = ()
    limit: bool = False


class Panel(NamedTuple):
    """Part of a chart with a y axis of its own; all parts share the x axis."""

    y: Axis
    series: tuple[Series, ...]


class Band(NamedTuple):
    """Named part of the x axis, such as the time in which a clock was held down.

    `grave`: it is trouble, not just a state.
    """

    name: str
    start: float
    end: float
    grave: bool = False


class Chart(NamedTuple):
    """Chart: values and words, for a format that can draw.

    `id` is what `--chart` calls it, `says` one sentence of what it shows, for those who do not see
    it. The same values stand in the report as text.
    """

    id: str
    title: str
    says: str
    x: Axis
    panels: tuple[Panel, ...]
    bands: tuple[Band, ...] = ()


class HeatMap(NamedTuple):
    """Values by row and column as colours, such as the nodes of a rack and their GPUs.

    `values` has a row for each of `rows`, None where there is no value; `label` is what they are,
    with the unit. `marked` are the places (row, column) of values to point out. `diverging`: they
    are deviations from 0.
    """

    id: str
    title: str
    says: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    label: str
    marked: tuple[tuple[int, int], ...] = ()
    diverging: bool = False


Drawing = Chart | HeatMap
