"""What a recording holds, and what it fails to hold."""

from __future__ import annotations

import pytest

from gpucheck.drivers.interface import NvmlRequest
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    NvmlReading,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
)
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.inventory.snapshot import record, take_snapshot
from gpucheck.report.codec import from_plain, to_plain
from gpucheck.report.errors import ExitCode
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

HUNG = ProbeFailure(code="driver-not-answering", message="the driver did not answer within 10 s")
MISSING = ProbeFailure(code="library-not-found", message="no libnvidia-ml.so.1", library_code=12)


def busy() -> FakeProbes:
    process = ProcessReading(pid=9, type="compute", memory_used_bytes=1)
    return FakeProbes(
        readings=reading_of(gpu_reading(0, processes=(process,))),
        cuda_reading=CudaReading(driver_version=13000, device_count=0),
        kernel_reading=KernelReading(module_loaded=True),
        variables={"CUDA_VISIBLE_DEVICES": "0"},
        people={9: ProcessIdentity(pid=9, name="python", user="anna")},
    )


def test_everything_is_recorded() -> None:
    found = record(busy())

    assert found.time == "2026-01-02T03:04:05Z"
    assert (found.host.name, found.host.driver_version) == ("node1", "580.95.05")
    assert found.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert found.kernel == busy().kernel_reading
    assert found.nvml == busy().readings
    assert found.cuda == busy().cuda_reading
    assert [process.user for process in found.processes] == ["anna"]
    assert found.redacted is False


def test_a_recording_of_a_recording_is_the_same() -> None:
    once = record(busy())

    assert record(RecordedProbes(once)) == once


def test_a_recording_survives_json() -> None:
    once = record(busy())

    assert from_plain(Snapshot, to_plain(once)) == once


def test_all_that_nvml_knows_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[NvmlRequest] = []
    probes = busy()
    monkeypatch.setattr(probes, "nvml", lambda one: requests.append(one) or probes.readings)

    record(probes)

    assert requests == [NvmlRequest(topology=True, process_utilization=True)]


@pytest.mark.parametrize(
    ("variables", "count", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "9"}, 0, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1, False),
        ({}, 0, False),
    ],
)
def test_cuda_is_also_asked_without_the_variable_where_that_may_hide_all(
    variables: dict[str, str], count: int, expected: bool
) -> None:
    everything = CudaReading(driver_version=13000, device_count=8)
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        variables=variables,
        cuda_reading=CudaReading(driver_version=13000, device_count=count),
        cuda_unrestricted_reading=everything,
    )

    assert record(probes).cuda_unrestricted == (everything if expected else None)


@pytest.mark.parametrize("failure", [None, MISSING])
def test_health_is_read_where_nvml_answers(failure: ProbeFailure | None) -> None:
    found = record(FakeProbes(readings=reading_of(gpu_reading(0), failure=failure)))

    assert (found.health is None) is (failure is not None)


def test_a_driver_that_hangs_is_not_asked_by_another_library() -> None:
    probes = FakeProbes(readings=NvmlReading(failure=HUNG))

    found = record(probes)

    assert found.cuda is None
    assert "cuda" not in probes.asked


def test_a_driver_that_is_missing_is_recorded_as_such() -> None:
    answer = take_snapshot(FakeProbes(readings=NvmlReading(failure=MISSING)), redacted=False)

    assert answer.exit_code is ExitCode.OK
    assert isinstance(answer.result, Snapshot)
    assert answer.result.nvml == NvmlReading(failure=MISSING)
    [notice] = answer.warnings
    assert notice.code == "no-gpu-readings"
    assert "no libnvidia-ml.so.1 (NVML 12)" in notice.message


def test_redaction_covers_the_envelope() -> None:
    answer = take_snapshot(busy(), redacted=True)

    assert isinstance(answer.result, Snapshot)
    assert answer.result.redacted is True
    assert answer.host.name == answer.result.host.name == "host"
