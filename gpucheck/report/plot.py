"""Charts drawn by matplotlib: inline SVG of a page, whose colours the page decides, or a picture.

One call draws one chart, without pyplot and without the user's settings, so that the same values
give the same bytes. Text stays text. Series differ in colour (Okabe and Ito's, which colour-blind
people tell apart) and also in marker and dash.
"""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from gpucheck.report.charts import Axis, Chart, Drawing, Drawn, HeatMap, Panel, Series
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
#: Letters of a name, and of a text beside a point, that fit.
_LONGEST_NAME, _LONGEST_NOTE = 36, 40
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
    "svg.fonttype": "none",
    "svg.hashsalt": "gpucheck",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.axisbelow": True,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.0,
    "figure.constrained_layout.use": True,
}
#: Attributes of SVG that matplotlib writes as style, which the page's policy would refuse.
_ATTRIBUTES = frozenset(
    {
        "fill",
        "fill-opacity",
        "fill-rule",
        "font-size",
        "font-weight",
        "opacity",
        "stroke",
        "stroke-dasharray",
        "stroke-dashoffset",
        "stroke-linecap",
        "stroke-linejoin",
        "stroke-miterlimit",
        "stroke-opacity",
        "stroke-width",
        "text-anchor",
    }
)
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([\w-]+)")
_SIZE = re.compile(r"([\d.]+)px")


def inline_svg(drawing: Drawing, prefix: str) -> str:
    """Return a chart as an SVG element for a page with the CSS variables of these colours.

    Its ids begin with `prefix`; nothing in it is a style, a script or a reference elsewhere.
    """
    root = ElementTree.fromstring(_drawn(drawing, "svg", _STAND_INS))
    _clean(root, prefix)
    root.attrib = {
        "viewBox": root.get("viewBox", ""),
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
    }
    for name, text in (("desc", drawing.says), ("title", drawing.title)):
        about = ElementTree.Element(name, {"id": f"{prefix}-{name}"})
        about.text = _cut(text, 1000)
        root.insert(0, about)
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def picture(drawing: Drawing, kind: str) -> bytes:
    """Return a chart as a file, "svg" or "png", on white."""
    return _drawn(drawing, kind, _COLORS, titled=True)


def _drawn(
    drawing: Drawing, kind: str, colors: Mapping[str, str], *, titled: bool = False
) -> bytes:
    # It may say that it reads the machine's fonts for the first time.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with _settings(colors):
        figure = (
            _heat_map(drawing, colors) if isinstance(drawing, HeatMap) else _chart(drawing, colors)
        )
        if titled:
            title = _cut(drawing.title, 60)
            figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
        file = io.BytesIO()
        svg = {"Date": None, "Creator": "gpucheck"}
        metadata = svg if kind == "svg" else {"Software": "gpucheck"}
        figure.savefig(file, format=kind, dpi=_DPI if kind == "png" else 72, metadata=metadata)
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


def _chart(chart: Chart, colors: Mapping[str, str]) -> Figure:
    lanes = tuple(dict.fromkeys(band.name for band in chart.bands))
    heights = [_height(panel, alone=len(chart.panels) == 1) for panel in chart.panels]
    heights += [0.3 + _ROW_HEIGHT * len(lanes)] if lanes else []
    names = [one.name for one in _legend_of(chart)]
    figure, legend = _figure(sum(heights) + 0.45, names)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    rows: list[Any] = list(grid[:, 0])
    handles: dict[str, Any] = {}
    for panel, axes in zip(chart.panels, rows, strict=False):
        _style(axes, chart.x, panel.y, colors)
        _draw_panel(axes, panel, handles, colors)
    if lanes:
        _draw_bands(rows[-1], chart, lanes, rows[:-1], colors)
    for axes in rows[:-1]:
        axes.tick_params(labelbottom=False)
    rows[-1].set_xlabel(_cut(chart.x.label, _LONGEST_NOTE))
    if legend:
        shown = [handles[name] for name in names]
        figure.legend(
            shown,
            [_name(name) for name in names],
            loc="outside lower left",
            ncols=legend,
            frameon=False,
            handlelength=2.2,
            columnspacing=1.2,
            labelspacing=0.35,
        )
    return figure


def _legend_of(chart: Chart) -> list[Series]:
    """Return the series that a legend names: none if there is one alone."""
    every = {
        one.name: one
        for panel in chart.panels
        for one in panel.series
        if one.name and not one.limit
    }
    return list(every.values()) if len(every) > 1 else []


def _height(panel: Panel, *, alone: bool) -> float:
    if panel.y.names:
        bars = sum(one.drawn is Drawn.BARS for one in panel.series)
        return 0.35 + _ROW_HEIGHT * len(panel.y.names) * max(1.0, 0.6 * bars)
    return _HEIGHT if alone else _LOW_HEIGHT


