"""Can ONNX Runtime, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer

ID = "onnxruntime"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "what onnxruntime/capi/libonnxruntime_providers_cuda.so would load and open, including cuDNN"
    " and cuFFT, with the dynamic loader in list mode",
    "whether onnxruntime and onnxruntime-gpu are both installed",
    why="Both packages write the same folder: the one installed last decides.",
    sources=("ONNX Runtime, CUDA Execution Provider",),
)

GUIDE = frameworks.Guide(
    title="ONNX Runtime",
    gpu_build="Install a build for GPUs: {remove}pip install {wheel}",
    unchosen=(
        "Install the release of onnxruntime-gpu for this driver's CUDA; the current one is for"
        " CUDA 13 and compute capability 7.5 or newer ({why}):"
        " https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html"
    ),
    libraries=("Install them: pip install 'onnxruntime-gpu[cuda,cudnn]'",),
    # Source: onnxruntime-gpu 1.31 on PyPI (capi/build_and_package_info.py).
    wheels=(frameworks.Wheel("onnxruntime-gpu", 13, (7, 5)),),
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
