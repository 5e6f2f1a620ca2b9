"""Is any GPU, or its memory, near the card's own limit?"""

from __future__ import annotations

from gpucheck.detect.findings import over_gpus
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.inventory.condition import temperature

ID = "temperature"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

ABOUT = About(
    looks_at=(
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetMarginTemperature: the distance to slowdown, if the card names no limit",
        "nvmlDeviceGetTemperatureThreshold: slowdown, highest for the GPU, highest for its memory",
        "nvmlDeviceGetFieldValues 82: the memory's temperature",
    ),
    why="A GPU slows down at its slowdown temperature, and turns off at its shutdown temperature.",
    rules=(
        "fail: at the slowdown temperature or above",
        "warn: within 5 C of it, above the GPU's or the memory's highest operating temperature",
        "if the card names no limit: warn from 83 C, fail from 90 C",
    ),
    sources=(
        "the card's own limits, from NVML",
        "gpud: above GPU_MAX or MEM_MAX is degraded; gpumedic: 5 C below slowdown, else 83 and 90",
    ),
    causes=("gpu-hot", "memory-hot"),
)


def check(machine: Machine) -> list[Finding]:
    """Judge every GPU that answers."""
    return over_gpus(machine, ID, "temperatures are below the cards' limits", temperature)
