"""Rows of the inventory, as the commands get them."""

from __future__ import annotations

from gpucheck.drivers.readings import LIMIT_FIELDS
from gpucheck.inventory.model import Gpu

GIB = 1024**3

#: Fields of a GPU that are null when there is nothing to tell, or nobody asked.
NOTHING_TO_TELL = frozenset(
    {"error", "hidden_reason", "memory_unaccounted_bytes", "holders", "troubles", *LIMIT_FIELDS}
)


def row(index: int, **changes: object) -> Gpu:
    """Return an idle H100 that CUDA numbers as NVML does, with some values changed."""
    values: dict[str, object] = {
        "index": index,
        "cuda_index": index,
        "visible": True,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H100",
        "pci_bus_id": f"0000:0{index}:00.0",
        "compute_capability": "9.0",
        "memory_total_bytes": 80 * GIB,
        "memory_free_bytes": 70 * GIB,
        "utilization_gpu_percent": 0,
        "temperature_c": 40,
    }
    return Gpu(**(values | changes))  # type: ignore[arg-type]


def sized_row(index: int = 0, total_bytes: int | None = 80 * GIB, **changes: object) -> Gpu:
    """Return such a GPU with this much memory, of which it is unknown how much is free."""
    memory = {"memory_total_bytes": total_bytes, "memory_free_bytes": None}
    return row(index, **(memory | changes))
