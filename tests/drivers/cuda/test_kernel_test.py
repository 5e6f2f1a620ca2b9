"""CUDA kernel self-test: libcuda tests the driver, and a late or wrong CuPy does not count."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.drivers.cuda import kernel_test
from gpucheck.drivers.cuda.kernel_test import run_kernel
from gpucheck.drivers.evidence import LaunchReading
from gpucheck.drivers.live import LiveProbes
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine

NUMPY_LIKE = """
import types

class _Array(list):
    def __mul__(self, by): return _Array(x * by for x in self)
    def __add__(self, by): return _Array(x + by + WRONG for x in self)
    def get(self): return self

class _Device:
    def __init__(self, ordinal): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass

WRONG = 0
uint32 = int
def arange(count, dtype): return _Array(range(count))
_null = types.SimpleNamespace(synchronize=lambda: None)
cuda = types.SimpleNamespace(
    runtime=types.SimpleNamespace(getDeviceCount=lambda: 2),
    Device=_Device,
    Stream=types.SimpleNamespace(null=_null),
)
"""


SLEEP = "import time; time.sleep(600)\n"


def say_nothing(text: str) -> None:
    """Ignore progress."""


@pytest.fixture
def machine(c_compiler: str) -> Machine:
    return load_machine("h100x8").with_gpus(2)


def run(
    folder: Path,
    machine: Machine,
    text: str | None,
    *,
    every_gpu: bool = False,
    python: str = sys.executable,
    deadline_s: float = 60,
) -> LaunchReading:
    """Run the kernel on a pretended machine beside a CuPy of this text."""
    if text is not None:
        (folder / "cupy.py").write_text(text)
    libraries = build_libraries(machine, folder / "libraries")
    environment = {"PATH": "/usr/bin:/bin", **libraries, "PYTHONPATH": str(folder)}
    return run_kernel(
        python,
        environment,
        through_cupy=text is not None,
        every_gpu=every_gpu,
        deadline_s=deadline_s,
        report_progress=say_nothing,
    )


@pytest.mark.parametrize(("every_gpu", "count"), [(False, 1), (True, 2)])
def test_through_libcuda_and_cupy(
    tmp_path: Path, machine: Machine, *, every_gpu: bool, count: int
) -> None:
    found = run(tmp_path, machine, NUMPY_LIKE, every_gpu=every_gpu)

    assert (found.through, found.cupy_failure, found.failure) == ("cupy", None, None)
    assert [each.right for each in found.launches] == [True] * count
    assert found.launches[0].first_launch_s is not None


def test_without_cupy_it_is_libcuda(tmp_path: Path, machine: Machine) -> None:
    assert run(tmp_path, machine, None).through == "libcuda"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise RuntimeError('no nvrtc')\n", "fails-on-the-gpu", "RuntimeError: no nvrtc"),
        ("import os; os.abort()\n", "trial-died", "was ended by SIGABRT"),
        ("import missing_library\n", "fails-on-the-gpu", "No module named 'missing_library'"),
        (NUMPY_LIKE.replace("WRONG = 0", "WRONG = 1"), "fails-on-the-gpu", "is wrong"),
        (SLEEP, "import-not-finished", "still being imported after 1 s"),
        (
            NUMPY_LIKE.replace("def arange", "import time\ndef arange").replace(
                "return _Array(range(count))", "time.sleep(600)"
            ),
            "compile-not-finished",
            "had not compiled and run a kernel after",
        ),
    ],
    ids=["error", "crash", "import", "wrong", "slow import", "slow compiler"],
)
def test_a_cupy_that_is_late_or_wrong_leaves_the_drivers_word(
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    code: str,
    said: str,
) -> None:
    # Only the part that must be late has little time.
    if text == SLEEP:
        monkeypatch.setattr(kernel_test, "IMPORT_S", 1.0)
    elif code == "compile-not-finished":
        monkeypatch.setattr(kernel_test, "COMPILE_S", 1.0)

    found = run(tmp_path, machine, text)

    assert (found.through, found.failure) == ("libcuda", None)
    assert [each.right for each in found.launches] == [True]
    assert found.cupy_failure is not None
    assert found.cupy_failure.code == code
    assert said in found.cupy_failure.message


def test_an_interpreter_that_starts_late_is_no_hung_driver(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(kernel_test, "IMPORT_S", 0.5)
    libraries = build_libraries(machine, tmp_path / "libraries")
    for name, value in libraries.items():
        monkeypatch.setenv(name, value)
    probes = LiveProbes(deadline_s=60)
    whole_s = probes.patience_s()

    found = probes.launch(
        str(slow), through_cupy=True, every_gpu=False, report_progress=say_nothing
    )

    assert found.failure is None
    assert found.cupy_failure is not None
    assert found.cupy_failure.code == "import-not-finished"
    # Later readings do not get less time.
    assert probes.patience_s() == whole_s


def test_a_driver_that_hangs_is_not_asked_again_through_cupy(
    tmp_path: Path, machine: Machine
) -> None:
    (tmp_path / "cupy.py").write_text(f"open({str(tmp_path / 'asked')!r}, 'w')\n")
    hung = machine.broken(hang=["cuLaunchKernel"])

    found = run(tmp_path, hung, (tmp_path / "cupy.py").read_text(), deadline_s=1.0)

    assert found.failure is not None
    assert found.failure.code == "driver-not-answering"
    assert not (tmp_path / "asked").exists()


def test_a_cupy_that_can_where_libcuda_cannot_proves_the_gpu(
    tmp_path: Path, machine: Machine
) -> None:
    found = run(tmp_path, machine.broken(fail=["cuModuleLoadData 221"]), NUMPY_LIKE)

    assert (found.through, found.failure) == ("cupy", None)
    assert [each.right for each in found.launches] == [True]
    assert found.libcuda_failure is not None
    assert found.libcuda_failure.code == "jit-compiler-missing"
