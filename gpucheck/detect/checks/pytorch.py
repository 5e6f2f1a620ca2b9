"""Can PyTorch, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import BuildReading

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
#: Source: PyTorch's release matrix, issue 157517: which build has code for which architectures.
WHEELS = (
    frameworks.Wheel("cu130", 13, (7, 5), (13, 0)),
    frameworks.Wheel("cu128", 12, (7, 5), (13, 0)),
    frameworks.Wheel("cu126", 12, (5, 0), (10, 0)),
)


def _gpu_build(machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
    wheel, remark = frameworks.choose_wheel(machine, WHEELS)
    if wheel is None:
        return (f"Install a build for GPUs ({remark}): https://pytorch.org/get-started/locally",)
    command = f"{frameworks.without(['torch'] if build else ())}pip install torch --index-url"
    noted = f" ({remark})" if remark else ""
    return (f"Install a build for GPUs{noted}: {command} {INDEX}{wheel}",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    """Let pip install what this build requires: another build may not fit."""
    again = frameworks.reinstall(build, ADVICE)
    return (
        "Install what it requires: pip install torch",
        f"If pip finds nothing missing: {again[0].lower()}{again[1:]}",
    )


ADVICE = frameworks.Advice(
    title="PyTorch",
    gpu_build=_gpu_build,
    libraries=_libraries,
    wheels_at=INDEX,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, ADVICE)
