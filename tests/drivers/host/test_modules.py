"""Kernel module on disk and in the kernel, from trees of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.host.modules import read_module
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree

KERNEL = "6.8.0-71-generic"


def put(root: Path, path: str, text: str = "") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_a_machine_that_lacks_nothing(tmp_path: Path) -> None:
    machine = load_machine("h100x8")

    found = read_module(write_tree(machine, tmp_path), machine.host.kernel)

    assert found.installed == ("updates/dkms/nvidia.ko",)
    assert found.driver_gpus == tuple(gpu.pci_bus_id for gpu in machine.gpus)
    assert (found.excluded_gpus, found.other_kernels, found.blocked_by) == ((), (), ())
    assert found.hmm_disabled is False
    assert found.flavour in ("open", "proprietary")


def test_an_empty_root_tells_nothing(tmp_path: Path) -> None:
    found = read_module(tmp_path, KERNEL)

    assert (found.installed, found.flavour, found.driver_gpus) == (None, None, None)


@pytest.mark.parametrize(
    "name", ["nvidia.ko", "nvidia.ko.xz", "nvidia.ko.zst", "nvidia-current.ko"]
)
def test_names_of_the_module(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"lib/modules/{KERNEL}/modules.dep", f"extra/{name}: extra/video.ko\n")

    assert read_module(tmp_path, KERNEL).installed == (f"extra/{name}",)


@pytest.mark.parametrize("name", ["nvidia-uvm.ko", "nvidiafb.ko", "nouveau.ko"])
def test_other_modules_are_not_it(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"lib/modules/{KERNEL}/modules.dep", f"extra/{name}: extra/nvidia.ko\n")

    assert read_module(tmp_path, KERNEL).installed == ()


def test_other_kernels_and_dkms(tmp_path: Path) -> None:
    put(tmp_path, f"lib/modules/{KERNEL}/modules.dep", "")
    put(tmp_path, "lib/modules/6.5.0/modules.dep", "updates/dkms/nvidia.ko:\n")
    put(tmp_path, "var/lib/dkms/nvidia/580.95.05/source/dkms.conf")
    put(tmp_path, "var/lib/dkms/nvidia/kernel-6.5.0-x86_64/link")
    put(tmp_path, "var/lib/dkms/zfs/2.2/source/dkms.conf")

    found = read_module(tmp_path, KERNEL)

    assert found.other_kernels == ("6.5.0",)
    assert found.dkms_versions == ("nvidia/580.95.05",)


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("blacklist nvidia", True),
        ("alias nvidia off", True),
        ("install nvidia /bin/false", True),
        ("blacklist nouveau", False),
        ("# blacklist nvidia", False),
        ("blacklist nvidia_drm", False),
        ("options nvidia NVreg_DeviceFileMode=0666", False),
    ],
)
def test_lines_that_keep_it_out(tmp_path: Path, line: str, *, blocks: bool) -> None:
    put(tmp_path, "etc/modprobe.d/local.conf", f"{line}\n")

    expected = (f"/etc/modprobe.d/local.conf: {line}",) if blocks else ()
    assert read_module(tmp_path, KERNEL).blocked_by == expected