def _figure(height: float, names: Sequence[str]) -> tuple[Figure, int]:
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
    axes.set_ylabel(_cut(y.label, _LONGEST_NOTE))


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


def _number(value: float) -> str:
    """Return a tick's number without an exponent up to a million: "0.001", "250", "1e+07"."""
    return f"{value:.10g}" if 1e-4 <= abs(value) < 1e6 or value == 0 else f"{value:g}"


def _draw_panel(
    axes: Axes, panel: Panel, handles: dict[str, Any], colors: Mapping[str, str]
) -> None:
    bars = [one for one in panel.series if one.drawn is Drawn.BARS]
    named = bool(panel.y.names)
    colored = 0
    for one in panel.series:
        number, color = colored, colors["dim"] if one.limit else colors[f"c{colored % _SERIES}"]
        colored += not one.limit
        known = [place for place, value in enumerate(one.y) if value is not None]
        x, y = [one.x[place] for place in known], [one.y[place] for place in known]
        if one.drawn is Drawn.BARS:
            thick = 0.8 / len(bars)
            shift = (bars.index(one) - (len(bars) - 1) / 2) * thick
            drawn = _bars(axes, x, y, thick, shift, named=named, color=color)
        else:
            drawn = _points(axes, one, number, color)
        if one.limit:
            _label_limit(axes, one, named=named, color=color)
        if one.low and one.high:
            _intervals(axes, one, known, named=named, color=color)
        for place, words in one.marked:
            # The second of two curves has its words on the side where the first is not.
            below = number > 0 and one.drawn is Drawn.LINE
            _mark(axes, one, place, words, colors, named=named, below=below)
        handles.setdefault(one.name, drawn)


def _bars(
    axes: Axes, x: Any, y: Any, thick: float, shift: float, *, named: bool, color: str
) -> Any:
    if named:
        return axes.barh([value + shift for value in y], x, thick * 0.92, color=color)
    return axes.bar([value + shift for value in x], y, thick * 0.92, color=color)


def _points(axes: Axes, one: Series, number: int, color: str) -> Any:
    """Draw a series; None is a gap in a line."""
    y = [math.nan if value is None else value for value in one.y]
    style: dict[str, Any] = {"color": color}
    if one.drawn is Drawn.LINE:
        many = len(one.x) > 40
        marker = "" if one.limit or many else _MARKERS[number % len(_MARKERS)]
        dash = "-" if one.limit else _DASHES[number % len(_DASHES)]
        style |= {"linestyle": dash, "marker": marker, "markersize": 4}
        style |= {"linewidth": 1.1} if many or one.limit else {}
    else:
        style |= {"linestyle": "none", "marker": _MARKERS[number % len(_MARKERS)]}
        style |= {"alpha": 0.85, "markeredgewidth": 0}
    return axes.plot(one.x, y, **style)[0]


def _label_limit(axes: Axes, one: Series, *, named: bool, color: str) -> None:
    """Write a limit's name at its line: above the rows, else at its right end."""
    value = one.y[-1]
    if value is None:
        return
    where = (one.x[0], -0.5) if named else (one.x[-1], value)
    axes.annotate(
        _cut(one.name, _LONGEST_NAME),
        where,
        xytext=(0, 2),
        textcoords="offset points",
        ha="center" if named else "right",
        va="bottom",
        fontsize=8,
        color=color,
        annotation_clip=False,
    )


def _intervals(axes: Axes, one: Series, known: Sequence[int], *, named: bool, color: str) -> None:
    """Draw the intervals that are known, each as a thin bar with caps."""
    for place in known:
        low, high, value = one.low[place], one.high[place], one.y[place]
        if low is None or high is None or value is None:
            continue
        ends = ([low, high], [value, value]) if named else ([one.x[place]] * 2, [low, high])
        axes.plot(*ends, color=color, linewidth=1.2, marker="|" if named else "_", markersize=5)


def _mark(
    axes: Axes,
    one: Series,
    place: int,
    words: str,
    colors: Mapping[str, str],
    *,
    named: bool,
    below: bool,
) -> None:
    """Draw a ring around a value, and its words beside it where no line is."""
    value = one.y[place]
    if value is None:
        return
    ring: dict[str, Any] = {
        "marker": "o",
        "markersize": 10,
        "markerfacecolor": "none",
        "linestyle": "none",
    }
    axes.plot([one.x[place]], [value], markeredgecolor=colors["fail"], markeredgewidth=1.4, **ring)
    if not words:
        return
    at = _place(axes, one.x[place], *axes.get_xlim())
    # Above and to the left of a curve that rises is room; beside a bar to the right.
    left = one.drawn is Drawn.BARS or at < (0.6 if named else 0.7 if below else 0.25)
    beside_bars = {"facecolor": colors["page"], "edgecolor": "none", "pad": 1}
    box = beside_bars if one.drawn is Drawn.BARS else None
    axes.annotate(
        _cut(words, _LONGEST_NOTE),
        (one.x[place], value),
        xytext=(9 if left else -9, 0 if named else -9 if left else 5),
        textcoords="offset points",
        ha="left" if left else "right",
        va="center" if named else "top" if left else "bottom",
        bbox=box,
        fontsize=8.5,
        fontweight="bold",
        color=colors["fail"],
        annotation_clip=False,
    )


