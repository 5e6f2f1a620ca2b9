"""Can programs use as many GPUs as expected?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.checks.cuda_driver import UNDECIDED
from gpucheck.detect.findings import make_finding, report_cause, set_variables
from gpucheck.detect.machine import VISIBLE, Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.readings import CudaReading, GpuReading, ProbeFailure
from gpucheck.inventory.visibility import digits_of, is_mig
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "gpu-count"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("cuda-driver",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)


def check(machine: Machine) -> Finding:
    """Count the GPUs that a program can use."""
    expected = machine.request.expect_gpus
    if expected is None:
        return _finding(CheckStatus.SKIP, "no number of GPUs was given (--expect-gpus)")
    answering = [
        gpu for gpu in machine.nvml.gpus if gpu.failure is None and gpu.index not in machine.lost
    ]
    nvml = machine.nvml
    cuda = CudaReading() if machine.request.quick else machine.cuda
    evidence = [Evidence("NVML: GPUs that answer", str(len(answering)))]
    recorded = cuda.failure is None or cuda.failure.code != "not-recorded"
    if recorded and not machine.request.quick and not any(is_mig(gpu) for gpu in answering):
        if cuda.failure is not None and cuda.failure.code in UNDECIDED:
            return _not_counted(cuda.failure)
        count, verb = _usable(machine, answering), "can be used"
        evidence.append(Evidence("cuDeviceGetCount", str(cuda.device_count or 0)))
        evidence += set_variables(machine, VISIBLE)
    elif nvml.failure is not None:
        return _not_counted(nvml.failure)
    else:
        count, verb = len(answering), "answer"
    if count == expected:
        return _finding(CheckStatus.OK, f"{count_of(count)}, as expected")
    on_bus = machine.kernel.pci_devices
    if on_bus is not None:
        evidence.append(Evidence("/sys/bus/pci/devices", str(len(on_bus))))
    remedy = _steps(machine, len(answering), expected)
    summary = f"{count_of(expected)} expected, {count} {verb}"
    return _report("other-gpu-count", *evidence, remedy=remedy, summary=summary)


def _not_counted(failure: ProbeFailure) -> Finding:
    return _finding(CheckStatus.UNKNOWN, f"not counted: {failure.message}", cause="not-read")


def _usable(machine: Machine, answering: list[GpuReading]) -> int:
    """Count CUDA's devices without lost GPUs, which CUDA goes on counting."""
    lost = {
        digits_of(gpu.uuid)
        for gpu in machine.nvml.gpus
        if gpu.uuid is not None and gpu.index in machine.lost
    }
    left = sum(device.uuid_hex not in lost for device in machine.cuda.devices)
    return min(left, len(answering)) if machine.nvml.gpus else left


def _steps(machine: Machine, answering: int, expected: int) -> tuple[str, ...]:
    # Plain `list` does not start CUDA, and shows as visible what CUDA leaves out.
    first = "See which ones CUDA sees: gpucheck list --ask-driver"
    if VISIBLE in machine.environment and answering >= expected:
        return (first, f"Unset {VISIBLE}, or expect as many as it names.")
    if answering >= expected:
        return (first,)
    return (
        "See which one is missing: gpucheck list",
        "Power the machine off and on again; check seating and cables.",
    )
