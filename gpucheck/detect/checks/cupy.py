"""Can CuPy, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "cupy"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "the distributions that provide CuPy, of which only one may be installed",
    "NVRTC, cuBLAS and the headers of the CUDA that it is built for: from version 14 on with"
    " cuda-pathfinder, as CuPy does, before with the dynamic loader",
    why="CuPy compiles its kernels when they are first used: without NVRTC and headers none runs.",
    sources=("CuPy, Installation", "CuPy's warning about several packages"),
)

GUIDE = frameworks.Guide(
    title="CuPy",
    gpu_build="Install one package for GPUs{note}: {remove}pip install '{wheel}[ctk]'",
    unchosen="Install cupy-cuda13x[ctk] or cupy-cuda12x[ctk], and no other cupy ({why}).",
    libraries=(
        "Install them: pip install 'cupy-cuda{cuda}x[ctk]'",
        "Or set CUDA_PATH to a CUDA toolkit of that version.",
    ),
    # Source: CuPy, Installation. It compiles its kernels itself, for newer GPUs too.
    wheels=(
        frameworks.Wheel("cupy-cuda13x", 13, (7, 5)),
        frameworks.Wheel("cupy-cuda12x", 12, (5, 0)),
    ),
)

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


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
