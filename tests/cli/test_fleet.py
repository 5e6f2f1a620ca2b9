"""`gpucheck fleet report` as a person or a scheduler calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished
from tests.fleet.documents import bench, detect, write
from tests.report.schemas import closed_validator

Command = Callable[..., Finished]


def checked(finished: Finished) -> Any:
    found = finished.document
    closed_validator("fleet").validate(found)
    assert found["exit_code"] == finished.code
    return found["result"]


@pytest.fixture(name="out")
def _out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for host in ("gpu1", "gpu2", "gpu3"):
        write(folder / f"{host}.json", detect(host))
    return folder


def test_healthy_nodes_are_named_by_nobody(gpucheck_command: Command, out: Path) -> None:
    finished = gpucheck_command("fleet", "report", out, "--expect", "gpu[1-3]")

    assert finished.code == 0
    assert "3 nodes: 3 ok" in finished.stdout
    assert "gpu1" not in finished.stdout


def test_missing_failed_and_unexpected_nodes_are_named(
    gpucheck_command: Command, out: Path
) -> None:
    write(out / "gpu2.json", detect("gpu2", failing={"gpu-lost": "xid-79"}))
    write(out / "other.json", detect("other"))

    finished = gpucheck_command("fleet", "report", out, "--expect", "gpu[1-4]", "--json")

    nodes = {node["host"]: node for node in checked(finished)["nodes"]}
    assert finished.code == 1
    assert {host: node["outcome"] for host, node in nodes.items()} == {
        "gpu1": "ok",
        "gpu2": "failed",
        "gpu3": "ok",
        "gpu4": "missing",
        "other": "unexpected",
    }
    assert nodes["gpu2"]["reasons"] == ["gpu-lost: xid-79"]
    assert "other" in finished.stderr


@pytest.mark.parametrize(("allowed", "code"), [("0", 1), ("1", 0)])
def test_max_missing_decides(gpucheck_command: Command, out: Path, allowed: str, code: int) -> None:
    words = ("--expect", "gpu[1-4]", "--max-missing", allowed)

    assert gpucheck_command("fleet", "report", out, *words).code == code


def test_nodes_are_lines_for_a_scheduler(gpucheck_command: Command, out: Path) -> None:
    write(out / "gpu2.json", detect("gpu2", failing={"ecc-errors": "$(reboot) `x` \"'\\"}))

    finished = gpucheck_command(
        *("fleet", "report", out, "--expect", "gpu[1-4]", "--format", "nodes")
    )

    lines = finished.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["gpu2", "gpu4"]
    assert not set("$`\"'\\") & set(finished.stdout)
    assert lines[1] == "gpu4\tgpucheck: missing"


def test_a_document_of_no_node_is_inconclusive(gpucheck_command: Command, out: Path) -> None:
    (out / "rubbish.json").write_text("{")

    finished = gpucheck_command("fleet", "report", out, "--json")

    found = checked(finished)
    assert finished.code == 3
    assert [Path(one["file"]).name for one in found["problems"]] == ["rubbish.json"]


def test_lines_come_through_a_pipe(gpucheck_command: Command) -> None:
    lines = "".join(json.dumps(detect(host)) + "\n" for host in ("a", "b"))

    finished = gpucheck_command("fleet", "report", "-", "--json", stdin=lines)

    assert finished.code == 0
    assert [node["host"] for node in checked(finished)["nodes"]] == ["a", "b"]


def test_a_host_may_call_itself_anything_and_harms_no_command(
    gpucheck_command: Command, tmp_path: Path
) -> None:
    write(tmp_path / "a.json", detect("x;$(reboot)\t-n\n", failing={"nvml": "x"}))

    lines = gpucheck_command("fleet", "report", tmp_path, "--format", "nodes").stdout.splitlines()

    assert [line.split("\t")[0] for line in lines] == ["x___reboot__t-n_n"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no-such-path",), "no-such-path"),
        (("out", "--expect", "a[1-999999999]"), "200000"),
        (("out", "--expect", "@no-such-list"), "no-such-list"),
        (("out", "--max-missing", "-1"), "-1"),
        (("out", "--from", "machine.json"), "--from"),
    ],
)
def test_wrong_use_is_a_sentence(
    gpucheck_command: Command, out: Path, words: tuple[str, ...], says: str
) -> None:
    finished = gpucheck_command("fleet", "report", *words, cwd=out.parent)

    assert finished.code == 2
    assert says in finished.stderr
    assert finished.stdout == ""


def test_nothing_to_read_is_never_healthy(gpucheck_command: Command, tmp_path: Path) -> None:
    assert gpucheck_command("fleet", "report", tmp_path).code == 3


def test_bench_and_detect_of_a_node_are_one_node(gpucheck_command: Command, out: Path) -> None:
    write(out / "gpu1-bench.json", bench("gpu1"))

    found = checked(gpucheck_command("fleet", "report", out, "--json"))

    assert (found["nodes"][0]["host"], found["nodes"][0]["documents"]) == ("gpu1", 2)


def test_metrics_are_written_beside_the_report_in_one_step(
    gpucheck_command: Command, out: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.prom"

    good = gpucheck_command("fleet", "report", out, "--expect", "gpu[1-4]", "--prometheus", file)
    text, mode = file.read_text(), file.stat().st_mode & 0o777
    bad = gpucheck_command("fleet", "report", tmp_path / "none", "--prometheus", file)
    other = gpucheck_command("fleet", "report", out, "--prometheus", tmp_path / "fleet.txt")

    assert (good.code, bad.code, other.code) == (1, 2, 2)
    assert "4 nodes: 3 ok, 1 missing" in good.stdout
    assert 'outcome="missing"} 1\n' in text
    assert mode == 0o644
    assert "gpucheck_fleet_nodes" not in file.read_text()
    assert "exit_code" in file.read_text()
    assert ".prom" in other.stderr
    assert [path.name for path in tmp_path.glob("*fleet.*")] == ["fleet.prom"]
