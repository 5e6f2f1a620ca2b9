"""Charts as SVG and PNG: the same bytes each time, text as text, nothing that acts."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gpucheck.report.charts import Axis, Band, Chart, Drawn, Panel, Series

pytestmark = pytest.mark.slow  # drawing takes a few CPU seconds

HOSTILE = "_</script><svg onload=x>$\\frac{1}{2}$\x00\u202e"
LINES = Chart(
    id="telemetry",
    title=HOSTILE,
    says="What it shows.",
    x=Axis("time (s)"),
    panels=(
        Panel(
            Axis("power (W)"),
            (
                Series(HOSTILE, (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), Drawn.LINE),
                Series("other", (0.0, 1.0), (2.0, 2.0)),
                Series("limit", (0.0, 2.0), (4.0, 4.0), Drawn.LINE, limit=True),
            ),
        ),
        Panel(Axis("clock (MHz)", log=True), (Series("other", (0.0, 1.0), (10.0, 1000.0)),)),
    ),
    bands=(Band("power-cap", 0.5, 1.0),),
)
BARS = Chart(
    id="frameworks",
    title="Bars",
    says="What it shows.",
    x=Axis("share (%)"),
    panels=(
        Panel(
            Axis("", names=(HOSTILE, "b")),
            (
                Series("one", (10.0, 20.0), (0.0, 1.0), Drawn.BARS),
                Series("two", (30.0,), (1.0,), Drawn.BARS),
            ),
        ),
    ),
)


@pytest.fixture(autouse=True)
def _matplotlib() -> None:
    """Skip where it is missing; collecting must not import it."""
    pytest.importorskip("matplotlib")


@pytest.mark.parametrize("chart", [LINES, BARS], ids=lambda one: one.title[:5])
def test_inline_charts_are_inert_and_described(chart: Chart) -> None:
    from gpucheck.report.charts import inline_svg

    text = inline_svg(chart, "chart0")
    root = ElementTree.fromstring(text)
    names = {name for element in root.iter() for name in element.attrib}
    tags = {element.tag for element in root.iter()}

    assert tags <= {"svg", "g", "path", "defs", "use", "clipPath", "rect", "text", "title", "desc"}
    assert not {name for name in names if name.startswith("on") or name in ("style", "class")}
    assert root.find("title") is not None
    assert root.findtext("desc") == chart.says
    assert root.get("aria-labelledby") == "chart0-title chart0-desc"
    ids = {element.get("id") for element in root.iter()} - {None}
    assert all(str(one).startswith("chart0-") for one in ids)
    assert set(re.findall(r"#([\w-]+)", text)) <= ids | set(re.findall(r"#([0-9a-f]{6})\b", text))


def test_the_page_decides_the_colours() -> None:
    from gpucheck.report.charts import inline_svg

    found = set(re.findall(r"#[0-9a-f]{6}\b", inline_svg(LINES, "c")))

    assert found <= {"#ffffff", "#000000"}
    assert "var(--c0)" in inline_svg(LINES, "c")


def test_text_is_text_and_never_a_formula() -> None:
    from gpucheck.report.charts import inline_svg

    root = ElementTree.fromstring(inline_svg(LINES, "c"))
    texts = [element.text or "" for element in root.iter("text")]

    assert "power (W)" in texts
    assert "power-cap" in texts
    assert any("</script>" in text for text in texts)
    assert any("$\\frac" in text or "$" in text for text in texts)


def test_the_same_values_give_the_same_bytes() -> None:
    from gpucheck.report.charts import inline_svg, picture

    assert inline_svg(LINES, "c") == inline_svg(LINES, "c")
    assert picture(BARS, "svg") == picture(BARS, "svg")


@pytest.mark.parametrize(
    "y", [(4.0,), (2.1, 4.7), (4.6, 4.7), (0.98, 3.1), (9.5, 40.0), (1.0, 1e9)]
)
def test_every_logarithmic_axis_has_two_numbers(y: tuple[float, ...]) -> None:
    series = Series("a", tuple(range(1, 1 + len(y))), y)
    chart = Chart("c", "C", "says", Axis("x"), (Panel(Axis("speed", log=True), (series,)),))
    from gpucheck.report.charts import inline_svg

    root = ElementTree.fromstring(inline_svg(chart, "c"))

    groups = [one for one in root.iter() if one.tag.endswith("text")]
    left = [one.text for one in groups if one.get("text-anchor") == "end"]
    assert len([text for text in left if text and text[0].isdigit()]) >= 2


def test_pictures_are_files_of_their_kind() -> None:
    from gpucheck.report.charts import picture

    assert picture(BARS, "png").startswith(b"\x89PNG")
    assert b"<svg" in picture(BARS, "svg")
    assert b"<dc:date>" not in picture(BARS, "svg")
