"""The driver's own limit on a real card: what it refuses, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.host.cgroups import MOUNT

pytestmark = pytest.mark.gpu

#: Takes memory through the driver alone, 16 MiB at a time, and tells CUDA's total and what it got.
TAKE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
device, context, place, taken = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), 0
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
cuda.cuDeviceGet(ctypes.byref(device), 0)
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
cuda.cuCtxSetCurrent(context)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
while taken < 1 << 32 and cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(1 << 24)) == 0:
    taken += 1 << 24
__import__("time").sleep(2)
print(total.value, taken)
"""
LIMIT = 2 << 30


def test_the_driver_refuses_what_exceeds_the_limit(gpucheck_command, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    python = (sys.executable, "-c", TAKE)
    options = ("--gpu", "cuda:0", "--hard", "--verify", "--json", "-o", report)

    finished = gpucheck_command("memlimit", "2GiB", *options, "--", *python)

    if finished.code == 125 and "cannot limit the command here" in finished.stderr:
        pytest.skip(finished.stderr.splitlines()[0])
    total, taken = map(int, finished.stdout.split())
    hard = json.loads(report.read_text())["result"]["hard"]
    (gpu,) = hard["gpus"]
    assert 0 < taken <= LIMIT
    assert total <= LIMIT  # NVIDIA: cuMemGetInfo follows the limit of the program's own group
    assert gpu["refused_bytes"] > 0
    assert taken <= gpu["peak_bytes"] <= LIMIT
    assert hard["removed"] is True
    assert not Path(hard["cgroup"]).exists()


def test_each_missing_prerequisite_has_its_step(gpucheck_command) -> None:
    finished = gpucheck_command("memlimit", "2GiB", "--hard", "--", "true")

    if finished.code == 0:
        assert os.geteuid() == 0
        assert not list(Path("/", MOUNT).rglob("gpucheck-*"))
        return
    assert finished.code == 125
    assert "The driver cannot limit the command here: " in finished.stderr
    assert "Without it, by the frameworks: gpucheck memlimit 2GiB -- true" in finished.stderr
