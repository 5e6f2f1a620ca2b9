"""Can Numba, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import BuildReading

ID = "numba"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "with numba-cuda: NVVM and NVRTC, found with cuda-pathfinder as numba-cuda does",
    "otherwise libnvvm in CUDA_HOME, /usr/local/cuda and NVIDIA's wheels",
    why="Numba compiles for GPUs with NVVM, and numba-cuda with NVRTC too; they come with a CUDA"
    " toolkit or NVIDIA's wheels.",
    sources=("Numba for CUDA GPUs, Installation", "numba -s"),
)


#: Source: numba-cuda, Installation; CUDA 13's release notes. It compiles its kernels itself.
WHEELS = (frameworks.Wheel("cu13", 13, (7, 5)), frameworks.Wheel("cu12", 12, (5, 0)))


def _gpu_build(machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
    wheel, remark = frameworks.choose_wheel(machine, WHEELS)
    if wheel is None:
        return (f"Install numba-cuda[cu13] or numba-cuda[cu12] ({remark}).",)
    noted = f" ({remark})" if remark else ""
    return (f"Install Numba's CUDA target{noted}: pip install 'numba-cuda[{wheel}]'",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    major = build.cuda_build or "12"
    return (
        f"Install them: pip install 'numba-cuda[cu{major}]'",
        "Or set CUDA_HOME to a CUDA toolkit.",
    )


ADVICE = frameworks.Advice(
    title="Numba",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, ADVICE)
