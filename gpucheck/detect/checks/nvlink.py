"""Are all NVLinks up?"""

from __future__ import annotations

from gpucheck.detect.findings import judge_gpus, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import Trouble, unread
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "nvlink"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU, if any link on this machine is up."""
    used = any(health.nvlinks_active for _, health in machine.gpus)

    def judge(gpu: GpuReading, health: GpuHealthReading) -> Trouble | None:
        missing = unread(health, "nvlinks", "nvlinks_active")
        if missing is not None:
            return missing
        links, active = health.nvlinks or 0, health.nvlinks_active or 0
        if not links:
            return Trouble(CheckStatus.SKIP, "not supported by this GPU")
        if not used:
            return Trouble(CheckStatus.SKIP, "no link is up between these GPUs")
        if active == links:
            return None
        evidence = Evidence("nvmlDeviceGetNvLinkState", f"{active} of {links} active")
        return make_trouble(ID, "nvlink-down", evidence, down=links - active, links=links)

    return judge_gpus(machine, ID, "all NVLinks are up", judge)
