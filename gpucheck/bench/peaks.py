"""Peaks of this machine's boards, or of a named one, from the table of boards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpucheck.bench.boards import (
    DTYPES,
    VGPU,
    VGPU_SHARE,
    BoardPeaks,
    PeakGpu,
    Peaks,
    UnknownBoard,
    board_called,
    find_board,
    is_held,
    load_boards,
    numbers_text,
    shipped_w,
)
from gpucheck.bench.model import shared_fields
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import GpuReading, NvmlRequest
from gpucheck.inventory.gpu_row import rows_of
from gpucheck.inventory.inventory import complete_host, complete_reading, error_of, outcome_of
from gpucheck.inventory.without_nvml import explain_failure
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import BadAnswerError, ExitCode, WrongUseError
from gpucheck.report.text import count_of, did_you_mean, group_by

#: The name that stands for every board of the table.
EVERY = "all"


def peaks_of_named(board: str, dtypes: Sequence[str] = ()) -> Answer:
    """Return the peaks of a board by its name, or of `all` of them.

    Raises:
        WrongUseError: there is no such board or dtype.
    """
    check_dtypes(dtypes)
    entries = load_boards() if board.strip().lower() == EVERY else (board_called(board),)
    boards = tuple(_narrowed(entry, dtypes) for entry in entries)
    return _judged(Answer(result=Peaks(boards=boards)), dtypes)


def peaks_here(probes: Probes, dtypes: Sequence[str] = ()) -> Answer:
    """Return the peaks of this machine's boards.

    The exit code is 1 if a GPU is in no row of the table, 4 without a GPU, 3 if the driver does not
    answer.

    Raises:
        WrongUseError: there is no such dtype.
    """
    check_dtypes(dtypes)
    reading = complete_reading(probes.nvml(NvmlRequest()), probes)
    host = complete_host(probes.host(), reading)
    code, failure = outcome_of(reading)
    rows = rows_of(reading)
    if failure is not None and not rows:
        failure, words = explain_failure(failure, reading, probes)
        return Answer(result=None, exit_code=code, host=host, error=failure, warnings=words)
    entries = {
        row.index: find_board(row.name, row.pci_device_id, row.virtualization) for row in rows
    }
    boards: dict[str, BoardPeaks] = {}
    for row in rows:
        entry = entries[row.index]
        if entry is not None:
            board = boards.get(entry.id) or _narrowed(entry, dtypes)
            boards[entry.id] = replace(board, gpus=(*board.gpus, _gpu(row, entry)))
    unknown = tuple(_unknown(row) for row in rows if entries[row.index] is None)
    result = Peaks(boards=tuple(boards.values()), unknown=unknown)
    notices = (*_power_notices(result.boards), *_mig_notice(rows))
    answer = Answer(result=result, exit_code=code, host=host, error=failure, warnings=notices)
    if failure is not None:
        return answer
    if unknown:
        return answer._replace(exit_code=ExitCode.BAD, error=_not_in_table(unknown))
    return _judged(answer, dtypes)


def peaks_of_one(probes: Probes) -> BoardPeaks:
    """Return the peaks of this machine's only board.

    Raises:
        BadAnswerError: a GPU is in no row of the table, or the GPUs are different boards.
        InconclusiveError: the driver does not answer.
        MissingError: there is no GPU.
    """
    answer = peaks_here(probes)
    inventory = answer.result
    if answer.error is not None or not isinstance(inventory, Peaks):
        raise error_of(answer)
    if len(inventory.boards) > 1:
        names = ", ".join(board.name for board in inventory.boards)
        raise BadAnswerError(
            code="different-boards",
            message=f"This machine has different boards: {names}.",
            remedy=(f"Name one of them, such as gpucheck.peaks({inventory.boards[0].name!r}).",),
        )
    return inventory.boards[0]


def check_dtypes(dtypes: Iterable[str]) -> None:
    """Refuse a dtype that no board of the table is rated in.

    Raises:
        WrongUseError: names it, and those that there are.
    """
    for name in dtypes:
        if name not in DTYPES:
            suggestion = did_you_mean(name, DTYPES)
            raise WrongUseError(
                code="unknown-dtype",
                message=f"The table has no peaks in {name[:100]!r}. {suggestion}".strip(),
                remedy=(f"Choose from: {', '.join(DTYPES)}.",),
            )


def _narrowed(board: BoardPeaks, dtypes: Sequence[str]) -> BoardPeaks:
    """Return a board with only these dtypes, and a reason for each that nobody rates on it."""
    if not dtypes:
        return board
    missing = f"no source that was found rates {board.name} in it"
    return replace(
        board,
        compute={name: peak for name, peak in board.compute.items() if name in dtypes},
        unavailable={name: missing for name in dtypes if name not in board.compute},
    )


def _gpu(row: GpuReading, board: BoardPeaks) -> PeakGpu:
    limit_w, built_for_w = row.power_limit_w, board.power_limit_w
    if limit_w is not None and shipped_w(board) <= limit_w:
        built_for_w = min(limit_w, built_for_w)
    percent = None if limit_w is None else 100 * limit_w / built_for_w
    return PeakGpu(**shared_fields(row, PeakGpu), power_limit_percent=percent)


#: Why a GPU that could be identified has no peaks.
_NO_ROW = "the table of boards has no row for it"


def _unknown(row: GpuReading) -> UnknownBoard:
    if row.failure is not None:
        reason = f"it does not answer: {row.failure.message}"
    elif row.virtualization == VGPU:
        reason = VGPU_SHARE
    elif row.pci_device_id is None and row.name is None:
        reason = "neither its PCI device id nor its name could be read"
    else:
        reason = _NO_ROW
    return UnknownBoard(**shared_fields(row, UnknownBoard), reason=reason)


def _not_in_table(unknown: Sequence[UnknownBoard]) -> Failure:
    named = ", ".join(
        f"GPU {gpu.index} ({gpu.name or 'of unknown name'}): {gpu.reason}" for gpu in unknown[:3]
    )
    more = f", and {count_of(len(unknown) - 3)} more" if len(unknown) > 3 else ""
    message = f"The peaks are not known of {named}{more}."
    if any(gpu.reason == VGPU_SHARE for gpu in unknown):
        remedy = ("See those of a whole board: gpucheck bench --peaks --board NAME",)
        return Failure(code="vgpu-has-a-share", message=message, remedy=remedy)
    if not any(gpu.reason == _NO_ROW for gpu in unknown):
        remedy = ("See what is wrong with it: gpucheck detect",)
        return Failure(code="gpu-not-identified", message=message, remedy=remedy)
    return Failure(
        code="board-not-in-table",
        message=message,
        remedy=(
            "Measure it, against limits computed from its clocks: gpucheck bench",
            "Add the board to the table: see CONTRIBUTING.md, Add a line to a table",
        ),
    )


def _power_notices(boards: Iterable[BoardPeaks]) -> Iterable[Notice]:
    """Yield a warning for the GPUs of a board whose power limit is below the board's."""
    for board in boards:
        held = group_by(filter(is_held, board.gpus), lambda gpu: gpu.power_limit_w or 0.0)
        for limit_w, gpus in held.items():
            message = (
                f"{numbers_text(gpus)}: limited to {limit_w:g} W, while {board.name} is built for "
                f"{board.power_limit_w:g} W: expect less than its peaks."
            )
            yield Notice(code="power-limit-below-board", message=message)


def _mig_notice(rows: Iterable[GpuReading]) -> Iterable[Notice]:
    """Yield a warning for the GPUs that are split: no instance has all of the board."""
    split = [row for row in rows if row.mig_enabled]
    if split:
        said = "MIG is on; the peaks are the whole board's, an instance has a share."
        message = f"{numbers_text(split)}: {said}"
        yield Notice(code="mig-has-a-share", message=message)


def _judged(answer: Answer, dtypes: Sequence[str]) -> Answer:
    """Return an answer that is bad if no board has a peak in any dtype that was asked for."""
    result = answer.result
    if not dtypes or not isinstance(result, Peaks) or any(item.compute for item in result.boards):
        return answer
    names = ", ".join(board.name for board in result.boards[:3])
    if len(result.boards) > 3:
        names += f" and {len(result.boards) - 3} more"
    failure = Failure(
        code="no-peak-in-dtype",
        message=f"No peak in {', '.join(dtypes)} is known of {names}.",
        remedy=("Leave --dtype out to see those that are.",),
    )
    return answer._replace(exit_code=ExitCode.BAD, error=failure)
