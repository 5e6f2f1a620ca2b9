"""Can PyTorch, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks import framework
from gpucheck.core.checks.machine import Machine
from gpucheck.models.evidence import BuildReading
from gpucheck.models.finding import Finding, Layer

ID = "pytorch"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = framework.about(
    "torch/version.py: `cuda`, null in builds for CPUs",
    "what libtorch_cuda.so needs of NVIDIA's libraries",
    why="The default build for some systems and package managers is for CPUs only.",
    sources=("PyTorch, Get Started: builds by CUDA version", "pytorch issue 30528"),
)


def _gpu_build(machine: Machine) -> tuple[str, ...]:
    cuda = framework.newest_cuda(machine, {13: "cu130", 12: "cu128"}, otherwise="cu126")
    return (
        "Install a build for GPUs: pip install --force-reinstall torch --index-url"
        f" https://download.pytorch.org/whl/{cuda}",
    )


def _libraries(build: BuildReading) -> tuple[str, ...]:
    return ("Install it again with its libraries: pip install --force-reinstall torch",)


ADVICE = framework.Advice(
    title="PyTorch",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by what it did where it was tried."""
    return framework.judge(machine, ID, ADVICE)
