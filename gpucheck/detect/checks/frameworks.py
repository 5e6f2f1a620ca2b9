"""Checks of the frameworks: can each, as it is installed, use the GPUs?

Here stands what is special about each: its guide to a build for GPUs.
"""

from __future__ import annotations

from gpucheck.detect.frameworks import FrameworkCheck, Guide
from gpucheck.detect.model import Finding
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import CheckStatus, Evidence

PYTORCH_INDEX = "https://download.pytorch.org/whl/"
PYTORCH = FrameworkCheck(
    Guide(
        name="pytorch",
        title="PyTorch",
        unchosen="Install a build for GPUs ({why}): https://pytorch.org/get-started/locally",
        # What this build requires: another build may not fit.
        libraries=(
            "Install what it requires: pip install torch",
            "If pip finds nothing missing: {again}",
        ),
        removes=("torch",),
        wheels_at=PYTORCH_INDEX,
    ),
)

TENSORFLOW = FrameworkCheck(
    Guide(
        name="tensorflow",
        title="TensorFlow",
        unchosen="Install a build for GPUs ({why}): pip install 'tensorflow[and-cuda]'",
        libraries=(
            "Install them with it: pip install 'tensorflow[and-cuda]{version}'",
            "If they are installed: link them into tensorflow's folder, as its guide says.",
        ),
    ),
)

JAX = FrameworkCheck(
    Guide(
        name="jax",
        title="JAX",
        gpu_build="Install the plugin",
        unchosen="Install the plugin, 'jax[cuda13]' or 'jax[cuda12]' ({why}).",
        libraries=(
            "Install them with the plugin: pip install -U 'jax[cuda{cuda}]'",
            "Unset LD_LIBRARY_PATH, which may hide the right ones.",
        ),
    ),
)

CUPY = FrameworkCheck(
    Guide(
        name="cupy",
        title="CuPy",
        gpu_build="Install one package for GPUs",
        unchosen="Install cupy-cuda13x[ctk] or cupy-cuda12x[ctk], and no other cupy ({why}).",
        libraries=(
            "Install them: pip install 'cupy-cuda{cuda}x[ctk]'",
            "Or set CUDA_PATH to a CUDA toolkit of that version.",
        ),
    ),
)

NUMBA = FrameworkCheck(
    Guide(
        name="numba",
        title="Numba",
        gpu_build="Install Numba's CUDA target",
        unchosen="Install numba-cuda[cu13] or numba-cuda[cu12] ({why}).",
        libraries=(
            "Install them: pip install 'numba-cuda[cu{cuda}]'",
            "Or set CUDA_HOME to a CUDA toolkit.",
        ),
    ),
)

ONNXRUNTIME = FrameworkCheck(
    Guide(
        name="onnxruntime",
        title="ONNX Runtime",
        unchosen=(
            "Install the release of onnxruntime-gpu for this GPU and its driver's CUDA ({why}):"
            " https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html"
        ),
        libraries=("Install them: pip install 'onnxruntime-gpu[cuda,cudnn]'",),
    ),
)

#: In the order in which they are checked.
FRAMEWORKS = (PYTORCH, TENSORFLOW, JAX, CUPY, NUMBA, ONNXRUNTIME)
NAMES = tuple(check.ID for check in FRAMEWORKS)

#: Remedies if CuPy could not run the kernel that libcuda ran, by the failure's code.
OF_LAUNCH = {
    "import-not-finished": (
        "Find what takes the time: python -X importtime -c 'import cupy' (a cold or remote disk"
        " takes minutes once)",
    ),
    "compile-not-finished": (
        "Run it once more: CuPy caches what it has compiled (in ~/.cupy, or $CUPY_CACHE_DIR).",
    ),
}
#: NVRTC's and CuPy's messages for a GPU that is newer than the compiler.
GPU_TOO_NEW = ("--gpu-architecture", "unsupported gpu architecture", "arch=compute_")


def after_launch(finding: Finding, failure: ProbeFailure) -> Finding:
    """Return CuPy's finding after it could not run the kernel that libcuda ran.

    A problem that its files already show says more, and stays.
    """
    if finding.status not in (CheckStatus.OK, CheckStatus.UNKNOWN):
        return finding
    remedy = OF_LAUNCH.get(
        failure.code, ("See its error: python -c 'import cupy; print(cupy.arange(3) * 2)'",)
    )
    summary = f"{finding.summary}; {failure.message}"
    if any(word in failure.message for word in GPU_TOO_NEW):
        summary = f"{finding.summary}; its compiler does not know this newer GPU"
        remedy = ("Install the build for the newest CUDA (currently cupy-cuda13x[ctk]).",)
    return finding._replace(
        status=CheckStatus.WARN,
        summary=summary,
        evidence=(*finding.evidence, Evidence("CuPy", failure.message)),
        remedy=remedy,
        cause=failure.code,
    )
