"""Can JAX, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import BuildReading

ID = "jax"
LAYER = Layer.FRAMEWORK
REQUIRES: tuple[str, ...] = ()

ABOUT = frameworks.about(
    "the distributions jax-cuda12-plugin and jax-cuda13-plugin, and whether they match jaxlib"
    " and their pjrt",
    "the libraries that the plugin opens by name, with the dynamic loader in list mode, and in"
    " NVIDIA's wheels",
    why="Plain jax is for CPUs; a plugin without its libraries falls back to the CPU.",
    sources=("JAX, Installation: NVIDIA GPU",),
)


#: Source: JAX, Installation: NVIDIA GPU. It compiles its kernels itself, for newer GPUs too.
WHEELS = (frameworks.Wheel("cuda13", 13, (7, 5)), frameworks.Wheel("cuda12", 12, (5, 2)))


def _gpu_build(machine: Machine, build: BuildReading | None) -> tuple[str, ...]:
    wheel, remark = frameworks.choose_wheel(machine, WHEELS)
    if wheel is None:
        return (f"Install the plugin, 'jax[cuda13]' or 'jax[cuda12]' ({remark}).",)
    noted = f" ({remark})" if remark else ""
    return (f"Install the plugin{noted}: pip install -U 'jax[{wheel}]'",)


def _libraries(build: BuildReading) -> tuple[str, ...]:
    return (
        f"Install them with the plugin: pip install -U 'jax[cuda{build.cuda_build or 12}]'",
        "Unset LD_LIBRARY_PATH, which may hide the right ones.",
    )


ADVICE = frameworks.Advice(
    title="JAX",
    gpu_build=_gpu_build,
    libraries=_libraries,
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, ADVICE)
