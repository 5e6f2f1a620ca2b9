"""Do the CUDA toolkits and libraries in the loader's path fit the driver and the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.core.checks.machine import Machine
from gpucheck.core.cuda_versions import (
    MATCHING_DRIVER,
    is_driver_too_old,
    minimum_driver,
    parse_version,
    show_version,
    too_old_for,
)
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer

ID = "toolkit-libraries"
LAYER = Layer.TOOLKIT
REQUIRES: tuple[str, ...] = ()

ABOUT = About(
    looks_at=(
        "LD_LIBRARY_PATH, /etc/ld.so.conf.d and the system's folders: every libcuda.so.1 in them",
        "/usr/local/cuda*/version.json",
    ),
    why="A stub or compatibility libcuda in front of the driver's own breaks CUDA; a toolkit newer"
    " than the driver builds programs that do not run. Frameworks bring their own libraries.",
    rules=(
        "warn: a stub or compat libcuda comes first",
        "warn: a toolkit's major version needs a newer driver (CUDA 11: 450.80.02, 12: 525.60.13,"
        " 13: 580)",
        "warn: a toolkit has no code for a GPU that is here (CUDA 13: below 7.5)",
    ),
    sources=(
        "NVIDIA, CUDA Compatibility: minimum driver versions",
        "CUDA Toolkit Release Notes: toolkit and driver versions; CUDA 13.0: dropped architectures",
    ),
)


def check(machine: Machine) -> Finding:
    """Judge the loader's path and the toolkits; the tables yield to what was seen to work."""
    if machine.system.unavailable is not None:
        summary = f"not checked: {machine.system.unavailable}"
        return Finding(id=ID, layer=LAYER, status=CheckStatus.SKIP, summary=summary)
    troubles = [*_in_front(machine), *_toolkits(machine)]
    if troubles:
        return Finding(
            id=ID,
            layer=LAYER,
            status=CheckStatus.WARN,
            summary="; ".join(summary for summary, _, _ in troubles),
            evidence=tuple(evidence for _, evidence, _ in troubles),
            remedy=tuple(dict.fromkeys(remedy for _, _, remedy in troubles)),
        )
    return Finding(
        id=ID, layer=LAYER, status=CheckStatus.OK, summary=_summary(machine),
        evidence=tuple(_remarks(machine)),
    )  # fmt: skip


Trouble = tuple[str, Evidence, str]


def _in_front(machine: Machine) -> Iterator[Trouble]:
    """Find a libcuda before the driver's own that is none of a driver."""
    for library in machine.system.libraries.found:
        if not library.name.startswith("libcuda.so"):
            continue
        if library.kind not in ("stub", "compat"):
            return
        folder = library.path.rpartition("/")[0]
        what = "the toolkit's stub" if library.kind == "stub" else "a compatibility library"
        yield (
            f"the first libcuda in the loader's path is {what}",
            Evidence(source=library.name, value=library.path),
            f"Take {folder} out of LD_LIBRARY_PATH.",
        )
        return


def _toolkits(machine: Machine) -> Iterator[Trouble]:
    driver = machine.nvml.driver_version
    oldest = min(
        (gpu.compute_capability for gpu in machine.nvml.gpus if gpu.compute_capability),
        key=lambda text: parse_version(text) or (),
        default=None,
    )
    for toolkit in machine.system.libraries.toolkits:
        evidence = Evidence(source=toolkit.path, value=toolkit.version or "?")
        if is_driver_too_old(toolkit.version, driver):
            least = show_version(minimum_driver(toolkit.version) or ())
            yield (
                f"CUDA {toolkit.version} needs driver {least} or newer, this is {driver}",
                evidence,
                "Upgrade the driver, or build with an older toolkit.",
            )
        elif too_old_for(toolkit.version, oldest):
            yield (
                f"CUDA {toolkit.version} has no code for compute capability {oldest}",
                evidence,
                "Build for this GPU with a CUDA 12 toolkit.",
            )


def _summary(machine: Machine) -> str:
    toolkits = machine.system.libraries.toolkits
    if not toolkits:
        return "no CUDA toolkit is installed; frameworks bring their own libraries"
    return "CUDA toolkit " + ", ".join(toolkit.version or "?" for toolkit in toolkits)


def _remarks(machine: Machine) -> Iterator[Evidence]:
    driver = parse_version(machine.nvml.driver_version)
    for toolkit in machine.system.libraries.toolkits:
        value = toolkit.version or "?"
        version = parse_version(toolkit.version)
        matching = MATCHING_DRIVER.get(version[:2]) if version else None
        if driver and matching and driver < matching:
            value += (
                f"; came with driver {show_version(matching)}: newer code may not compile (222)"
            )
        yield Evidence(source=toolkit.path, value=value)
