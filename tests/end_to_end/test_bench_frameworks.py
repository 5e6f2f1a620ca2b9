"""`gpucheck bench --framework`: its rows beside gpucheck's own, failures, and what is left behind.

Stand-ins run everywhere. The real frameworks are measured where this Python or one of those in
GPUCHECK_FRAMEWORK_PYTHONS has them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.frameworks import FORMS
from gpucheck.drivers.python.frameworks import read_frameworks
from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.drivers.start_child import SIGKILL
from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.enough_time import has_every_row, with_enough_time
from tests.fakes.machine import load_machine
from tests.hang_watch import is_running, wait_until

STAND_INS = str(Path(__file__).parents[1] / "fakes" / "frameworks")
PYTORCH = f"pytorch={sys.executable}"
CPU = ("--device", "cpu", "--size", "32", "--quick", "--json")
#: A run that is to be ended from outside, however late its framework's turn comes.
ENDLESS = (*CPU, "--budget", "600")
PYTHONS = (sys.executable, *os.environ.get("GPUCHECK_FRAMEWORK_PYTHONS", "").split(":"))
MODULES = {"pytorch": "torch"}


def variables(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return the environment with the stand-ins; what frameworks compile goes into `tmp_path`."""
    return {"PYTHONPATH": STAND_INS, "TMPDIR": str(tmp_path), **more}


