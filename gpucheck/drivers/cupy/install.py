"""Command that installs CuPy: for this driver, and the way gpucheck itself was installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from gpucheck.drivers.readings import CudaReading
from gpucheck.report.codec import from_plain

DISTRIBUTION = "gpucheck-cli"
#: Major versions of CUDA that gpucheck has an extra for.
_CUDA = (12, 13)
#: Driver version (as cuDriverGetVersion counts) and compute capability that CUDA 13 needs.
_CUDA_13, _CUDA_13_CAPABILITY = 13000, (7, 5)


class Installation(NamedTuple):
    """The way gpucheck was installed.

    `origin` is direct_url.json of PEP 610, empty for a package from an index; `requires` are the
    requirements in the metadata.
    """

    prefix: str
    executable: str
    installer: str
    origin: Mapping[str, object]
    requires: tuple[str, ...]


def install_cupy(cuda: int | None = None, reading: CudaReading | None = None) -> tuple[str, ...]:
    """Return the step that installs CuPy with its libraries.

    It is for the major version `cuda`, else for that of the CuPy that is installed (two exclude
    each other), else for this machine's driver: what `reading` says of it, or CUDA in this process.
    """
    cuda = cuda or _installed_cuda()
    wanted = f"cuda{cuda}" if cuda in _CUDA else extra(*_driver(reading or _ask_driver()))
    return (f"Install it: {command(installation(), wanted)}",)


def _installed_cuda() -> int | None:
    """Return the CUDA version of the CuPy wheel in this Python, None without one."""
    for cuda in _CUDA:
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.distribution(f"cupy-cuda{cuda}x")
            return cuda
    return None


def extra(driver_version: int | None, least_capability: tuple[int, int] | None) -> str:
    """Return the extra of gpucheck for a driver: CUDA 13 needs a new driver and no old card."""
    old_card = least_capability is not None and least_capability < _CUDA_13_CAPABILITY
    return "cuda13" if (driver_version or 0) >= _CUDA_13 and not old_card else "cuda12"


def _ask_driver() -> CudaReading:
    """Return what libcuda reports in this process."""
    from gpucheck.drivers.cuda.worker import read

    return from_plain(CudaReading, read())


def _driver(reading: CudaReading) -> tuple[int | None, tuple[int, int] | None]:
    """Return the driver's CUDA, and the oldest compute capability, from libcuda's answer."""
    capabilities = [
        (int(major), int(minor))
        for device in reading.devices
        if device.compute_capability
        for major, _, minor in [device.compute_capability.partition(".")]
    ]
    return reading.driver_version, min(capabilities, default=None)


def installation() -> Installation:
    """Return how this gpucheck was installed; a checkout on the path counts as one."""
    origin: Mapping[str, object] = {}
    installer = "pip"
    requires: tuple[str, ...] = ()
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        root = Path(__file__).parents[3]
        origin = {"url": root.as_uri(), "dir_info": {"editable": True}}
    else:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        installer = (distribution.read_text("INSTALLER") or "pip").strip()
        requires = tuple(distribution.requires or ())
    return Installation(sys.prefix, sys.executable, installer, origin, requires)


def command(installed: Installation, extra: str) -> str:
    """Return the command that adds an extra to an installation."""
    # Both write a file of their own into the environment, whose folder can be chosen.
    here = Path(installed.prefix)
    folders = here.parts
    if folders[-3:-1] == ("pipx", "venvs") or (here / "pipx_metadata.json").is_file():
        wanted = [
            line.partition(";")[0].strip()
            for line in installed.requires
            if f"extra == '{extra}'" in line.replace('"', "'")
        ]
        return shlex.join(["pipx", "inject", folders[-1], *wanted])
    source = _source(installed.origin, extra)
    if folders[-3:-1] == ("uv", "tools") or (here / "uv-receipt.toml").is_file():
        return f"uv tool install {source}"
    return f"{_installer(installed)} {source}"


def _source(origin: Mapping[str, object], extra: str) -> str:
    """Return what to install: the checkout, the file, the repository, or the name."""
    url = str(origin.get("url") or "")
    if not url:
        return shlex.quote(f"{DISTRIBUTION}[{extra}]")
    if url.startswith("file:") and "vcs_info" not in origin:
        path = _file_path(url)
        here = "." if os.path.realpath(path) == os.path.realpath(os.curdir) else path
        kind = origin.get("dir_info")
        editable = isinstance(kind, dict) and kind.get("editable")
        return f"{'-e ' if editable else ''}{shlex.quote(f'{here}[{extra}]')}"
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs', 'git')}+{url}"
    # The command may be read by others: no user or password.
    url = re.sub(r"//[^/@]*@", "//", url)
    return shlex.quote(f"{DISTRIBUTION}[{extra}] @ {url}")


def _file_path(url: str) -> str:
    """Return the path of a file: URL."""
    coded = os.fsencode(url.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    path = re.sub(rb"%([0-9a-fA-F]{2})", lambda match: bytes([int(match[1], 16)]), coded)
    return os.fsdecode(path)


def _installer(installed: Installation) -> str:
    """Return the install command of this Python, in as few words as a shell here needs."""
    own = Path(installed.executable).parent / "pip"
    if own.exists():
        pip = "pip" if shutil.which("pip") == str(own) else shlex.quote(str(own))
        return f"{pip} install"
    python = shlex.quote(installed.executable)
    if installed.installer == "uv":
        active = os.environ.get("VIRTUAL_ENV") == installed.prefix
        return "uv pip install" if active else f"uv pip install --python {python}"
    return f"{python} -m pip install"
