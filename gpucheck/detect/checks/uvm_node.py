"""Is nvidia-uvm present, which CUDA needs and NVML does not?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "uvm-node"
LAYER = Layer.DEVICE_NODES
REQUIRES: tuple[str, ...] = ("kernel-module", "device-nodes")

_finding = partial(make_finding, ID, LAYER)

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
        return _finding(
            CheckStatus.UNKNOWN, f"{NODE} could not be read", evidence, cause="nodes-not-readable"
        )
    node = next((node for node in nodes.nodes if node.path == NODE), None)
    if node is not None and node.accessible is False:
        return _finding(
            CheckStatus.FAIL,
            f"this user may not open {NODE}",
            Evidence(NODE, f"mode {node.mode}, owner {node.owner}"),
            remedy=("Join the group that owns it, then log in again.",),
            cause="uvm-not-permitted",
        )
    if node is not None:
        return _finding(CheckStatus.OK, f"{NODE} exists", Evidence(NODE, f"mode {node.mode}"))
    return _missing(machine)


def _missing(machine: Machine) -> Finding:
    loaded = machine.kernel.uvm_loaded
    evidence = (Evidence(NODE, "absent"), Evidence(MODULE, "loaded" if loaded else "absent"))
    if machine.is_container:
        remedy: tuple[str, ...] = (
            "Start the container through the NVIDIA runtime (docker run --gpus all …), or pass the"
            f" node: --device {NODE}",
            "On the host: sudo nvidia-modprobe -c0 -u",
        )
    else:
        remedy = (
            "Load it and create its node: sudo nvidia-modprobe -c0 -u",
            "Or: sudo modprobe nvidia_uvm",
        )
    what = NODE if loaded else "the module nvidia_uvm"
    summary = f"{what} is missing, which CUDA needs and NVML does not"
    cause = "uvm-node-missing" if loaded else "uvm-module-missing"
    return _finding(CheckStatus.FAIL, summary, *evidence, remedy=remedy, cause=cause)
