"""The public API of the package, as a program uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpucheck
from gpucheck.core.inventory import list_gpus
from gpucheck.models.errors import InconclusiveError, MissingError
from gpucheck.models.snapshot import NvmlReading, ProbeFailure
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

PROGRAM = """
import sys, gpucheck
print([(gpu.index, gpu.cuda_index, gpu.name) for gpu in gpucheck.devices()])
print(sorted({"numpy", "cupy", "pynvml", "rich", "typer"} & set(sys.modules)))
"""


def test_devices_gives_both_numbers_and_imports_nothing_heavy(
    c_compiler: str, tmp_path: Path
) -> None:
    environment = os.environ | build_libraries(load_machine("mixed-order"), tmp_path)

    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )

    assert finished.stdout.splitlines() == [
        "[(0, 1, 'Tesla T4'), (1, 0, 'NVIDIA A100-SXM4-40GB')]",
        "[]",
    ]


def test_a_machine_without_a_driver_is_an_exception_that_says_so() -> None:
    failure = ProbeFailure(code="library-not-found", message="it is not there", library_code=12)

    with pytest.raises(MissingError) as caught:
        list_gpus(FakeProbes(readings=NvmlReading(failure=failure)))

    assert caught.value.message == "The GPUs cannot be listed: it is not there (NVML 12)."


def test_a_hung_driver_is_not_a_missing_one() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="nothing came")

    with pytest.raises(InconclusiveError):
        list_gpus(FakeProbes(readings=NvmlReading(failure=failure)))


def test_the_gpus_come_in_nvml_order() -> None:
    found = list_gpus(FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1))))

    assert [gpu.index for gpu in found] == [0, 1]


def test_the_version_is_a_release() -> None:
    assert gpucheck.__version__.split(".")[0].isdigit()
