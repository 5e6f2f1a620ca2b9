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
    """How a series is drawn: a marker each, a line through all, or a bar from 0 to each name."""

    POINTS = "points"
    LINE = "line"
    BARS = "bars"


class Series(NamedTuple):
    """Values of one name.

    `limit`: it is a bound of the others, such as a roof, and drawn without a colour of its own.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    drawn: Drawn = Drawn.POINTS
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
