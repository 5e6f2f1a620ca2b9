"""Can ONNX Runtime, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks import framework
from gpucheck.core.checks.machine import Machine
from gpucheck.models.evidence import BuildReading
from gpucheck.models.finding import Finding, Layer

ID = "onnxruntime"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = framework.about(
    "onnxruntime/capi/libonnxruntime_providers_cuda.so and what it needs",
    "whether onnxruntime and onnxruntime-gpu are both installed",
    why="Both packages write the same folder: whichever came last decides.",
    sources=("ONNX Runtime, CUDA Execution Provider",),
)


def _gpu_build(machine: Machine) -> tuple[str, ...]:
    return ("Install a build for GPUs: pip uninstall onnxruntime; pip install onnxruntime-gpu",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    return ("Install them: pip install 'onnxruntime-gpu[cuda,cudnn]'",)


ADVICE = framework.Advice(
    title="ONNX Runtime",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by what it did where it was tried."""
    return framework.judge(machine, ID, ADVICE)
