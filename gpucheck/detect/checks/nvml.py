"""Does the driver answer through NVML, and for every GPU?"""

from __future__ import annotations

import re
from functools import partial

from gpucheck.detect.cuda_versions import parse_version
from gpucheck.detect.findings import (
    explain_finding,
    make_finding,
    make_trouble,
    problem_in_log,
    report_cause,
    wrong_flavour,
)
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.remedies import install_libraries, start_with_gpus, steps_for_gpu
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.inventory.inventory import UNDECIDED
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "nvml"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("pci-device", "kernel-module", "device-nodes")

_finding = partial(make_finding, ID, LAYER)

LIBRARY = "libnvidia-ml.so.1"
_report = partial(report_cause, ID, LAYER, library=LIBRARY)

#: The host's driver was upgraded, and the container still has the libraries of the one before.
OLD_CONTAINER = (
    "Recreate the container: it holds libraries of a driver that its host no longer runs.",
    "If that does not help, the image has them: remove the driver's libraries from the image.",
)

_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)")


def check(machine: Machine) -> Finding:
    """Judge the NVML reading."""
    reading = machine.nvml
    failure = reading.failure
    if failure is None and not reading.gpu_count:
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    if failure is None:
        return _answered(machine, reading)
    if machine.is_jetson and failure.code == "library-not-found":
        return _finding(CheckStatus.SKIP, "Jetson: its driver comes without NVML")
    return _failed(machine, failure)


# ------------------------------------------------------------------------------ refused


def _failed(machine: Machine, failure: ProbeFailure) -> Finding:
    code = "" if failure.library_code is None else f"NVML error {failure.library_code}"
    error = Evidence(failure.function or "NVML", code or failure.code)
    finding = EXPLAIN.get(failure.code, _plain)(machine, failure)
    answering = [str(gpu.index) for gpu in machine.nvml.gpus if gpu.failure is None]
    others = Evidence("GPUs that answer", ", ".join(answering))
    return finding._replace(
        status=CheckStatus.UNKNOWN if failure.code in UNDECIDED else CheckStatus.FAIL,
        evidence=(error, *finding.evidence, *(others,) * bool(answering)),
    )


def _plain(machine: Machine, failure: ProbeFailure) -> Finding:
    return _report(failure.code, summary=failure.message)


def _no_library(machine: Machine, failure: ProbeFailure) -> Finding:
    libraries = [lib for lib in machine.system.libraries.found if lib.name == LIBRARY]
    evidence = tuple(Evidence(lib.path, "present, not loaded") for lib in libraries)
    if machine.is_container:
        return _no_library_in_container(machine, evidence)
    if machine.is_wsl:
        return _report("wsl-library-path", *evidence)
    if libraries:
        return _report("library-not-in-the-path", *evidence)
    if machine.kernel.module_loaded:
        return _report(
            failure.code,
            summary=f"{LIBRARY} is not installed, though the driver's kernel module is loaded",
            remedy=(install_libraries(machine),),
        )
    return _plain(machine, failure)


def _no_library_in_container(machine: Machine, evidence: tuple[Evidence, ...]) -> Finding:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    if capabilities is not None and not has_capability(capabilities, "utility"):
        variable = Evidence(name, repr(capabilities))
        return _report("container-without-utility", *evidence, variable)
    return _report("container-without-gpus", *evidence, remedy=start_with_gpus(machine))


def has_capability(capabilities: str, wanted: str) -> bool:
    """Return whether NVIDIA_DRIVER_CAPABILITIES contains this capability."""
    words = {word.strip() for word in capabilities.split(",")}
    return bool(words & {wanted, "all"})


def _two_versions(machine: Machine, failure: ProbeFailure) -> Finding:
    loaded = machine.kernel.module_version
    path = machine.nvml.library_path or next(
        (
            f"{LIBRARY.removesuffix('1')}{lib.version}"
            for lib in machine.system.libraries.found
            if lib.name == LIBRARY and lib.version
        ),
        None,
    )
    version = _VERSION.search(path or "")
    summary = failure.message
    if version is not None or loaded is not None:
        mine = version[1] if version else "unknown"
        summary = (
            f"the driver's library is version {mine}, but the loaded kernel module is"
            f" version {loaded or 'unknown'}"
        )
    if version is not None and loaded == version[1]:
        summary = (
            "NVML reports that the driver's library and the loaded kernel module differ in version,"
            f" but both read as {loaded}"
        )
    evidence = [Evidence("/sys/module/nvidia/version", loaded or "unreadable")]
    if path is not None:
        evidence.append(Evidence(LIBRARY, path))
    old = machine.is_container and _is_older(version[1] if version else None, loaded)
    remedy = OLD_CONTAINER if old else None
    return _report(failure.code, *evidence, summary=summary, remedy=remedy)


