"""Columns of a GPU list, for the terminal and for CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpucheck.inventory.model import Gpu
from gpucheck.report.text import ABSENT


class Column(NamedTuple):
    """Column: its heading, the plain value, and the text for people."""

    heading: str
    value: Callable[[Gpu], str | int | float | bool | None]
    show: Callable[[Gpu], str]
    right: bool = False


def _plain(name: str) -> Callable[[Gpu], str | int | float | bool | None]:
    def value(gpu: Gpu) -> str | int | float | bool | None:
        plain: str | int | float | bool | None = getattr(gpu, name)
        return plain

    return value


def _text(value: object) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _column(
    name: str, heading: str, unit: str = "", *, prefix: str = "", right: bool = True
) -> Column:
    value = _plain(name)

    def show(gpu: Gpu) -> str:
        shown = value(gpu)
        if isinstance(shown, float):
            shown = round(shown)
        return ABSENT if shown is None else f"{prefix}{_text(shown)}{unit}"

    return Column(heading=heading, value=value, show=show, right=right)


def _bytes(name: str, heading: str) -> Column:
    from gpucheck.report.text import binary_bytes

    def show(gpu: Gpu) -> str:
        size = getattr(gpu, name)
        return ABSENT if size is None else binary_bytes(size)

    return Column(heading=heading, value=_plain(name), show=show, right=True)


def _derived(heading: str, value: Callable[[Gpu], str | int | None]) -> Column:
    return Column(heading=heading, value=value, show=lambda gpu: _text(value(gpu)), right=True)


def _watts(gpu: Gpu) -> str:
    if gpu.power_w is None and gpu.power_limit_w is None:
        return ABSENT
    used = "?" if gpu.power_w is None else f"{gpu.power_w:.0f}"
    return f"{used} W" if gpu.power_limit_w is None else f"{used}/{gpu.power_limit_w:.0f} W"


def _link(gpu: Gpu) -> str | None:
    """Return the link for programs: "3x8 of 5x16"."""
    link = gpu.pcie
    if link.generation is None or link.width is None:
        return None
    now = f"{link.generation}x{link.width}"
    if link.width_max is not None and link.width < link.width_max:
        return f"{now} of {link.generation_max or '?'}x{link.width_max}"
    return now


def link_now(gpu: Gpu) -> str | None:
    """Return the PCIe generation and the lanes in use: "gen3 x8"."""
    link = gpu.pcie
    if link.generation is None or link.width is None:
        return None
    return f"gen{link.generation} x{link.width}"


def _pcie(gpu: Gpu) -> str | None:
    """Return the link, and the slot's if that has more lanes: "gen3 x8 (slot gen5 x16)"."""
    now, link = link_now(gpu), gpu.pcie
    if now is None or link.width is None or link.width_max is None or link.width >= link.width_max:
        return now
    return f"{now} (slot gen{link.generation_max or '?'} x{link.width_max})"


def _mig(gpu: Gpu) -> str | None:
    if gpu.mig.enabled is None:
        return None
    if not gpu.mig.enabled:
        return "off"
    return f"on ({len(gpu.mig.instances)}{_more(gpu, 'mig.instances')})"


def _process_count(gpu: Gpu) -> int | None:
    """Return how many processes were listed; an unreadable list does not count as empty."""
    unread = "processes" in gpu.unavailable
    return None if unread and not gpu.processes else len(gpu.processes)


def _processes(gpu: Gpu) -> str:
    count = _process_count(gpu)
    return ABSENT if count is None else f"{count}{_more(gpu, 'processes')}"


def _more(gpu: Gpu, listing: str) -> str:
    """Return a plus sign if there may be more than was listed."""
    return "+" if listing in gpu.unavailable else ""


#: Every name that --select and --sort take: the document's own field names.
COLUMNS: dict[str, Column] = {
    "index": _column("index", "GPU"),
    "cuda_index": _column("cuda_index", "CUDA"),
    "name": _column("name", "Name", right=False),
    "uuid": _column("uuid", "UUID", right=False),
    "pci_bus_id": _column("pci_bus_id", "Bus", right=False),
    "visible": _column("visible", "Visible"),
    "hidden_reason": _column("hidden_reason", "Hidden because", right=False),
    "serial": _column("serial", "Serial", right=False),
    "architecture": _column("architecture", "Arch", right=False),
    "compute_capability": _column("compute_capability", "CC"),
    "memory_total_bytes": _bytes("memory_total_bytes", "Total"),
    "memory_used_bytes": _bytes("memory_used_bytes", "Used"),
    "memory_free_bytes": _bytes("memory_free_bytes", "Free"),
    "memory_source": _column("memory_source", "Memory of", right=False),
    "utilization_gpu_percent": _column("utilization_gpu_percent", "Util", "%"),
    "utilization_memory_percent": _column("utilization_memory_percent", "Mem util", "%"),
    "temperature_c": _column("temperature_c", "Temp", " °C"),
    "fan_percent": _column("fan_percent", "Fan", "%"),
    "power_w": Column(heading="Power", value=_plain("power_w"), show=_watts, right=True),
    "power_limit_w": _column("power_limit_w", "Limit", " W"),
    "clock_sm_mhz": _column("clock_sm_mhz", "SM clock", " MHz"),
    "clock_sm_max_mhz": _column("clock_sm_max_mhz", "SM max", " MHz"),
    "performance_state": _column("performance_state", "State", prefix="P"),
    "persistence_mode": _column("persistence_mode", "Persist"),
    "compute_mode": _column("compute_mode", "Compute mode", right=False),
    "ecc_mode": _column("ecc_mode", "ECC"),
    "pcie": Column(heading="PCIe", value=_link, show=lambda gpu: _text(_pcie(gpu)), right=True),
    "pcie_generation": _derived("PCIe gen", lambda gpu: gpu.pcie.generation),
    "pcie_generation_max": _derived("PCIe gen max", lambda gpu: gpu.pcie.generation_max),
    "pcie_width": _derived("PCIe lanes", lambda gpu: gpu.pcie.width),
    "pcie_width_max": _derived("PCIe lanes max", lambda gpu: gpu.pcie.width_max),
    "numa_node": _column("numa_node", "NUMA"),
    "cpu_affinity": _column("cpu_affinity", "CPUs", right=False),
    "mig": _derived("MIG", _mig),
    "processes": Column(heading="Procs", value=_process_count, show=_processes, right=True),
    "state": _column("state", "Status", right=False),
    "error": _column("error", "Error", right=False),
    "memory_limit_bytes": _bytes("memory_limit_bytes", "Cgroup's limit"),
    "memory_limit_used_bytes": _bytes("memory_limit_used_bytes", "Used of that"),
    "memory_limit_source": _column("memory_limit_source", "Limit by", right=False),
}

#: Ordinary names that --select and --sort take as well.
ALIASES = {
    "gpu": "index", "cuda": "cuda_index", "bus": "pci_bus_id", "mem": "memory_used_bytes",
    "memory": "memory_used_bytes", "free": "memory_free_bytes", "total": "memory_total_bytes",
    "util": "utilization_gpu_percent", "utilization": "utilization_gpu_percent",
    "temp": "temperature_c", "temperature": "temperature_c", "fan": "fan_percent",
    "power": "power_w", "clock": "clock_sm_mhz", "numa": "numa_node", "ecc": "ecc_mode",
}  # fmt: skip

#: The columns of `--format csv` unless --select names others.
CSV_COLUMNS = tuple(name for name in COLUMNS if name not in ("pcie", "mig"))
