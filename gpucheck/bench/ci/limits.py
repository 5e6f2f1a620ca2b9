"""Limits of a profile's checks on a board, their units, and how they follow from the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from operator import attrgetter
from types import MappingProxyType

from gpucheck.bench.boards import load_boards
from gpucheck.bench.ci.decision import limit_of
from gpucheck.bench.ci.profile_model import Check, Limit, Match, Metric, Profile, Target
from gpucheck.bench.kernels import KERNELS, kernels_with
from gpucheck.bench.model import Direction, Scope, shared_fields
from gpucheck.bench.request_model import BenchMode
from gpucheck.bench.roofline import board_from
from gpucheck.data import read_table
from gpucheck.drivers.gpu import BenchGpu, Board
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean

#: For each base unit, the units that people write and their size in base units.
UNITS = MappingProxyType(
    {
        "FLOP/s": MappingProxyType({"GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15}),
        "B/s": MappingProxyType({"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}),
        "image/s": MappingProxyType({"image/s": 1.0}),
        "launch/s": MappingProxyType({"launch/s": 1.0}),
        "s": MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    }
)
#: The unit of a report if the profile names none.
_USUAL = MappingProxyType(
    {"FLOP/s": "TFLOP/s", "B/s": "GB/s", "image/s": "image/s", "launch/s": "launch/s", "s": "ms"}
)


def base_unit(metric: Metric, kernel: str, dtype: str) -> str | None:
    """Return the base unit of a check's figure, None for a fact or an unknown kernel."""
    if metric is Metric.TIME:
        return "s"
    if metric is Metric.FACT:
        return None
    known = KERNELS.get(kernel)
    if known is None:
        return None
    try:
        return known.work(known.shape(known.sizes[BenchMode.QUICK]), dtype).unit
    except KeyError:  # an unknown dtype
        return None


def default_unit(metric: Metric, kernel: str, dtype: str) -> str:
    """Return the unit for a check that names none."""
    return _USUAL.get(base_unit(metric, kernel, dtype) or "", "")


def known_units(metric: Metric, kernel: str, dtype: str) -> tuple[str, ...]:
    """Return the units that a check's value may be in; none for a fact, which may be in any."""
    return tuple(UNITS.get(base_unit(metric, kernel, dtype) or "", {}))


def scale_of(unit: str) -> float:
    """Return how many base units one of this unit is; 1 for an unknown unit."""
    return next((units[unit] for units in UNITS.values() if unit in units), 1.0)


def direction_of(metric: Metric) -> Direction:
    """Return which side is the good one: a shorter time, a higher anything else."""
    return Direction.LOWER if metric is Metric.TIME else Direction.HIGHER


#: The key of the share for boards that a table of shares does not name.
OTHER = "other"
#: The name of a board's peak in bytes/s, beside those by format.
_MEMORY = "bytes_per_s"


def known_boards(match: Match) -> tuple[Board, ...]:
    """Return the known boards that a profile is for; all of them if it names none."""
    return tuple(
        board_from(entry)
        for entry in load_boards()
        if (not match.pci_device_ids or set(entry.pci_device_ids) & set(match.pci_device_ids))
        and (not match.names or any(fits_name(name, match.names) for name in entry.product_names))
    )


