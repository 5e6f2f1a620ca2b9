"""Arithmetic of a card's report: ratios, bars, verdicts, the notebook, and alternation."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from benchmarks import gpu
from benchmarks.card.bench import Bench
from benchmarks.card.children import CHECKOUT
from benchmarks.card.figures import (
    LOST,
    NO_TIME,
    Bar,
    Figure,
    Notebook,
    Outcome,
    Timed,
    compete,
    figure_of,
    give_up_unfinished,
    read_figures,
)
from benchmarks.card.report import (
    HEAD,
    Report,
    best_rival,
    failures,
    is_short,
    row_of,
    slug,
    summary,
    table,
    text_of,
)
from benchmarks.card.softmax import sampled_rows
from gpucheck.report.errors import InconclusiveError
from tests.fakes.bench import FakeClock, FakeGpu


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


@pytest.mark.parametrize(
    ("name", "encrypted", "link"),
    [
        ("NVIDIA H100 PCIe", False, 16 * 3.938e9),
        ("NVIDIA H100 PCIe", None, 16 * 3.938e9),  # the driver does not say
        ("NVIDIA H100 PCIe", True, None),
        ("NVIDIA GH200 480GB", False, None),
    ],
)
def test_only_a_plain_link_is_held_against_pcie(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    encrypted: bool | None,
    link: float | None,
) -> None:
    def state() -> SimpleNamespace:
        if encrypted is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(ccFeature=int(encrypted))

    monkeypatch.setattr("pynvml.nvmlSystemGetConfComputeState", state)
    monkeypatch.setattr("pynvml.nvmlInit", lambda: None)
    monkeypatch.setattr("pynvml.nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr("pynvml.nvmlDeviceGetMaxPcieLinkGeneration", lambda handle: 5)
    monkeypatch.setattr("pynvml.nvmlDeviceGetMaxPcieLinkWidth", lambda handle: 16)
    card = FakeGpu(FakeClock())
    card.facts = replace(card.facts, name=name)
    bench = Bench(gpus=(card,), torch=None, notes=Notebook(tmp_path / "notes", "transfer", 1.0))

    assert bench.link_rate() == link


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
    path = tmp_path / "notes.jsonl"

    Notebook(path, "softmax", 0).take("late", "B/s", lambda: pytest.fail("begun"))

    (late,) = read_figures(path)
    assert late.error == "the time was over"


def test_a_new_process_goes_on_behind_the_figure_that_the_last_one_fell_over(
    tmp_path: Path,
) -> None:
    path, taken = tmp_path / "notes.jsonl", []

    def falls() -> Figure:
        raise KeyboardInterrupt

    def take_all(middle: object) -> None:
        notes = Notebook(path, "softmax", 100)
        for name, measure in (("first", figure), ("middle", middle), ("last", figure)):
            notes.take(name, "B/s", lambda measure=measure, name=name: measure(name=name))  # type: ignore[operator]
            taken.append(name)

    with pytest.raises(KeyboardInterrupt):
        take_all(lambda name: falls())
    assert give_up_unfinished(path, "softmax", "signal 11") == "middle"
    assert give_up_unfinished(path, "softmax", "signal 11") is None
    take_all(lambda name: pytest.fail("tried again"))

    found = {each.name: each.error for each in read_figures(path)}
    assert found == {"first": None, "middle": "signal 11", "last": None}
    assert taken == ["first", "first", "middle", "last"]


def test_a_lost_gpu_ends_the_process_after_its_error_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"

    def lost() -> Figure:
        raise InconclusiveError(code="gpu-lost", message="cudaErrorIllegalAddress")

    with pytest.raises(SystemExit) as ended:
        Notebook(path, "softmax", 100).take("row", "B/s", lost)

    assert ended.value.code == LOST
    assert "cudaErrorIllegalAddress" in str(read_figures(path)[0].error)


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
    with pytest.raises(RuntimeError, match="torch cannot"):
        compete({"ours": broken, "b": side("b", 1.0)})  # type: ignore[dict-item]


def test_a_rival_that_fails_later_is_left_out_and_ours_stays() -> None:
    asked = []

    def tiring(loops: int) -> float:
        asked.append(loops)
        if len(asked) > 4:
            raise RuntimeError("out of memory")
        return 1e-3 * loops

    found = compete({"ours": lambda loops: 2e-3 * loops, "torch": tiring}, rounds=3)

    assert found.failures == {"torch": "RuntimeError: out of memory"}
    assert found.ours == pytest.approx(2e-3)


def test_the_widest_scatter_of_the_rounds_stands_beside_the_ratio() -> None:
    def wavering(*rounds: float) -> Timed:
        given = iter([1.0, 1.0, 1.0, *rounds])  # three calls come before the rounds
        return lambda loops: next(given) * loops

    found = compete({"ours": wavering(1.0, 0.99, 1.01), "torch": wavering(2.0, 2.1, 1.9)}, rounds=3)

    assert found.scatter == pytest.approx(0.1)
    row = dict(zip(HEAD, row_of(figure(scatter=found.scatter)), strict=True))
    assert row["scatter"] == "10.0%"
    assert dict(zip(HEAD, row_of(figure()), strict=True))["scatter"] == "-"
    kept = asdict(figure())
    del kept["scatter"]  # of a run before it was kept
    assert figure_of(kept).scatter is None


def test_a_rival_that_failed_leaves_its_bar_open() -> None:
    outcome = Outcome(
        seconds={"ours": 1.0, "torch": 2.0}, failures={"torch.compile": "no cc"}, scatter=0.01
    )

    bars = outcome.bars(0.98)

    assert [bar.what for bar in bars] == ["torch", "torch.compile"]
    held = figure(rivals=outcome.rival_rates(100.0), ours=100.0, bars=bars)
    assert held.verdict == "half"


def test_one_reason_is_told_once() -> None:
    rows = [figure(name=name, failures={"torch.compile": "no cc"}) for name in "abc"]

    assert failures(rows) == ["torch.compile failed (softmax: a and 2 more): no cc"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.98e15, "FLOP/s", "1.98 PFLOP/s"),
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

    report = Report(tmp_path, {"card": "NVIDIA H200"}, ["softmax"])
    report.put("softmax", figures)
    report.remark("a remark")

    data, page = tmp_path / "nvidia-h200.json", tmp_path / "nvidia-h200.md"
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


CARD = {"card": "NVIDIA H200", "driver": "580.95", "kernels": "abc"}


def reported(folder: Path, part: str, **changes: str) -> dict[str, object]:
    """Measure one part in a run of its own and return what is then written."""
    report = Report(folder, {**CARD, "date": part, "command": f"only {part}", **changes}, [part])
    report.put(part, [figure(part=part)])
    (data,) = folder.glob("*.json")
    document: dict[str, object] = json.loads(data.read_text())
    return document


def parts_in(document: dict[str, object]) -> list[str]:
    return [one["part"] for one in document["figures"]]  # type: ignore[attr-defined, index]


def test_a_run_of_one_part_leaves_the_others_figures(tmp_path: Path) -> None:
    reported(tmp_path, "softmax")
    document = reported(tmp_path, "matmul")

    assert parts_in(document) == ["softmax", "matmul"]
    assert [run["command"] for run in document["runs"]] == ["only softmax", "only matmul"]  # type: ignore[attr-defined]
    page = (tmp_path / "nvidia-h200.md").read_text()
    assert "softmax: `only softmax`" in page
    assert "matmul: `only matmul`" in page
    assert parts_in(reported(tmp_path, "softmax")) == ["matmul", "softmax"]


def test_a_part_all_of_whose_figures_failed_has_none(tmp_path: Path) -> None:
    report = Report(tmp_path, CARD, ["softmax", "burn"])
    failed = {"ours": None, "error": "it was stopped: its time was over"}
    report.put("softmax", [figure(), figure(name="float32 64", **failed)])
    report.put("burn", [figure(part="burn", name="burn", **failed)])

    assert report.without_figures(["softmax", "burn", "matmul"]) == ["burn", "matmul"]


@pytest.mark.parametrize("changes", [{"driver": "590.1"}, {"kernels": "def"}])
def test_figures_of_another_driver_or_kernel_do_not_stay(
    changes: dict[str, str], tmp_path: Path
) -> None:
    reported(tmp_path, "softmax")

    document = reported(tmp_path, "matmul", **changes)

    assert parts_in(document) == ["matmul"]
    assert [run["command"] for run in document["runs"]] == ["only matmul"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["", "[]", '{"facts": {}}', '{"facts": [], "figures": 3}'])
def test_a_file_that_is_no_measurement_is_replaced(text: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia-h200.json").write_text(text)

    assert parts_in(reported(tmp_path, "softmax")) == ["softmax"]


def test_the_end_of_a_run_fits_what_terminals_and_logs_keep(tmp_path: Path) -> None:
    report = Report(tmp_path, CARD, ["softmax"])
    report.put("softmax", [figure(name=f"bfloat16 {2**number}") for number in range(70)])

    assert report.text.splitlines()[-1] == "70 at their bar, 0 below, 0 wrong, 0 failed"
    assert len(report.text) < 12_000


PROCEDURE = CHECKOUT / "docs" / "measurements" / "README.md"


def procedure() -> list[str]:
    """Return the commands for a card that is there for half an hour."""
    part = PROCEDURE.read_text(encoding="utf-8").partition("half an hour")[2]
    return part.partition("```sh")[2].partition("```")[0].strip().splitlines()


def test_the_procedure_for_a_card_fits_into_25_minutes_and_the_best_comes_first() -> None:
    commands = procedure()

    found = re.findall(r"timeout (?:-s INT )?(\d+)", " ".join(commands))
    limits = [int(seconds) for seconds in found]
    assert len(limits) == len(commands) == 4
    assert sum(limits) <= 25 * 60
    assert max(limits) <= 10 * 60
    first, _, _, last = (shlex.split(line.partition(";")[0]) for line in commands)
    assert "benchmarks.gpu" in first
    assert "--only" not in first
    assert limits[0] > gpu.SECONDS
    assert set(last[last.index("--only") + 1].split(",")) <= set(gpu.PARTS)
    # What is killed writes nothing: the command's own time ends before.
    assert int(last[last.index("--seconds") + 1]) < limits[-1]


def test_no_command_of_the_procedure_loses_anothers_figures() -> None:
    for line in procedure():
        if "benchmarks.gpu" in line:
            # Into the checkout, where the committed figures are, and the card's files out again.
            assert "--output docs/measurements" in line
            out = 'cp docs/measurements/nvidia-* docs/measurements/run.log "$OUT"'
            assert line.endswith("; " + out)
        else:
            assert '--junitxml "$OUT/' in line


@pytest.mark.parametrize(("noted", "longest_s"), [(False, 100), (True, 60)])
def test_libraries_may_take_longer_to_load_than_a_figure_to_be_taken(
    noted: bool, longest_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    notes = tmp_path / "part.jsonl"
    if noted:
        notes.write_text('{"begun": "copy", "unit": "B/s"}\n')
    watch = gpu.Watch(Report(tmp_path, dict(CARD), ["softmax"]), "softmax", notes)

    assert not watch()
    now[0] = longest_s
    assert not watch()
    now[0] = longest_s + 1
    assert watch()


def test_large_results_are_checked_by_rows_that_no_pattern_keeps_out_of() -> None:
    few, many = sampled_rows(1000, 2**20), sampled_rows(4096, 2**30)

    assert few.tolist() == list(range(1000))
    assert 256 <= len(many) <= 257
    assert many[-1] == 4095
    assert len(set(many % 132)) > 100
    assert sampled_rows(1, 2**40).tolist() == [0]