def _place(axes: Axes, value: float, low: float, high: float) -> float:
    """Return where a value stands on the x axis, from 0 to 1."""
    if axes.get_xscale() == "log" and min(value, low, high) > 0:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low) if high > low else 0.0


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


# ---------------------------------------------------------------------------------- heat map

#: Steps of the colours: cividis, which colour-blind people read as others do.
_STEPS = 9
#: Cells up to which each has its value written in it.
_MOST_WRITTEN = 256


def _heat_map(drawing: HeatMap, colors: Mapping[str, str]) -> Figure:
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm
    from matplotlib.figure import Figure

    values = [[math.nan if one is None else one for one in row] for row in drawing.values]
    known = [one for row in values for one in row if math.isfinite(one)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if drawing.diverging:
        low, high = -max(abs(low), abs(high)), max(abs(low), abs(high))
    high = high if high > low else low + 1.0
    steps = [low + (high - low) * step / _STEPS for step in range(_STEPS + 1)]
    norm = BoundaryNorm(steps, 256)
    shades = colormaps["cividis"]
    row_count, column_count = len(drawing.rows), len(drawing.columns)
    figure = Figure(figsize=(_WIDTH, 0.9 + 0.24 * row_count))
    axes = figure.subplots()
    axes.set_facecolor("none")
    mesh = axes.pcolormesh(values, cmap=shades, norm=norm, edgecolors=colors["page"], linewidth=1)
    axes.set_xticks(
        [place + 0.5 for place in range(column_count)], [_name(one) for one in drawing.columns]
    )
    axes.set_yticks(
        [place + 0.5 for place in range(row_count)], [_name(one) for one in drawing.rows]
    )
    axes.invert_yaxis()
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if row_count * column_count <= _MOST_WRITTEN:
        for row, cells in enumerate(values):
            for column, value in enumerate(cells):
                shade = shades(norm(value)) if math.isfinite(value) else ()
                _write_cell(axes, row, column, value, shade, colors)
    for row, column in drawing.marked:
        box = ([column, column + 1, column + 1, column, column], [row, row, row + 1, row + 1, row])
        axes.plot(*box, color=colors["fail"], linewidth=2, clip_on=False)
    bar = figure.colorbar(mesh, ax=axes, location="bottom", fraction=0.05, pad=0.03, aspect=40)
    bar.set_label(_cut(drawing.label, 60))
    # The ends and the middle: nine steps' numbers would not fit beside each other.
    bar.set_ticks([low, (low + high) / 2, high])
    bar.ax.set_xticklabels(f"{value:.3g}" for value in (low, (low + high) / 2, high))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    return figure


def _write_cell(
    axes: Axes, row: int, column: int, value: float, shade: Any, colors: Mapping[str, str]
) -> None:
    if not shade:
        axes.text(column + 0.5, row + 0.5, "–", ha="center", va="center", color=colors["dim"])
        return
    # The relative luminance of sRGB, near enough to choose between black and white.
    light = 0.2126 * shade[0] + 0.7152 * shade[1] + 0.0722 * shade[2] > 0.5
    color = "#000000" if light else "#ffffff"
    axes.text(
        column + 0.5, row + 0.5, f"{value:.3g}", ha="center", va="center", fontsize=7.5, color=color
    )


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
        found
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.endswith(("href", "clip-path"))
        for found in _REFERENCE.findall(value)
    }
    for parent in root.iter():
        for child in list(parent):
            if _tag(child) in ("metadata", "style", "title"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _tag(element)
        found: dict[str, str] = {}
        for name, value in element.attrib.items():
            name = name.rpartition("}")[2]
            if name == "style":
                found |= _attributes(value, roles)
            elif name == "id":
                found |= {"id": f"{prefix}-{value}"} if value in used else {}
            elif name in ("href", "clip-path"):
                found[name] = value.replace("#", f"#{prefix}-")
            else:
                found[name] = _LONG_NUMBER.sub(_rounded, value)
        element.attrib = found
        if element.tag != "text" and element.text is not None:
            element.text = None
        element.tail = None


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _attributes(style: str, roles: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in style.split(";"):
        name, _, value = (word.strip() for word in part.partition(":"))
        if name == "font":
            size = _SIZE.search(value)
            found |= {"font-size": size[1]} if size else {}
            found |= {"font-weight": "bold"} if re.search(r"\b(bold|700)\b", value) else {}
        elif name in _ATTRIBUTES:
            value = value.removesuffix("px")
            found[name] = roles.get(value, _LONG_NUMBER.sub(_rounded, value))
    return found


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")
