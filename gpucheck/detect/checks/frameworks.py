"""Checks of the frameworks: can each, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect.frameworks import FrameworkCheck
from gpucheck.detect.model import Finding
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import CheckStatus, Evidence

CUPY = FrameworkCheck("cupy")
#: In the order in which they are checked.
FRAMEWORKS = (
    FrameworkCheck("pytorch"),
    FrameworkCheck("tensorflow"),
    FrameworkCheck("jax"),
    CUPY,
    FrameworkCheck("numba"),
    FrameworkCheck("onnxruntime"),
)
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


def judge_failed_launch(finding: Finding, failure: ProbeFailure) -> Finding:
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
