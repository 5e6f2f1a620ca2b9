"""The pytest plug-in on a real card: CUDA in a test process sees the claimed GPU alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.house import ROOT

pytestmark = pytest.mark.gpu

SUITE = """
import ctypes
from gpucheck.drivers.cuda.in_process import is_cuda_started

def test_cuda_sees_this_gpu_alone(gpucheck_gpu):
    libcuda = ctypes.CDLL("libcuda.so.1")
    assert not is_cuda_started()
    assert libcuda.cuInit(0) == 0
    assert is_cuda_started()
    count, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    assert libcuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    assert libcuda.cuDeviceGetName(name, 100, gpucheck_gpu.cuda_index) == 0
    assert (count.value, name.value.decode()) == (1, gpucheck_gpu.name)
"""


def test_a_test_process_gets_a_card_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    variables = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    plug_in = ("-p", "gpucheck.integrations.pytest_plugin", "--gpucheck", "--gpucheck-required")
    # Tests before this one have left CUDA running in this process: a GPU in use must do.
    plug_in += ("--gpucheck-memory", "1GiB", "--gpucheck-timeout", "120")
    alone = ("-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider")

    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *plug_in, *alone, str(tmp_path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout
    assert "1 passed" in finished.stdout
