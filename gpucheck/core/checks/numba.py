"""Can Numba, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks import framework
from gpucheck.core.checks.machine import Machine
from gpucheck.models.evidence import BuildReading
from gpucheck.models.finding import Finding, Layer

ID = "numba"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = framework.about(
    "libnvvm in CUDA_HOME, /usr/local/cuda and NVIDIA's wheels",
    why="Numba compiles for GPUs with NVVM, which comes with a CUDA toolkit.",
    sources=("Numba for CUDA GPUs, Installation", "numba -s"),
)


def _gpu_build(machine: Machine) -> tuple[str, ...]:
    return ("Install Numba with its CUDA target: pip install 'numba-cuda[cu12]' (or cu13)",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    return (
        "Install them: pip install 'numba-cuda[cu12]' (or cu13)",
        "Or set CUDA_HOME to a CUDA toolkit.",
    )


ADVICE = framework.Advice(
    title="Numba",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by what it did where it was tried."""
    return framework.judge(machine, ID, ADVICE)
