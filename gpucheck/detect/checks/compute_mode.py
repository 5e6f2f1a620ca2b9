"""Does every GPU's compute mode allow programs?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.readings import GpuReading
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "compute-mode"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

PROHIBITED = "prohibited"


def check(machine: Machine) -> Finding:
    """Judge the modes."""
    gpus = [gpu for gpu in machine.nvml.gpus if gpu.failure is None]
    if not gpus:
        return _finding(CheckStatus.SKIP, "no GPU answers")
    closed = [gpu for gpu in gpus if gpu.compute_mode == PROHIBITED]
    if closed:
        status = CheckStatus.FAIL if len(closed) == len(gpus) else CheckStatus.WARN
        return _restricted("compute-prohibited", closed, status)
    taken = [gpu for gpu in gpus if "exclusive" in (gpu.compute_mode or "") and gpu.processes]
    if taken:
        return _restricted("compute-exclusive", taken, CheckStatus.WARN)
    if all(gpu.compute_mode is None for gpu in gpus):
        reason = gpus[0].unavailable.get("compute_mode", "the driver does not report it")
        return _finding(CheckStatus.UNKNOWN, f"not checked: {reason}", cause="not-read")
    return _finding(CheckStatus.OK, "the compute modes allow programs")


def _restricted(cause: str, gpus: list[GpuReading], status: CheckStatus) -> Finding:
    indices = [gpu.index for gpu in gpus]
    mode = gpus[0].compute_mode or ""
    return _report(
        cause,
        *(Evidence(f"nvmlDeviceGetComputeMode, GPU {index}", mode) for index in indices),
        status=status,
        names=", ".join(map(str, indices)),
        index=indices[0],
    )
