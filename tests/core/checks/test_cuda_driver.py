"""cuda-driver: does a program that is started now see a GPU?"""

from __future__ import annotations

import pytest

from gpucheck.core.checks.cuda_driver import REMEDIES, check
from gpucheck.core.checks.machine import Machine
from gpucheck.models.finding import CheckStatus, Finding
from gpucheck.models.snapshot import CudaDeviceReading, CudaReading, ProbeFailure
from gpucheck.probes.cuda_door_child import REASONS
from tests.fakes.probes import FakeProbes

CODES = {slug: number for number, (slug, _) in REASONS.items()}
#: Failures that libcuda has no code for, and the word for a code that is not in the table.
OURS = {
    "library-not-found",
    "function-not-found",
    "error",
    "driver-not-answering",
    "cuda-child-died",
    "not-recorded",
}
UNDECIDED = {"driver-not-answering", "cuda-child-died", "not-recorded"}


def look(reading: CudaReading, variables: dict[str, str] | None = None) -> Finding:
    return check(Machine(FakeProbes(cuda_reading=reading, variables=variables or {})))


def sees(count: int, version: int | None = 12080) -> CudaReading:
    devices = tuple(CudaDeviceReading(ordinal=ordinal) for ordinal in range(count))
    return CudaReading(driver_version=version, device_count=count, devices=devices)


@pytest.mark.parametrize(
    ("reading", "summary"),
    [
        (sees(1), "CUDA 12.8 starts and sees 1 GPU"),
        (sees(8), "CUDA 12.8 starts and sees 8 GPUs"),
        (sees(1, version=None), "CUDA ? starts and sees 1 GPU"),
    ],
)
def test_works(reading: CudaReading, summary: str) -> None:
    found = look(reading)

    assert found.status is CheckStatus.OK
    assert found.summary == summary


@pytest.mark.parametrize("reading", [sees(0), CudaReading(driver_version=12080)])
def test_no_device_without_an_error(reading: CudaReading) -> None:
    found = look(reading)

    assert found.status is CheckStatus.FAIL
    assert found.summary == "CUDA starts, but sees no GPU"
    assert found.remedy


@pytest.mark.parametrize("code", sorted({*CODES, *OURS}))
def test_every_failure(code: str) -> None:
    failure = ProbeFailure(
        code=code, message="the reason", function="cuInit", library_code=CODES.get(code)
    )

    found = look(CudaReading(failure=failure))

    expected = CheckStatus.UNKNOWN if code in UNDECIDED else CheckStatus.FAIL
    assert found.status is expected
    # What only other evidence can tell apart is said in the check's own words.
    refined = {"system-not-ready": "confidential computing or a fabric manager is not set up"}
    assert found.summary.endswith(refined.get(code, "the reason"))
    number = f"CUDA {CODES[code]}" if code in CODES else code
    assert (found.evidence[0].source, found.evidence[0].value) == ("cuInit", number)
    assert found.remedy


@pytest.mark.parametrize("text", ["", "-1", "9"])
def test_the_variable_is_the_first_suspect(text: str) -> None:
    failure = ProbeFailure(code="no-device", message="none", library_code=100)

    found = look(CudaReading(failure=failure), {"CUDA_VISIBLE_DEVICES": text})

    assert found.evidence[1].source == "CUDA_VISIBLE_DEVICES"
    assert found.evidence[1].value == repr(text)
    assert found.remedy[0].startswith("Unset CUDA_VISIBLE_DEVICES")


def test_an_unset_variable_is_no_suspect() -> None:
    failure = ProbeFailure(code="no-device", message="none", library_code=100)

    assert not any("Unset" in step for step in look(CudaReading(failure=failure)).remedy)


def test_remedies_are_of_codes_that_exist() -> None:
    assert set(REMEDIES) <= {*CODES, *OURS}
