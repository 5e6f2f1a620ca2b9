"""kernel-module: whether nvidia is loaded, and holds the GPUs."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.kernel_module import OTHER_DRIVERS, REBUILD, check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.readings import KernelReading, PciDeviceReading
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import IN_DOCKER, ON_WSL2, FakeProbes


def look(kernel: KernelReading) -> Finding:
    return check(Machine(FakeProbes(kernel_reading=kernel)))


def held_by(*drivers: str | None) -> KernelReading:
    devices = tuple(
        PciDeviceReading(pci_bus_id=f"0000:{at:02x}:00.0", vendor_id="0x10de", driver=driver)
        for at, driver in enumerate(drivers, start=1)
    )
    return KernelReading(pci_devices=devices, module_loaded=True, module_version="580.95.05")


@pytest.mark.parametrize("drivers", [("nvidia",), ("nvidia", "nvidia"), (None,), ()])
def test_loaded(drivers: tuple[str | None, ...]) -> None:
    found = look(held_by(*drivers))

    assert found.status is CheckStatus.OK
    assert found.summary == "the nvidia module is loaded (580.95.05)"


def test_loaded_without_a_version() -> None:
    found = look(KernelReading(pci_devices=(), module_loaded=True))

    assert found.summary == "the nvidia module is loaded (unknown version)"


@pytest.mark.parametrize("driver", sorted(OTHER_DRIVERS))
def test_another_driver_holds_a_gpu(driver: str) -> None:
    found = look(held_by(driver))

    assert found.status is CheckStatus.FAIL
    assert found.summary == f"0000:01:00.0 is held by {driver}, not by nvidia"
    assert found.evidence[0].value == driver
    assert found.remedy[0] == OTHER_DRIVERS[driver][0]
    assert len(found.remedy) == len(OTHER_DRIVERS[driver])
    assert REBUILD not in found.remedy
    assert found.cause == f"held-by-{driver.replace('_', '-')}"


def test_another_driver_that_holds_some_leaves_the_others() -> None:
    found = look(held_by("nvidia", "vfio-pci"))

    assert found.status is CheckStatus.WARN
    assert found.summary == "1 of 2 GPUs is held by vfio-pci, not by nvidia: 0000:02:00.0"


def test_without_the_module_what_one_gpu_is_held_by_is_not_the_reason() -> None:
    found = look(held_by(None, "vfio-pci")._replace(module_loaded=False))

    assert found.cause == "module-not-loaded"


def test_a_container_sees_what_others_hold() -> None:
    kernel = held_by("nvidia", "vfio-pci")

    assert (
        check(Machine(FakeProbes(kernel_reading=kernel, machine=IN_DOCKER))).status
        is CheckStatus.OK
    )


def test_another_driver_explains_more_than_a_missing_module() -> None:
    found = look(held_by("nouveau")._replace(module_loaded=False))

    assert "nouveau" in found.summary


def test_not_loaded() -> None:
    found = look(KernelReading(pci_devices=(), module_loaded=False))

    assert found.status is CheckStatus.FAIL
    assert found.remedy[0] == "Load it: sudo modprobe nvidia"


@pytest.mark.parametrize("reason", [None, "the snapshot did not record it"])
def test_an_unreadable_list_is_not_an_empty_one(reason: str | None) -> None:
    found = look(KernelReading(pci_unavailable=reason))

    assert found.status is CheckStatus.UNKNOWN
    assert found.evidence[0].value == (reason or "unreadable")
    assert found.remedy


def test_wsl_needs_no_module() -> None:
    found = check(
        Machine(FakeProbes(machine=ON_WSL2, kernel_reading=KernelReading(module_loaded=False)))
    )

    assert found.status is CheckStatus.SKIP
