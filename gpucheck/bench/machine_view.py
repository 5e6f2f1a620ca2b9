"""Run environment of a benchmark on the console: processor, libraries, limits, sensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.model import BenchEnvironment, GpuTelemetry, Roofline, Telemetry
from gpucheck.report.text import printable, rate

if TYPE_CHECKING:
    from rich.text import Text

#: With more GPUs than this, they share their lines without -v.
_MOST_ALONE = 3


def machine_lines(
    found: BenchEnvironment, telemetry: Telemetry | None, *, verbosity: int = 0
) -> Iterator[Text]:
    """Yield the processor, the measured limits, the GPUs, and their sensors.

    Many GPUs share their lines unless details are wanted.
    """
    from rich.text import Text

    together = verbosity <= 0 and len(found.gpus) > _MOST_ALONE
    yield Text(_host_line(found), style="dim")
    for where, rooflines in _places(found.rooflines, together=together):
        yield Text(_roofline_line(where, rooflines), style="dim")
    yield from (Text(line, style="dim") for line in _gpu_lines(found))
    if telemetry is None:
        return
    if telemetry.unavailable is not None:
        yield Text(f"no sensors: {printable(telemetry.unavailable)}", style="dim")
    names = {gpu.uuid: f"gpu:{gpu.cuda_index}" for gpu in found.gpus}
    if together and len(telemetry.gpus) > 1:
        line = _sensor_line(f"sensors of {len(telemetry.gpus)} GPUs", telemetry.gpus)
        yield Text(printable(line), style="dim")
        return
    for sensors in telemetry.gpus:
        name = f"sensors of {names.get(sensors.uuid, sensors.uuid)}"
        yield Text(printable(_sensor_line(name, [sensors])), style="dim")


def _host_line(found: BenchEnvironment) -> str:
    parts = [found.cpu_model or "unknown processor"]
    parts.append(f"{found.usable_cores} of {found.logical_cores or '?'} cores")
    if found.cpu_quota_cores is not None:
        parts.append(f"quota {found.cpu_quota_cores:g}")
    if found.blas_name is not None:
        core = f" ({found.blas_architecture})" if found.blas_architecture else ""
        parts.append(f"{found.blas_name} {found.blas_version or ''}".strip() + core)
    parts.append(f"NumPy {found.numpy_version}")
    if found.cupy_version is not None:
        parts.append(f"CuPy {found.cupy_version}")
    if found.parallel_efficiency is not None:
        parts.append(f"parallel efficiency {found.parallel_efficiency:.0%}")
    if found.peak_memory_bytes is not None:
        parts.append(f"peak memory {found.peak_memory_bytes / 2**20:.0f} MiB")
    return printable("cpu: " + ", ".join(parts))


def _places(
    rooflines: Sequence[Roofline], *, together: bool
) -> Iterator[tuple[str, Sequence[Roofline]]]:
    """Yield the limits of each device, or those of all GPUs together."""
    on_gpus = [one for one in rooflines if one.threads is None]
    for one in rooflines:
        if one.threads is not None:
            yield f"{one.device}, {_threads(one.threads)}", [one]
        elif not together:
            yield one.device, [one]
    if together and on_gpus:
        yield f"{len(on_gpus)} GPUs", on_gpus


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _roofline_line(where: str, rooflines: Sequence[Roofline]) -> str:
    copies = [one.copy_bytes_per_s for one in rooflines if one.copy_bytes_per_s is not None]
    products = [one.gemm_flops_per_s for one in rooflines if one.gemm_flops_per_s is not None]
    parts = []
    if copies:
        parts.append(f"copy {_range(copies, 'B/s')}")
    if products:
        parts.append(f"{rooflines[0].gemm_dtype} product {_range(products, 'FLOP/s')}")
    return printable(f"limits measured on {where}: {', '.join(parts) or 'none'}")


def _range(values: Sequence[float], unit: str) -> str:
    low, high = rate(min(values), unit), rate(max(values), unit)
    return low if low == high else f"{low} to {high}"


def _gpu_lines(found: BenchEnvironment) -> Iterator[str]:
    """Yield each kind of GPU once, with the devices of that kind."""
    kinds: dict[str, list[str]] = {}
    for gpu in found.gpus:
        board = f" ({gpu.board.source})" if gpu.board is not None else ""
        kinds.setdefault(printable(gpu.name + board), []).append(f"gpu:{gpu.cuda_index}")
    for kind, names in kinds.items():
        yield f"{', '.join(names)}: {kind}"


def _sensor_line(name: str, gpus: Sequence[GpuTelemetry]) -> str:
    """Return the sensor readings of these GPUs, from lowest to highest."""
    parts = []
    clocks = [gpu.clock_sm_mhz for gpu in gpus if gpu.clock_sm_mhz is not None]
    if clocks:
        low, high = min(one.low for one in clocks), max(one.high for one in clocks)
        span = f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        parts.append(f"SM clock {span} MHz")
    hungry = [gpu for gpu in gpus if gpu.power_w is not None]
    if hungry:
        most = max(hungry, key=lambda gpu: gpu.power_w.high if gpu.power_w else 0.0)
        limit = f" of {most.power_limit_w:.0f}" if most.power_limit_w is not None else ""
        parts.append(f"up to {most.power_w.high if most.power_w else 0:.0f}{limit} W")
    temperatures = [gpu.temperature_c.high for gpu in gpus if gpu.temperature_c is not None]
    if temperatures:
        parts.append(f"up to {max(temperatures):.0f} C")
    links = {
        f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}"
        for gpu in gpus
        if gpu.pcie_generation is not None
    }
    parts.extend(sorted(links))
    reasons = {reason for gpu in gpus for reason in gpu.reasons} - {"idle"}
    if any(gpu.reasons for gpu in gpus):
        parts.append("clock limited by " + ", ".join(sorted(reasons) or ["nothing"]))
    return f"{name}: {', '.join(parts) or 'no readings'}"
