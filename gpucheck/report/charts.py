"""Charts of a report, and how matplotlib draws them: as SVG of a page, which colours it, or a file.

The `charts` of a view give values and words: the records here.

One call draws one chart, without pyplot and without the user's settings, so that the same values
give the same bytes. Text stays text. Series differ in colour (Okabe and Ito's, which colour-blind
people tell apart) and also in marker and dash.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from gpucheck.report.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Width in inches; a page shows it at the width of a phone too, so that letters stay readable.
_WIDTH = 5.0
#: Inches of one panel, of a panel that shares the chart with others, and of a row with a name.
_HEIGHT, _LOW_HEIGHT, _ROW_HEIGHT = 2.9, 1.15, 0.2
#: Dots per inch of a PNG.
_DPI = 200
#: Letters of a name, and of an axis' label, that fit.
_LONGEST_NAME, _LONGEST_LABEL = 36, 40
#: Points up to which a line has markers.
_MOST_MARKERS = 40
#: Ends of a logarithmic axis are at least so far apart; with the ticks below, two lie between.
_LEAST_RATIO = 10**0.5
#: Where they are no farther apart than this, the ticks within each decade.
_SUBS = ((10.0, (1.0, 2.0, 3.0, 5.0, 7.0)), (100.0, (1.0, 2.0, 5.0)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
#: Role of a colour on the page (a CSS variable), and the colour in a picture on white. Those of the
#: series are Okabe and Ito's, a little darker where white would swallow them.
_COLORS = {
    "text": "#1a1f26",
    "dim": "#55606d",
    "rule": "#d5dbe2",
    "page": "#ffffff",
    "fail": "#b3001b",
    "c0": "#0072b2",
    "c1": "#d55e00",
    "c2": "#009e73",
    "c3": "#b8578f",
    "c4": "#8a6a00",
    "c5": "#3a8fc4",
    "c6": "#5b636d",
}
_SERIES = 7
#: Colours that no drawing has by itself, one for each role: found again in the SVG.
_STAND_INS = {role: f"#0102{number:02x}" for number, role in enumerate(_COLORS, start=16)}
_SETTINGS = {
    "svg.fonttype": "none", "svg.hashsalt": "gpucheck", "text.parse_math": False,
    "font.family": "DejaVu Sans", "font.size": 9.0, "axes.labelsize": 9.0, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.unicode_minus": True,
    "axes.axisbelow": True, "legend.fontsize": 8.5, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "lines.linewidth": 1.5, "lines.markersize": 5.0, "figure.constrained_layout.use": True,
}  # fmt: skip
#: Attributes of SVG that matplotlib writes as style, which the page's policy would refuse.
_ATTRIBUTES = frozenset(
    {
        "fill", "fill-opacity", "fill-rule", "font-size", "font-weight", "opacity", "stroke",
        "stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin",
        "stroke-miterlimit", "stroke-opacity", "stroke-width", "text-anchor",
    }
)  # fmt: skip
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([\w-]+)")
_SIZE = re.compile(r"([\d.]+)px")


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


def inline_svg(chart: Chart, prefix: str) -> str:
    """Return a chart as an SVG element for a page with the CSS variables of these colours.

    Its ids begin with `prefix`; nothing in it is a style, a script or a reference elsewhere.
    """
    root = ElementTree.fromstring(_draw(chart, "svg", _STAND_INS))
    _clean(root, prefix)
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
    }
    for name, text in (("desc", chart.says), ("title", chart.title)):
        about = ElementTree.Element(name, {"id": f"{prefix}-{name}"})
        about.text = _cut(text, 1000)
        root.insert(0, about)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def picture(chart: Chart, kind: str) -> bytes:
    """Return a chart as a file, "svg" or "png", on white."""
    return _draw(chart, kind, _COLORS, titled=True)


def _draw(chart: Chart, kind: str, colors: Mapping[str, str], *, titled: bool = False) -> bytes:
    # It may say that it reads the machine's fonts for the first time.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with _settings(colors):
        drawing = _draw_chart(chart, colors)
        if titled:
            title = _cut(chart.title, 60)
            drawing.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
        file = io.BytesIO()
        svg = {"Date": None, "Creator": "gpucheck"}
        metadata = svg if kind == "svg" else {"Software": "gpucheck"}
        drawing.savefig(file, format=kind, dpi=_DPI if kind == "png" else 72, metadata=metadata)
    return file.getvalue()


@contextmanager
def _settings(colors: Mapping[str, str]) -> Iterator[None]:
    """Draw with our settings alone, and keep quiet about letters that its own font lacks."""
    import matplotlib

    colored = {
        "text.color": colors["text"],
        "axes.labelcolor": colors["dim"],
        "axes.edgecolor": colors["dim"],
        "xtick.color": colors["dim"],
        "ytick.color": colors["dim"],
        "figure.facecolor": colors["page"],
        "axes.facecolor": "none",
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS | colored)
        yield


# ----------------------------------------------------------------------------------- charts


def _draw_chart(chart: Chart, colors: Mapping[str, str]) -> Figure:
    lanes = tuple(dict.fromkeys(band.name for band in chart.bands))
    heights = [_height(panel, alone=len(chart.panels) == 1) for panel in chart.panels]
    heights += [0.3 + _ROW_HEIGHT * len(lanes)] if lanes else []
    names = _legend_of(chart)
    drawing, legend = _open_figure(sum(heights) + 0.45, names)
    grid = drawing.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    rows: list[Any] = list(grid[:, 0])
    handles: dict[str, Any] = {}
    for panel, axes in zip(chart.panels, rows, strict=False):
        _style(axes, chart.x, panel.y, colors)
        _draw_panel(axes, panel, handles, colors)
        for axis, side in ((chart.x, axes.xaxis), (panel.y, axes.yaxis)):
            if axis.log:
                _number_decades(side)
    if lanes:
        _draw_bands(rows[-1], chart, lanes, rows[:-1], colors)
    for axes in rows[:-1]:
        axes.tick_params(labelbottom=False)
    rows[-1].set_xlabel(_cut(chart.x.label, _LONGEST_LABEL))
    if legend:
        drawing.legend(
            [handles[name] for name in names],
            [_name(name) for name in names],
            loc="outside lower left",
            ncols=legend,
            frameon=False,
            handlelength=2.2,
            columnspacing=1.2,
            labelspacing=0.35,
        )
    return drawing


def _legend_of(chart: Chart) -> list[str]:
    """Return the names of the series that a legend has: none if there is one alone."""
    every = [series.name for panel in chart.panels for series in panel.series if not series.limit]
    names = list(dict.fromkeys(every))
    return names if len(names) > 1 else []


def _height(panel: Panel, *, alone: bool) -> float:
    if panel.y.names:
        bars = sum(series.drawn is Drawn.BARS for series in panel.series)
        return 0.35 + _ROW_HEIGHT * len(panel.y.names) * max(1.0, 0.6 * bars)
    return _HEIGHT if alone else _LOW_HEIGHT


def _open_figure(height: float, names: Sequence[str]) -> tuple[Figure, int]:
    """Return a figure with room for its legend, and the legend's columns: 0 without one."""
    from matplotlib.figure import Figure

    widest = max((len(_name(name)) for name in names), default=0)
    columns = max(1, min(len(names), int(58 / (widest + 7)))) if names else 0
    lines = -(-len(names) // columns) if columns else 0
    return Figure(figsize=(_WIDTH, height + 0.17 * lines)), columns


def _style(axes: Axes, x: Axis, y: Axis, colors: Mapping[str, str]) -> None:
    axes.grid(visible=True, color=colors["rule"], linewidth=0.6)
    for axis, side, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        _scale(axis, side, scale)
    if y.names:
        axes.set_ylim(len(y.names) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    axes.set_ylabel(_cut(y.label, _LONGEST_LABEL))


def _scale(axis: Axis, side: Any, scale: Any) -> None:
    """Give an axis its names, or its scale and plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if axis.names:
        side.set_ticks(range(len(axis.names)), [_name(name) for name in axis.names])
        return
    if axis.log:
        scale("log")
        side.set_major_locator(LogLocator(numticks=7))
        side.set_minor_formatter(NullFormatter())
    else:
        side.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    side.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _number_decades(side: Any) -> None:
    """Give a logarithmic axis two numbers at least: ticks within a decade where it spans few."""
    from matplotlib.ticker import LogLocator

    low, high = side.get_view_interval()
    if high < _LEAST_RATIO * low:
        middle = (low * high) ** 0.5
        low, high = middle / _LEAST_RATIO**0.5, middle * _LEAST_RATIO**0.5
        (side.axes.set_xlim if side.axis_name == "x" else side.axes.set_ylim)(low, high)
    subs = next((subs for ratio, subs in _SUBS if high < ratio * low), (1.0,))
    side.set_major_locator(LogLocator(subs=subs, numticks=7))


def _number(value: float) -> str:
    """Return a tick's number without an exponent up to a million: "0.001", "250", "1e+07"."""
    return f"{value:.10g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:g}"


def _draw_panel(
    axes: Axes, panel: Panel, handles: dict[str, Any], colors: Mapping[str, str]
) -> None:
    """Draw limits in one colour, every other series in one of its own; keep what a legend shows."""
    limits = [series for series in panel.series if series.limit]
    for series in limits:
        axes.plot(series.x, series.y, color=colors["dim"], linewidth=1.1)
        _label_limit(axes, series, named=bool(panel.y.names), color=colors["dim"])
    others = [series for series in panel.series if not series.limit]
    thick = 0.8 / max(1, len(others))
    for number, series in enumerate(others):
        color = colors[f"c{number % _SERIES}"]
        drawn: Any
        if series.drawn is Drawn.BARS:
            shift = (number - (len(others) - 1) / 2) * thick
            drawn = axes.barh([y + shift for y in series.y], series.x, thick * 0.92, color=color)
        else:
            drawn = _draw_points(axes, series, number, color)
        handles.setdefault(series.name, drawn)


def _draw_points(axes: Axes, series: Series, number: int, color: str) -> Any:
    """Draw the markers of a series, and its line if it has series."""
    style: dict[str, Any] = {"color": color, "marker": _MARKERS[number % len(_MARKERS)]}
    if series.drawn is Drawn.POINTS:
        style |= {"linestyle": "none", "alpha": 0.85, "markeredgewidth": 0}
    else:
        style |= {"linestyle": _DASHES[number % len(_DASHES)], "markersize": 4}
        if len(series.x) > _MOST_MARKERS:
            style |= {"marker": "", "linewidth": 1.1}
    return axes.plot(series.x, series.y, **style)[0]


def _label_limit(axes: Axes, series: Series, *, named: bool, color: str) -> None:
    """Write a limit's name at its line: above the rows, else at its right end."""
    where = (series.x[0], -0.5) if named else (series.x[-1], series.y[-1])
    axes.annotate(
        _cut(series.name, _LONGEST_NAME),
        where,
        xytext=(0, 2),
        textcoords="offset points",
        ha="center" if named else "right",
        va="bottom",
        fontsize=8,
        color=color,
        annotation_clip=False,
    )


def _draw_bands(
    axes: Axes, chart: Chart, lanes: Sequence[str], above: Sequence[Axes], colors: Mapping[str, str]
) -> None:
    """Draw the bands, each name in a lane of its own, and as a shade behind the panels."""
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_yticks(range(len(lanes)), [_name(name) for name in lanes])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x", color=colors["rule"], linewidth=0.6)
    _scale(chart.x, axes.xaxis, axes.set_xscale)
    for number, name in enumerate(lanes):
        mine = [band for band in chart.bands if band.name == name]
        spans = [(band.start, band.end - band.start) for band in mine]
        color = colors["fail" if any(band.grave for band in mine) else "c4"]
        axes.broken_barh(spans, (number - 0.32, 0.64), facecolors=color)
    for band in chart.bands:
        for panel in above:
            panel.axvspan(band.start, band.end, facecolor=colors["rule"], alpha=0.45, linewidth=0)


# -------------------------------------------------------------------------------------- text


def _name(text: str) -> str:
    # matplotlib leaves names out of a legend that begin with an underscore.
    shown = _cut(text, _LONGEST_NAME)
    return f"\N{NO-BREAK SPACE}{shown}" if shown.startswith("_") else shown


def _cut(text: str, longest: int) -> str:
    shown = printable(text[: 4 * longest])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


# --------------------------------------------------------------------------------------- SVG


def _clean(root: ElementTree.Element, prefix: str) -> None:
    """Take from an SVG what a page has no use for, and make attributes of its styles."""
    roles = {color: f"var(--{role})" for role, color in _STAND_INS.items()}
    used = {
        reference
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.endswith(("href", "clip-path"))
        for reference in _REFERENCE.findall(value)
    }
    for parent in root.iter():
        for child in list(parent):
            if _tag(child) in ("metadata", "style", "title"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _tag(element)
        attributes: dict[str, str] = {}
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]
            if name == "style":
                attributes |= _attributes(value, roles)
            elif name == "id":
                attributes |= {"id": f"{prefix}-{value}"} if value in used else {}
            elif name in ("href", "clip-path"):
                attributes[name] = value.replace("#", f"#{prefix}-")
            else:
                attributes[name] = _LONG_NUMBER.sub(_rounded, value)
        element.attrib = attributes
        if element.tag != "text" and element.text is not None:
            element.text = None
        element.tail = None


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _attributes(style: str, roles: Mapping[str, str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for part in style.split(";"):
        name, _, value = (word.strip() for word in part.partition(":"))
        if name == "font":
            size = _SIZE.search(value)
            attributes |= {"font-size": size[1]} if size else {}
            attributes |= {"font-weight": "bold"} if re.search(r"\b(bold|700)\b", value) else {}
        elif name in _ATTRIBUTES:
            value = value.removesuffix("px")
            attributes[name] = roles.get(value, _LONG_NUMBER.sub(_rounded, value))
    return attributes


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
