"""Boards: what each can do at most, by its sources (data/peaks.toml); the records of peaks/1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gpucheck.data import read_table
from gpucheck.drivers.readings import GpuReading
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean, ranges

#: What the table rates, in the order in which it is shown.
DTYPES = (
    "float64", "float64_tensor", "float32", "tf32", "float16", "bfloat16", "float8", "int8",
)  # fmt: skip
#: A power limit this far below the board's is no rounding: NVML counts in milliwatts.
_LEAST_PERCENT = 99.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePeak:
    """Peak of a board in one dtype, and what its value rests on.

    `source` is the kind of source: datasheet, whitepaper, formula, or secondary (public tables that
    quote a sheet which is not public). `formula_percent` is by how much the formula SMs x clock x
    rate deviates, if by more than 1 %. `dense` is false for a figure with structured sparsity,
    which NVIDIA's sheets print beside it and often alone; the table has none of them.
    """

    flops_per_s: float
    source: str
    dense: bool = True
    formula_percent: float | None = None
    doubt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Peak of a board's memory; `formula_percent` is the deviation of clock x bus width x 2."""

    bytes_per_s: float
    source: str
    formula_percent: float | None = None
    doubt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakGpu:
    """GPU of this machine that has the board.

    `power_limit_percent` is its power limit as a share of what the board is built for: below 100,
    the peaks may be out of its reach.
    """

    index: int
    uuid: str | None
    name: str | None
    power_limit_w: float | None
    power_limit_percent: float | None


def numbers_text(gpus: Iterable[PeakGpu | GpuReading]) -> str:
    """Return "GPU 0" or "GPUs 0-7"."""
    indices = [gpu.index for gpu in gpus]
    return f"GPU{'s' if len(indices) > 1 else ''} {ranges(indices)}"


def is_held(gpu: PeakGpu) -> bool:
    """Return whether a GPU's power limit is known to be below the board's."""
    return gpu.power_limit_percent is not None and gpu.power_limit_percent < _LEAST_PERCENT


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPeaks:
    """Peaks of a board: dense, and of tensor cores that sum in float32.

    `compute` is by dtype; `float64_tensor` is float64 on tensor cores. A dtype that no source rates
    on this board is missing there, and `unavailable` has the reason if it was asked for.
    `clock_tensor_mhz` is what tensor cores are rated at; `clock_sources` has the source of each
    clock. `power_limit_w` is what the board is built for. `gpus` are those of this machine.
    `source` and `date` are where the row was read, and when.
    """

    id: str
    name: str
    product_names: tuple[str, ...]
    pci_device_ids: tuple[str, ...]
    compute_capability: str
    sm_count: int
    clock_sm_mhz: float
    clock_tensor_mhz: float
    clock_memory_mhz: float
    clock_sources: dict[str, str]
    memory_bus_bits: int
    memory_sizes_gb: tuple[float, ...]
    power_limit_w: float
    pcie_generation: int
    compute: dict[str, ComputePeak]
    memory: MemoryPeak
    source: str
    date: str
    gpus: tuple[PeakGpu, ...] = ()
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownBoard:
    """GPU of this machine whose peaks are not known, and why."""

    index: int
    uuid: str | None
    name: str | None
    pci_device_id: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of this machine's boards, or of the one that was named.

    `unknown` are GPUs of which the table has no board: they get no other board's figures.
    """

    boards: tuple[BoardPeaks, ...]
    unknown: tuple[UnknownBoard, ...] = ()


#: Fields of a board that the table has under the same names.
_AS_IN_TABLE = (
    *("id", "name", "sm_count", "clock_sources", "memory_bus_bits", "pcie_generation", "source"),
)


@cache
def load_boards() -> tuple[BoardPeaks, ...]:
    """Return the boards of data/peaks.toml."""
    return tuple(map(_board, read_table("peaks")["row"]))


def shipped_w(board: BoardPeaks) -> float:
    """Return the lowest power limit that a board is delivered with."""
    row = next(row for row in read_table("peaks")["row"] if row["id"] == board.id)
    return float(row.get("power_shipped_w", row["power_w"]))


def _board(row: Mapping[str, Any]) -> BoardPeaks:
    """Return a row of the table, in the units of the document."""
    bandwidth, cells = row["bandwidth"], row["tflops"]
    return BoardPeaks(
        **{name: row[name] for name in _AS_IN_TABLE},
        product_names=tuple(row["names"]),
        pci_device_ids=tuple(row["pci_device_ids"]),
        compute_capability=row["rates"].partition("-")[0],
        clock_sm_mhz=row["clock_mhz"],
        clock_tensor_mhz=row["tensor_clock_mhz"],
        clock_memory_mhz=row["memory_clock_mhz"],
        memory_sizes_gb=tuple(map(float, row["memory_gb"].split("/"))),
        power_limit_w=float(row["power_w"]),
        compute={
            name: ComputePeak(flops_per_s=1e12 * cells[name]["value"], **_basis(cells[name]))
            for name in DTYPES
            if name in cells
        },
        memory=MemoryPeak(bytes_per_s=1e9 * bandwidth["value"], **_basis(bandwidth)),
        date=row["date"].isoformat(),
    )


def _basis(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sources of a value of the table, and the doubts about it."""
    return {key: basis for key, basis in cell.items() if key != "value"}


#: GpuReading's word for a guest's share of a board, and why no figure of that board is its own.
VGPU = "vgpu"
VGPU_SHARE = "it is a vGPU, which has a share of its board"


def find_board(
    name: str | None, pci_device_id: str | None, virtualization: str | None = None
) -> BoardPeaks | None:
    """Return a GPU's board by PCI device id, or by NVML's exact name if no id is known.

    A vGPU has none, although it shows its board's id.
    """
    boards = load_boards()
    if virtualization == VGPU:
        return None
    if pci_device_id is not None:
        device = pci_device_id[:4].lower()
        return next((board for board in boards if device in board.pci_device_ids), None)
    return next((board for board in boards if name in board.product_names), None)


def board_called(text: str) -> BoardPeaks:
    """Return the board with this name: the table's, NVML's, its id, or its PCI device id.

    Part of a name is not enough: "H100" names three boards, and their peaks differ.

    Raises:
        WrongUseError: no board, or more than one, is called that.
    """
    boards = load_boards()
    wanted = " ".join(text.split()).lower()
    named = next((board for board in boards if wanted in _names_of(board)), None)
    if named is not None:
        return named
    several = [board.name for board in boards if f"{board.name} ".lower().startswith(f"{wanted} ")]
    if wanted and len(several) > 1:
        names = ", ".join(several)
        raise WrongUseError(
            code="ambiguous-board",
            message=f"{text[:100]!r} does not name one board of the table, and boards differ.",
            remedy=(f"Name it in full: {names}",),
        )
    known = [board.name for board in boards]
    suggestion = did_you_mean(
        text, (*known, *(name for board in boards for name in board.product_names))
    )
    raise WrongUseError(
        code="unknown-board",
        message=f"The table of boards has none called {text[:100]!r}. {suggestion}".strip(),
        remedy=(f"Choose from: {', '.join(known)}",),
    )


def _names_of(board: BoardPeaks) -> set[str]:
    return {
        name.lower() for name in (board.name, board.id, *board.product_names, *board.pci_device_ids)
    }
