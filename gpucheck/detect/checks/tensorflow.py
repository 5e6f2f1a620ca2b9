"""Can TensorFlow, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import BuildReading

ID = "tensorflow"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "tensorflow/python/platform/build_info.py: is_cuda_build, cuda_version, compute capabilities",
    "the libraries that TensorFlow opens by name when it looks for GPUs, with the dynamic loader"
    " in list mode",
    why="TensorFlow warns `Cannot dlopen some GPU libraries`, names none, and uses the CPU.",
    sources=(
        "TensorFlow, tested build configurations",
        "TensorFlow issues 66987, 89272",
    ),
)


def _gpu_build(machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
    remove = frameworks.without(build.distributions if build else ())
    return (f"Install a build for GPUs: {remove}pip install 'tensorflow[and-cuda]'",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    version = f"=={build.version}" if build.version else ""
    return (
        f"Install them with it: pip install 'tensorflow[and-cuda]{version}'",
        "If they are installed: link them into tensorflow's folder, as its guide says.",
    )


ADVICE = frameworks.Advice(
    title="TensorFlow",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, ADVICE)
