"""Can JAX, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.core.checks import framework
from gpucheck.core.checks.machine import Machine
from gpucheck.models.evidence import BuildReading
from gpucheck.models.finding import Finding, Layer

ID = "jax"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = framework.about(
    "the distributions jax-cuda12-plugin and jax-cuda13-plugin, and whether they fit jaxlib",
    "the libraries that the plugin opens by name",
    why="Plain jax is for CPUs; a plugin without its libraries falls back to the CPU.",
    sources=("JAX, Installation: NVIDIA GPU",),
)


def _gpu_build(machine: Machine) -> tuple[str, ...]:
    cuda = framework.newest_cuda(machine, {13: "cuda13"}, otherwise="cuda12")
    return (f"Install the plugin: pip install -U 'jax[{cuda}]'",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    return (
        f"Install them with the plugin: pip install -U 'jax[cuda{build.cuda_build or 12}]'",
        "Unset LD_LIBRARY_PATH, which may hide the right ones.",
    )


ADVICE = framework.Advice(
    title="JAX",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by what it did where it was tried."""
    return framework.judge(machine, ID, ADVICE)
