"""`python -m benchmarks.gpu` from end to end on pretended GPUs and beside a pretended torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from gpucheck.bench.numerics import FORMATS
from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import Machine, load_machine

CHECKOUT = Path(__file__).parents[2]


def suite(
    out: Path, *words: str, env: dict[str, str], seconds: int = 280, share: float = 0.0001
) -> subprocess.CompletedProcess[str]:
    command = ["-m", "benchmarks.gpu", "--output", str(out), "--seconds", str(seconds)]
    return subprocess.run(
        [sys.executable, *command, "--share", str(share), *words],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=scrubbed_environment(env),
        check=False,
    )


def with_torch(environment: dict[str, str], wrong: str = "") -> dict[str, str]:
    """Put a stand-in for torch into the path, with what goes wrong with it."""
    path = os.pathsep.join([str(CHECKOUT / "tests" / "fakes" / "torch"), environment["PYTHONPATH"]])
    return environment | {"PYTHONPATH": path, "FAKE_TORCH": wrong}


def document(out: Path) -> Any:
    (path,) = out.glob("*.json")
    return json.loads(path.read_text(encoding="utf-8"))


#: Sizes are small here, so that thousands of launches would go into one sample of a real card, and
#: hundreds of buffers into its L2.
UNHURRIED = "slow kernel=300; "
L2_BYTES = 2**12


#: What each part wants of torch's rate: less than all, as rounds differ.
RIVAL_SHARES = {"bandwidth": 0.98, "transfer": 0.98, "matmul": 0.98, "softmax": 0.97}


def small_card() -> Machine:
    """Return one H100 with a small L2."""
    return load_machine("h100x8").with_gpus(1).with_gpu(0, l2_bytes=L2_BYTES)


def with_script(pretend: Pretend, script: str = "") -> dict[str, str]:
    """Return one H100 with CuPy on it, on which something happens."""
    environment = cupy_environment(UNHURRIED + script, time="modelled")
    return pretend(small_card()) | environment


@pytest.fixture
def card(pretend: Pretend) -> dict[str, str]:
    """Return one H100 with CuPy on it."""
    return with_script(pretend)


@pytest.mark.parametrize(
    ("parts", "beside_torch"),
    [
        ("bandwidth,transfer,launch,towers", {"bandwidth", "transfer"}),
        ("matmul", {"matmul"}),
        ("softmax", {"softmax"}),
        ("variants", set()),
    ],
)
def test_the_suite_measures_writes_and_prints(
    parts: str, beside_torch: set[str], card: dict[str, str], tmp_path: Path
) -> None:
    finished = suite(tmp_path, "--only", parts, env=with_torch(card))

    assert finished.returncode == 0, finished.stderr
    found = document(tmp_path)
    figures = found["figures"]
    assert {figure["part"] for figure in figures} == set(parts.split(","))
    assert [figure for figure in figures if figure["error"]] == []
    assert [figure for figure in figures if figure["verified"] is False] == []
    assert all(figure["ours"] for figure in figures)
    assert {figure["part"] for figure in figures if "torch" in figure["rivals"]} == beside_torch
    bars = {
        figure["part"]: bar["least"]
        for figure in figures
        for bar in figure["bars"]
        if bar["what"] == "torch"
    }
    assert bars == {part: least for part, least in RIVAL_SHARES.items() if part in beside_torch}
    assert found["facts"]["card"] == "NVIDIA H100 80GB HBM3"
    assert found["facts"]["torch"] == "torch 2.11.0+cu130"
    assert found["facts"]["driver"] == "580.95.05"
    (run,) = found["runs"]
    assert run["command"].startswith("python -m benchmarks.gpu --output")
    assert (run["parts"], run["notes"]) == (parts.split(","), [])
    assert "at their bar" in finished.stdout.splitlines()[-1]
    assert len(finished.stdout) < 12_000
    page = (tmp_path / "nvidia-h100-80gb-hbm3.md").read_text(encoding="utf-8")
    assert page.count("\n| ") == len(figures) + 1


def test_rows_of_every_length_reach_their_kernel(card: dict[str, str], tmp_path: Path) -> None:
    finished = suite(tmp_path, "--only", "softmax", env=card, share=0.0005)

    assert finished.returncode == 0, finished.stdout
    figures = document(tmp_path)["figures"]
    kernels = {figure["details"].get("kernel") for figure in figures}
    assert kernels >= {"softmax_short", "softmax_long", "softmax_online"}


def test_a_torch_that_ends_the_process_takes_no_part(card: dict[str, str], tmp_path: Path) -> None:
    broken = with_torch(card, "import=exit")

    finished = suite(tmp_path, "--only", "variants", env=broken)

    assert finished.returncode == 0, finished.stderr
    assert "torch is left out: code 139" in finished.stdout
    assert all(figure["verified"] for figure in document(tmp_path)["figures"])


def test_without_a_compiler_the_bar_stays_open(pretend: Pretend, tmp_path: Path) -> None:
    # The shortest kernel must not hide how fast the two sides are.
    card = pretend(small_card()) | cupy_environment(time="modelled")
    broken = with_torch(card, "compile=fail")

    finished = suite(tmp_path, "--only", "softmax", env=broken)

    assert "without a comparison" in finished.stdout
    assert finished.stdout.count("Failed to find C compiler") == 1
    figures = document(tmp_path)["figures"]
    failed = {figure["name"] for figure in figures if figure["failures"]}
    lengths = (1024, 4096, 32768, 131_072)
    assert failed <= {f"{dtype} {length}" for dtype in FORMATS for length in lengths}
    assert {f"float32 {length}" for length in lengths[:2]} <= failed
    assert "ok" not in {figure["verdict"] for figure in figures if figure["failures"]}


def test_a_kernel_that_breaks_the_context_costs_one_figure(
    pretend: Pretend, tmp_path: Path
) -> None:
    """The process that goes on is a new one."""
    broken = with_script(pretend, "fail kernel=triad error=cudaErrorIllegalAddress")

    finished = suite(tmp_path, "--only", "bandwidth", env=broken)

    found = {figure["name"]: figure["error"] for figure in document(tmp_path)["figures"]}
    assert [name for name, error in found.items() if error] == ["triad"]
    assert "launching a graph: cudaErrorIllegalAddress" in found["triad"]
    assert len(found) == 8
    assert "ended early (code 4)" in finished.stdout
    assert "Traceback" in (tmp_path / "run.log").read_text()


def test_a_run_that_is_stopped_reports_what_it_has(card: dict[str, str], tmp_path: Path) -> None:
    command = ["-m", "benchmarks.gpu", "--output", str(tmp_path), "--only", "bandwidth,variants"]
    running = subprocess.Popen(
        [sys.executable, *command, "--share", "0.001"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
        env=scrubbed_environment(card),
    )
    assert running.stderr is not None
    for line in running.stderr:
        if line.startswith("variants ..."):
            break

    running.terminate()
    stdout, _ = running.communicate()

    assert running.returncode == 3
    assert "stopped before its end" in stdout
    assert "at their bar" in stdout.splitlines()[-1]
    assert document(tmp_path)["runs"][0]["notes"] == ["stopped before its end"]


def test_a_part_that_fails_costs_its_own_rest_only(pretend: Pretend, tmp_path: Path) -> None:
    broken = with_script(pretend, "fail kernel=triad")
    finished = suite(tmp_path, "--only", "bandwidth,transfer", env=broken)

    found = {f"{one['part']}: {one['name']}": one for one in document(tmp_path)["figures"]}
    assert found["bandwidth: copy"]["verdict"] == "ok"
    assert found["bandwidth: triad"]["error"]
    assert found["transfer: to-gpu, pinned"]["verified"]
    assert "no figure" in finished.stdout


def test_a_wrong_result_is_told_and_is_the_exit_code(pretend: Pretend, tmp_path: Path) -> None:
    flipping = with_script(pretend, "flip kernel=triad")
    finished = suite(tmp_path, "--only", "bandwidth", env=flipping)

    assert finished.returncode == 1
    assert "1 wrong" in finished.stdout.splitlines()[-1]


def test_the_tests_for_a_card_pass_on_a_pretended_one(card: dict[str, str]) -> None:
    command = ["-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    chosen = ["tests/gpu/test_kernels.py", "-k", "length and (100 or 4099) or spoil and 5000"]
    finished = subprocess.run(
        [sys.executable, *command, *chosen],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=scrubbed_environment(card),
        check=False,
    )

    assert finished.returncode == 0, finished.stdout
    assert " passed" in finished.stdout.splitlines()[-1]


def test_what_is_not_installed_is_said(card: dict[str, str], tmp_path: Path) -> None:
    finished = suite(tmp_path, "--only", "memcheck", env=card)

    assert "memcheck: compute-sanitizer is not installed" in finished.stdout
    assert finished.returncode == 0


def test_a_sanitizer_that_finds_something_is_a_wrong_figure(
    card: dict[str, str], tmp_path: Path
) -> None:
    """A stand-in runs the program and then says what it found."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for code, verdict in ((0, "right"), (9, "wrong")):
        tool = programs / "compute-sanitizer"
        tool.write_text(f'#!/bin/sh\nshift 4\n"$@" || exit 5\necho ERRORS\nexit {code}\n')
        tool.chmod(0o755)
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        finished = suite(tmp_path / verdict, "--only", "racecheck", env=card | path)
        (figure,) = document(tmp_path / verdict)["figures"]

        assert figure["verified"] is (code == 0)
        assert finished.returncode == (1 if code else 0)


def test_what_the_time_does_not_reach_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Less is left than any part needs, so that no process is started at all."""
    monkeypatch.setattr(gpu.Run, "_facts", lambda _: {"card": "a card"})
    monkeypatch.setattr(gpu.Run, "_child", lambda *_: pytest.fail("a part was begun"))
    chosen = Namespace(seconds=1, share=1.0, output=tmp_path, without_torch=True)

    assert gpu.Run(chosen, ["softmax", "matmul"]).run() == 3

    said = capsys.readouterr().out
    for part in ("softmax", "matmul"):
        assert f"{part}: not begun, out of time" in said
    assert document(tmp_path)["figures"] == []


def test_without_a_gpu_there_is_one_sentence(tmp_path: Path) -> None:
    finished = suite(tmp_path, env={})

    assert finished.returncode == 3
    assert "no GPU can be measured here" in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.log"]


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    finished = suite(tmp_path, "--only", "softmaxx", env={})

    assert finished.returncode == 2
    assert "there is no part 'softmaxx'" in finished.stderr
