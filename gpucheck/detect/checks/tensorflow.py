"""Can TensorFlow, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer

ID = "tensorflow"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "tensorflow/python/platform/build_info.py: is_cuda_build, cuda_version, compute capabilities",
    "the libraries that TensorFlow opens by name when it looks for GPUs, with the dynamic loader"
    " in list mode",
    why="TensorFlow warns `Cannot dlopen some GPU libraries`, names none, and uses the CPU.",
    sources=("TensorFlow, tested build configurations", "TensorFlow issues 66987, 89272"),
)

GUIDE = frameworks.Guide(
    title="TensorFlow",
    gpu_build="Install a build for GPUs: {remove}pip install 'tensorflow[and-cuda]'",
    libraries=(
        "Install them with it: pip install 'tensorflow[and-cuda]{version}'",
        "If they are installed: link them into tensorflow's folder, as its guide says.",
    ),
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
