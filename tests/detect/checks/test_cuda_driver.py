"""cuda-driver: whether a program that starts now sees a GPU."""

from __future__ import annotations

from gpucheck.detect.checks.cuda_driver import MPS_CODES, check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.cuda.worker import REASONS
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    ProbeFailure,
)
from gpucheck.report.envelope import CheckStatus
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


def test_every_failure() -> None:
    for code in sorted({*CODES, *OURS}):
        failure = ProbeFailure(
            code=code, message="the reason", function="cuInit", library_code=CODES.get(code)
        )

        found = look(CudaReading(failure=failure))

        expected = CheckStatus.UNKNOWN if code in UNDECIDED else CheckStatus.FAIL
        assert found.status is expected
        # What only other evidence can tell apart is said in the check's own words.
        said = "confidential computing or a fabric manager is not set up"
        refined = {"system-not-ready": said, "fabric-not-ready": said}
        assert found.summary.endswith(refined.get(code, "the reason"))
        number = f"CUDA {CODES[code]}" if code in CODES else code
        assert (found.evidence[0].source, found.evidence[0].value) == ("cuInit", number)
        assert found.remedy


def test_every_code_of_mps_has_its_steps() -> None:
    for number in MPS_CODES:
        failure = ProbeFailure(code=REASONS[number][0], message="MPS", library_code=number)
        probes = FakeProbes(
            cuda_reading=CudaReading(failure=failure),
            variables={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"},
        )

        found = check(Machine(probes))

        assert found.evidence[-1].value == "'/tmp/mps'"
        assert any("MPS" in step for step in found.remedy)
