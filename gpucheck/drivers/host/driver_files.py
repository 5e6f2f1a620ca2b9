"""Files about the driver below a root: platform, kernel module, device nodes, libraries, MPS.

No library of the driver is called and none is loaded: the NVML and CUDA children report which file
they really got. Listing device nodes only reads the file system. Opening one may wake a driver that
hangs, so a child does that, and only after a library has failed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpucheck.drivers.child import Child, ChildError
from gpucheck.drivers.evidence import (
    LibrariesReading,
    LibraryReading,
    ModuleReading,
    NodeReading,
    NodesReading,
    PciDetailReading,
    PlatformReading,
    SystemReading,
    ToolkitReading,
)
from gpucheck.drivers.host.kernel_log import read_kernel_log
from gpucheck.drivers.host.sysfs import (
    DISPLAY_CLASSES,
    nvidia_devices,
    other_vendors,
    read_minors,
    read_text,
    value_of,
)

#: The PCI class of unusual bridges: NVIDIA's are NVSwitches.
_OTHER_BRIDGE = "0x0680"


def read_system(root: Path, environment: Mapping[str, str]) -> SystemReading:
    """Read everything below the root; missing parts are null."""
    release = read_text(root / "proc/sys/kernel/osrelease") or os.uname().release
    try:
        devices = nvidia_devices(root)
    except OSError:
        devices = []
    gpus = [path for path, kind in devices if kind.startswith(DISPLAY_CLASSES)]
    return SystemReading(
        platform=read_platform(root),
        pci=tuple(
            PciDetailReading(
                pci_bus_id=path.name.lower(),
                answers=_answers(path / "config"),
                runtime_status=read_text(path / "power/runtime_status"),
            )
            for path in gpus
        ),
        nvswitches=sum(kind.startswith(_OTHER_BRIDGE) for _, kind in devices),
        module=read_module(root, release),
        nodes=read_nodes(root),
        libraries=read_libraries(root, environment),
        log=read_kernel_log(root),
    )


def _answers(config: Path) -> bool | None:
    """Return whether the device's registers can be read: a lost device reads as all ones."""
    try:
        with config.open("rb") as file:
            head = file.read(4)
    except OSError:
        return None
    return head != b"\xff\xff\xff\xff" if len(head) == 4 else None


# ---------------------------------------------------------------------------------------- platform

#: The firmware variable that says whether unsigned modules are rejected.
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
#: Words of the kernel's command line that affect GPU drivers.
_BOOT_WORDS = ("nokaslr", "nouveau", "nvidia", "modprobe.blacklist", "module_blacklist", "nova")
#: The first CPU's lines suffice; on a large machine the kernel takes long to write them all.
_CPUINFO_BYTES = 8192


