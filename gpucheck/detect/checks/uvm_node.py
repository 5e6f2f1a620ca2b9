"""Is nvidia-uvm present, which CUDA needs and NVML does not?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "uvm-node"
LAYER = Layer.DEVICE_NODES
REQUIRES: tuple[str, ...] = ("kernel-module", "device-nodes")

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

NODE = "/dev/nvidia-uvm"
MODULE = "/sys/module/nvidia_uvm"


def check(machine: Machine) -> Finding:
    """Judge the node, the module, and the permission."""
    if machine.is_wsl or machine.is_jetson:
        return _finding(CheckStatus.SKIP, "not needed on this kind of machine")
    nodes = machine.system.nodes
    unreadable = machine.system.unavailable or nodes.unavailable
    if unreadable is not None:
        evidence = Evidence(NODE, unreadable)
        return _report("nodes-not-readable", evidence, status=CheckStatus.UNKNOWN, remedy=())
    node = next((node for node in nodes.nodes if node.path == NODE), None)
    if node is not None and node.accessible is False:
        evidence = Evidence(NODE, f"mode {node.mode}, owner {node.owner}")
        return _report("uvm-not-permitted", evidence)
    if node is not None:
        return _finding(CheckStatus.OK, f"{NODE} exists", Evidence(NODE, f"mode {node.mode}"))
    return _missing(machine)


def _missing(machine: Machine) -> Finding:
    loaded = machine.kernel.uvm_loaded
    evidence = (Evidence(NODE, "absent"), Evidence(MODULE, "loaded" if loaded else "absent"))
    return _report("uvm-node-missing" if loaded else "uvm-module-missing", *evidence)