def rows_of(document: dict[str, Any], framework: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = document["result"]["measurements"]
    return [row for row in rows if (row["framework"] or {}).get("name") == framework]


def measured(program: Program, *words: str, env: dict[str, str], seconds: float) -> Ended:
    """Run bench until every row has had time."""
    return with_enough_time(
        lambda seconds: program("bench", *words, *CPU, "--budget", str(seconds), env=env),
        seconds,
        is_whole=lambda ended: has_every_row(ended.document("bench")),
    )


def test_rows_of_a_framework_stand_beside_those_of_gpucheck(
    program: Program, tmp_path: Path
) -> None:
    words = ("softmax", "train", "--framework", PYTORCH)
    ended = measured(program, *words, env=variables(tmp_path), seconds=2.5)

    assert ended.code == 0, ended.stderr
    document = ended.document("bench")
    (softmax, train) = rows_of(document, "pytorch")
    assert softmax["id"] == "softmax/softmax/pytorch/eager/float32/32x32/resident"
    assert train["id"] == "train/train/pytorch/eager/float32/32/resident"
    assert softmax["framework"] == {
        "name": "pytorch",
        "version": "2.99.0+stand-in",
        "form": "eager",
        "python": sys.executable,
    }
    for row in (softmax, train):
        assert row["median_s"] > 0
        assert row["verified"]["ok"]
    assert train["facts"]["accuracy"] > 0.8
    assert {row["kernel"] for row in rows_of(document, None)} == {"softmax", "train"}
    (facts,) = document["result"]["environment"]["frameworks"]
    assert (facts["name"], facts["blas"], facts["failure"]) == ("pytorch", "MKL 2024.2", None)
    assert list(tmp_path.iterdir()) == []


def test_without_kernels_only_those_that_frameworks_have_are_measured(
    program: Program, tmp_path: Path
) -> None:
    words = ("bench", *CPU, "--budget", "1", "--framework", PYTORCH)
    ended = program(*words, env=variables(tmp_path))

    kernels = {row["kernel"] for row in ended.document("bench")["result"]["measurements"]}
    assert kernels == {"matmul", "softmax", "copy", "train"}


def test_a_framework_measures_a_gpu_that_gpucheck_cannot_open(
    program: Program, pretend: Pretend, tmp_path: Path
) -> None:
    """gpucheck has no CuPy; PyTorch brings its own libraries, and the driver has the facts."""
    given = {
        **variables(tmp_path, FAKE_FRAMEWORK="gpus=2", GPUCHECK_CLAIMS_DIR=str(tmp_path / "c")),
        **pretend(load_machine("h100x8"), gpus=2),
    }
    words = ("bench", "matmul", "copy", "launch", "--framework", PYTORCH, "--dtype", "float32")
    brief = ("--size", "32", "--quick", "--budget", "3", "--corruption", "0.01")

    ended = program(*words, *brief, "--device", "gpu:1", "--require-gpu", "--json", env=given)

    # PyTorch repeats no product for gpucheck.
    assert ended.code == 4, ended.stderr
    document = ended.document("bench")
    found, reason = document["result"], "no product can be repeated for --corruption: CuPy"
    assert document["error"]["message"].startswith(reason)
    [unchecked] = found["corruption"]
    assert (unchecked["device"], unchecked["failure"]) == ("gpu:1", document["error"])
    rows = found["measurements"]
    assert {(row["kernel"], row["device"]) for row in rows} == {
        ("matmul", "gpu:1"),
        ("copy", "gpu:1"),
    }
    assert all(row["framework"]["name"] == "pytorch" for row in rows)
    assert all(row["verified"]["ok"] for row in rows if row["median_s"] is not None)
    environment = found["environment"]
    assert environment["cupy_version"] is None
    assert environment["unavailable"]["cupy_version"] == "CuPy is not installed"
    assert environment["gpu_unavailable"] is None
    (gpu,) = environment["gpus"]
    assert gpu["sm_count"] == 132
    assert gpu["l2_bytes"] == 50 * 2**20
    assert gpu["memory_free_bytes"] < gpu["memory_total_bytes"] < 81 * 2**30
    assert gpu["board"]["name"] == "H100 SXM"


def test_the_only_framework_is_missing(program: Program, tmp_path: Path) -> None:
    ended = program(
        "bench", "copy", *CPU, "--framework", f"cupy={sys.executable}", env=variables(tmp_path)
    )

    assert ended.code == 4
    assert ended.document("bench")["error"]["code"] == "framework-missing"
    assert ended.document("bench")["error"]["message"].startswith("CuPy is not installed in ")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_framework_says_so_and_the_others_go_on(program: Program, tmp_path: Path) -> None:
    ended = measured(
        *(program, "copy", "--framework", PYTORCH, "--framework", f"numpy={sys.executable}"),
        env=variables(tmp_path, FAKE_FRAMEWORK="import=fail"),
        seconds=1.5,
    )

    assert ended.code == 1
    (broken,) = rows_of(ended.document("bench"), "pytorch")
    assert broken["error"]["code"] == "framework-broken"
    assert "cannot open shared object file" in broken["error"]["message"]
    assert broken["framework"]["version"] is None
    (right,) = rows_of(ended.document("bench"), "numpy")
    assert right["verified"]["ok"]


def test_a_process_that_is_killed_in_a_run_fails_its_rows_alone(
    program: Program, tmp_path: Path
) -> None:
    ended = measured(
        *(program, "matmul", "copy", "--framework", PYTORCH, "--dtype", "float32"),
        env=variables(tmp_path, FAKE_FRAMEWORK="run=exit"),
        seconds=2,
    )

    assert ended.code == 1
    product, copy = rows_of(ended.document("bench"), "pytorch")
    assert product["error"]["code"] == "framework-died"
    assert "SIGKILL" in product["error"]["message"]
    assert copy["verified"]["ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(
    number: signal.Signals, program: Program, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    started = program.start(
        *("bench", "matmul", *ENDLESS, "--framework", PYTORCH, "--dtype", "float32"),
        env=variables(
            tmp_path,
            FAKE_FRAMEWORK="run=hang",
            FRAMEWORK_CALLS=str(calls),
            OPENBLAS_NUM_THREADS="1",
        ),
    )
    while not (calls.exists() and "matmul" in calls.read_text(encoding="utf-8")):
        assert started.poll() is None
        time.sleep(0.05)
    children = children_of(started.pid)
    assert children

    started.send_signal(number)
    started.communicate()

    wait_until(lambda: not any(is_running(pid) for pid in children))
    left = [path for path in tmp_path.iterdir() if path.name.startswith("gpucheck-compiled")]
    assert bool(left) is (number == SIGKILL)  # the next run deletes it
    assert started.returncode == (-SIGKILL if number == SIGKILL else 130)


COMPILES = """
import pathlib, subprocess, time
compiler = subprocess.Popen(["sleep", "600"])
told = pathlib.Path(__file__).with_name("told")
told.write_text(str(compiler.pid))
told.rename(told.with_name("compiler"))
time.sleep(600)
"""


def test_compiler_of_a_framework_ends_with_a_killed_run(program: Program, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(COMPILES, encoding="ascii")
    started = program.start(
        *("bench", "matmul", *ENDLESS, "--framework", PYTORCH),
        env=variables(tmp_path, PYTHONPATH=str(tmp_path)),
    )
    told = tmp_path / "compiler"
    while not told.exists():
        assert started.poll() is None
        time.sleep(0.05)
    compiler = int(told.read_text(encoding="ascii"))
    assert is_running(compiler)

    started.kill()
    started.communicate()

    wait_until(lambda: not is_running(compiler))


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


@cache
def python_with(framework: str) -> str:
    module = MODULES.get(framework, framework)
    for python in filter(None, PYTHONS):
        found = read_frameworks(Interpreter(path=python), {"PATH": os.environ["PATH"]}).frameworks
        if found is not None and module in found:
            return python
    pytest.skip(f"no Python here has {framework}: see GPUCHECK_FRAMEWORK_PYTHONS")


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax"])
def test_real_frameworks_compute_every_kernel_rightly(
    framework: str, program: Program, tmp_path: Path
) -> None:
    python = python_with(framework)

    ended = program(
        *("bench", "matmul", "softmax", "copy", "train", "--device", "cpu", "--size", "64"),
        *("--budget", "30", "--json", "--framework", f"{framework}={python}"),
        env={"TMPDIR": str(tmp_path)},
    )

    rows = rows_of(ended.document("bench"), framework)
    assert {row["framework"]["form"] for row in rows} == set(FORMS[framework])
    codes = {row["error"]["code"] for row in rows if row["error"] is not None}
    assert codes <= {"no-time", "framework-lacks"}
    measured = [row for row in rows if row["error"] is None]
    assert measured
    assert all(row["verified"]["ok"] for row in measured)
    (facts,) = ended.document("bench")["result"]["environment"]["frameworks"]
    assert facts["threads_intra"] == max(row["threads"] for row in rows)
