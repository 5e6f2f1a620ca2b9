"""Can CuPy, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks import framework
from gpucheck.core.checks.machine import Machine
from gpucheck.models.evidence import BuildReading
from gpucheck.models.finding import Finding, Layer

ID = "cupy"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = framework.about(
    "the distributions that bring CuPy, of which there may be one",
    "libnvrtc of the CUDA major version in the distribution's name, and the CUDA headers",
    why="CuPy compiles its kernels when they are first used: without NVRTC and headers none runs.",
    sources=("CuPy, Installation", "CuPy's warning about several packages"),
)


def _gpu_build(machine: Machine) -> tuple[str, ...]:
    cuda = framework.newest_cuda(machine, {13: "cupy-cuda13x"}, otherwise="cupy-cuda12x")
    return (f"Remove every cupy package (pip uninstall …), then: pip install '{cuda}[ctk]'",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    package = f"cupy-cuda{build.cuda_build or 12}x"
    return (
        f"Install them: pip install '{package}[ctk]'",
        "Or set CUDA_PATH to a CUDA toolkit of that version.",
    )


ADVICE = framework.Advice(
    title="CuPy",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by what it did where it was tried."""
    return framework.judge(machine, ID, ADVICE)
