"""visibility: every entry of the variable explained."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import cuda_driver, visibility
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.readings import CudaReading, ProbeFailure
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of


def see(text: str | None, seen: int, **others: str) -> Finding:
    variables = others if text is None else {"CUDA_VISIBLE_DEVICES": text, **others}
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0), gpu_reading(1)),
        cuda_reading=CudaReading(driver_version=13000, device_count=seen),
        variables=variables,
    )
    return visibility.check(Machine(probes))


@pytest.mark.parametrize(
    ("text", "seen", "status", "says"),
    [
        (None, 2, "ok", "is not set: programs see 2 GPUs"),
        ("1", 1, "ok", "programs see 1 of 2 GPUs"),
        ("", 0, "fail", "an empty value means none"),
        ("7", 0, "fail", "'7': out of range"),
        ("0,7,1", 1, "warn", "2 of its entries dropped"),
    ],
)
def test_visibility(text: str | None, seen: int, status: str, says: str) -> None:
    found = see(text, seen)

    assert (found.status, says in found.summary) == (status, True), found.summary
    entries = [item for item in found.evidence if "entry" in item.source]
    assert len(entries) == (len(text.split(",")) if text else 0)


def test_cuda_is_asked_again_without_the_variable() -> None:
    none = CudaReading(failure=ProbeFailure(code="no-device", message="none", library_code=100))
    probes = FakeProbes(
        cuda_reading=none,
        cuda_unrestricted_reading=CudaReading(driver_version=13000, device_count=2),
        variables={"CUDA_VISIBLE_DEVICES": "-1"},
    )

    found = cuda_driver.check(Machine(probes))

    assert found.status is CheckStatus.OK
    assert found.summary == "CUDA 13.0 starts and sees 2 GPUs without CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("text", "variables", "why", "first", "count"),
    [
        ("", {}, "an empty value means none", "Unset it", 2),
        ("-1", {}, "this value is used to hide every GPU", "To use a GPU after all", 1),
        ("NoDevFiles", {}, "Slurm sets this for a job without GPUs", "Request GPUs", 2),
        ("7", {"SLURM_JOB_ID": "1"}, "'7': out of range", "Request GPUs", 2),
        ("7", {}, "'7': out of range", "Unset it", 1),
        ('""', {}, "these are two quotation marks", "Unset it", 1),
        ("1", {}, "no entry names a GPU that CUDA sees", "Unset it", 1),
    ],
)
def test_what_hides_every_gpu(
    text: str, variables: dict[str, str], why: str, first: str, count: int
) -> None:
    found = see(text, 0, **variables)

    assert (found.status, found.cause) == (CheckStatus.FAIL, "hidden-by-variable")
    assert f"={text!r} hides every GPU: {why}" in found.summary
    assert found.remedy[0].startswith(first)
    assert len(found.remedy) == count


def test_the_order_of_the_devices_is_evidence() -> None:
    found = see(None, 2, CUDA_DEVICE_ORDER="PCI_BUS_ID")

    assert found.evidence == (("CUDA_DEVICE_ORDER", "'PCI_BUS_ID'"),)
    assert see(None, 2).evidence == ()