def fits_name(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a GPU's name matches a pattern with the wildcards * and ?."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def version_key(text: str) -> tuple[int, ...]:
    """Return a version's numbers for comparing; what is not a number counts as 0."""
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


def has_peak(check: Check) -> bool:
    """Return whether a board's peak applies to this check's figure."""
    counted = base_unit(check.metric, check.kernel, check.dtype)
    resident = check.scope is Scope.RESIDENT and check.kernel not in kernels_with("measures_link")
    return counted in ("FLOP/s", "B/s") and resident


def peak_of(check: Check, board: Board | None) -> float | None:
    """Return a board's peak for a check, in the check's unit; the lower end of a range.

    A computed peak may be far above what a cut-down board can do, so a share of it fails no board.
    """
    if board is None or not has_peak(check):
        return None
    rate = _rate_name(check)
    peak = board.bytes_per_s if rate == _MEMORY else board.flops_per_s.get(rate)
    return None if peak is None else peak / scale_of(check.unit)


def why_no_peak(check: Check, gpu: BenchGpu | None) -> str | None:
    """Return why a GPU has no peak for a check, None if it has one or nobody knows why."""
    if gpu is None or not has_peak(check) or peak_of(check, gpu.board) is not None:
        return None
    return gpu.unavailable.get("board" if gpu.board is None else f"board.{_rate_name(check)}")


def _rate_name(check: Check) -> str:
    """Return which of a board's peaks applies to a check's figure."""
    by_memory = base_unit(check.metric, check.kernel, check.dtype) == "B/s"
    return _MEMORY if by_memory else check.dtype


def is_computed(check: Check, board: Board | None) -> bool:
    """Return whether a check's limit on a board follows from a computed peak."""
    of_peak = check.value is None and not check.baseline
    return board is not None and board.computed and of_peak


def share_of(check: Check, board: Board | None) -> float | None:
    """Return the percent of the peak that is expected of a board, None if nothing is."""
    if check.percent_of_peak is not None:
        return check.percent_of_peak
    name = board.name if board is not None else OTHER
    return check.percent_by_board.get(name, check.percent_by_board.get(OTHER))


def expected_of(check: Check, board: Board | None) -> float | None:
    """Return the value that is expected of a board, in the check's unit.

    None if nothing is expected, the peak is unknown, or a baseline decides.
    """
    if check.value is not None:
        return check.value
    share, peak = share_of(check, board), peak_of(check, board)
    return None if share is None or peak is None else share / 100 * peak


def limit_on(check: Check, board: Board | None) -> Limit | None:
    """Return a check's limit on a board and how it is computed, None if there is none."""
    stated = Limit(**shared_fields(check, Limit), sentence="")
    if check.baseline:
        factor = limit_of(1.0, check.tolerance_percent, check.direction)
        side = "at least" if check.direction is Direction.HIGHER else "at most"
        return replace(stated, sentence=f"{side} {factor:.4g} x the baseline (--baseline FILE)")
    expected, peak = expected_of(check, board), peak_of(check, board)
    if expected is None:
        return None
    limit = limit_of(expected, check.tolerance_percent, check.direction)
    return replace(
        stated,
        board=board.name if board is not None else None,
        expected=expected,
        limit=limit,
        peak=peak,
        percent_of_peak=None if peak is None else 100 * limit / peak,
        sentence=_sentence(check, board, expected, peak),
    )


def _sentence(check: Check, board: Board | None, expected: float, peak: float | None) -> str:
    limit = limit_of(expected, check.tolerance_percent, check.direction)
    factor = limit_of(1.0, check.tolerance_percent, check.direction)
    of_value = check.value is not None
    source = board.source_of(_rate_name(check)) if board is not None else ""
    origin = number(expected)
    if not of_value:
        origin = f"{share_of(check, board):g} % of {number(peak or 0.0)} ({source})"
    text = f"{number(limit)} {check.unit} = {origin} x {factor:.4g}"
    if peak is not None and board is not None:
        text += f" = {100 * limit / peak:.1f} % of peak"
        if of_value:
            text += f" ({number(peak)} {check.unit}, {source})"
    return text


def explain(profile: Profile, board: str | None) -> tuple[Limit, ...]:
    """Return every demand of a profile written out, with its checks for each of its boards.

    `board` selects the boards whose name contains it.

    Raises:
        WrongUseError: no board of the profile does.
    """
    boards = known_boards(profile.match)
    if board is not None:
        chosen = tuple(item for item in boards if board.lower() in item.name.lower())
        if not chosen:
            known = ", ".join(item.name for item in boards)
            raise WrongUseError(
                code="unknown-board",
                message=f"The profile {profile.name} has no board called {board[:100]!r}."
                f" {did_you_mean(board, (item.name for item in boards))}".strip(),
                remedy=(f"Choose from: {known}",),
            )
        boards = chosen
    return (*limits_of(profile, boards), *_demands(profile))


def limits_of(profile: Profile, boards: Sequence[Board]) -> Iterator[Limit]:
    """Yield every check's limit on every board, once where the board does not matter."""
    for check in profile.checks:
        alike = check.baseline or check.target is Target.CPU or not has_peak(check)
        for board in (None,) if alike else boards:
            if (limit := limit_on(check, board)) is not None:
                yield limit


def _demands(profile: Profile) -> Iterator[Limit]:
    """Yield the demands on the machine and on how calm the run is."""
    ids, names = (" or ".join(of) for of in (profile.match.pci_device_ids, profile.match.names))
    boards = (f"PCI device id {ids}" if ids else "", f"named {names}" if names else "")
    if text := ", ".join(filter(None, boards)):
        yield Limit(id="match-board", unit="", direction=Direction.HIGHER, sentence=text)
    for name, row in read_table("gates").items():
        if "demand" in row:
            value = attrgetter(row["key"])(profile)
            parts = value.items() if isinstance(value, dict) else [("", value)]
            for of, part in parts:
                yield from _demand(f"{name}-{of}".rstrip("-"), part, row)


def _demand(name: str, value: bool | float | str | None, row: Mapping[str, str]) -> Iterator[Limit]:
    """Yield a demand in the table's words, if the profile has it."""
    text = row.get("off") if value is False else row["demand"]
    if value is None or text is None:
        return
    limit = float(value) if isinstance(value, bool) else value
    yield Limit(
        id=name,
        limit=None if isinstance(limit, str) else limit,
        unit=row.get("unit", ""),
        direction=Direction(row.get("direction", Direction.HIGHER)),
        sentence=text.format(value),
    )


def number(value: float) -> str:
    """Return a number with three digits, or all those before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
