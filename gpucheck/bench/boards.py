"""Table of boards: what each can do at most, by its sources (data/peaks.toml)."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpucheck.data import read_table
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean


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
class TableBoard:
    """Board of the table; `rates` names its rates by compute capability.

    It is delivered with power limits from `power_shipped_w` to `power_w`.
    """

    id: str
    source: str
    date: datetime.date
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
    power_shipped_w: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table of boards, with operations per clock and SM by kind of board.

    `int8_on_cuda_cores` is the number of int8 operations in the time of one in float32.
    """

    rates: Mapping[str, Mapping[str, float]]
    int8_on_cuda_cores: Mapping[str, float]
    boards: Sequence[TableBoard]


@cache
def load_table() -> Table:
    """Read data/peaks.toml."""
    common = read_table("peaks")
    boards = [
        TableBoard(
            **{
                **board,
                "bandwidth": Cell(**board["bandwidth"]),
                "tflops": {key: Cell(**cell) for key, cell in board["tflops"].items()},
            }
        )
        for board in common["row"]
    ]
    return Table(
        rates=common["rates"],
        int8_on_cuda_cores=common["int8_on_cuda_cores"],
        boards=boards,
    )


def find_board(name: str | None, pci_device_id: str | None) -> TableBoard | None:
    """Return a GPU's board by PCI device id, or by NVML's exact name if no id is known."""
    boards = load_table().boards
    if pci_device_id is not None:
        device = pci_device_id[:4].lower()
        return next((board for board in boards if device in board.pci_device_ids), None)
    return next((board for board in boards if name in board.names), None)


def known_board(name: str | None, pci_device_id: str | None) -> str | None:
    """Return the table's name of a GPU's board, None if it is not there."""
    board = find_board(name, pci_device_id)
    return None if board is None else board.name


def board_called(text: str) -> TableBoard:
    """Return the board with this name: the table's, NVML's, its id, or its PCI device id.

    Part of a name is not enough: "H100" names three boards, and their peaks differ.

    Raises:
        WrongUseError: no board, or more than one, is called that.
    """
    boards = load_table().boards
    wanted = " ".join(text.split()).lower()
    found = next((board for board in boards if wanted in _names_of(board)), None)
    if found is not None:
        return found
    several = [board.name for board in boards if f"{board.name} ".lower().startswith(f"{wanted} ")]
    if wanted and len(several) > 1:
        names = ", ".join(several)
        raise WrongUseError(
            code="ambiguous-board",
            message=f"{text[:100]!a} does not name one board of the table, and boards differ.",
            remedy=(f"Name it in full: {names}",),
        )
    known = [board.name for board in boards]
    suggestion = did_you_mean(text, (*known, *(name for board in boards for name in board.names)))
    raise WrongUseError(
        code="unknown-board",
        message=f"The table of boards has none called {text[:100]!a}. {suggestion}".strip(),
        remedy=(f"Choose from: {', '.join(known)}",),
    )


def _names_of(board: TableBoard) -> set[str]:
    return {name.lower() for name in (board.name, board.id, *board.names, *board.pci_device_ids)}
