"""cuda-driver: whether a program that starts now sees a GPU."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.cuda_driver import REMEDIES, check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.cuda.binding import REASONS
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, MigReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

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


def test_every_failure() -> None:
    for code in sorted({*CODES, *OURS}):
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


# ------------------------------------------------------------------------------ left out


def left_out(
    *seen: int, gpus: int = 3, changes: dict[str, object] | None = None, **variables: str
) -> Finding:
    """Return what is said where CUDA sees these of the GPUs that NVML lists."""
    rows = [gpu_reading(index) for index in range(gpus)]
    rows[-1] = rows[-1]._replace(**(changes or {}))
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=(gpu_reading(index).uuid or "")[4:].replace("-", ""))
        for at, index in enumerate(seen)
    )
    cuda = CudaReading(driver_version=13000, device_count=len(seen), devices=devices)
    probes = FakeProbes(readings=reading_of(*rows), cuda_reading=cuda, variables=variables)
    return check(Machine(probes))


LOST = ProbeFailure(code="gpu-is-lost", message="it is gone", library_code=15)


@pytest.mark.parametrize(
    ("seen", "changes", "variables", "status"),
    [
        ((0, 1, 2), {}, {}, "ok"),
        ((2, 0, 1), {}, {}, "ok"),
        ((0, 1), {}, {}, "warn"),
        ((0, 1), {}, {"CUDA_VISIBLE_DEVICES": "0,1"}, "ok"),
        ((0,), {}, {"CUDA_VISIBLE_DEVICES": "0,2"}, "warn"),
        # Each of these has a check of its own.
        ((0, 1), {"failure": LOST}, {}, "ok"),
        ((0, 1), {"compute_mode": "prohibited"}, {}, "ok"),
        ((0, 1), {"mig_enabled": True, "mig_instances": (MigReading(uuid="MIG-1"),)}, {}, "ok"),
        # What the rules leave open, only the driver knows.
        ((0,), {"name": "Tesla T4"}, {"CUDA_VISIBLE_DEVICES": "0,2"}, "ok"),
    ],
)
def test_a_gpu_that_cuda_leaves_out_is_named(
    seen: tuple[int, ...], changes: dict[str, object], variables: dict[str, str], status: str
) -> None:
    found = left_out(*seen, changes=changes, **variables)

    assert found.status == status
    if status == "warn":
        assert "it leaves out GPU 2 (0000:12:00.0), and nothing hides it" in found.summary
        assert found.cause == "gpu-left-out"
