"""`gpucheck profile`: profiles for `bench --profile` listed, checked and explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.ci.profile_model import Limit, ProfileAction, ProfileFile, ProfileResult
from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import ExitCode, GpucheckError
from gpucheck.report.options import flag, option

if TYPE_CHECKING:
    from gpucheck.drivers.interface import Probes

PROFILES = option("PROFILE...", "Names or files.", ..., group="Profiles")


def list_(*, shared: Shared) -> int:
    """List the built-in profiles."""
    return _deliver(shared, lambda probes: _list())


def lint_(*, names: tuple[str, ...] = PROFILES, shared: Shared) -> int:
    """Find the mistakes in profiles."""
    return _deliver(shared, lambda probes: _lint(names))


def explain_(
    *,
    names: tuple[str, ...] = PROFILES,
    board: str | None = option("--board NAME", "Only for this board (such as H100)."),
    all_boards: bool = flag("--all-boards", "For every board, not only for those of this machine."),
    shared: Shared,
) -> int:
    """Show what each limit of a profile amounts to."""
    # The document has every board; the table leaves out those that are not here.
    every = all_boards or board is not None or shared.verbosity > 0 or shared.format != "table"

    def answer(probes: Probes) -> Answer:
        return _explain(names, board, None if every else probes)

    return _deliver(shared, answer)


def _deliver(shared: Shared, answer: Callable[[Probes], Answer]) -> int:
    with machine("profile", shared) as probes:
        result = answer(probes)._replace(host=probes.host())
    return deliver("profile", shared, result, probes.time())


def _list() -> Answer:
    from gpucheck.bench.ci.profiles import describe, shipped

    files = tuple(describe(path) for path in shipped().values())
    return Answer(result=ProfileResult(action=ProfileAction.LIST, files=files))


def _lint(names: Sequence[str]) -> Answer:
    """Check every file, even if one before it cannot be read."""
    from gpucheck.bench.ci.profiles import describe, find_profile, unreadable

    files: list[ProfileFile] = []
    for name in names:
        path = find_profile(name)
        try:
            files.append(describe(path))
        except GpucheckError as error:
            files.append(unreadable(path, error))
    result = ProfileResult(action=ProfileAction.LINT, files=tuple(files))
    bad = [file for file in files if file.problems]
    if not bad:
        return Answer(result=result)
    count = sum(len(file.problems) for file in bad)
    counted = f"{count} {'mistake' if count == 1 else 'mistakes'} in {bad[0].path}"
    others = "1 other file" if len(bad) == 2 else f"{len(bad) - 1} other files"
    more = f" and {others}" if len(bad) > 1 else ""
    there = "There is" if count == 1 else "There are"
    failure = Failure(code="bad-profile", message=f"{there} {counted}{more}.")
    return Answer(result=result, exit_code=ExitCode.BAD, error=failure)


def _explain(names: Sequence[str], board: str | None, probes: Probes | None) -> Answer:
    """Write the limits out; with `probes` only those of the boards that are here."""
    from gpucheck.bench.ci.limits import explain
    from gpucheck.bench.ci.profiles import describe, find_profile, load_profile

    files: list[ProfileFile] = []
    limits: list[Limit] = []
    for name in names:
        profile = load_profile(name)
        files.append(describe(find_profile(name)))
        limits.extend(explain(profile, board))
    boards = {limit.board for limit in limits if limit.board is not None}
    left_out = boards - _boards_here(probes) if probes is not None and boards else set()
    result = ProfileResult(
        action=ProfileAction.EXPLAIN,
        files=tuple(files),
        limits=tuple(limit for limit in limits if limit.board not in left_out),
        boards_left_out=len(left_out),
    )
    return Answer(result=result)


def _boards_here(probes: Probes) -> frozenset[str]:
    """Return the names of this machine's boards, as the table of peaks has them."""
    from gpucheck.bench.boards import find_board
    from gpucheck.drivers.readings import NvmlRequest

    boards = (
        find_board(gpu.name, gpu.pci_device_id, gpu.virtualization)
        for gpu in probes.nvml(NvmlRequest()).gpus
    )
    return frozenset(board.name for board in boards if board is not None)
