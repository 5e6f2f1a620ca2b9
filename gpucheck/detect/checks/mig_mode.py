"""Does every GPU in MIG mode have an instance, and is no change of the mode pending?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.visibility import is_mig
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "mig-mode"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)


def check(machine: Machine) -> Finding:
    """Judge the modes and the instances."""
    gpus = [gpu for gpu in machine.nvml.gpus if gpu.failure is None]
    if not gpus:
        return _finding(CheckStatus.SKIP, "no GPU answers")
    split = [gpu for gpu in gpus if is_mig(gpu)]
    empty = [
        gpu for gpu in split if not gpu.mig_instances and "mig_instances" not in gpu.unavailable
    ]
    if empty:
        return _empty(empty, len(gpus))
    changing = _changing(machine)
    if changing:
        return changing
    if not split:
        return _finding(CheckStatus.OK, "no GPU is split by MIG")
    instances = sum(len(gpu.mig_instances) for gpu in split)
    where = f"{len(split)} of {count_of(len(gpus))}"
    return _finding(CheckStatus.OK, f"MIG: {count_of(instances, 'instance')} on {where}")


def _changing(machine: Machine) -> Finding | None:
    pending = [
        (gpu, health.mig_mode_pending)
        for gpu, health in machine.gpus
        if health.mig_mode_pending is not None and health.mig_mode_pending != gpu.mig_enabled
    ]
    if not pending:
        return None
    gpu, wanted = pending[0]
    return _report(
        "mig-change-pending",
        Evidence("nvmlDeviceGetMigMode", f"current {gpu.mig_enabled}, pending {wanted}"),
        status=CheckStatus.WARN,
        index=gpu.index,
        mode="on" if wanted else "off",
    )


def _empty(empty: list[GpuReading], count: int) -> Finding:
    return _report(
        "mig-without-instance",
        *(
            Evidence(f"nvmlDeviceGetMigMode, GPU {gpu.index}", "enabled, 0 instances")
            for gpu in empty
        ),
        status=CheckStatus.FAIL if len(empty) == count else CheckStatus.WARN,
        names=", ".join(str(gpu.index) for gpu in empty),
        index=empty[0].index,
    )
