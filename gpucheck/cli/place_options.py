"""Options of `gpucheck place`, and the rules for combining them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.cli.output import COMMAND_AFTER_DASHES, Context
from gpucheck.place.claim_model import MOST_SHARES
from gpucheck.place.model import Preference
from gpucheck.report.errors import WrongUseError


class PlaceOptions(NamedTuple):
    """The command's own options. `explicit` are those of the command line, not the file."""

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
    explicit: frozenset[str] = frozenset()


def explicit_options(ctx: Any) -> frozenset[str]:
    """Return the names of the parameters that are given on the command line."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return frozenset(
        name for name, source in sources.items() if source and source.name == "COMMANDLINE"
    )


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
        forgotten = (COMMAND_AFTER_DASHES,) if options.specs and not child else ()
        raise wrong(fact=f"Give only one of these: {', '.join(asked)}.", remedy=forgotten)
    if child and (options.graph or options.claims or options.run):
        what = "--run" if options.run else asked[0]
        raise wrong(fact=f"{what} takes no command after `--`.")
    if options.timeout_s is not None:
        if not options.wait:
            raise wrong(fact="--timeout needs --wait.")
        if not 0 <= options.timeout_s < float("inf"):
            raise wrong(fact=f"--timeout takes seconds, not {options.timeout_s:g}.")
    if not 1 <= options.share <= MOST_SHARES:
        raise wrong(fact=f"--share takes 1 to {MOST_SHARES} claims per GPU, not {options.share}.")
    if not child:
        _check_holding_options(options)
    if options.count is None:
        _check_choosing_options(options)
    elif options.run:
        raise wrong(fact="--run runs a graph: name devices or give --graph instead.")


def _check_choosing_options(options: PlaceOptions) -> None:
    choosing = (
        "min_free",
        "max_utilization",
        "min_compute_capability",
        "name",
        "exclude",
        "prefer",
    )
    _refuse(options, choosing, "is for choosing: it needs --count N")


def _check_holding_options(options: PlaceOptions) -> None:
    """Refuse options without effect: only a command holds GPUs, and only --count waits."""
    names = ["claim"] if options.claim else []
    names += ["wait", "share"] if options.count is None else []
    _refuse(options, names, "is for holding GPUs: it needs a command after `--`")


def _refuse(options: PlaceOptions, names: Iterable[str], fact: str) -> None:
    """Refuse the first of these that is on the command line."""
    lonely = next((name for name in names if name in options.explicit), None)
    if lonely is not None:
        raise wrong(fact=f"--{lonely.replace('_', '-')} {fact}.")


def wrong(*, fact: str, remedy: tuple[str, ...] = ()) -> WrongUseError:
    """Return the error for a wrong use of the command."""
    steps = (*remedy, "See: gpucheck place --help")
    return WrongUseError(code="usage", message=fact, remedy=steps)
