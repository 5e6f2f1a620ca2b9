"""Can JAX, as it is installed, use the GPUs?"""

from __future__ import annotations

from gpucheck.detect import frameworks
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer

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

GUIDE = frameworks.Guide(
    title="JAX",
    gpu_build="Install the plugin{note}: pip install -U 'jax[{wheel}]'",
    unchosen="Install the plugin, 'jax[cuda13]' or 'jax[cuda12]' ({why}).",
    libraries=(
        "Install them with the plugin: pip install -U 'jax[cuda{cuda}]'",
        "Unset LD_LIBRARY_PATH, which may hide the right ones.",
    ),
    # Source: JAX, Installation: NVIDIA GPU. It compiles its kernels itself, for newer GPUs too.
    wheels=(frameworks.Wheel("cuda13", 13, (7, 5)), frameworks.Wheel("cuda12", 12, (5, 2))),
)


def check(machine: Machine) -> Finding:
    """Judge the build by its files, and by its smoke test if there was one."""
    return frameworks.judge(machine, ID, GUIDE)
