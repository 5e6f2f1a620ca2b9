"""Where a benchmark's figures were taken: processor, libraries, measured limits, sensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.models.bench import BenchEnvironment, GpuTelemetry, Roofline, Telemetry
from gpucheck.render.base import printable
from gpucheck.render.console.figures import rate

if TYPE_CHECKING:
    from rich.text import Text


def machine_lines(found: BenchEnvironment, telemetry: Telemetry | None) -> Iterator[Text]:
    """Yield the processor, the limits that were measured, the GPUs, and what their sensors said."""
    from rich.text import Text

    yield Text(_host_line(found), style="dim")
    for roofline in found.rooflines:
        yield Text(_roofline_line(roofline), style="dim")
    for gpu in found.gpus:
        board = f" ({gpu.board.source})" if gpu.board is not None else ""
        yield Text(f"gpu:{gpu.cuda_index}: {printable(gpu.name + board)}", style="dim")
    if telemetry is None:
        return
    if telemetry.unavailable is not None:
        yield Text(f"no sensors: {printable(telemetry.unavailable)}", style="dim")
    for sensors in telemetry.gpus:
        yield Text(printable(_sensor_line(sensors)), style="dim")


def _host_line(found: BenchEnvironment) -> str:
    parts = [found.cpu_model or "unknown processor"]
    parts.append(f"{found.usable_cores} of {found.logical_cores or '?'} cores")
    if found.cpu_quota_cores is not None:
        parts.append(f"quota {found.cpu_quota_cores:g}")
    if found.blas_name is not None:
        parts.append(f"{found.blas_name} {found.blas_version or ''}".strip())
    parts.append(f"NumPy {found.numpy_version}")
    if found.cupy_version is not None:
        parts.append(f"CuPy {found.cupy_version}")
    if found.parallel_efficiency is not None:
        parts.append(f"parallel efficiency {found.parallel_efficiency:.0%}")
    if found.peak_memory_bytes is not None:
        parts.append(f"at most {found.peak_memory_bytes / 2**20:.0f} MiB taken")
    return printable("cpu: " + ", ".join(parts))


def _roofline_line(roofline: Roofline) -> str:
    where = roofline.device
    if roofline.threads is not None:
        where += ", 1 thread" if roofline.threads == 1 else f", {roofline.threads} threads"
    parts = []
    if roofline.copy_bytes_per_s is not None:
        parts.append(f"copy {rate(roofline.copy_bytes_per_s, 'B/s')}")
    if roofline.gemm_flops_per_s is not None:
        parts.append(f"{roofline.gemm_dtype} product {rate(roofline.gemm_flops_per_s, 'FLOP/s')}")
    return printable(f"limits measured on {where}: {', '.join(parts) or 'none'}")


def _sensor_line(gpu: GpuTelemetry) -> str:
    parts = []
    if gpu.clock_sm_mhz is not None:
        parts.append(f"SM clock {gpu.clock_sm_mhz.low:.0f} to {gpu.clock_sm_mhz.high:.0f} MHz")
    if gpu.power_w is not None:
        limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        parts.append(f"up to {gpu.power_w.high:.0f}{limit} W")
    if gpu.temperature_c is not None:
        parts.append(f"up to {gpu.temperature_c.high:.0f} C")
    if gpu.pcie_generation is not None:
        parts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.reasons:
        parts.append(
            "clock held by " + ", ".join(sorted(set(gpu.reasons) - {"idle"}) or ["nothing"])
        )
    return f"{gpu.uuid}: {', '.join(parts) or 'the sensors gave nothing'}"
