"""Do the CUDA toolkits and libraries in the loader's path fit the driver and the GPUs?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from gpucheck.detect.cuda_versions import (
    MATCHING_DRIVER,
    newer_driver_for,
    parse_version,
    show_version,
    too_old_for,
)
from gpucheck.detect.findings import make_finding, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import ToolkitReading
from gpucheck.inventory.condition import Trouble
from gpucheck.inventory.inventory import cuda_version
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "toolkit-libraries"
LAYER = Layer.TOOLKIT
REQUIRES: tuple[str, ...] = ()

_finding = partial(make_finding, ID, LAYER)
_trouble = partial(make_trouble, ID)

#: The usual path of the toolkit in use.
LINK = "/usr/local/cuda"
REQUIRE = "NVIDIA_REQUIRE_CUDA"
_REQUIRED = re.compile(r"cuda>=([0-9]+)\.([0-9]+)")
#: The cause, by the kind of library.
FOREIGN_LIBCUDA = {"stub": "stub-in-front", "compat": "compat-in-front"}


def check(machine: Machine) -> Finding:
    """Judge the loader's path and the toolkits; what works outweighs the tables."""
    if machine.system.unavailable is not None:
        summary = f"not checked: {machine.system.unavailable}"
        return _finding(CheckStatus.SKIP, summary)
    troubles = [
        *_foreign_libcuda(machine),
        *_linux_driver(machine),
        *_toolkits(machine),
        *_image(machine),
    ]
    if troubles:
        return _finding(
            CheckStatus.WARN,
            "; ".join(trouble.summary for trouble in troubles),
            *(item for trouble in troubles for item in trouble.evidence),
            remedy=tuple(dict.fromkeys(step for trouble in troubles for step in trouble.remedy)),
            cause=troubles[0].cause,
        )
    return _fits(machine)


def _foreign_libcuda(machine: Machine) -> Iterator[Trouble]:
    """Find a stub or a compatibility library before the driver's own libcuda."""
    for library in machine.system.libraries.found:
        if not library.name.startswith("libcuda.so"):
            continue
        # A compatibility library with which CUDA works is there on purpose.
        wanted = library.kind == "compat" and bool(machine.cuda.device_count)
        if library.kind in FOREIGN_LIBCUDA and not wanted:
            folder = library.path.rpartition("/")[0]
            evidence = Evidence(library.name, library.path)
            yield _trouble(FOREIGN_LIBCUDA[library.kind], evidence, folder=folder)
        return


def _linux_driver(machine: Machine) -> Iterator[Trouble]:
    """On WSL2, find the libraries of a Linux driver, which may hide those of Windows."""
    drivers = [
        library
        for library in machine.system.libraries.found
        if library.kind == "driver" and library.path.startswith("/usr/lib")
    ]
    if machine.is_wsl and drivers:
        files = (Evidence(library.name, library.path) for library in drivers)
        yield _trouble("linux-driver-in-wsl", *files)


def _used_by(machine: Machine, toolkit: ToolkitReading) -> Evidence | None:
    """Return the variable that leads programs to a toolkit; an unused toolkit is no problem.

    `/usr/local/cuda` is a link to one of them; the reading does not have its target.
    """
    for name, text in machine.environment.items():
        for entry in text.split(":"):
            folder = entry.rstrip("/")
            if any(
                folder == path or folder.startswith(f"{path}/") for path in (toolkit.path, LINK)
            ):
                return Evidence(name, repr(text))
    return None


def _toolkits(machine: Machine) -> Iterator[Trouble]:
    driver = machine.nvml.driver_version
    oldest = min(
        (gpu.compute_capability for gpu in machine.nvml.gpus if gpu.compute_capability),
        key=lambda text: parse_version(text) or (),
        default=None,
    )
    for toolkit in machine.system.libraries.toolkits:
        used_by = _used_by(machine, toolkit)
        if used_by is None:
            continue
        evidence = (Evidence(toolkit.path, toolkit.version or "?"), used_by)
        least = newer_driver_for(toolkit.version, driver, windows=machine.is_wsl)
        if least is not None:
            yield _trouble(
                "toolkit-newer-than-driver",
                *evidence,
                version=toolkit.version,
                needed=least,
                driver=driver,
            )
        elif too_old_for(toolkit.version, oldest):
            yield _trouble(
                "toolkit-without-architecture",
                *evidence,
                version=toolkit.version,
                capability=oldest,
            )


def _image(machine: Machine) -> Iterator[Trouble]:
    """Compare the CUDA of the container's image with what the driver offers."""
    required = _REQUIRED.match(machine.environment.get(REQUIRE, ""))
    if required is None or machine.nvml.failure is not None:
        return
    # Not NVML's version: with a compatibility library the driver offers a newer CUDA.
    offered = machine.cuda.driver_version
    if not offered:
        return
    wanted = (int(required[1]), int(required[2]))
    if wanted > (offered // 1000, offered % 1000 // 10):
        yield _trouble(
            "image-newer-than-driver",
            Evidence(REQUIRE, repr(machine.environment[REQUIRE])),
            version=f"{required[1]}.{required[2]}",
            offered=cuda_version(offered),
        )


def _fits(machine: Machine) -> Finding:
    libraries = machine.system.libraries
    names = ", ".join(toolkit.version or f"in {toolkit.path}" for toolkit in libraries.toolkits)
    none = "no CUDA toolkit is installed; frameworks bring their own libraries"
    notes = [
        Evidence(toolkit.path, _toolkit_note(machine, toolkit)) for toolkit in libraries.toolkits
    ]
    if libraries.found and libraries.found[0].kind == "compat":
        works = "a compatibility library with which CUDA works"
        notes.insert(0, Evidence(libraries.found[0].path, works))
    return _finding(CheckStatus.OK, f"CUDA toolkit {names}" if names else none, *notes)


def _toolkit_note(machine: Machine, toolkit: ToolkitReading) -> str:
    """Return a toolkit's version, and the driver that its programs need."""
    value = toolkit.version or "?"
    driver = machine.nvml.driver_version
    least = newer_driver_for(toolkit.version, driver, windows=machine.is_wsl)
    if least is not None:
        return f"{value}; not in use: its programs need driver {least} or newer"
    mine = None if machine.is_wsl else parse_version(driver)
    version = parse_version(toolkit.version)
    matching = MATCHING_DRIVER.get(version[:2]) if version else None
    if mine and matching and mine < matching:
        value += f"; came with driver {show_version(matching)}: newer code may not compile (222)"
    return value
