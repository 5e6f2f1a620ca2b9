"""Platform facts from files below a root: WSL2, Jetson, hypervisor, Secure Boot."""

from __future__ import annotations

from pathlib import Path

from gpucheck.drivers.evidence import PlatformReading
from gpucheck.drivers.host.sysfs import read_text

#: The firmware variable that says whether unsigned modules are rejected.
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
#: Words of the kernel's command line that affect GPU drivers.
_BOOT_WORDS = ("nokaslr", "nouveau", "nvidia", "modprobe.blacklist", "module_blacklist", "nova")
#: The first CPU's lines suffice; on a large machine the kernel takes long to write them all.
_CPUINFO_BYTES = 8192


def read_platform(root: Path) -> PlatformReading:
    """Read the signs of WSL2, Jetson, a hypervisor, Secure Boot and a laptop's graphics switch."""
    return PlatformReading(
        dxg=(root / "dev/dxg").exists(),
        tegra=_tegra(root),
        hypervisor=_hypervisor(root),
        secure_boot=_secure_boot(root),
        boot_parameters=_boot_parameters(root),
        prime_profile=read_text(root / "etc/prime-discrete"),
    )


def _tegra(root: Path) -> str | None:
    release = read_text(root / "etc/nv_tegra_release")
    if release is not None:
        return release.partition("\n")[0]
    compatible = read_text(root / "proc/device-tree/compatible") or ""
    return next((name for name in compatible.split("\0") if name.startswith("nvidia,tegra")), None)


def _hypervisor(root: Path) -> bool | None:
    try:
        with (root / "proc/cpuinfo").open("rb") as file:
            head = file.read(_CPUINFO_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    for line in head.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return "hypervisor" in value.split()
    return None


def _secure_boot(root: Path) -> bool | None:
    try:
        content = (root / SECURE_BOOT).read_bytes()
    except OSError:
        return None
    # Four bytes of attributes, then the value.
    return content[-1] == 1 if len(content) == 5 else None


def _boot_parameters(root: Path) -> tuple[str, ...]:
    words = (read_text(root / "proc/cmdline") or "").split()
    return tuple(word for word in words if word.startswith(_BOOT_WORDS))
