"""Do environment variables slow GPU programs down, or turn GPUs off for some?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "variables"
LAYER = Layer.VISIBILITY
REQUIRES: tuple[str, ...] = ()

_finding = partial(make_finding, ID, LAYER)

#: Variables with side effects, and what each does.
MEANING: dict[str, str] = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits until its kernel has ended",
    "CUDA_FORCE_PTX_JIT": "every kernel is compiled anew; TensorFlow fails to load",
    "CUDA_DISABLE_PTX_JIT": "code for an older architecture is refused",
    "CUDA_PROFILE": "profiling slows programs down",
    "COMPUTE_PROFILE": "profiling slows programs down",
    "OPENCL_PROFILE": "profiling slows programs down",
    "NSIGHT_CUDA_DEBUGGER": "a debugger slows programs down",
    "CUDA_INJECTION32_PATH": "a library is loaded into every CUDA program",
    "CUDA_INJECTION64_PATH": "a library is loaded into every CUDA program",
    "CUDA_AUTO_BOOST": "the clocks are not the default ones",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "programs write core dumps of the GPU",
    "CUDA_COREDUMP_FILE": "programs write core dumps of the GPU",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": "programs stop for a debugger",
    "NUMBA_DISABLE_CUDA": "Numba uses no GPU",
    "NUMBA_ENABLE_CUDASIM": "Numba simulates the GPU on the CPU",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "PyTorch trusts NVML and does not ask CUDA",
}
#: Values that turn a switch off.
OFF = ("", "0", "false", "False")


def jax_without_gpu(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables that keep JAX from GPUs: its platforms, and the one that it computes on.

    JAX calls the second one deprecated, and obeys it (seen in jax 0.10.2, jax/_src/xla_bridge.py).
    """
    for name in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        platforms = environment.get(name, "").lower()
        if platforms and not {"cuda", "gpu", "rocm"} & set(platforms.split(",")):
            yield name


def check(machine: Machine) -> Finding:
    """Name those that are set."""
    effects = [
        (name, meaning)
        for name, meaning in MEANING.items()
        if machine.environment.get(name, "") not in OFF
    ]
    effects += [(name, "JAX uses no GPU") for name in jax_without_gpu(machine.environment)]
    if not effects:
        summary = "no variable that slows GPU programs down is set"
        return _finding(CheckStatus.OK, summary)
    return report_cause(
        ID,
        LAYER,
        "variables-set",
        *(Evidence(name, repr(machine.environment[name])) for name, _ in effects),
        status=CheckStatus.WARN,
        summary="; ".join(f"{name} is set: {meaning}" for name, meaning in effects),
        names=" ".join(name for name, _ in effects),
    )
