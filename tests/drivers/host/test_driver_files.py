"""Files about the driver: kernel module, device nodes, libraries, MPS daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.evidence import LibrariesReading
from gpucheck.drivers.host.driver_files import (
    SECURE_BOOT,
    library_kind,
    open_nodes,
    read_libraries,
    read_module,
    read_mps,
    read_nodes,
    read_platform,
    read_system,
)
from tests.conftest import drop_root_rights
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree

# ------------------------------------------------------------------------------ all of them


def test_the_pci_devices_of_a_machine(tmp_path: Path) -> None:
    machine = load_machine("h100x8")
    root = write_tree(machine, tmp_path)
    gone = machine.gpus[2].pci_bus_id
    (root / "sys/bus/pci/devices" / gone / "config").write_bytes(b"\xff" * 4)

    system = read_system(root, {})

    answers = {each.pci_bus_id: each.answers for each in system.pci}
    assert len(answers) == 8
    assert [bus_id for bus_id, value in answers.items() if value is False] == [gone]
    assert system.nvswitches == 4
    assert system.module.flavour == "open"


def test_an_empty_root_has_no_pci_devices(tmp_path: Path) -> None:
    system = read_system(tmp_path, {})

    assert (system.pci, system.nvswitches) == ((), 0)


# ----------------------------------------------------------------------------------- modules


KERNEL = "6.8.0-71-generic"


def put(root: Path, path: str, content: str | bytes = "") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)


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


# ----------------------------------------------------------------------------------- devices


def test_a_machine_s_nodes(tmp_path: Path) -> None:
    found = read_nodes(write_tree(load_machine("h100x8"), tmp_path))

    paths = [node.path for node in found.nodes]
    assert paths == sorted(paths)
    assert set(found.expected) <= set(paths)
    # The nodes of the switches and of nvidia-modeset give no access to a GPU.
    assert all(path.startswith("/dev/nvidia") and "switch" not in path for path in paths)
    assert {node.mode for node in found.nodes} == {"0666"}
    assert all(node.accessible for node in found.nodes)


def test_without_a_driver_the_usual_ones_are_expected(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()

    assert read_nodes(tmp_path).expected == ("/dev/nvidiactl", "/dev/nvidia-uvm")


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    assert read_nodes(tmp_path).unavailable == "/dev: No such file or directory"


def test_opening(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()

    found = open_nodes(["/dev/nvidia0", "/dev/nvidia1"], tmp_path, deadline_s=600)

    assert found == {"/dev/nvidia0": None, "/dev/nvidia1": "ENOENT"}


def test_opening_that_hangs_ends(tmp_path: Path) -> None:
    assert open_nodes(["/dev/nvidia0"], tmp_path, deadline_s=0.0) == {}


def test_a_node_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch(mode=0o000)
    text = (
        "import sys; from pathlib import Path\n"
        "from gpucheck.drivers.host.driver_files import read_nodes\n"
        "print(*(node.accessible for node in read_nodes(Path(sys.argv[1])).nodes))"
    )

    # Root opens everything, unless it has lost that right.
    said = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)],
        preexec_fn=drop_root_rights,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout

    assert said == "False\n"


def test_the_files_of_mig_instances_by_the_driver_s_list(tmp_path: Path) -> None:
    listed = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi1/access 30\n"
    (tmp_path / "proc/driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text(listed)
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for minor in (1, 2, 12, 13):
        (tmp_path / f"dev/nvidia-caps/nvidia-cap{minor}").touch(mode=0o444)

    found = read_nodes(tmp_path)

    # The files for administrators are left out, and a missing file is not created.
    assert [cap.path for cap in found.caps] == [
        "/dev/nvidia-caps/nvidia-cap12",
        "/dev/nvidia-caps/nvidia-cap13",
    ]


# --------------------------------------------------------------------------------- libraries


def look(root: Path, path: str = "") -> LibrariesReading:
    return read_libraries(root, {"LD_LIBRARY_PATH": path} if path else {})


def test_the_driver_s_libraries_carry_its_version(tmp_path: Path) -> None:
    machine = load_machine("t4")

    found = {lib.name: lib for lib in look(write_tree(machine, tmp_path)).found}

    assert found["libcuda.so.1"].version == machine.driver.version
    assert found["libcuda.so.1"].kind == "driver"
    assert found["libnvidia-ml.so.1"].path == "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"


def test_ld_library_path_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "opt/compat/libcuda.so.1")
    put(tmp_path, "usr/lib64/libcuda.so.1")

    found = look(tmp_path, "/opt/compat").found

    assert [(lib.path, lib.kind) for lib in found if lib.name == "libcuda.so.1"][:2] == [
        ("/opt/compat/libcuda.so.1", "compat"),
        ("/usr/lib64/libcuda.so.1", "driver"),
    ]


@pytest.mark.parametrize("path", [":", ".", "relative/lib", ""])
def test_nothing_is_taken_from_the_current_directory(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "here/libcuda.so.1")
    monkeypatch.chdir(tmp_path / "here")

    assert not [lib for lib in look(tmp_path / "root", path).found if "here" in lib.path]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/usr/local/cuda/lib64/stubs", "stub"),
        ("/usr/local/cuda-13.0/compat", "compat"),
        ("/usr/lib/wsl/lib", "wsl"),
        ("/usr/lib64", "driver"),
        ("/opt/compatible/lib", "driver"),
    ],
)
def test_kinds(folder: str, kind: str) -> None:
    assert library_kind(folder) == kind


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("version.json", '{"cuda": {"version": "12.4.1"}}', "12.4.1"),
        ("version.txt", "CUDA Version 10.2.89\n", "10.2.89"),
        ("version.json", "no json", "12.4"),
        ("other", "", "12.4"),
    ],
)
def test_toolkits(tmp_path: Path, name: str, text: str, version: str) -> None:
    put(tmp_path, f"usr/local/cuda-12.4/{name}", text)
    (tmp_path / "usr/local/cuda").symlink_to("cuda-12.4")

    (toolkit,) = look(tmp_path).toolkits

    assert toolkit.version == version


# --------------------------------------------------------------------------------------- mps


def daemon(
    root: Path, folder: str, pid: str = "77", name: str = "nvidia-cuda-mps-control\n"
) -> None:
    pipe = root / folder
    pipe.mkdir(parents=True)
    (pipe / "control").touch()
    (pipe / "nvidia-cuda-mps-control.pid").write_text(pid)
    process = root / "proc" / "77"
    process.mkdir(parents=True)
    (process / "comm").write_text(name)


def test_without_a_pipe_there_is_none(tmp_path: Path) -> None:
    running, reason = read_mps({}, tmp_path)

    assert running is False
    assert "/tmp/nvidia-mps" in reason


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-control\n", "nvidia-cuda-mps\n"])
def test_a_pipe_with_its_daemon(tmp_path: Path, name: str) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", name=name)

    assert read_mps({}, tmp_path)[0] is True


def test_the_variable_says_where(tmp_path: Path) -> None:
    daemon(tmp_path, "run/mps")

    assert read_mps({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}, tmp_path)[0] is True
    assert read_mps({}, tmp_path)[0] is False


def test_an_id_that_is_another_programs_now(tmp_path: Path) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", name="sshd\n")

    assert read_mps({}, tmp_path)[0] is False


@pytest.mark.parametrize("pid", ["", "x", "78", "\xe9"])
def test_a_daemon_that_cannot_be_seen_is_not_known(tmp_path: Path, pid: str) -> None:
    daemon(tmp_path, "tmp/nvidia-mps", pid=pid)

    assert read_mps({}, tmp_path)[0] is None


# ---------------------------------------------------------------------------------------- platform


def test_an_empty_root_is_nothing_in_particular(tmp_path: Path) -> None:
    found = read_platform(tmp_path)

    assert (found.dxg, found.tegra, found.hypervisor, found.secure_boot) == (
        False, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (b"", None), (b"\x01", None)],
)
def test_secure_boot(tmp_path: Path, content: bytes, expected: bool | None) -> None:
    put(tmp_path, SECURE_BOOT, content)

    assert read_platform(tmp_path).secure_boot is expected


@pytest.mark.parametrize(("flags", "expected"), [("fpu hypervisor", True), ("fpu", False)])
def test_hypervisor(tmp_path: Path, flags: str, *, expected: bool) -> None:
    put(tmp_path, "proc/cpuinfo", f"processor\t: 0\nflags\t\t: {flags}\n\n".encode())

    assert read_platform(tmp_path).hypervisor is expected


@pytest.mark.parametrize(
    ("path", "content", "told"),
    [
        ("etc/nv_tegra_release", b"# R36 (release)\nmore\n", "# R36 (release)"),
        ("proc/device-tree/compatible", b"nvidia,p3737\0nvidia,tegra234\0", "nvidia,tegra234"),
    ],
)
def test_jetson(tmp_path: Path, path: str, content: bytes, told: str) -> None:
    put(tmp_path, path, content)

    assert read_platform(tmp_path).tegra == told


def test_only_words_about_gpus_are_kept_of_the_command_line(tmp_path: Path) -> None:
    put(tmp_path, "proc/cmdline", b"root=/dev/sda1 secret=x nokaslr modprobe.blacklist=nvidia\n")

    assert read_platform(tmp_path).boot_parameters == ("nokaslr", "modprobe.blacklist=nvidia")