def _is_older(library: str | None, module: str | None) -> bool:
    """Return whether the library is from an older driver; True if either is unknown."""
    mine, theirs = parse_version(library), parse_version(module)
    return mine is None or theirs is None or mine < theirs


def _blocked(machine: Machine, failure: ProbeFailure) -> Finding:
    if not machine.is_wsl:
        return _perhaps_refused(machine, failure)
    return _report("windows-blocks")


def _no_gpu(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain a running driver without a GPU: it could not start them, or may not show them."""
    refused = _perhaps_refused(machine, failure)
    if refused.cause != failure.code:
        return refused
    if "SLURM_JOB_ID" in machine.environment:
        slurm = make_trouble(ID, "slurm-without-gpus")
        return refused._replace(remedy=(*slurm.remedy, *refused.remedy))
    devices = machine.kernel.pci_devices or ()
    trouble = wrong_flavour(machine, devices) or problem_in_log(machine)
    if trouble is None:
        return refused
    return explain_finding(refused._replace(evidence=()), trouble)


def _perhaps_refused(machine: Machine, failure: ProbeFailure) -> Finding:
    """Open the device files: only that shows a refusing cgroup."""
    refused = refused_openings(machine)
    plain = _plain(machine, failure)._replace(evidence=refused)
    if failure.code == "no-permission":
        plain = _report(failure.code, *refused)
    if failure.code == "unknown" and machine.is_container:
        first, *rest = make_trouble(ID, "device-cgroup-lost").remedy
        before = f"If it worked before: {first[0].lower()}{first[1:]}"
        plain = plain._replace(remedy=(before, *rest, *plain.remedy))
    if not any(item.value == "EPERM" for item in refused):
        return plain
    if machine.is_container:
        return _report("device-cgroup-lost", *refused)
    if "SLURM_JOB_ID" in machine.environment:
        return _report("slurm-without-gpus", *refused)
    return _report("device-cgroup", *refused, remedy=plain.remedy)


def refused_openings(machine: Machine) -> tuple[Evidence, ...]:
    """Return the device files that could not be opened, each with its error."""
    return tuple(
        Evidence(f"open {path}", error)
        for path, error in machine.openings.items()
        if error is not None
    )


EXPLAIN = {
    "library-not-found": _no_library,
    "version-mismatch": _two_versions,
    "operating-system": _blocked,
    "unknown": _perhaps_refused,
    "no-permission": _perhaps_refused,
    "no-gpu": _no_gpu,
    "gpu-not-found": _no_gpu,
}


# ------------------------------------------------------------------------------ answered


def _answered(machine: Machine, reading: NvmlReading) -> Finding:
    silent = [gpu for gpu in reading.gpus if gpu.failure is not None]
    count = reading.gpu_count or 0
    first = silent[0].failure if silent else None
    # GPUs of another driver belong to kernel-module; a container sees its host's bus.
    on_bus = [d for d in machine.kernel.pci_devices or () if d.driver in (None, "nvidia")]
    if first is not None:
        return _finding(
            CheckStatus.FAIL if len(silent) == count else CheckStatus.WARN,
            f"{len(silent)} of {count_of(count)} {'does' if len(silent) == 1 else 'do'} not answer:"
            f" {first.message}",
            *(
                Evidence(f"NVML, GPU {gpu.index}", gpu.failure.message)
                for gpu in silent
                if gpu.failure is not None
            ),
            remedy=steps_for_gpu(silent[0].index, make_trouble(ID, first.code).remedy),
            cause=first.code,
        )
    if len(on_bus) > count and not machine.is_container:
        return _fewer(machine, count, len(on_bus))
    uuids = [gpu.uuid for gpu in reading.gpus if gpu.uuid]
    same = [gpu for gpu in reading.gpus if uuids.count(gpu.uuid or "") > 1]
    if same:
        names = " and ".join(str(gpu.index) for gpu in same)
        rows = (Evidence(f"NVML, GPU {gpu.index}", gpu.uuid or "") for gpu in same)
        return _report("same-uuid", *rows, status=CheckStatus.WARN, names=names)
    summary = f"driver {reading.driver_version or '?'} answers for {count_of(count)}"
    if reading.confidential_computing:
        state = Evidence("nvmlSystemGetConfComputeState", "on")
        return _finding(CheckStatus.OK, f"{summary}; confidential computing is on", state)
    return _finding(CheckStatus.OK, summary)


def _fewer(machine: Machine, count: int, on_bus: int) -> Finding:
    counts = (
        Evidence("nvmlDeviceGetCount", str(count)),
        Evidence("/sys/bus/pci/devices", str(on_bus)),
    )
    missing = _report(
        "gpus-missing", *counts, status=CheckStatus.WARN, listed=count_of(count), on_bus=on_bus
    )
    return explain_finding(missing, problem_in_log(machine))
