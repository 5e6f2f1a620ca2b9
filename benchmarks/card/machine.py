"""Facts of a measurement: the card, its driver and the libraries."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gpucheck
from benchmarks.card.children import CHECKOUT
from gpucheck.drivers.gpu import OpenedGpus


def read_machine(opened: OpenedGpus, torch: str) -> dict[str, object]:
    """Return the facts of a run, the card's own first."""
    facts = opened.devices[0].facts
    return {
        "card": facts.name,
        "GPUs": len(opened.devices),
        "compute capability": facts.compute_capability,
        "SMs": facts.sm_count,
        "L2 bytes": facts.l2_bytes,
        "memory bytes": facts.memory_total_bytes,
        **_told_by_nvml(facts.uuid),
        "CuPy": opened.cupy_version,
        "cuBLAS": opened.cublas_version,
        "torch": torch,
        "Python": platform.python_version(),
        "NumPy": importlib.metadata.version("numpy"),
        "gpucheck": gpucheck.__version__,
        "kernels": kernels_digest(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def kernels_digest() -> str:
    """Return a digest of the CUDA sources and their launches."""
    folders = (CHECKOUT / "gpucheck", CHECKOUT / "benchmarks" / "card")
    sources = sorted(file for folder in folders for file in folder.rglob("*.cu"))
    files = [*sources, CHECKOUT / "gpucheck" / "bench" / "kernels" / "softmax.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _told_by_nvml(uuid: str | None) -> dict[str, object]:
    """Return the driver's version and the card's settings, as far as NVML reports them."""
    told: dict[str, object] = {"driver": None}
    try:
        nvml: Any = import_module("pynvml")
        nvml.nvmlInit()
        told["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid or "")
    except Exception as error:  # no NVML, or no such GPU: CUDA's facts remain
        return told | {"NVML": str(error)}
    asked: dict[str, Callable[[], object]] = {
        "power limit W": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "most SM MHz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory MHz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "ECC": lambda: "on" if nvml.nvmlDeviceGetEccMode(handle)[0] else "off",
        "MIG": lambda: "on" if nvml.nvmlDeviceGetMigMode(handle)[0] else "off",
        "confidential computing": lambda: "on" if is_encrypted() else "off",
    }
    for name, ask in asked.items():
        try:
            told[name] = ask()
        except nvml.NVMLError as error:
            told[name] = str(error)
    return told


def is_encrypted() -> bool:
    """Return whether confidential computing encrypts what crosses the GPUs' links.

    NVML must be open; a driver that does not know of it has none.
    """
    nvml: Any = import_module("pynvml")
    try:
        return bool(nvml.nvmlSystemGetConfComputeState().ccFeature)
    except nvml.NVMLError:
        return False


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
