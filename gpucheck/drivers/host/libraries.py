"""Driver and toolkit libraries that the loader would find, from files below a root.

No library is loaded: the CUDA and NVML children report which file they really got.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpucheck.drivers.evidence import LibrariesReading, LibraryReading, ToolkitReading
from gpucheck.drivers.host.sysfs import read_text

_DRIVER = "cuda|nvidia-ml|nvidia-ptxjitcompiler"
_TOOLKIT = "cudart|nvrtc|cublas|cublasLt|cudnn|cufft|cusolver|cusparse|nccl"
_LIBRARY = re.compile(rf"lib(?:(?P<driver>{_DRIVER})|(?P<toolkit>{_TOOLKIT}))\.so\.[0-9]+")
_FOLDER = re.compile(r"^cuda-([0-9]+\.[0-9]+)$")
_VERSIONED = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)$")
#: The loaders' default folders; those of another architecture simply do not exist.
SYSTEM_FOLDERS = (
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
)


def read_libraries(root: Path, environment: Mapping[str, str]) -> LibrariesReading:
    """List the libraries in loader order: LD_LIBRARY_PATH, configured folders, system folders."""
    seen: set[Path] = set()
    found: list[LibraryReading] = []
    for folder in _search_path(root, environment):
        place = _below(root, folder)
        real = place.resolve()
        if real not in seen:
            seen.add(real)
            found.extend(_in_folder(place, folder))
    return LibrariesReading(found=tuple(found), toolkits=tuple(_toolkits(root)))


def _search_path(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    # Empty and relative entries mean the current directory, which is not searched.
    told = environment.get("LD_LIBRARY_PATH", "").split(":")
    yield from (folder for folder in told if folder.startswith("/"))
    for path in sorted((root / "etc/ld.so.conf.d").glob("*.conf")):
        lines = (read_text(path) or "").splitlines()
        yield from (line.strip() for line in lines if line.startswith("/"))
    yield from SYSTEM_FOLDERS


def _below(root: Path, folder: str) -> Path:
    """Return the folder below the root, or the plain path if only that exists."""
    place = root / folder.lstrip("/")
    return place if place.is_dir() else Path(folder)


def _in_folder(place: Path, folder: str) -> Iterator[LibraryReading]:
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
                kind="toolkit" if match and match["toolkit"] else kind_of(folder),
            )


def kind_of(folder: str) -> str:
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
