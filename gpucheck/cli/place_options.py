"""The options of `gpucheck place`, and which of them go together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpucheck.cli.output import Context
from gpucheck.models.claim import MOST_SHARES
from gpucheck.models.errors import WrongUseError
from gpucheck.models.placement import Preference


class PlaceOptions(NamedTuple):
    """The command's own options, as they were given."""

    specs: tuple[str, ...] = ()
    soft: bool = False
    run: bool = False
    graph: Path | None = None
    count: int | None = None  # type: ignore[assignment]  # hides tuple.count
    min_free: str | None = None
    max_utilization: float | None = None
    min_compute_capability: str | None = None
    name: str | None = None
    exclude: tuple[str, ...] = ()
    prefer: str = Preference.FREE_MEMORY.value
    share: int = 1
    wait: bool = False
    timeout_s: float | None = None
    claim: bool | None = None
    claims: bool = False
    format_given: bool = False


def check(options: PlaceOptions, context: Context) -> None:
    """Refuse options that ask two questions, or none.

    Raises:
        WrongUseError: with what to write instead.
    """
    modes = {
        "a device": bool(options.specs),
        "--count": options.count is not None,
        "--graph": options.graph is not None,
        "--claims": options.claims,
    }
    asked = [name for name, given in modes.items() if given]
    child = context.child is not None
    if not asked:
        raise wrong(
            fact="Name a device such as /gpu:0, or give --count N, --graph FILE or --claims.",
        )
    if len(asked) > 1:
        raise wrong(fact=f"{' and '.join(asked)} are two questions: ask one of them.")
    if child and (options.graph or options.claims or options.run):
        what = "--run" if options.run else asked[0]
        raise wrong(fact=f"{what} takes no command after `--`.")
    if options.timeout_s is not None:
        if not options.wait:
            raise wrong(fact="--timeout says how long to wait: it needs --wait.")
        if not 0 <= options.timeout_s < float("inf"):
            raise wrong(fact=f"--timeout takes seconds, not {options.timeout_s:g}.")
    if not 1 <= options.share <= MOST_SHARES:
        raise wrong(fact=f"--share takes 1 to {MOST_SHARES} claims on a card, not {options.share}.")
    if options.count is None:
        _check_choosing_options(options)
    elif options.run:
        raise wrong(fact="--run runs a graph: name devices, or give --graph.")


def _check_choosing_options(options: PlaceOptions) -> None:
    given = {
        "--min-free": options.min_free is not None,
        "--max-utilization": options.max_utilization is not None,
        "--min-compute-capability": options.min_compute_capability is not None,
        "--name": options.name is not None,
        "--exclude": bool(options.exclude),
        "--prefer": options.prefer != Preference.FREE_MEMORY,
    }
    lonely = next((name for name, is_given in given.items() if is_given), None)
    if lonely is not None:
        raise wrong(fact=f"{lonely} is for choosing: it needs --count N.")


def wrong(*, fact: str) -> WrongUseError:
    """Return the error for a wrong use of the command."""
    return WrongUseError(code="usage", message=fact, remedy=("See: gpucheck place --help",))
