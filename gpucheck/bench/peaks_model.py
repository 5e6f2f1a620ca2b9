"""Records of the document peaks/1: what boards can do at most, and the GPUs that have them."""

from __future__ import annotations

from dataclasses import dataclass, field

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
