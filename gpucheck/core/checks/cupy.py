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
    "NVRTC, cuBLAS and the headers of the CUDA that it is built for: from version 14 on by"
    " cuda-pathfinder, as CuPy does, before by the dynamic loader",
    why="CuPy compiles its kernels when they are first used: without NVRTC and headers none runs.",
    sources=("CuPy, Installation", "CuPy's warning about several packages"),
)


#: Source: CuPy, Installation. It compiles its kernels itself, for newer GPUs too.
WHEELS = (framework.Wheel("cupy-cuda13x", 13, (7, 5)), framework.Wheel("cupy-cuda12x", 12, (5, 0)))


def _gpu_build(machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
    wheel, remark = framework.choose_wheel(machine, WHEELS)
    if wheel is None:
        return (f"Install cupy-cuda13x[ctk] or cupy-cuda12x[ctk], and no other cupy ({remark}).",)
    remove = framework.without(build.distributions if build else ())
    noted = f" ({remark})" if remark else ""
    return (f"Install one package for GPUs{noted}: {remove}pip install '{wheel}[ctk]'",)


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
