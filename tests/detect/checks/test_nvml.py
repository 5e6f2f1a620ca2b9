"""nvml: whether the driver answers, and for every GPU."""

from __future__ import annotations

from gpucheck.detect.checks.nvml import check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.nvml.binding import REASONS
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes

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
        number = f"NVML error {CODES[code]}" if code in CODES else code
        module = (
            [("/sys/module/nvidia/version", "unreadable")] if code == "version-mismatch" else []
        )
        seen = [(item.source, item.value) for item in found.evidence]
        assert seen == [("nvmlInit", number), *module]
        assert found.remedy