def read_platform(root: Path) -> PlatformReading:
    """Read the signs of WSL2, Jetson, a hypervisor, Secure Boot and a laptop's graphics switch."""
    words = (read_text(root / "proc/cmdline") or "").split()
    return PlatformReading(
        dxg=(root / "dev/dxg").exists(),
        tegra=_tegra(root),
        hypervisor=_hypervisor(root),
        secure_boot=_secure_boot(root),
        boot_parameters=tuple(word for word in words if word.startswith(_BOOT_WORDS)),
        prime_profile=read_text(root / "etc/prime-discrete"),
        # The kernel tells it from 6.1 on.
        machine=read_text(root / "proc/sys/kernel/arch") or os.uname().machine,
        other_vendors=other_vendors(root),
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
    flags = value_of(head, "flags")
    return None if flags is None else "hypervisor" in flags.split()


def _secure_boot(root: Path) -> bool | None:
    try:
        content = (root / SECURE_BOOT).read_bytes()
    except OSError:
        return None
    # Four bytes of attributes, then the value.
    return content[-1] == 1 if len(content) == 5 else None


# ----------------------------------------------------------------------------------- kernel module

#: Debian adds the branch to the name: nvidia-current.ko.
_MODULE_FILE = re.compile(r"(?:^|/)nvidia(?:-current)?\.ko(?:\.(?:gz|xz|zst))?$")
_BLOCKING = re.compile(
    r"\s*(?:blacklist\s+nvidia|alias\s+nvidia\s+off|install\s+nvidia\s+/\S*(?:false|true))\s*$"
)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes\s*$", re.MULTILINE)
MODPROBE_FOLDERS = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d", "lib/modprobe.d")


def read_module(root: Path, release: str) -> ModuleReading:
    """Read where the module is, what keeps it from loading, and its own files.

    `release` is the running kernel's (`uname -r`).
    """
    modules = root / "lib/modules"
    gpus = _driver_gpus(root)
    text = read_text(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    return ModuleReading(
        installed=_module_files(modules / release),
        other_kernels=tuple(_other_kernels(modules, release)),
        dkms_versions=tuple(_dkms_versions(root)),
        blocked_by=tuple(_blocking_lines(root)),
        flavour=_flavour(root),
        driver_gpus=gpus,
        excluded_gpus=tuple(gpu for gpu in gpus or () if _is_excluded(root, gpu)),
        hmm_disabled=None if text is None else text in ("Y", "1"),
    )


def _module_files(folder: Path) -> tuple[str, ...] | None:
    """Return the module's files for one kernel, or None if that kernel has no folder."""
    listed = read_text(folder / "modules.dep")
    if listed is None:
        return None
    names = (line.partition(":")[0] for line in listed.splitlines())
    return tuple(name for name in names if _MODULE_FILE.search(name))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return []


def _other_kernels(modules: Path, release: str) -> Iterator[str]:
    for folder in _folders(modules):
        if folder.name != release and _module_files(folder):
            yield folder.name


def _dkms_versions(root: Path) -> Iterator[str]:
    for package in _folders(root / "var/lib/dkms"):
        if package.name.startswith("nvidia"):
            yield from (
                f"{package.name}/{v.name}" for v in _folders(package) if v.name[0].isdigit()
            )


def _blocking_lines(root: Path) -> Iterator[str]:
    for name in MODPROBE_FOLDERS:
        for path in sorted((root / name).glob("*.conf")):
            for line in (read_text(path) or "").splitlines():
                if _BLOCKING.match(line):
                    yield f"/{name}/{path.name}: {line.strip()}"


def _flavour(root: Path) -> str | None:
    text = read_text(root / "proc/driver/nvidia/version")
    if text is None:
        return None
    return "open" if "Open Kernel Module" in text else "proprietary"


def _driver_gpus(root: Path) -> tuple[str, ...] | None:
    folder = root / "proc/driver/nvidia/gpus"
    if not (root / "proc/driver/nvidia").is_dir():
        return None
    return tuple(entry.name.lower() for entry in _folders(folder))


def _is_excluded(root: Path, gpu: str) -> bool:
    text = read_text(root / "proc/driver/nvidia/gpus" / gpu / "information") or ""
    return _EXCLUDED.search(text) is not None


# ------------------------------------------------------------------------------------ device nodes

_GPU_NODE = re.compile(r"nvidia(?:ctl|-uvm|[0-9]+)")
#: As `gpu0/gi1/access 12`; the other lines are for administrators. Source: MIG User Guide.
_ACCESS = re.compile(r"^gpu\S*/access ([0-9]+)$", re.MULTILINE)


def read_nodes(root: Path) -> NodesReading:
    """Read the nodes that programs need, and name those that are expected."""
    folder = root / "dev"
    try:
        names = sorted(name for name in os.listdir(folder) if _GPU_NODE.fullmatch(name))  # noqa: PTH208
    except OSError as error:
        return NodesReading(unavailable=f"/dev: {error.strerror}", expected=_expected(root))
    nodes = tuple(_node(root, folder / name) for name in names)
    return NodesReading(nodes=nodes, expected=_expected(root), caps=tuple(_caps(root)))


def _caps(root: Path) -> Iterator[NodeReading]:
    """Read the files that give access to MIG instances, from the driver's list of minor numbers."""
    listed = read_text(root / "proc/driver/nvidia-caps/mig-minors") or ""
    for minor in _ACCESS.findall(listed):
        path = root / f"dev/nvidia-caps/nvidia-cap{minor}"
        if path.exists():
            yield _node(root, path)


def _node(root: Path, path: Path) -> NodeReading:
    shown = f"/{path.relative_to(root)}"
    try:
        facts = path.stat()
    except OSError:
        return NodeReading(path=shown)
    return NodeReading(
        path=shown,
        mode=f"{stat.S_IMODE(facts.st_mode):04o}",
        owner=facts.st_uid,
        group=facts.st_gid,
        accessible=os.access(path, os.R_OK | os.W_OK),
    )


def _expected(root: Path) -> tuple[str, ...]:
    """Return the nodes by the minor numbers in the driver's own files."""
    minors = (minor for gpu, minor in read_minors(root).items() if not _is_excluded(root, gpu))
    gpus = [f"/dev/nvidia{minor}" for minor in sorted(minors)]
    return ("/dev/nvidiactl", *gpus, "/dev/nvidia-uvm")


def open_nodes(paths: Iterable[str], root: Path, *, deadline_s: float) -> Mapping[str, str | None]:
    """Open each node in a child; return its error or None. Those not tried in time are left out."""
    opened: dict[str, str | None] = {}
    with suppress(ChildError), Child(__name__, str(root), *paths) as child:
        for document in child.documents(deadline_s):
            if "path" not in document:
                break
            opened[document["path"]] = document["error"]
    return opened


def main(root: str, *paths: str) -> None:
    """Open each node and write its result in one line, then an empty object: the child does this.

    A device cgroup shows only when an open fails although the file's mode allows it.
    """
    for path in paths:
        error = None
        try:
            os.close(os.open(root.rstrip("/") + path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as refused:
            error = errno.errorcode.get(refused.errno or 0, "error")
        sys.stdout.write(json.dumps({"path": path, "error": error}) + "\n")
        sys.stdout.flush()
    sys.stdout.write("{}\n")


# --------------------------------------------------------------------------------------- libraries

_DRIVER = "cuda|nvidia-ml|nvidia-ptxjitcompiler"
_TOOLKIT = "cudart|nvrtc|cublas|cublasLt|cudnn|cufft|cusolver|cusparse|nccl"
_LIBRARY = re.compile(rf"lib(?:(?P<driver>{_DRIVER})|(?P<toolkit>{_TOOLKIT}))\.so\.[0-9]+")
_FOLDER = re.compile(r"^cuda-([0-9]+\.[0-9]+)$")
_VERSIONED = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)$")
#: The loaders' default folders; those of another architecture simply do not exist.
SYSTEM_FOLDERS = (
    "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/usr/lib", "/usr/local/lib", "/usr/local/nvidia/lib64",
)  # fmt: skip


def read_libraries(root: Path, environment: Mapping[str, str]) -> LibrariesReading:
    """List the libraries in loader order: LD_LIBRARY_PATH, configured folders, system folders."""
    seen: set[Path] = set()
    libraries: list[LibraryReading] = []
    for folder in _search_path(root, environment):
        place = _below(root, folder)
        real = place.resolve()
        if real not in seen:
            seen.add(real)
            libraries.extend(_list_folder(place, folder))
    return LibrariesReading(found=tuple(libraries), toolkits=tuple(_toolkits(root)))


def _search_path(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    # Empty and relative entries mean the current directory, which is not searched.
    listed = environment.get("LD_LIBRARY_PATH", "").split(":")
    yield from (folder for folder in listed if folder.startswith("/"))
    for path in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        lines = (read_text(path) or "").splitlines()
        yield from (line.strip() for line in lines if line.startswith("/"))
    yield from SYSTEM_FOLDERS


def _below(root: Path, folder: str) -> Path:
    """Return the folder below the root, or the plain path if only that exists."""
    place = root / folder.lstrip("/")
    return place if place.is_dir() else Path(folder)


def _list_folder(place: Path, folder: str) -> Iterator[LibraryReading]:
    try:
        names = sorted(os.listdir(place))  # noqa: PTH208 - a folder of thousands
    except OSError:
        return
    stubs = Path(folder).name == "stubs"
    for name in names:
        match = _LIBRARY.fullmatch(name)
        if match or (stubs and name in ("libcuda.so", "libnvidia-ml.so")):
            yield LibraryReading(
                name=name,
                path=f"{folder.rstrip('/')}/{name}",
                version=_version(place / name),
                kind="toolkit" if match and match["toolkit"] else library_kind(folder),
            )


def library_kind(folder: str) -> str:
    """Classify a driver library in this folder: driver, stub, compat or wsl."""
    parts = Path(folder).parts
    if "stubs" in parts:
        return "stub"
    if "compat" in parts:
        return "compat"
    return "wsl" if "wsl" in parts else "driver"


def _version(path: Path) -> str | None:
    """Return the version in the real file's name."""
    try:
        match = _VERSIONED.search(path.resolve().name)
    except OSError:  # a loop of links
        return None
    return match[1] if match else None


def _toolkits(root: Path) -> Iterator[ToolkitReading]:
    seen: set[Path] = set()
    for folder in sorted((root / "usr/local").glob("cuda*")):
        real = folder.resolve()
        if real in seen or not real.is_dir():
            continue
        seen.add(real)
        yield ToolkitReading(path=f"/usr/local/{folder.name}", version=_toolkit_version(folder))


def _toolkit_version(folder: Path) -> str | None:
    try:
        return str(json.loads(read_text(folder / "version.json") or "")["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        words = (read_text(folder / "version.txt") or "").split()
        if words:
            return words[-1]
    named = _FOLDER.search(folder.resolve().name)
    return named[1] if named else None


# -------------------------------------------------------------------------------------- MPS daemon

#: The default folder where daemon and clients meet. Source: NVIDIA's MPS guide.
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPE = "/tmp/nvidia-mps"  # the daemon's own default, not a file of ours
#: The names of the daemon and of its servers begin with this.
DAEMON = "nvidia-cuda-mps"


def read_mps(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[bool | None, str]:
    """Look for the control daemon's pipe and for the daemon: whether it runs, and why we say so.

    It is null if there is a daemon's pipe but the daemon cannot be seen.
    """
    directory = environment.get(PIPE_VARIABLE) or DEFAULT_PIPE
    inside = root / directory.lstrip("/")
    try:
        if not (inside / "control").exists():
            return False, f"no MPS daemon has its pipe in {directory}"
        pid = int((inside / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))
        name = (root / "proc" / str(pid) / "comm").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        reason = f"there is an MPS pipe in {directory}, but its daemon cannot be seen from here"
        return None, reason
    if name.startswith(DAEMON):
        return True, f"the MPS daemon {pid} serves {directory}"
    return False, f"the MPS daemon of {directory} has ended"
