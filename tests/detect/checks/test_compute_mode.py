"""compute-mode: GPUs that allow no program, or one program at a time."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import compute_mode
from gpucheck.detect.machine import Machine
from gpucheck.drivers.readings import ProcessReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of


def test_an_exclusive_gpu_that_is_taken() -> None:
    taken = gpu_reading(
        0, compute_mode="exclusive-process", processes=(ProcessReading(pid=1, type="compute"),)
    )

    found = compute_mode.check(Machine(FakeProbes(readings=reading_of(taken))))

    assert found.status is CheckStatus.WARN
    assert "gpucheck list --processes" in found.remedy[0]
    assert found.evidence == (("nvmlDeviceGetComputeMode, GPU 0", "exclusive-process"),)


@pytest.mark.parametrize(("count", "status"), [(1, "fail"), (2, "warn")])
def test_prohibited(count: int, status: str) -> None:
    rows = [
        gpu_reading(n, compute_mode="prohibited" if n == 0 else "default") for n in range(count)
    ]

    assert compute_mode.check(Machine(FakeProbes(readings=reading_of(*rows)))).status == status


def test_modes_that_allow_programs() -> None:
    free = gpu_reading(1, compute_mode="exclusive-process", processes=())

    found = compute_mode.check(Machine(FakeProbes(readings=reading_of(gpu_reading(0), free))))

    assert (found.status, found.summary) == (CheckStatus.OK, "the compute modes allow programs")


@pytest.mark.parametrize(
    ("unavailable", "summary"),
    [({"compute_mode": "too old"}, "too old"), ({}, "the driver does not report it")],
)
def test_a_mode_that_could_not_be_read(unavailable: dict[str, str], summary: str) -> None:
    unread = gpu_reading(0, compute_mode=None, unavailable=unavailable)

    found = compute_mode.check(Machine(FakeProbes(readings=reading_of(unread))))

    assert (found.status, found.cause) == (CheckStatus.UNKNOWN, "not-read")
    assert found.summary == f"not checked: {summary}"


def test_no_gpu_has_no_mode() -> None:
    assert compute_mode.check(Machine(FakeProbes())).status is CheckStatus.SKIP
