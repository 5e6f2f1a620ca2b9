"""libcuda in a child: the facts by ctypes, every way to fail, and the deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.drivers.cuda.client import read_cuda
from gpucheck.drivers.readings import CudaReading
from tests.conftest import scrubbed_environment
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine

Ask = Callable[..., CudaReading]


@pytest.fixture
def ask(c_compiler: str, tmp_path: Path) -> Ask:
    """Read libcuda on a machine, with more variables."""

    def read(machine: Machine | str, *, deadline_s: float = 30, **variables: str) -> CudaReading:
        found = load_machine(machine) if isinstance(machine, str) else machine
        environment = scrubbed_environment({**build_libraries(found, tmp_path), **variables})
        return read_cuda(deadline_s=deadline_s, environment=environment)

    return read


def hex_of(uuid: str) -> str:
    return uuid[4:].replace("-", "")


def test_devices_as_libcuda_names_them(ask: Ask) -> None:
    machine = load_machine("h100x8")

    reading = ask(machine)

    assert reading.failure is None
    assert reading.driver_version == machine.driver.cuda_version
    assert reading.device_count == 8
    for device, gpu in zip(reading.devices, machine.gpus, strict=True):
        assert device.uuid_hex == hex_of(gpu.uuid)
        assert device.name == gpu.name
        assert device.pci_bus_id == gpu.pci_bus_id
        assert device.compute_capability == gpu.compute_capability
        assert device.memory_total_bytes == gpu.cuda_memory_total_bytes
        assert device.unavailable == {}


def test_the_fastest_comes_first_unless_told_otherwise(ask: Ask) -> None:
    t4, a100 = load_machine("mixed-order").gpus

    by_speed = ask("mixed-order")
    by_bus = ask("mixed-order", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    second = ask("mixed-order", CUDA_VISIBLE_DEVICES="1")

    assert [device.name for device in by_speed.devices] == [a100.name, t4.name]
    assert [device.name for device in by_bus.devices] == [t4.name, a100.name]
    assert [device.name for device in second.devices] == [t4.name]


def test_a_mig_instance_has_its_own_uuid(ask: Ask) -> None:
    machine = load_machine("a100-mig")
    instance = machine.gpus[0].mig[1]

    (device,) = ask(machine, CUDA_VISIBLE_DEVICES=instance.uuid).devices

    assert device.uuid_hex == hex_of(instance.uuid)


def test_an_old_libcuda_has_only_the_first_form_of_the_uuid(ask: Ask) -> None:
    machine = load_machine("old-driver")
    assert "cuDeviceGetUuid_v2" in machine.driver.missing

    reading = ask(machine)

    assert [device.uuid_hex for device in reading.devices] == [
        hex_of(gpu.uuid) for gpu in machine.gpus
    ]


def test_no_device_keeps_the_version(ask: Ask) -> None:
    reading = ask("t4", CUDA_VISIBLE_DEVICES="")

    assert reading.driver_version == load_machine("t4").driver.cuda_version
    assert reading.failure is not None
    assert (reading.failure.code, reading.failure.library_code) == ("no-device", 100)
    assert reading.failure.function == "cuInit"
    assert "CUDA_ERROR_NO_DEVICE, CUDA 100" in reading.failure.message
    assert reading.devices == ()


def test_no_libcuda(ask: Ask) -> None:
    reading = ask("no-driver")

    assert reading.failure is not None
    assert reading.failure.code == "library-not-found"
    assert reading.failure.library_code is None


@pytest.mark.parametrize(
    ("code", "slug"),
    [(3, "not-initialized"), (802, "system-not-ready"), (999, "unknown"), (12345, "error")],
)
def test_a_failing_initialisation(ask: Ask, code: int, slug: str) -> None:
    reading = ask(load_machine("t4").broken(fail=[f"cuInit {code}"]))

    assert reading.failure is not None
    assert (reading.failure.code, reading.failure.library_code) == (slug, code)
    assert f"CUDA {code})" in reading.failure.message


def test_a_device_that_refuses_one_question_answers_the_others(ask: Ask) -> None:
    machine = load_machine("t4").with_gpus(2).broken(fail=["cuDeviceGetName gpu=1 999"])

    first, second = ask(machine).devices

    assert first.name == machine.gpus[0].name
    assert second.name is None
    assert "CUDA 999)" in second.unavailable["name"]
    assert second.uuid_hex == hex_of(machine.gpus[1].uuid)


def test_a_hang_is_given_up(ask: Ask) -> None:
    reading = ask(load_machine("t4").broken(hang=["cuInit"]), deadline_s=0.5)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.failure.message == "the CUDA driver did not answer within 0.5 s"


def test_a_crash_is_told(c_compiler: str, tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("int cuDriverGetVersion(int *v) { return *(volatile int *)0 + *v; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([c_compiler, "-shared", "-fPIC", "-o", library, source], check=True)

    environment = scrubbed_environment({"LD_LIBRARY_PATH": str(tmp_path)})
    reading = read_cuda(deadline_s=30, environment=environment)

    assert reading.failure is not None
    assert reading.failure.code == "cuda-child-died"
    assert "was ended by SIGSEGV" in reading.failure.message
