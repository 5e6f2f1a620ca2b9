"""Plan of a card's measurement: which part gets how long, and what is given up first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu
from benchmarks.card.bench import Bench
from benchmarks.card.figures import Figure
from benchmarks.card.matmul import matmul
from benchmarks.card.plan import BEGIN_S, BUDGETS, share_seconds
from benchmarks.card.softmax import softmax
from benchmarks.card.variants import variants

NEEDED = [part for part, budget in BUDGETS.items() if not budget.optional]
OPTIONAL = [part for part, budget in BUDGETS.items() if budget.optional]


def test_what_decides_comes_first_and_the_optional_parts_last() -> None:
    assert list(BUDGETS)[:2] == ["facts", "tests"]
    assert list(BUDGETS) == [*NEEDED, *OPTIONAL]
    assert list(BUDGETS)[1:] == gpu.PARTS


@pytest.mark.parametrize("minutes", [9, 25])
def test_every_part_is_begun_while_the_card_is_there(minutes: int) -> None:
    shares = share_seconds(list(BUDGETS), 60 * minutes)

    assert sum(shares.values()) == pytest.approx(60 * minutes)
    assert all(shares[part] >= budget.least_s > BEGIN_S for part, budget in BUDGETS.items())
    assert shares["tests"] == pytest.approx(104 if minutes == 9 else 195, abs=1)


def test_the_optional_parts_give_up_their_time_first() -> None:
    scarce = sum(BUDGETS[part].least_s for part in NEEDED)

    shares = share_seconds(list(BUDGETS), scarce)
    halved = share_seconds(list(BUDGETS), scarce / 2)

    assert {part: shares[part] for part in NEEDED} == pytest.approx(
        {part: BUDGETS[part].least_s for part in NEEDED}
    )
    assert [shares[part] for part in OPTIONAL] == pytest.approx([0.0] * len(OPTIONAL), abs=1e-9)
    assert halved["softmax"] == pytest.approx(BUDGETS["softmax"].least_s / 2)


def test_a_part_alone_has_all_the_time() -> None:
    assert share_seconds(["softmax"], 500) == {"softmax": pytest.approx(500)}
    assert share_seconds([], 500) == {}
    assert share_seconds(["softmax"], 0) == {"softmax": 0}


def run_on_a_clock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    takes_s: Callable[[str, float], float],
    seconds: float = 540,
) -> tuple[int, dict[str, float]]:
    """Run the suite on a clock that only its parts move on, and return what each was given."""
    now_s, given = [0.0], dict[str, float]()

    def measured(_: object, part: str, *further: Any) -> tuple[list[Figure], None]:
        most_s = next(each for each in further if isinstance(each, float))
        given[part] = most_s
        now_s[0] += takes_s(part, most_s)
        return [Figure(part=part, name="a row", unit="", ours=1.0, verified=True)], None

    monkeypatch.setattr(gpu.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(gpu.Run, "_facts", lambda _: {"card": "a card"})
    monkeypatch.setattr(gpu.Run, "_measured", measured)
    monkeypatch.setattr(gpu, "run_tests", lambda _, most_s: measured(None, "tests", most_s))
    monkeypatch.setattr(gpu, "run_sanitizer", lambda _, tool, __, most_s: measured(0, tool, most_s))
    monkeypatch.setattr(gpu.Program, "run", measured)
    chosen = Namespace(seconds=seconds, share=1.0, output=tmp_path, without_torch=True)
    return gpu.Run(chosen, list(gpu.PARTS)).run(), given


def test_the_plan_is_printed_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, given = run_on_a_clock(tmp_path, monkeypatch, lambda _, most_s: most_s)

    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("plan in seconds: facts 22, tests 104, bandwidth 24, softmax 102,")
    assert (code, list(given)) == (0, gpu.PARTS)


def test_a_part_that_takes_longer_leaves_the_others_their_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each child may end 30 seconds late: only time that is not reserved is lost."""
    late = {"tests": 30, "softmax": 30}

    code, given = run_on_a_clock(
        tmp_path, monkeypatch, lambda part, most_s: most_s + late.get(part, 0)
    )

    assert code == 0
    needed = [part for part in gpu.PARTS if part in NEEDED]
    assert all(given[part] >= BUDGETS[part].least_s - 1e-9 for part in needed)


def test_what_a_part_leaves_goes_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, given = run_on_a_clock(tmp_path, monkeypatch, lambda _, most_s: most_s / 2)

    assert code == 0
    assert given["softmax"] > share_seconds(list(BUDGETS), 540)["softmax"]
    assert given["memcheck"] >= BUDGETS["memcheck"].full_s


def test_a_run_without_a_part_that_counts_ends_with_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, given = run_on_a_clock(
        tmp_path, monkeypatch, lambda part, most_s: 600 if part == "softmax" else most_s
    )

    assert (code, list(given)) == (3, ["tests", "bandwidth", "softmax"])
    assert "matmul: not begun, out of time" in capsys.readouterr().out


class Names:
    """Notebook that only writes down what would be measured, in order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def take(self, name: str, unit: str, measure: object) -> None:
        self.taken.append(name)


def offered(part: Callable[[Any], None]) -> list[str]:
    """Return the figures that a part would take; it has no numbers to draw any from."""
    facts = SimpleNamespace(capability=(9, 0), sm_count=132, memory_total_bytes=80 * 2**30)
    card = SimpleNamespace(facts=facts, release=lambda: None)
    bench = SimpleNamespace(
        notes=Names(),
        share=1.0,
        gpu=card,
        release=lambda: None,
        bytes_of_a_side=lambda: 2**28,
        order=lambda shape, dtype="float32": None,
    )
    part(bench)
    return bench.notes.taken


def test_no_sweep_of_a_format_comes_before_another_formats_figures() -> None:
    taken = offered(matmul)

    kinds = [name.partition(" ")[2] for name in taken]
    sweeps = kinds.index("best")
    checks = kinds.index("checked")
    assert kinds[sweeps:] == ["best"] * 4
    assert kinds[checks:sweeps] == ["checked"] * 7
    assert {name.partition(" ")[0] for name in taken[:checks]} == {
        name.partition(" ")[0] for name in taken[checks:sweeps]
    }


@pytest.mark.parametrize("part", [softmax, variants])
def test_a_figure_that_is_known_costs_no_random_numbers(part: Callable[[Any], None]) -> None:
    taken = offered(part)

    assert len(taken) > 20
    assert len(set(taken)) == len(taken)


def test_repeated_numbers_make_no_two_rows_the_same() -> None:
    bench: Any = SimpleNamespace(bytes_of_a_side=lambda: 2**28)

    numbers = Bench.numbers(bench, "float16", 2**24)

    rows = numbers.reshape(-1, 2**19)
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert abs(float(rows[0].astype(np.float64).mean())) < 0.01
