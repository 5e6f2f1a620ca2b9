"""`gpucheck` alone: the short answer, with detect's exit code and document."""

from __future__ import annotations

import json

import pytest

from gpucheck.cli import main, stands_alone
from gpucheck.cli.examples import EXAMPLES
from gpucheck.cli.output import wrap
from gpucheck.cli.overview import look, next_commands
from gpucheck.detect.checks.pci_device import NO_GPU
from gpucheck.detect.machine import DetectRequest
from gpucheck.detect.model import Detection
from gpucheck.detect.run import detect
from gpucheck.report.text import View
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.report.formats.recorded import recorded


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(words)
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-v",
        "-qv --strict",
        "--json",
        "--format json --output -",
        "--from=example:geforce --deadline 3",
        "-o file --config f.toml",
        "--from",
        # Mistakes that its own parser explains.
        "--json list",
        "--jsno",
    ],
)
def test_options_alone_are_the_short_answer(line: str) -> None:
    assert stands_alone(line.split())


@pytest.mark.parametrize(
    "line", ["list", "detct", "--help", "-h", "-V", "--list-examples", "--show-completion=bash"]
)
def test_everything_else_is_not(line: str) -> None:
    assert not stands_alone(line.split())


@pytest.mark.parametrize(
    ("typed", "meant"), [("--list-exmples", "--list-examples"), ("--quit", "--quiet")]
)
def test_a_mistake_is_held_against_the_options_of_both(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    assert f"No such option: {typed}. Did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize("example", EXAMPLES)
def test_exit_code_and_document_are_those_of_detect(
    capsys: pytest.CaptureFixture[str], example: str
) -> None:
    words = ("--from", f"example:{example}")
    code, _ = shown(capsys, *words)
    alone = shown(capsys, *words, "--json")
    detect = shown(capsys, "detect", *words, "--json")

    assert alone == detect
    assert code == detect[0]


def test_of_a_split_gpu_it_says_what_programs_see_and_who_has_which_instance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, text = shown(capsys, "--from", "example:mig")

    assert code == 0
    assert "✓ GPU usable: 1 of 4 devices (MIG)\n" in text
    rows = [line.split() for line in text.splitlines()]
    used = {row[0]: row[-2:] for row in rows if row[-1:] == ["notebook.py"]}
    assert used == {"0:1": ["carol:", "notebook.py"]}


@pytest.mark.parametrize("cause", [NO_GPU, "nouveau"])
def test_without_any_gpu_the_next_commands_are_ones_that_need_none(cause: str) -> None:
    answer = detect(FakeProbes(), DetectRequest(), lambda _: None)
    assert isinstance(answer.result, Detection)
    overview = (answer.result._replace(cause=cause), None)

    said = next_commands(wrap("detect", answer, time="now", strict=False), overview, View())

    assert ("gpucheck list --from example:h100x8" in said) is (cause == NO_GPU)
    assert ("gpucheck report ticket.tar.gz" in said) is (cause != NO_GPU)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    ("example", "kind"), [("h100x8", "healthy"), ("lost-gpu", "lost"), ("nouveau", "unusable")]
)
def test_whole_answer(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    example: str,
    kind: str,
    width: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    _, text = shown(capsys, "--from", f"example:{example}")

    assert text == recorded(f"overview-{kind}-{width}", text)


def test_quiet_is_the_verdict_and_verbose_has_more(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        shown(capsys, *words, "--from", "example:geforce")[1].splitlines()
        for words in (("-q",), (), ("-v",))
    ]

    assert [line.lstrip("✓ ") for line in texts[0][1:]] == ["GPU usable"]
    assert len(texts[0]) < len(texts[1]) < len(texts[2])


def test_it_has_two_or_three_commands_to_run_next(capsys: pytest.CaptureFixture[str]) -> None:
    for example in EXAMPLES:
        lines = shown(capsys, "--from", f"example:{example}")[1].splitlines()
        commands = lines[lines.index("next:") + 1 :]

        assert 1 <= len(commands) <= 3
        assert all(line.startswith("  gpucheck ") for line in commands)


def test_errors_are_documents_of_detect(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = shown(capsys, "--json", "--from", "/nowhere.json")

    assert code == 2
    assert json.loads(text)["schema"] == "gpucheck/detect/1"


def test_defaults_come_from_the_table_of_detect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    file = tmp_path / "defaults.toml"
    file.write_text("[detect]\njson = true\n", encoding="utf-8")
    monkeypatch.setenv("GPUCHECK_CONFIG", str(file))

    _, text = shown(capsys, "--from", "example:geforce")
    named = tmp_path / "none.toml"
    refused, _ = shown(capsys, "--from", "example:geforce", "--config", str(named))

    assert json.loads(text)["schema"] == "gpucheck/detect/1"
    # The file that is named counts, not that of the variable.
    assert refused == 2


def test_the_driver_is_asked_no_more_than_detect_asks_it() -> None:
    readings = reading_of(gpu_reading(0, memory_used_bytes=20 << 30, memory_free_bytes=59 << 30))
    alone, checked = FakeProbes(readings=readings), FakeProbes(readings=readings)
    detect(checked, DetectRequest())

    answer = look(alone, lambda _: None)

    driver = {"nvml", "health", "condition", "cuda", "launch"}
    asked, by_detect = (
        [name for name in each.asked if name in driver] for each in (alone, checked)
    )
    assert asked == by_detect
    assert "nvml" in asked
    # Memory without an owner is looked for, as by list.
    assert "device_holders" in alone.asked
    assert isinstance(answer.result, tuple)
