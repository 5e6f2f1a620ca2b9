"""`gpucheck profile` and `bench --profile` as a person or a script calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.baseline import read_saved_run, to_text
from gpucheck.bench.ci.model import (
    BASELINE_SCHEMA,
    Fingerprint,
    SavedDevice,
    SavedRun,
    Series,
)
from gpucheck.bench.model import Direction
from gpucheck.report.envelope import Tool
from tests.bench.ci.test_profile_lint import GOOD
from tests.conftest import Finished
from tests.enough_time import with_enough_time
from tests.report.schemas import closed_validator, validator

Command = Callable[..., Finished]


def document(finished: Finished, name: str) -> Any:
    found = finished.document
    (closed_validator if name == "profile" else validator)(name).validate(found)
    assert found["exit_code"] == finished.code
    return found


@pytest.fixture(name="good")
def _good(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.toml"
    path.write_text(GOOD)
    return path


def test_list_names_what_comes_with_it(gpucheck_command: Command) -> None:
    found = document(gpucheck_command("profile", "list", "--json"), "profile")

    names = [file["name"] for file in found["result"]["files"]]
    assert names == ["acceptance", "ci-smoke", "cpu", "default", "frameworks"]
    assert found["exit_code"] == 0


def test_lint_of_several_files_tells_all_mistakes(
    gpucheck_command: Command, tmp_path: Path, good: Path
) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(GOOD.replace("count = 8", "count = 0"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[profile\n")

    finished = gpucheck_command("profile", "lint", good, bad, broken, "--json")

    files = document(finished, "profile")["result"]["files"]
    assert finished.code == 1
    assert [len(file["problems"]) > 0 for file in files] == [False, True, True]
    assert files[2]["problems"][0]["line"] == 1


def test_lint_prints_place_and_mend(gpucheck_command: Command, good: Path) -> None:
    good.write_text(GOOD.replace('"TFLOP/s"', '"TFLOPS"'))

    line = good.read_text().split('"TFLOPS"')[0].count("\n") + 1

    finished = gpucheck_command("profile", "lint", good)

    assert f"{good}:{line} mistake wrong-unit" in finished.stdout
    assert "Did you mean 'TFLOP/s'?" in finished.stdout
    assert finished.code == 1


@pytest.mark.parametrize("option", ["--all-boards", "--board=H100 SXM", "-v"])
def test_explain_writes_every_limit_out(gpucheck_command: Command, good: Path, option: str) -> None:
    finished = gpucheck_command("profile", "explain", good, option)

    said = " ".join(finished.stdout.split())
    assert "at least 739 TFLOP/s" in said
    assert "75 % of 989 (good boards reach 80 %, less 7 %)" in said
    assert finished.code == 0


def test_explain_leaves_out_boards_that_are_not_here_but_not_in_its_document(
    gpucheck_command: Command, good: Path
) -> None:
    finished = gpucheck_command("profile", "explain", good)
    found = document(gpucheck_command("profile", "explain", good, "--json"), "profile")

    assert "739" not in finished.stdout
    assert "--all-boards" in finished.stdout
    limits = found["result"]["limits"]
    assert "H100 SXM" in [limit["board"] for limit in limits]
    assert found["result"]["boards_left_out"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile"], "needs one of: list, lint, explain"),
        (["profile", "--json"], "Options stand after the command's name."),
        (["profile", "lint"], "Missing argument 'PROFILE...'"),
        (["profile", "list", "cpu"], "unexpected extra argument"),
        (["profile", "lint", "cpu", "--board", "L4"], "No such option: --board"),
        (["profile", "explain", "nothing"], "no profile called"),
        (["profile", "explain", "default", "--board", "H900"], "no board called"),
        (["profile", "explain", "./nothing.toml"], "cannot be read"),
        (["profile", "explian"], "Did you mean 'explain'?"),
        (["bench", "--profile", "nothing"], "no profile called"),
        (["bench", "--profile", "cpu", "--size", "4"], "omit --size"),
        (["bench", "matmul", "--profile", "cpu"], "omit the kernels"),
        (["bench", "--profile", "cpu", "--device", "gpu:0"], "cannot be used with --device"),
        (["bench", "--profile", "default", "--device", "cpu"], "cannot be used with --device"),
        (["bench", "--profile", "cpu", "--baseline", "nothing.json"], "nothing.json"),
    ],
)
def test_wrong_use_is_one_sentence_and_code_two(
    arguments: list[str], said: str, gpucheck_command: Command, tmp_path: Path
) -> None:
    finished = gpucheck_command(*arguments, cwd=tmp_path)

    assert finished.code == 2
    assert said in finished.stderr
    assert finished.stdout == "" or "--json" in arguments
    assert "Traceback" not in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bad_profile_is_named_with_its_line_before_anything_is_measured(
    gpucheck_command: Command, good: Path
) -> None:
    good.write_text(GOOD.replace("TFLOP/s", "TFLOPS"))

    finished = gpucheck_command("bench", "--profile", good, "--json")

    assert document(finished, "bench")["error"]["code"] == "bad-profile"
    line = good.read_text().split("TFLOPS")[0].count("\n") + 1
    assert f"{good}:{line}: check[0].unit" in finished.stderr
    assert finished.code == 2


@pytest.mark.slow
def test_the_processor_is_held_against_a_saved_run_and_saved(
    gpucheck_command: Command, tmp_path: Path
) -> None:
    small = tmp_path / "small.toml"
    text = (
        '[profile]\nschema = 1\nname = "small"\nversion = 1\n[match]\ndevice = "cpu"\n'
        "[run]\nseconds = {}\nprocesses = 3\nmax_processes = 3\nsize = 64\n"
        '[[check]]\nid = "copy"\nkernel = "copy"\ndevice = "cpu"\nbaseline = true\n'
        "tolerance_percent = 45\n"
    )
    # So slow that every machine is faster: how fast this one is now is its own business.
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    series = Series(
        id="copy", device="cpu", unit="GB/s", direction=Direction.HIGHER,
        values=(1e-6,) * 5, tolerance_percent=45,
    )  # fmt: skip
    device = SavedDevice(device="cpu", gpu_uuid=None, fingerprint=Fingerprint())
    run = SavedRun(
        schema=BASELINE_SCHEMA,
        tool=Tool(name="gpucheck", version="0.1.0"),
        time="2026-11-21T10:00:00Z",
        host="node17",
        profile="small/1",
        devices=(device,),
        series=(series,),
    )
    before.write_text(to_text(run))
    differing = ",".join(("cpu", "cores", "blas", "blas-architecture", "variables", "profile"))

    def save(seconds: float) -> Finished:
        small.write_text(text.format(seconds))
        now.unlink(missing_ok=True)
        return gpucheck_command(
            *("bench", "--profile", small, "--baseline", before, "--save", now, "--json"),
            *("--allow-difference", f"{differing},gpucheck"),
        )

    def is_whole(_: Finished) -> bool:
        return now.exists() and [len(one.values) for one in read_saved_run(now).series] == [3]

    finished = with_enough_time(save, 0.5, is_whole=is_whole)

    gates = {gate["id"]: gate for gate in document(finished, "bench")["result"]["gates"]}
    (kept,) = read_saved_run(now).series
    copy = gates["copy"]
    assert gates["results"]["status"] == "pass"
    if kept.disturbed is None:
        assert finished.code == 0, finished.stderr
        assert (copy["status"], copy["expected"]) == ("pass", pytest.approx(1e-6))
        assert "better than the baseline" in copy["reason"]
    else:  # A run beside other programs is kept and marked.
        assert finished.code == 3, finished.stderr
        assert (copy["status"], copy["reason"]) == ("inconclusive", kept.disturbed)
    assert kept.values == tuple(copy["values"])
    assert len(kept.values) == 3
