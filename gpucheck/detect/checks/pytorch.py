"""Can PyTorch, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer

ID = "pytorch"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "torch/version.py: `cuda`, null in builds for CPUs",
    "what its shared objects would load, with the dynamic loader in list mode",
    why="The default build for some systems and package managers is for CPUs only.",
    sources=("PyTorch, Get Started: builds by CUDA version", "pytorch issue 30528"),
)

INDEX = "https://download.pytorch.org/whl/"
GUIDE = frameworks.Guide(
    title="PyTorch",
    gpu_build="Install a build for GPUs{note}: {remove}pip install torch"
    f" --index-url {INDEX}{{wheel}}",
    unchosen="Install a build for GPUs ({why}): https://pytorch.org/get-started/locally",
    # What this build requires: another build may not fit.
    libraries=(
        "Install what it requires: pip install torch",
        "If pip finds nothing missing: {again}",
    ),
    # Source: PyTorch's release matrix, issue 157517: which build has code for which architectures.
    wheels=(
        frameworks.Wheel("cu130", 13, (7, 5), (13, 0)),
        frameworks.Wheel("cu128", 12, (7, 5), (13, 0)),
        frameworks.Wheel("cu126", 12, (5, 0), (10, 0)),
    ),
    removes=("torch",),
    wheels_at=INDEX,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
