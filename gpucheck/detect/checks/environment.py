"""What kind of machine is this: bare metal, virtual, a container, WSL2, a Slurm job, a Jetson?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gpucheck.detect.findings import make_finding, report_cause, set_variables
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "environment"
LAYER = Layer.ENVIRONMENT
REQUIRES: tuple[str, ...] = ()

_finding = partial(make_finding, ID, LAYER)

#: Variables that give a container or a job its GPUs.
VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "SLURM_JOB_ID",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
)


def check(machine: Machine) -> Finding:
    """Name the platform; nothing here is wrong by itself."""
    if machine.system.unavailable is not None and machine.host.os is None:
        return report_cause(
            ID,
            LAYER,
            "not-recorded",
            Evidence("snapshot", machine.system.unavailable),
            status=CheckStatus.UNKNOWN,
            summary="the kind of machine is unknown",
        )
    names = list(_kinds(machine)) or ["bare metal"]
    words = ", ".join(names)
    return _finding(
        CheckStatus.OK,
        f"{machine.host.os or 'Linux'}, kernel {machine.host.kernel or '?'}: {words}",
        *set_variables(machine, *VARIABLES),
    )


def _kinds(machine: Machine) -> Iterator[str]:
    if machine.is_wsl:
        yield "WSL2"
    if machine.is_jetson:
        yield "Jetson"
    if machine.host.container is not None:
        yield f"container ({machine.host.container})"
    if machine.system.platform.hypervisor and not machine.is_wsl:
        yield "virtual machine"
    if "SLURM_JOB_ID" in machine.environment:
        yield "Slurm job"
