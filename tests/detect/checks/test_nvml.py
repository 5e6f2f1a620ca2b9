"""nvml: whether the driver answers, and for every GPU."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.nvml import REMEDIES, check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.nvml.binding import REASONS
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

LOST = ProbeFailure(code="gpu-is-lost", message="it fell off the bus", library_code=15)
CODES = {slug: number for number, (slug, _) in REASONS.items()}
#: Failures that do not come from NVML itself.
OURS = {
    "driver-not-answering",
    "nvml-child-died",
    "not-recorded",
    "binding-missing",
    "binding-too-old",
    "binding-failed",
    "unlisted",
}
UNDECIDED = {"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"}


def look(reading: NvmlReading) -> Finding:
    return check(Machine(FakeProbes(readings=reading)))


@pytest.mark.parametrize(("count", "word"), [(1, "1 GPU"), (8, "8 GPUs")])
def test_every_gpu_answers(count: int, word: str) -> None:
    found = look(reading_of(*(gpu_reading(index) for index in range(count))))

    assert found.status is CheckStatus.OK
    assert found.summary == f"driver 580.95.05 answers for {word}"


def test_some_gpus_are_silent() -> None:
    found = look(reading_of(gpu_reading(0), gpu_reading(1, failure=LOST)))

    assert found.status is CheckStatus.WARN
    assert found.summary == "1 of 2 GPUs does not answer: it fell off the bus"
    assert [(item.source, item.value) for item in found.evidence] == [
        ("NVML, GPU 1", "it fell off the bus")
    ]
    assert found.remedy == REMEDIES["gpu-is-lost"]


def test_two_gpus_of_one_uuid_are_no_healthy_machine() -> None:
    twins = (gpu_reading(0), gpu_reading(1, uuid="GPU-a"), gpu_reading(2, uuid="GPU-a"))

    found = look(reading_of(*twins))

    assert (found.status, found.cause) == (CheckStatus.WARN, "same-uuid")
    assert found.summary.startswith("GPUs 1 and 2 report the same UUID")


def test_every_gpu_is_silent() -> None:
    found = look(reading_of(gpu_reading(0, failure=LOST)))

    assert found.status is CheckStatus.FAIL


def test_a_silent_gpu_of_unknown_cause_has_a_next_step() -> None:
    odd = ProbeFailure(code="unlisted", message="code 4711", library_code=4711)

    assert look(reading_of(gpu_reading(0, failure=odd))).remedy


def test_no_gpu() -> None:
    found = look(reading_of())

    assert found.status is CheckStatus.FAIL
    assert found.summary == "NVML answers, but lists no GPU"
    assert found.remedy


def test_every_failure() -> None:
    for code in sorted({*CODES, *OURS}):
        failure = ProbeFailure(
            code=code, message="the reason", function="nvmlInit", library_code=CODES.get(code)
        )

        found = look(NvmlReading(failure=failure))

        expected = CheckStatus.UNKNOWN if code in UNDECIDED else CheckStatus.FAIL
        assert found.status is expected
        own = {"no-permission": "NVML refuses this user (no permission)"}
        assert found.summary == own.get(code, "the reason")
        assert found.cause == code
        number = f"NVML {CODES[code]}" if code in CODES else code
        module = (
            [("/sys/module/nvidia/version", "unreadable")] if code == "version-mismatch" else []
        )
        seen = [(item.source, item.value) for item in found.evidence]
        assert seen == [("nvmlInit", number), *module]
        assert found.remedy


def test_a_driver_that_stops_on_the_way_is_not_ok() -> None:
    hung = ProbeFailure(code="driver-not-answering", message="no answer within 10 s")

    found = look(reading_of(gpu_reading(0), gpu_count=2, failure=hung))

    assert found.status is CheckStatus.UNKNOWN


def test_remedies_are_of_codes_that_exist() -> None:
    assert set(REMEDIES) <= {*CODES, *OURS, "no-gpu"}
