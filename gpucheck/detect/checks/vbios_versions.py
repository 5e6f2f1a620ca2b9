"""Do GPUs of the same model have the same firmware?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "vbios-versions"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)


def check(machine: Machine) -> Finding:
    """Compare within each model."""
    models: dict[str, dict[str, list[int]]] = {}
    for gpu, health in machine.gpus:
        if health.vbios_version is not None and gpu.name is not None:
            versions = models.setdefault(gpu.name, {})
            versions.setdefault(health.vbios_version, []).append(gpu.index)
    if not models:
        return _finding(CheckStatus.SKIP, "not available: no GPU reports its firmware version")
    mixed = {name: versions for name, versions in models.items() if len(versions) > 1}
    if not mixed:
        return _finding(CheckStatus.OK, "GPUs of one model have the same firmware")
    evidence = [
        Evidence(f"{name}: {version}", "GPU " + ", ".join(map(str, indices)))
        for name, versions in mixed.items()
        for version, indices in versions.items()
    ]
    return _finding(CheckStatus.OK, "GPUs of one model have different firmware", *evidence)
