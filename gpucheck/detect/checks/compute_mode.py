"""Does every GPU's compute mode allow programs?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "compute-mode"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)

PROHIBITED = "prohibited"


def check(machine: Machine) -> Finding:
    """Judge the modes."""
    gpus = [gpu for gpu in machine.nvml.gpus if gpu.failure is None]
    if not gpus:
        return _finding(CheckStatus.SKIP, "no GPU answers")
    closed = [gpu for gpu in gpus if gpu.compute_mode == PROHIBITED]
    if closed:
        names = ", ".join(str(gpu.index) for gpu in closed)
        return _finding(
            CheckStatus.FAIL if len(closed) == len(gpus) else CheckStatus.WARN,
            f"the compute mode of GPU {names} prohibits every program",
            *_evidence([gpu.index for gpu in closed], PROHIBITED),
            remedy=(f"Allow programs: sudo nvidia-smi -i {closed[0].index} -c 0",),
            cause="compute-prohibited",
        )
    taken = [gpu for gpu in gpus if "exclusive" in (gpu.compute_mode or "") and gpu.processes]
    if taken:
        names = ", ".join(str(gpu.index) for gpu in taken)
        return _finding(
            CheckStatus.WARN,
            f"GPU {names}: only one program at a time is allowed, and one is running",
            *_evidence([gpu.index for gpu in taken], taken[0].compute_mode or ""),
            remedy=(
                "Wait for that program, or find it: gpucheck list --processes",
                f"Or allow several: sudo nvidia-smi -i {taken[0].index} -c 0",
            ),
            cause="compute-exclusive",
        )
    if all(gpu.compute_mode is None for gpu in gpus):
        reason = gpus[0].unavailable.get("compute_mode", "the driver does not report it")
        return _finding(CheckStatus.UNKNOWN, f"not checked: {reason}", cause="not-read")
    return _finding(CheckStatus.OK, "the compute modes allow programs")


def _evidence(indices: list[int], mode: str) -> list[Evidence]:
    return [Evidence(f"nvmlDeviceGetComputeMode, GPU {index}", mode) for index in indices]
