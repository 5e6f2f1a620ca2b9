"""Peaks of boards: from the sourced table by PCI device id, else by formula.

FLOP/s = SMs x clock x operations per clock and SM; bytes/s = memory clock x bus bits / 8 x 2. The
compute capability alone does not give the rate (8.6, 8.9 and 12.0 have boards of half rate), so an
unknown board gets a range.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpucheck.bench.model import DtypeSpec
from gpucheck.drivers.gpu import BenchGpu, Board

TABLE = Path(__file__).parents[1] / "data" / "peaks.toml"

#: Formats that run on tensor cores, which have a lower clock on some boards.
TENSOR_FORMATS = frozenset({"tf32", "float16", "bfloat16", "float8", "int8"})

#: PCI device ids of TU116 and TU117, compute capability 7.5 without tensor cores. Ids: names of
#: NVIDIA's open kernel modules (g_nv_name_released.h); the chips: techpowerup's review of GTX 1660.
_WITHOUT_TENSOR_CORES = (range(0x1F80, 0x2000), range(0x2180, 0x2200))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Published value in TFLOP/s or GB/s, its source, and what speaks against it.

    `formula_percent` is the formula's deviation if it is more than 1 %.
    """

    value: float
    source: str
    formula_percent: float | None = None
    doubt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Board of the table."""

    name: str
    pci_device_ids: Sequence[str]
    names: Sequence[str]
    rates: str
    sm_count: int
    clock_mhz: float
    tensor_clock_mhz: float
    memory_clock_mhz: float
    clock_sources: Mapping[str, str]
    memory_bus_bits: int
    memory_gb: str
    power_w: int
    pcie_generation: int
    bandwidth: Cell
    tflops: Mapping[str, Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table of boards, with operations per clock and SM by kind of board.

    `int8_on_cuda_cores` is the number of int8 operations in the time of one in float32.
    """

    rates: Mapping[str, Mapping[str, float]]
    int8_on_cuda_cores: Mapping[str, float]
    boards: Sequence[Entry]


@cache
def load_table() -> Table:
    """Read data/peaks.toml."""
    document: Mapping[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    boards = [
        Entry(
            **{
                **board,
                "bandwidth": Cell(**board["bandwidth"]),
                "tflops": {key: Cell(**cell) for key, cell in board["tflops"].items()},
            }
        )
        for board in document["board"]
    ]
    return Table(
        rates=document["rates"],
        int8_on_cuda_cores=document["int8_on_cuda_cores"],
        boards=boards,
    )


def format_of(dtype: DtypeSpec) -> str:
    """Return the format name of a row's precision: tf32 is float32 in memory."""
    return "tf32" if dtype.math_mode == "tf32" else dtype.input


def flops_by_formula(sm_count: int, clock_mhz: float, rate: float) -> float:
    """Return SMs x clock x operations per clock and SM, in FLOP/s."""
    return sm_count * clock_mhz * 1e6 * rate


def bytes_by_formula(memory_clock_mhz: float, bus_bits: int) -> float:
    """Return memory clock x bus width x 2, in bytes/s; the clock is half the pin rate."""
    return memory_clock_mhz * 1e6 * bus_bits / 8 * 2


def clock_of(entry: Entry, dtype: str) -> float:
    """Return the clock in MHz that a board's value in this format refers to."""
    return entry.tensor_clock_mhz if dtype in TENSOR_FORMATS else entry.clock_mhz


def board_of(gpu: BenchGpu) -> Board | None:
    """Return a GPU's limits from the table, else computed; None if neither is possible."""
    entry = _find(gpu)
    return _computed(gpu) if entry is None else board_from(entry)


def _find(gpu: BenchGpu) -> Entry | None:
    """Return the table's entry by PCI device id, or by exact name if no id is known."""
    boards = load_table().boards
    if gpu.pci_device_id is not None:
        device = gpu.pci_device_id[:4].lower()
        return next((board for board in boards if device in board.pci_device_ids), None)
    return next((board for board in boards if gpu.name in board.names), None)


def flops_of_cuda_cores(gpu: BenchGpu, name: str) -> float | None:
    """Return the peak of the CUDA cores alone in a tensor-core format.

    Products that sum in float32 then run at float32's rate, whatever their factors are.
    """
    if gpu.board is None:
        return None
    single = gpu.board.high_flops_per_s.get("float32")
    ratio = 1.0
    if name == "int8":
        ratio = load_table().int8_on_cuda_cores.get(gpu.compute_capability, 0.0)
    return single * ratio if single and ratio else None


def board_from(entry: Entry) -> Board:
    """Return the limits of a board of the table."""
    flops = {key: 1e12 * cell.value for key, cell in entry.tflops.items()}
    # A float64 product runs on the tensor cores where they support it.
    if "float64_tensor" in flops:
        flops["float64"] = max(flops.get("float64", 0.0), flops.pop("float64_tensor"))
    doubts = {key: cell.doubt for key, cell in entry.tflops.items() if cell.doubt}
    if entry.bandwidth.doubt:
        doubts["bytes_per_s"] = entry.bandwidth.doubt
    sources = {key: cell.source for key, cell in entry.tflops.items()}
    if "float64_tensor" in sources:
        sources["float64"] = sources.pop("float64_tensor")
    sources["bytes_per_s"] = entry.bandwidth.source
    return Board(
        name=entry.name,
        source=entry.bandwidth.source,
        sources=sources,
        flops_per_s=flops,
        high_flops_per_s=flops,
        bytes_per_s=1e9 * entry.bandwidth.value,
        clock_mhz=entry.clock_mhz,
        tensor_clock_mhz=entry.tensor_clock_mhz,
        uncertainty=doubts,
    )


def _lacks_tensor_cores(gpu: BenchGpu) -> bool:
    """Return whether a GPU lacks the tensor cores that its compute capability implies."""
    device = int((gpu.pci_device_id or "0")[:4], 16)
    return "GTX 16" in gpu.name or any(device in ids for ids in _WITHOUT_TENSOR_CORES)


def _computed(gpu: BenchGpu) -> Board | None:
    """Return the range of all boards of this compute capability, at this GPU's own clock."""
    capability, clock = gpu.compute_capability, gpu.clock_sm_max_mhz
    rows = [
        rates
        for kind, rates in load_table().rates.items()
        if kind.removesuffix("-half") == capability
    ]
    if not rows or clock is None:
        return None

    def peaks(choose: Callable[[Iterable[float]], float]) -> dict[str, float]:
        values = {
            key: flops_by_formula(gpu.sm_count, clock, choose(row[key] for row in rows))
            for key in rows[0]
            if key not in TENSOR_FORMATS or not _lacks_tensor_cores(gpu)
        }
        values["float64"] = max(values["float64"], values.pop("float64_tensor", 0.0))
        return values

    memory = None
    if gpu.clock_memory_max_mhz is not None and gpu.memory_bus_bits is not None:
        memory = bytes_by_formula(gpu.clock_memory_max_mhz, gpu.memory_bus_bits)
    return Board(
        name=gpu.name,
        source="computed from SMs, clock and compute capability",
        computed=True,
        flops_per_s=peaks(min),
        high_flops_per_s=peaks(max),
        bytes_per_s=memory,
        clock_mhz=clock,
        tensor_clock_mhz=clock,
    )
