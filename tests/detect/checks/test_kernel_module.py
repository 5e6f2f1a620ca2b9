"""kernel-module: whether nvidia is loaded, and holds the GPUs."""

from __future__ import annotations

import pytest

from gpucheck.data import read_table
from gpucheck.detect.checks.kernel_module import OTHER_DRIVERS, check
from gpucheck.detect.findings import wrong_flavour
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.drivers.evidence import (
    KernelLogReading,
    ModuleReading,
    PlatformReading,
    SystemReading,
)
from gpucheck.drivers.readings import KernelReading, PciDeviceReading
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.host import Host
from tests.fakes.probes import HERE, FakeProbes


def look(kernel: KernelReading) -> Finding:
    return check(Machine(FakeProbes(kernel_reading=kernel)))


def held_by(*drivers: str | None) -> KernelReading:
    devices = tuple(
        PciDeviceReading(pci_bus_id=f"0000:{at:02x}:00.0", vendor_id="0x10de", driver=driver)
        for at, driver in enumerate(drivers, start=1)
    )
    return KernelReading(pci_devices=devices, module_loaded=True, module_version="580.95.05")


@pytest.mark.parametrize("driver", sorted(OTHER_DRIVERS))
def test_another_driver_holds_a_gpu(driver: str) -> None:
    found = look(held_by(driver))

    assert found.status is CheckStatus.FAIL
    assert found.summary == f"0000:01:00.0 is held by {driver}, not by nvidia"
    assert found.evidence[0].value == driver
    assert found.cause == f"held-by-{driver.replace('_', '-')}"
    steps = read_table("causes")["kernel-module"][found.cause]["remedy"]
    assert found.remedy[0] == steps[0].format()
    assert len(found.remedy) == len(steps)
    assert not any("{" in step for step in found.remedy)


def module(
    *, loaded: bool = False, machine: Host = HERE, log: str | None = None, **parts: object
) -> Finding:
    """Return the finding about two GPUs, with these facts of the module or the platform."""
    own = {name: parts.pop(name) for name in tuple(parts) if name in PlatformReading._fields}
    system = SystemReading(
        module=ModuleReading(**parts),  # type: ignore[arg-type]
        platform=PlatformReading(**own),  # type: ignore[arg-type]
        log=KernelLogReading(lines=None if log is None else ("an older line", log)),
    )
    kernel = held_by(None, None)._replace(module_loaded=loaded)
    return check(Machine(FakeProbes(machine=machine, kernel_reading=kernel, system_reading=system)))


@pytest.mark.parametrize(
    ("flavour", "device_id", "cause"),
    [
        ("open", "0x1db6", "open-module-on-old-gpu"),
        ("open", "0x2330", None),
        ("open", "0x2901", None),
        ("proprietary", "0x2901", "proprietary-module-on-new-gpu"),
        ("proprietary", "0x2330", None),
        ("proprietary", "0x1db6", None),
        (None, "0x1db6", None),
        (None, "0x2901", None),
    ],
)
def test_a_flavour_that_does_not_fit_a_gpu_is_named_as_evidence(
    flavour: str | None, device_id: str, cause: str | None
) -> None:
    machine = Machine(
        FakeProbes(system_reading=SystemReading(module=ModuleReading(flavour=flavour)))
    )
    device = PciDeviceReading(pci_bus_id="0000:01:00.0", vendor_id="0x10de", device_id=device_id)

    found = wrong_flavour(machine, [device])

    assert (found and found.cause) == cause
    assert [item.value for item in found.evidence] == [flavour] if found else cause is None
