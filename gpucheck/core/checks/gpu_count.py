"""Are there as many GPUs as a person expects?"""

from __future__ import annotations

from gpucheck.core.checks.machine import Machine, count_of
from gpucheck.core.checks.reason import Teller
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer

ID = "gpu-count"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = Teller(ID, LAYER)

ABOUT = About(
    looks_at=("NVML: the GPUs that answer", "--expect-gpus N"),
    why="A GPU that fell off the bus leaves a machine that works, with one GPU less.",
    rules=("fail: another number answers than --expect-gpus says",),
    sources=("NVSentinel issue 684: GPUs that vanish without a word in the log",),
    causes=("other-gpu-count",),
)


def check(machine: Machine) -> Finding:
    """Count those that answer."""
    expected = machine.wish.expect_gpus
    if expected is None:
        return _finding(CheckStatus.SKIP, "no number of GPUs is expected (--expect-gpus)")
    answering = sum(gpu.failure is None for gpu in machine.nvml.gpus)
    if answering == expected:
        return _finding(CheckStatus.OK, f"{count_of(answering)}, as expected")
    on_bus = machine.kernel.pci_devices
    evidence = [Evidence(source="NVML: GPUs that answer", value=str(answering))]
    if on_bus is not None:
        evidence.append(Evidence(source="/sys/bus/pci/devices", value=str(len(on_bus))))
    return _finding(
        CheckStatus.FAIL,
        f"{count_of(expected)} expected, {answering} answer",
        *evidence,
        remedy=(
            "See which one is missing: gpucheck list",
            "Power the machine off and on again; check seating and cables.",
        ),
        cause="other-gpu-count",
    )
