"""What monitors read: metrics that the program writes, on simulated machines."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.conftest import Pretend, Program


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the samples of this name, as Prometheus' own parser reads them."""
    return [
        (one.labels, one.value)
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name
    ]


@pytest.mark.parametrize(
    ("words", "name", "count"),
    [
        (("list",), "gpucheck_gpu_up", 8),
        (("detect", "--quick"), "gpucheck_gpu_failed_checks", 8),
    ],
)
def test_metrics_beside_a_report(
    program: Program,
    pretend: Pretend,
    tmp_path: Path,
    words: tuple[str, ...],
    name: str,
    count: int,
) -> None:
    file = tmp_path / "gpucheck.prom"

    ended = program(*words, "--prometheus", file, "--json", env=pretend("h100x8"))
    alone = program(*words, "--format", "prometheus", env=pretend("h100x8"))

    assert ended.code == alone.code == 0
    assert ended.stdout.startswith(b'{"schema":')
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    for text in (file.read_text(encoding="utf-8"), alone.stdout.decode()):
        found = samples(text, name)
        assert len(found) == count
        assert {labels["gpu"] for labels, _ in found} == {str(index) for index in range(count)}
        assert all(labels["pci_bus_id"].startswith("00000000:") for labels, _ in found)


def test_a_lost_card_is_down_and_its_check_failed(program: Program, pretend: Pretend) -> None:
    machine = pretend("gpu-lost")

    listed = program("list", "--format", "prometheus", env=machine).stdout.decode()
    detected = program("detect", "--quick", "--format", "prometheus", env=machine).stdout.decode()

    down = [labels["gpu"] for labels, value in samples(listed, "gpucheck_gpu_up") if not value]
    assert len(down) == 1
    assert [labels["check"] for labels, _ in samples(detected, "gpucheck_finding")].count(
        "gpu-lost"
    ) == 1
    assert samples(detected, "gpucheck_run_exit_code")[0][1] == 1


def test_without_a_driver_the_code_is_written_all_the_same(
    program: Program, pretend: Pretend, tmp_path: Path
) -> None:
    file = tmp_path / "gpucheck.prom"

    ended = program("list", "--prometheus", file, env=pretend("no-driver"))

    text = file.read_text(encoding="utf-8")
    assert samples(text, "gpucheck_run_exit_code") == [
        ({"command": "list", "hostname": samples(text, "gpucheck_run_info")[0][0]["hostname"]}, 4)
    ]
    assert ended.code == 4
    assert samples(text, "gpucheck_gpus") == []


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("list",), 4, "nvml-library-not-found"),
        (("list", "--nope"), 2, "usage"),
        (("detect", "--only", "nothing"), 2, "unknown-check"),
        (("bench", "--device", "gpu", "--require-gpu"), 4, "gpu-required"),
    ],
)
def test_json_lines_say_what_went_wrong(
    program: Program, pretend: Pretend, words: tuple[str, ...], code: int, error: str
) -> None:
    ended = program(*words, "--format", "jsonl", env=pretend("no-driver"))

    *_, last = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (ended.code, last["record"], last["exit_code"]) == (code, "run", code)
    assert last["schema"] == f"gpucheck/{words[0]}/1"
    assert last["error"]["code"] == error
