"""Do the driver's device files exist, and may this user open them?"""

from __future__ import annotations

import re
from functools import partial

from gpucheck.detect.findings import make_finding, make_trouble, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.remedies import start_with_gpus
from gpucheck.drivers.evidence import NodeReading, NodesReading
from gpucheck.inventory.without_nvml import CONTROL_NODE
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "device-nodes"
LAYER = Layer.DEVICE_NODES
REQUIRES: tuple[str, ...] = ("kernel-module",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

#: Source: NVIDIA driver README, device files.
CONTROL_MINOR = "255"
GPU_NODE = "/dev/nvidia"
#: The causes for device files that do not exist.
MISSING = ("container-without-gpus", "nodes-missing")
_GPU = re.compile(r"/dev/nvidia[0-9]+")

#: Values of NVIDIA_VISIBLE_DEVICES that mean no GPU.
NO_GPU_WORDS = ("", "none", "void")


def check(machine: Machine) -> Finding:
    """Compare the existing nodes with the expected ones."""
    if machine.is_jetson:
        return _finding(CheckStatus.SKIP, "Jetson: its GPU has device files with other names")
    if machine.is_wsl:
        return _wsl(machine)
    nodes = machine.system.nodes
    unreadable = machine.system.unavailable or nodes.unavailable
    if unreadable is not None:
        evidence = Evidence("/dev", unreadable)
        return _report("nodes-not-readable", evidence, status=CheckStatus.UNKNOWN)
    gpus = [node for node in nodes.nodes if _GPU.fullmatch(node.path)]
    control = next((node for node in nodes.nodes if node.path == CONTROL_NODE), None)
    if control is None or not gpus:
        return _missing(machine, nodes)
    denied = [node for node in (control, *gpus) if node.accessible is False]
    if denied:
        return _denied(machine, denied, len(gpus) + 1)
    return _some_missing(machine, nodes, gpus) or _finding(
        CheckStatus.OK,
        f"{CONTROL_NODE} and the nodes of {len(gpus)} GPU{'' if len(gpus) == 1 else 's'} exist",
        *(Evidence(node.path, f"mode {node.mode}") for node in (control, *gpus)),
    )


def has_control_node(machine: Machine) -> bool:
    """Return whether the control node exists, made by the driver or a container runtime."""
    return any(node.path == CONTROL_NODE for node in machine.system.nodes.nodes)


def _wsl(machine: Machine) -> Finding:
    if machine.system.platform.dxg or machine.system.unavailable is not None:
        return _finding(CheckStatus.OK, "/dev/dxg leads to the Windows driver")
    if machine.is_container:
        return _without_gpus(machine, [Evidence("/dev/dxg", "absent")])
    return _report("no-dxg", Evidence("/dev/dxg", "absent"))


def _missing(machine: Machine, nodes: NodesReading) -> Finding:
    present = {node.path for node in nodes.nodes}
    absent = [path for path in nodes.expected if path not in present and path != "/dev/nvidia-uvm"]
    if not any(_GPU.fullmatch(path) for path in (*present, *absent)):
        absent.append(f"{GPU_NODE}<minor>")
    evidence = [Evidence(path, "absent") for path in absent]
    if machine.is_container:
        return _without_gpus(machine, evidence)
    if "SLURM_JOB_ID" in machine.environment:
        evidence += _variables(machine, "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
    return _report(
        "nodes-missing", *evidence, nodes=", ".join(absent), options=f"{_minors(absent)} -u"
    )


def _variables(machine: Machine, *names: str) -> list[Evidence]:
    known = machine.environment
    return [Evidence(name, repr(known[name]) if name in known else "unset") for name in names]


def _without_gpus(machine: Machine, evidence: list[Evidence]) -> Finding:
    name = "NVIDIA_VISIBLE_DEVICES"
    requested = machine.environment.get(name)
    evidence += _variables(machine, name)
    finding = _report("container-without-gpus", *evidence, remedy=start_with_gpus(machine))
    if requested in NO_GPU_WORDS:
        summary = f"{finding.summary}: {name}={requested!r} requests none"
        return finding._replace(summary=summary)
    return finding


def _denied(machine: Machine, denied: list[NodeReading], count: int) -> Finding:
    slurm = "SLURM_JOB_ID" in machine.environment
    evidence = [
        Evidence(node.path, f"mode {node.mode}, owner {node.owner}, group {node.group}")
        for node in denied
    ]
    # Without the control node nothing works; without one GPU's node the others do.
    every = len(denied) == count or any(node.path == CONTROL_NODE for node in denied)
    every = every or len(denied) == count - 1
    finding = _report(
        "nodes-not-permitted",
        *evidence,
        status=CheckStatus.FAIL if every else CheckStatus.WARN,
        nodes=", ".join(node.path for node in denied),
    )
    if slurm:
        request = make_trouble(ID, "slurm-without-gpus").remedy
        return finding._replace(remedy=(*request, *finding.remedy))
    return finding


def _some_missing(machine: Machine, nodes: NodesReading, gpus: list[NodeReading]) -> Finding | None:
    """Report missing nodes of some GPUs; a container with some of the GPUs is normal."""
    present = {node.path for node in gpus}
    absent = [path for path in nodes.expected if _GPU.fullmatch(path) and path not in present]
    if not absent or machine.is_container:
        return None
    finding = _report(
        "nodes-missing",
        *(Evidence(path, "absent") for path in absent),
        status=CheckStatus.WARN,
        nodes=", ".join(absent),
        options=_minors(absent),
    )
    return finding._replace(remedy=finding.remedy[:1])


def _minors(absent: list[str]) -> str:
    """Return the options with which nvidia-modprobe creates these; an unknown minor is 0."""
    minors = {CONTROL_NODE: CONTROL_MINOR, f"{GPU_NODE}<minor>": "0"}
    return " ".join(f"-c {minors.get(path) or path.removeprefix(GPU_NODE)}" for path in absent)
