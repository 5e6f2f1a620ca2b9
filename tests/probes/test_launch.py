"""Running a kernel: through the user's CuPy where that works, through libcuda otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.models.evidence import LaunchReading
from gpucheck.probes.launch import run_kernel

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


def run(folder: Path, text: str | None, *, every_gpu: bool = False) -> LaunchReading:
    if text is not None:
        (folder / "cupy.py").write_text(text)
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": ""}
    return run_kernel(
        sys.executable, environment, through_cupy=True, every_gpu=every_gpu, deadline_s=20
    )


@pytest.mark.parametrize(("every_gpu", "count"), [(False, 1), (True, 2)])
def test_through_cupy(tmp_path: Path, *, every_gpu: bool, count: int) -> None:
    found = run(tmp_path, NUMPY_LIKE, every_gpu=every_gpu)

    assert found.through == "cupy"
    assert [launch.right for launch in found.launches] == [True] * count
    assert found.launches[0].first_launch_s is not None


def test_a_wrong_result_is_seen(tmp_path: Path) -> None:
    found = run(tmp_path, NUMPY_LIKE.replace("WRONG = 0", "WRONG = 1"))

    assert found.launches[0].right is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no nvrtc')\n", "RuntimeError: no nvrtc"),
        ("import os; os.abort()\n", "was ended by SIGABRT"),
        ("import missing_library\n", "No module named 'missing_library'"),
    ],
)
def test_a_cupy_that_fails_does_not_decide(tmp_path: Path, text: str, said: str) -> None:
    found = run(tmp_path, text)

    assert found.through in ("libcuda", None)
    assert said in (found.cupy_failure or "")


def test_a_cupy_that_hangs_ends_with_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("import time; time.sleep(600)\n")
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}

    found = run_kernel(
        sys.executable, environment, through_cupy=True, every_gpu=False, deadline_s=0.5
    )

    assert found.failure is not None
    assert found.failure.code == "driver-not-answering"
