"""Program of somebody else that uses gpucheck: mypy must see the types of the installed package.

`.ci/run` checks it. A type that mypy does not see makes each `type: ignore` below unused, and
that is an error of its strict mode.
"""

from __future__ import annotations

import gpucheck


def names() -> list[str | None]:
    """Return the names of the GPUs."""
    return [gpu.name for gpu in gpucheck.devices()]


def free_bytes(gpu: gpucheck.Gpu) -> int:
    """Return the free memory of a GPU, 0 where it is not known."""
    return gpu.memory_free_bytes or 0


def held() -> list[str | None]:
    """Return the UUID of a GPU that is held meanwhile."""
    with gpucheck.place(count=1) as devices:
        return [device.uuid for device in devices]


def median_s(result: gpucheck.BenchResult) -> list[float | None]:
    """Return the medians of a benchmark."""
    return [row.median_s for row in result.measurements]


def limited() -> gpucheck.LimitedMemory:
    """Limit this program's memory."""
    return gpucheck.limit_memory("30%")


median_s(gpucheck.bench("matmul", mode="quick"))
gpucheck.bench(size="large")  # type: ignore[arg-type]
free_bytes(gpucheck.peaks())  # type: ignore[arg-type]
