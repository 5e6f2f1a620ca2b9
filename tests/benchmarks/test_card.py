"""The arithmetic of a card's report: ratios, bars, verdicts, the notebook, and turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.card.figures import NO_TIME, Bar, Figure, Notebook, compete, read_figures
from benchmarks.card.report import (
    best_rival,
    is_short,
    row_of,
    slug,
    summary,
    table,
    text_of,
    write,
)


def figure(**changes: object) -> Figure:
    given: dict[str, object] = {
        "part": "softmax",
        "name": "float32 4096",
        "unit": "B/s",
        "ours": 95.0,
        "rivals": {"torch": 100.0},
        "limit": 100.0,
        "limit_name": "copy",
        "bars": (Bar(what="copy", least=0.92),),
        "verified": True,
    }
    return Figure(**(given | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "ok"),
        ({"ours": 91.0}, "below"),
        ({"verified": False}, "wrong"),
        ({"ours": 91.0, "verified": False}, "wrong"),
        ({"ours": None, "error": "CUDA went away"}, "no figure"),
        ({"limit": None}, "half"),
        ({"bars": ()}, ""),
        ({"bars": (Bar(what="torch", least=1.0),)}, "below"),
        ({"bars": (Bar(what="copy", least=0.92), Bar(what="torch", least=1.0))}, "below"),
    ],
)
def test_the_verdict_is_the_worst_bar(changes: dict[str, object], verdict: str) -> None:
    assert figure(**changes).verdict == verdict


def test_seconds_are_better_when_fewer() -> None:
    quick = figure(unit="s", ours=1.0, rivals={"torch": 2.0})

    assert quick.ratio("torch") == 2.0
    assert quick.ratio("nobody") is None
    assert best_rival(figure(unit="s", rivals={"slow": 3.0, "quick": 2.0})) == ("quick", 2.0)
    assert best_rival(figure(rivals={"slow": 2.0, "quick": 3.0})) == ("quick", 3.0)
    assert best_rival(figure(rivals={})) is None


def test_the_notebook_keeps_what_was_taken_before_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    notes = Notebook(path, "softmax", 100)

    def fails() -> Figure:
        raise ValueError("illegal address\nand more")

    notes.take("good", "B/s", figure)
    notes.take("bad", "B/s", fails)
    with path.open("a") as file:
        file.write('{"part": "softmax", "na')  # the process was ended here

    good, bad = read_figures(path)
    assert good == figure(bars=[Bar(what="copy", least=0.92)])
    assert bad.error is not None
    assert "illegal address" in bad.error
    assert "and more" not in bad.error
    assert read_figures(tmp_path / "none") == []


def test_after_its_time_nothing_is_begun(tmp_path: Path) -> None:
    notes = Notebook(tmp_path / "notes.jsonl", "softmax", 0)

    taken = notes.take("late", "B/s", lambda: pytest.fail("begun"))

    assert taken.error == "the time was over"


def test_sides_take_turns_and_the_median_counts() -> None:
    turns: list[str] = []

    def side(name: str, seconds: float) -> object:
        def timed(loops: int) -> float:
            turns.append(name)
            return seconds * loops

        return timed

    def broken(loops: int) -> float:
        raise RuntimeError("torch cannot")

    found = compete({"a": side("a", 1e-3), "b": side("b", 2e-3), "c": broken}, rounds=3)  # type: ignore[dict-item]

    assert found.seconds == {"a": pytest.approx(1e-3), "b": pytest.approx(2e-3)}
    assert found.failures == {"c": "RuntimeError: torch cannot"}
    assert found.rate(2.0) == pytest.approx(2000)
    assert found.rival_rates(2.0) == {"b": pytest.approx(1000)}
    assert turns[-6:] == ["a", "b", "b", "a", "a", "b"]
    with pytest.raises(RuntimeError):
        compete({"ours": broken, "b": side("b", 1.0)})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.31e12, "B/s", "4.31 TB/s"),
        (2.9e-6, "s", "2.9 us"),
        (1.0, "", "yes"),
        (None, "B/s", "-"),
        (3e-9, "s", "3 ns"),
    ],
)
def test_values_are_short(value: float | None, unit: str, text: str) -> None:
    assert text_of(value, unit) == text


def test_the_short_table_has_what_has_a_bar_and_what_went_wrong() -> None:
    assert is_short(figure())
    assert is_short(figure(part="variants", bars=(), verified=False))
    assert is_short(figure(part="matmul", name="bfloat16 best", bars=()))
    assert not is_short(figure(part="matmul", name="bfloat16 8192 nn", bars=()))
    assert not is_short(figure(part="variants", bars=()))
    assert not is_short(figure(ours=None, error=NO_TIME))


def test_the_table_and_the_page_tell_the_same(tmp_path: Path) -> None:
    figures = [
        figure(failures={"torch.compile": "RuntimeError: no compiler"}),
        figure(name="float32 8192", ours=None, error="it broke"),
    ]

    data, page = write(tmp_path, {"card": "NVIDIA H200"}, figures, ["a remark"])

    assert (data.name, page.name) == ("nvidia-h200.json", "nvidia-h200.md")
    held = json.loads(data.read_text())
    assert held["figures"][0]["verdict"] == "ok"
    assert held["figures"][0]["ratios"] == {"torch": 0.95, "copy": 0.95}
    text = page.read_text()
    assert "- a remark" in text
    for row in map(row_of, figures):
        assert "| " + " | ".join(row) + " |" in text
    assert "it broke" in table(figures)
    assert "torch.compile failed (softmax: float32 4096): RuntimeError: no compiler" in text
    assert summary(figures) == "1 at their bar, 0 below, 0 wrong, 1 failed"
    late = figure(ours=None, error=NO_TIME)
    assert summary([late]) == "0 at their bar, 0 below, 0 wrong, 0 failed, 1 not begun in time"
    assert slug("!!") == "gpu"
