"""Can Numba, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer

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

GUIDE = frameworks.Guide(
    title="Numba",
    gpu_build="Install Numba's CUDA target{note}: pip install 'numba-cuda[{wheel}]'",
    unchosen="Install numba-cuda[cu13] or numba-cuda[cu12] ({why}).",
    libraries=(
        "Install them: pip install 'numba-cuda[cu{cuda}]'",
        "Or set CUDA_HOME to a CUDA toolkit.",
    ),
    # Source: numba-cuda, Installation; CUDA 13's release notes. It compiles its kernels itself.
    wheels=(frameworks.Wheel("cu13", 13, (7, 5)), frameworks.Wheel("cu12", 12, (5, 0))),
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
