"""`python -m benchmarks.gpu` from end to end on pretended GPUs, without torch and sanitizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend
from tests.fakes.libraries import cupy_environment

CHECKOUT = Path(__file__).parents[2]


def suite(
    out: Path, *words: str, env: dict[str, str], seconds: int = 280, share: float = 0.0001
) -> subprocess.CompletedProcess[str]:
    command = ["-m", "benchmarks.gpu", "--out", str(out), "--seconds", str(seconds)]
    return subprocess.run(
        [sys.executable, *command, "--share", str(share), *words],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=scrubbed_environment(env),
        timeout=600,
        check=False,
    )


def document(out: Path) -> Any:
    (path,) = out.glob("*.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def card(pretend: Pretend) -> dict[str, str]:
    """Return one H100 with CuPy on it."""
    return pretend("h100x8", gpus=1) | cupy_environment(time="modelled")


@pytest.mark.slow
def test_the_suite_measures_writes_and_prints(card: dict[str, str], tmp_path: Path) -> None:
    parts = "bandwidth,matmul,transfer,launch,towers,variants"
    finished = suite(tmp_path, "--only", parts, env=card)

    assert finished.returncode == 0, finished.stderr
    found = document(tmp_path)
    by_part = {figure["part"] for figure in found["figures"]}
    assert by_part == set(parts.split(","))
    assert [figure for figure in found["figures"] if figure["error"]] == []
    assert [figure for figure in found["figures"] if figure["verified"] is False] == []
    assert all(figure["ours"] for figure in found["figures"])
    assert found["facts"]["card"] == "NVIDIA H100 80GB HBM3"
    assert found["facts"]["torch"].startswith("torch takes no part")
    assert found["facts"]["command"].startswith("python -m benchmarks.gpu")
    assert "at their bar" in finished.stdout.splitlines()[-1]
    assert len(finished.stdout) < 12_000
    page = (tmp_path / "nvidia-h100-80gb-hbm3.md").read_text(encoding="utf-8")
    assert page.count("\n| ") == len(found["figures"]) + 1


@pytest.mark.slow
def test_softmax_goes_through_every_kernel_that_is_launched(
    card: dict[str, str], tmp_path: Path
) -> None:
    finished = suite(tmp_path, "--only", "softmax", env=card, share=0.001)

    assert finished.returncode == 0, finished.stdout
    found = document(tmp_path)
    kernels = {figure["details"].get("kernel") for figure in found["figures"]}
    assert kernels >= {"softmax_short", "softmax_long", "softmax_cluster"}


def test_a_part_that_fails_costs_its_own_rest_only(pretend: Pretend, tmp_path: Path) -> None:
    broken = pretend("h100x8", gpus=1) | cupy_environment("fail kernel=triad", time="modelled")
    finished = suite(tmp_path, "--only", "bandwidth,transfer", env=broken)

    found = {f"{one['part']}: {one['name']}": one for one in document(tmp_path)["figures"]}
    assert found["bandwidth: copy"]["verdict"] == "ok"
    assert found["bandwidth: triad"]["error"]
    assert found["transfer: to-gpu, pinned"]["verified"]
    assert "no figure" in finished.stdout


def test_a_wrong_result_is_told_and_is_the_exit_code(pretend: Pretend, tmp_path: Path) -> None:
    flipping = pretend("h100x8", gpus=1) | cupy_environment("flip kernel=triad", time="modelled")
    finished = suite(tmp_path, "--only", "bandwidth", env=flipping)

    assert finished.returncode == 1
    assert "1 wrong" in finished.stdout.splitlines()[-1]


def test_tests_that_are_skipped_are_no_result(card: dict[str, str], tmp_path: Path) -> None:
    """The tests look for a device file, which a pretended card has not."""
    finished = suite(tmp_path, "--only", "tests", env=card)

    assert "tests: none was run" in finished.stdout
    assert document(tmp_path)["figures"] == []


def test_the_tests_for_a_card_pass_on_a_pretended_one(card: dict[str, str]) -> None:
    """Without conftest.py, which skips them where there is no device file."""
    command = ["-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider"]
    chosen = ["tests/gpu/test_kernels.py", "-k", "length and (100 or 4099) or spoil and 5000"]
    finished = subprocess.run(
        [sys.executable, *command, *chosen],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=scrubbed_environment(card),
        timeout=300,
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


def test_the_time_is_kept(card: dict[str, str], tmp_path: Path) -> None:
    finished = suite(tmp_path, "--only", "softmax,matmul", env=card, seconds=1)

    assert finished.returncode == 0
    assert "not begun, the time was over" in finished.stdout or "over" in finished.stdout


def test_without_a_gpu_there_is_one_sentence(tmp_path: Path) -> None:
    finished = suite(tmp_path, env={})

    assert finished.returncode == 3
    assert "no GPU can be measured here" in finished.stderr
    assert not list(tmp_path.iterdir())


def test_a_part_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    finished = suite(tmp_path, "--only", "softmaxx", env={})

    assert finished.returncode == 2
    assert "there is no part 'softmaxx'" in finished.stderr
