"""Written /proc, /sys and /dev: readers find the machine's values there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.machine import load_machine, machine_names
from tests.fakes.tree import write_tree

READ_PROCESSES = """
import json, sys, psutil
psutil.PROCFS_PATH = sys.argv[1]
found = {}
for pid in psutil.pids():
    process = psutil.Process(pid)
    found[pid] = {
        "name": process.name(), "command": process.cmdline(), "uid": process.uids().real,
        "created": process.create_time(), "status": process.status(), "parent": process.ppid(),
        "resident": process.memory_info().rss,
    }
json.dump(found, sys.stdout)
"""


def pci(root: Path) -> dict[str, Path]:
    return {path.name: path for path in (root / "sys/bus/pci/devices").iterdir()}


def text(path: Path) -> str:
    return path.read_text().strip()


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_has_a_tree_without_dangling_links(name: str, tmp_path: Path) -> None:
    root = write_tree(load_machine(name), tmp_path)
    links = [path for path in root.rglob("*") if path.is_symlink()]
    assert links
    assert [path for path in links if not path.exists()] == []
    assert [path for path in links if not path.resolve().is_relative_to(root.resolve())] == []


def test_pci_devices_of_a_node(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    devices = pci(write_tree(machine, tmp_path))

    for gpu in machine.gpus:
        device = devices[gpu.pci_bus_id]
        assert text(device / "vendor") == "0x10de"
        assert text(device / "device") == "0x2330"
        assert text(device / "class") == "0x030200"
        assert text(device / "numa_node") == str(gpu.numa_node)
        assert text(device / "local_cpulist") == gpu.cpu_affinity
        assert text(device / "current_link_speed") == "32.0 GT/s PCIe"
        assert text(device / "max_link_width") == "16"
        assert (device / "driver").readlink().name == "nvidia"
        assert text(device.resolve().parent / "class") == "0x060400"
        assert (device / "config").read_bytes()[:4] == b"\xde\x10\x30\x23"
    switches = [path for path in devices.values() if text(path / "class") == "0x068000"]
    assert len(switches) == 4


def test_a_slow_and_narrow_link_shows_on_both_ends(tmp_path: Path) -> None:
    machine = load_machine("geforce").with_gpu(0, pcie_generation=1, pcie_width=4)
    device = pci(write_tree(machine, tmp_path))["0000:01:00.0"]
    for end in (device, device.resolve().parent):
        assert text(end / "current_link_speed") == "2.5 GT/s PCIe"
        assert text(end / "current_link_width") == "4"
        assert text(end / "max_link_speed") == "16.0 GT/s PCIe"


def test_a_lost_gpu_reads_as_all_ones(tmp_path: Path) -> None:
    machine = load_machine("gpu-lost")
    devices = pci(write_tree(machine, tmp_path))
    lost = [
        index
        for index, gpu in enumerate(machine.gpus)
        if (devices[gpu.pci_bus_id] / "config").read_bytes() == b"\xff" * 64
    ]
    assert lost == [2]


def test_the_driver_describes_its_gpus(tmp_path: Path) -> None:
    machine = load_machine("h100x8").with_driver(excluded_pci_bus_ids=("0000:e1:00.0",))
    root = write_tree(machine, tmp_path)
    driver = root / "proc/driver/nvidia"

    assert "Open Kernel Module for x86_64  580.95.05 " in text(driver / "version")
    assert text(root / "sys/module/nvidia/version") == "580.95.05"
    assert 'ExcludedGpus: "0000:e1:00.0"' in text(driver / "params")
    for gpu in machine.gpus:
        information = text(driver / "gpus" / gpu.pci_bus_id / "information")
        lines = dict(line.split(":", 1) for line in information.splitlines())
        facts = {key: value.strip() for key, value in lines.items()}
        assert facts["GPU UUID"] == gpu.uuid
        assert facts["Device Minor"] == str(gpu.minor_number)
        assert facts["GPU Excluded"] == "No"
    assert text(driver / "gpus/0000:e1:00.0/information").endswith("Yes")


def test_device_nodes(tmp_path: Path) -> None:
    names = {path.name for path in (write_tree(load_machine("t4"), tmp_path) / "dev").iterdir()}
    assert names == {"nvidia0", "nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"}


def test_modules_of_a_working_machine(tmp_path: Path) -> None:
    root = write_tree(load_machine("t4"), tmp_path)
    modules = {line.split()[0] for line in text(root / "proc/modules").splitlines()}
    assert modules == {"nvidia", "nvidia_uvm"}
    assert (root / "sys/module/nvidia_uvm").is_dir()
    assert "195 nvidiactl" in text(root / "proc/devices")


def test_without_unified_memory_its_node_is_missing(tmp_path: Path) -> None:
    root = write_tree(load_machine("t4").with_driver(uvm_loaded=False), tmp_path)
    assert not (root / "dev/nvidia-uvm").exists()
    assert not (root / "sys/module/nvidia_uvm").exists()


def test_no_driver_leaves_only_the_pci_device(tmp_path: Path) -> None:
    root = write_tree(load_machine("no-driver"), tmp_path)
    device = pci(root)["0000:01:00.0"]
    assert text(device / "vendor") == "0x10de"
    assert not (device / "driver").exists()
    assert not (root / "sys/module/nvidia").exists()
    assert not (root / "proc/driver/nvidia").exists()
    assert list((root / "dev").iterdir()) == []
    assert "nvidia" not in text(root / "lib/modules/6.8.0-71-generic/modules.dep")


@pytest.mark.parametrize("driver", ["nouveau", "vfio-pci", "nova_core"])
def test_another_driver_may_hold_the_card(driver: str, tmp_path: Path) -> None:
    machine = load_machine("no-driver").with_gpu(0, bound_driver=driver)
    root = write_tree(machine, tmp_path)
    assert (pci(root)["0000:01:00.0"] / "driver").readlink().name == driver
    assert text(root / "proc/modules").split()[0] == driver.replace("-", "_")


def test_versions_that_do_not_match(tmp_path: Path) -> None:
    root = write_tree(load_machine("version-mismatch"), tmp_path)
    assert text(root / "sys/module/nvidia/version") == "550.144.03"
    library = root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    assert library.readlink().name == "libnvidia-ml.so.550.163.01"


def test_wsl2_has_its_own_device_and_no_nvidia_card(tmp_path: Path) -> None:
    root = write_tree(load_machine("wsl2"), tmp_path)
    assert [path.name for path in (root / "dev").iterdir()] == ["dxg"]
    assert {text(path / "vendor") for path in pci(root).values()} == {"0x1414"}
    assert "microsoft" in text(root / "proc/sys/kernel/osrelease")
    assert (root / "usr/lib/wsl/lib/libcuda.so.1").exists()
    assert not (root / "proc/driver/nvidia").exists()


def test_a_container_looks_like_one(tmp_path: Path) -> None:
    root = write_tree(load_machine("container-without-gpus"), tmp_path)
    assert (root / ".dockerenv").exists()
    assert text(root / "proc/1/cgroup") == "0::/"
    assert "overlay" in text(root / "proc/self/mountinfo")
    assert list((root / "dev").iterdir()) == []
    assert (root / "proc/driver/nvidia/version").exists()


@pytest.mark.parametrize(("secure_boot", "last"), [(True, 1), (False, 0)])
def test_secure_boot(secure_boot: bool, last: int, tmp_path: Path) -> None:
    machine = load_machine("no-driver").with_host(secure_boot=secure_boot)
    root = write_tree(machine, tmp_path)
    (variable,) = (root / "sys/firmware/efi/efivars").iterdir()
    assert variable.read_bytes()[-1] == last


def test_psutil_reads_the_processes(tmp_path: Path) -> None:
    machine = load_machine("busy")
    root = write_tree(machine, tmp_path)

    output = subprocess.run(
        [sys.executable, "-c", READ_PROCESSES, str(root / "proc")],
        capture_output=True,
        check=True,
    ).stdout
    found = json.loads(output)

    expected = {p.pid: p for gpu in machine.gpus for p in gpu.processes if p.visible}
    assert set(found) == {"1", *map(str, expected)}
    for pid, process in expected.items():
        facts = found[str(pid)]
        assert facts["command"] == list(process.command)
        assert facts["uid"] == process.uid
        assert facts["created"] == pytest.approx(machine.host.boot_time_s + process.started_s)
        assert facts["status"] == "sleeping"
        assert facts["parent"] == 1
        assert facts["resident"] == 256 << 20
    assert found["3000"]["name"] == "python"
    assert found["100"]["name"] == "nvidia-cuda-mps-server"


def test_names_in_proc_may_be_any_bytes(tmp_path: Path) -> None:
    root = write_tree(load_machine("geforce"), tmp_path)
    command = (root / "proc/2750/cmdline").read_bytes()
    assert command.split(b"\0")[0] == b"/opt/caf\xe9/Browser"
    assert b"[bold]not markup[/bold]" in command
