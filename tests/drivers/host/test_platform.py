"""Platform facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.drivers.host.platform import SECURE_BOOT, read_platform


def put(root: Path, path: str, content: bytes = b"") -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


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
