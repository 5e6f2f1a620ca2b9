"""CuPy without a writable cache of compiled kernels, and with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.cupy import errors
from gpucheck.drivers.cupy.errors import cache_variables
from tests.drivers.cupy.wheels import enumerators
from tests.fakes.cupy_child import run_lines

#: A home below which even root can make nothing.
NOWHERE = "/proc/nowhere"

OPEN_AND_COMPILE = """
import os
from gpucheck.drivers.cupy.device import open_gpus
opened = open_gpus([0])
said["unavailable"] = opened.unavailable
for gpu in opened.devices:
    gpu.compile('extern "C" __global__ void empty() {}', "empty")
said["variables"] = {name: os.environ.get(name) for name in os.environ if "CUPY_CACHE" in name}
"""


def test_a_home_that_can_be_written_is_left_to_cupy(tmp_path: Path) -> None:
    assert cache_variables({"HOME": str(tmp_path)}) == {}
    # As CuPy does; and nothing stays in it.
    assert list((tmp_path / ".cupy" / "kernel_cache").iterdir()) == []


@pytest.mark.parametrize("home", [NOWHERE, "relative"])
def test_without_a_home_kernels_stay_in_memory(home: str) -> None:
    assert cache_variables({"HOME": home}) == {
        "CUPY_CACHE_IN_MEMORY": "1",
        "CUPY_CACHE_DIR": "/",
    }


def test_a_full_or_forbidden_folder_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpucheck.drivers.cupy.errors.tempfile.TemporaryFile", full)

    assert cache_variables({"HOME": str(tmp_path)})["CUPY_CACHE_IN_MEMORY"] == "1"


def test_a_folder_that_a_person_names_is_theirs() -> None:
    assert cache_variables({"HOME": NOWHERE, "CUPY_CACHE_DIR": "/srv/kernels"}) == {}


def test_a_gpu_is_opened_and_compiled_for_without_a_home(c_compiler: str, tmp_path: Path) -> None:
    said = run_lines("", OPEN_AND_COMPILE, tmp_path, "t4", variables={"HOME": NOWHERE})

    assert said["unavailable"] is None
    assert said["variables"] == {"CUPY_CACHE_IN_MEMORY": "1", "CUPY_CACHE_DIR": "/"}


def test_a_named_folder_that_cannot_be_written_is_told_as_that(
    c_compiler: str, tmp_path: Path
) -> None:
    variables = {"CUPY_CACHE_DIR": f"{NOWHERE}/kernels"}
    said = run_lines("", OPEN_AND_COMPILE, tmp_path, "t4", variables=variables)

    assert said["unavailable"] == (
        "CuPy could not read or write a file while loading CuPy: "
        "No such file or directory (/proc/nowhere)"
    )


def test_every_name_of_an_error_is_one_of_cudas() -> None:
    known = enumerators("cuda.h", "driver_types.h", "cublas_api.h")

    ours = {*errors._LOST, *errors._OUT_OF_MEMORY, *errors._BUSY}

    assert ours - set(known) == set()
