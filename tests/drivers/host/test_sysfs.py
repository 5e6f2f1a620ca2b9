"""Kernel view of the GPUs, on written trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.host import sysfs
from gpucheck.drivers.host.sysfs import count_gpus, read_kernel, read_text
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree


def write_device(root: Path, bus_id: str, **files: str) -> Path:
    """Write one PCI device, by default an NVIDIA 3D controller."""
    folder = root / "sys/bus/pci/devices" / bus_id
    folder.mkdir(parents=True)
    for name, text in ({"vendor": "0x10de", "class": "0x030200"} | files).items():
        (folder / name).write_text(f"{text}\n", encoding="utf-8")
    return folder


def test_the_gpus_of_a_machine(tmp_path: Path) -> None:
    machine = load_machine("h100x8")

    reading = read_kernel(write_tree(machine, tmp_path))

    assert reading.pci_devices is not None
    assert [device.pci_bus_id for device in reading.pci_devices] == [
        gpu.pci_bus_id for gpu in machine.gpus
    ]
    for device, gpu in zip(reading.pci_devices, machine.gpus, strict=True):
        assert device.numa_node == gpu.numa_node
        assert device.cpu_affinity == gpu.cpu_affinity
        assert device.driver == "nvidia"
        assert device.device_id == "0x2330"
    assert (reading.module_loaded, reading.uvm_loaded) == (True, True)
    assert reading.module_version == machine.driver.version
    assert count_gpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("class_id", "is_gpu"),
    [
        ("0x030000", True),  # VGA
        ("0x030200", True),  # 3D controller
        ("0x040300", False),  # its audio function
        ("0x068000", False),  # an NVSwitch
        ("0x0c0330", False),  # its USB controller
    ],
)
def test_only_display_controllers_are_gpus(tmp_path: Path, class_id: str, is_gpu: bool) -> None:
    write_device(tmp_path, "0000:01:00.0", **{"class": class_id})

    reading = read_kernel(tmp_path)

    assert reading.pci_devices is not None
    assert len(reading.pci_devices) == is_gpu


def test_other_makers_are_not_ours(tmp_path: Path) -> None:
    write_device(tmp_path, "0000:01:00.0", vendor="0x1002")

    assert read_kernel(tmp_path).pci_devices == ()
    assert count_gpus(tmp_path) == 1  # the least that a deadline assumes


@pytest.mark.parametrize(
    ("node", "expected"), [("-1", None), ("0", 0), ("3", 3), ("", None), ("x", None), ("²", None)]
)
def test_numa_nodes(tmp_path: Path, node: str, expected: int | None) -> None:
    write_device(tmp_path, "0000:01:00.0", numa_node=node)

    (device,) = read_kernel(tmp_path).pci_devices or ()

    assert device.numa_node == expected


def test_what_a_device_does_not_tell_is_absent(tmp_path: Path) -> None:
    write_device(tmp_path, "0000:0A:00.0", local_cpulist="")

    (device,) = read_kernel(tmp_path).pci_devices or ()

    assert device.pci_bus_id == "0000:0a:00.0"
    assert (device.device_id, device.driver, device.numa_node, device.cpu_affinity) == (None,) * 4


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", "vfio-pci"])
def test_the_bound_driver(tmp_path: Path, driver: str) -> None:
    folder = write_device(tmp_path, "0000:01:00.0")
    (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    (device,) = read_kernel(tmp_path).pci_devices or ()

    assert device.driver == driver


def test_an_unreadable_bus_is_not_a_bus_without_gpus(tmp_path: Path) -> None:
    reading = read_kernel(tmp_path)

    assert reading.pci_devices is None
    assert reading.pci_unavailable is not None
    assert "No such file or directory" in reading.pci_unavailable
    assert reading.module_loaded is None
    assert reading.uvm_loaded is None
    assert count_gpus(tmp_path) == 1


def test_device_files_count_where_a_sandbox_shows_no_bus(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in (*(f"nvidia{minor}" for minor in range(8)), "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()

    assert count_gpus(tmp_path) == 8
    write_device(tmp_path, "0000:01:00.0")
    assert count_gpus(tmp_path) == 8


def test_modules_that_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "sys/module").mkdir(parents=True)

    reading = read_kernel(tmp_path)

    assert (reading.module_loaded, reading.module_version, reading.uvm_loaded) == (
        False, None, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"text\n", "text"),
        (b"", ""),
        (b"caf\xe9\n", "caf\ufffd"),
        (b"a\r\tb\n", "a\r\tb"),
        (b"one\0two\0", "one\0two\0"),
    ],
)
def test_small_files(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "file").write_bytes(content)

    assert read_text(tmp_path / "file") == expected


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()

    assert read_text(tmp_path / "none") is None
    assert read_text(tmp_path / "folder") is None
    assert read_text(tmp_path / "loop") is None
    assert read_text(tmp_path / "file" / "below") is None


def test_this_machine_can_be_read() -> None:
    reading = read_kernel(Path("/"))

    assert (reading.pci_devices is None) == (reading.pci_unavailable is not None)
    loaded = Path("/sys/module/nvidia").is_dir()
    assert reading.module_loaded == (loaded if Path("/sys/module").is_dir() else None)


def test_other_makers_of_gpus_by_their_graphics_cards(tmp_path: Path) -> None:
    devices = {
        "0000:00:00.0": ("0x8086", "0x060000"),  # a bridge
        "0000:01:00.0": ("0x10de", "0x030200"),
        "0000:02:00.0": ("0x1002", "0x120000"),  # a processing accelerator
        "0000:03:00.0": ("0x1234", "0x030000"),
    }
    for name, (vendor, kind) in devices.items():
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    assert sysfs.other_vendors(tmp_path) == ("AMD",)
    (folder / "vendor").write_text("0x8086\n")
    assert sysfs.other_vendors(tmp_path) == ("AMD", "Intel")
    assert sysfs.other_vendors(tmp_path / "nowhere") == ()
