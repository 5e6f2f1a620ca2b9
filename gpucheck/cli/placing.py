"""What `gpucheck place` does once its options are parsed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpucheck.cli.output import (
    Context,
    deliver,
    find_only,
    refuse_recording,
    save,
)
from gpucheck.cli.shared import Shared, split_words
from gpucheck.cli.streams import write_stderr
from gpucheck.models.errors import ExitCode, LaunchError, WrongUseError
from gpucheck.models.placement import ChoiceRequest, Placement, Preference
from gpucheck.models.report import Answer
from gpucheck.probes.interface import Probes
from gpucheck.render.base import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpucheck.core.claims import Held, Waiting
    from gpucheck.core.picking import Picked, Wish
    from gpucheck.models.device import Gpu
    from gpucheck.models.graph import Graph

#: `place --count` gives what can be put into a variable.
COUNT_FORMATS = ("uuid", "index", "shell", "table", "json")


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


def place(options: PlaceOptions, shared: Shared, context: Context) -> int:
    """Do what the options ask for, after checking that they ask for one thing."""
    _check(options, context)
    if context.child is not None:
        refuse_recording(shared)
    if options.claims:
        return _show_claims(shared)
    if options.count is not None:
        return _choose(options, shared, context)
    if options.graph is not None:
        return _place_graph(options.graph, options, shared)
    return _place_named(options, shared, context)


def _check(options: PlaceOptions, context: Context) -> None:
    modes = {
        "a device": bool(options.specs),
        "--count": options.count is not None,
        "--graph": options.graph is not None,
        "--claims": options.claims,
    }
    asked = [name for name, given in modes.items() if given]
    child = context.child is not None
    if not asked:
        raise _wrong(
            fact="Name a device such as /gpu:0, or give --count N, --graph FILE or --claims.",
        )
    if len(asked) > 1:
        raise _wrong(fact=f"{' and '.join(asked)} are two questions: ask one of them.")
    if child and (options.graph or options.claims or options.run):
        what = "--run" if options.run else asked[0]
        raise _wrong(fact=f"{what} takes no command after `--`.")
    if options.timeout_s is not None:
        if not options.wait:
            raise _wrong(fact="--timeout says how long to wait: it needs --wait.")
        if not 0 <= options.timeout_s < float("inf"):
            raise _wrong(fact=f"--timeout takes seconds, not {options.timeout_s:g}.")
    if not 1 <= options.share <= 256:
        raise _wrong(fact=f"--share takes 1 to 256 claims on a card, not {options.share}.")
    if options.count is None:
        _check_choosing_options(options)
    elif options.run:
        raise _wrong(fact="--run runs a graph: name devices, or give --graph.")


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
        raise _wrong(fact=f"{lonely} is for choosing: it needs --count N.")


def _wrong(*, fact: str) -> WrongUseError:
    return WrongUseError(code="usage", message=fact, remedy=("See: gpucheck place --help",))


# ---------------------------------------------------------------------------------- claims


def _show_claims(shared: Shared) -> int:
    from gpucheck.core.claims import list_claims
    from gpucheck.core.picking import open_claims

    if shared.recording is not None:
        raise _wrong(fact="--claims looks at this machine: a snapshot has no claims.")

    def find(probes: Probes) -> Answer:
        return Answer(result=list_claims(open_claims(os.environ)), host=probes.host())

    return deliver("claims", shared, find)


# ---------------------------------------------------------------------------------- choosing


def _choose(options: PlaceOptions, shared: Shared, context: Context) -> int:
    from gpucheck.core.picking import pick_gpus

    request = _request(options)
    wish = _wish(options, shared, context)
    picked: list[Picked] = []

    def find(probes: Probes) -> Answer:
        environment = _environment(shared, probes)
        found = pick_gpus(request, wish, probes, environment, on_wait=_reporter(shared))
        picked.append(found)
        return found.answer

    if context.child is not None:
        answer = _find_for_command(shared, find)
        _become(context, answer, picked[0].held, shared)
    given = options.format_given or shared.format != "table"
    wanted = shared if given else shared._replace(format="uuid")

    def find_and_explain(probes: Probes) -> Answer:
        answer = find(probes)
        if wanted.format == "index":
            answer = with_indices(answer)
        if wanted.format not in ("table", "json") and answer.error is None:
            # stdout is for a variable.
            _explain(answer, shared)
        return answer

    return deliver("place", wanted, find_and_explain, formats=COUNT_FORMATS)


def with_indices(answer: Answer) -> Answer:
    """Return the answer with NVML's indices in the place of UUIDs in its environment.

    Raises:
        BadAnswerError: an index would not mean the same card to CUDA.
    """
    from gpucheck.core.picking import index_environment

    placement = answer.result
    if not isinstance(placement, Placement) or not placement.devices:
        return answer
    environment = index_environment(placement)
    return answer._replace(result=dataclasses.replace(placement, environment=environment))


def _request(options: PlaceOptions) -> ChoiceRequest:
    from gpucheck.models.units import parse_amount

    try:
        prefer = Preference(options.prefer)
    except ValueError:
        known = ", ".join(Preference)
        raise _wrong(fact=f"--prefer takes {known}, not {options.prefer[:40]!a}.") from None
    return ChoiceRequest(
        count=options.count or 0,
        min_free=None if options.min_free is None else parse_amount(options.min_free),
        max_utilization_percent=options.max_utilization,
        min_compute_capability=options.min_compute_capability,
        name=options.name,
        exclude=split_words(options.exclude),
        prefer=prefer,
        share=options.share,
    )


def _wish(options: PlaceOptions, shared: Shared, context: Context) -> Wish:
    from gpucheck.core.picking import Wish, own_command

    return Wish(
        share=options.share,
        wait=options.wait,
        timeout_s=options.timeout_s,
        # The claims of this machine say nothing about a recorded one.
        claim=options.claim if shared.recording is None else False,
        hold=context.child is not None,
        command=own_command(context.child or ()),
    )


def _environment(shared: Shared, probes: Probes) -> Mapping[str, str]:
    return os.environ if shared.recording is None else probes.environment()


def _reporter(shared: Shared) -> Callable[[Waiting], None]:
    """Return what says how the waiting goes, each time that it changes."""
    said: list[str] = []

    def report(waiting: Waiting) -> None:
        before = {0: "next in line", 1: "1 is before us"}
        place = before.get(waiting.ahead, f"{waiting.ahead} are before us")
        line = f"gpucheck: waiting, {place}: {waiting.reason}"
        if shared.verbosity >= 0 and said[-1:] != [line]:
            said.append(line)
            write_stderr(printable(line))

    return report


def _explain(answer: Answer, shared: Shared) -> None:
    """Say on stderr why each card was or was not eligible."""
    placement = answer.result
    if shared.verbosity < 0 or not isinstance(placement, Placement):
        return
    chosen = {device.uuid for device in placement.devices}
    for item in placement.candidates:
        verdict = "chosen" if item.uuid in chosen else "fits" if item.eligible else "no"
        line = f"gpucheck: GPU {item.index} {item.name or ''} {item.uuid}: {verdict}: {item.reason}"
        write_stderr(printable(line))


# ---------------------------------------------------------------------------------- devices


def _place_named(options: PlaceOptions, shared: Shared, context: Context) -> int:
    from gpucheck.core.graph import towers
    from gpucheck.core.picking import hold_named
    from gpucheck.core.placement import parse_device, place_devices

    for spec in options.specs:
        parse_device(spec)
    picked: list[Picked] = []

    def find(probes: Probes) -> Answer:
        answer, gpus = _look(probes)
        if gpus is None:
            return answer
        named = place_devices(options.specs, gpus, soft=options.soft)
        if context.child is not None:
            answer = answer._replace(result=named)
            wish = _wish(options, shared, context)
            picked.append(hold_named(answer, gpus, wish, os.environ, on_wait=_reporter(shared)))
            return picked[0].answer
        drawn = _draw(towers(options.specs), gpus, options, probes)
        shown = dataclasses.replace(
            drawn, devices=named.devices, environment=named.environment, advice=()
        )
        return answer._replace(result=shown)

    if context.child is not None:
        answer = _find_for_command(shared, find)
        _become(context, answer, picked[0].held, shared)
    _check_run(options, shared)
    return deliver("place", shared, find)


def _look(probes: Probes) -> tuple[Answer, Sequence[Gpu] | None]:
    """Return the GPUs that there are, or an answer that says why nobody knows.

    A machine without GPUs still has its CPU: whether that is enough, a device string decides.
    """
    from gpucheck.core.inventory import ListRequest, take_inventory
    from gpucheck.models.device import Inventory

    answer = take_inventory(ListRequest(), probes)
    if answer.exit_code is ExitCode.INCONCLUSIVE or not isinstance(answer.result, Inventory):
        return answer._replace(result=None), None
    found = answer.result.gpus
    return answer._replace(result=None, exit_code=ExitCode.OK, error=None), found


# ---------------------------------------------------------------------------------- graphs


def _place_graph(path: Path, options: PlaceOptions, shared: Shared) -> int:
    from gpucheck.core.graph_file import read_graph

    graph = read_graph(path)
    _check_run(options, shared)

    def find(probes: Probes) -> Answer:
        answer, gpus = _look(probes)
        if gpus is None:
            return answer
        return answer._replace(result=_draw(graph, gpus, options, probes))

    return deliver("place", shared, find)


def _check_run(options: PlaceOptions, shared: Shared) -> None:
    if options.run and shared.recording is not None:
        raise _wrong(fact="--run runs on this machine: leave --from out.")


def _draw(graph: Graph, gpus: Sequence[Gpu], options: PlaceOptions, probes: Probes) -> Placement:
    """Place a graph, and run it if that is wanted."""
    from gpucheck.core.graph import describe, place_graph

    placed = place_graph(graph, gpus, soft=options.soft)
    placement = describe(placed)
    if not options.run:
        return placement
    from gpucheck.core.graph_run import open_placed, run_graph
    from gpucheck.probes.clock import MonotonicClock

    return run_graph(placed, placement, open_placed(probes), MonotonicClock())


# ---------------------------------------------------------------------------------- commands


def _find_for_command(shared: Shared, find: Callable[[Probes], Answer]) -> Answer:
    """Find out what the command is to be run with; what is wrong with that is 125."""
    answer = find_only("place", shared, find)
    if answer.error is not None:
        error = answer.error
        raise LaunchError(code=error.code, message=error.message, remedy=error.remedy)
    return answer


def _become(context: Context, answer: Answer, held: Held, shared: Shared) -> NoReturn:
    """Become the command, which inherits the claims."""
    from gpucheck.core.launch import replace

    placement = answer.result
    if not isinstance(placement, Placement):
        raise TypeError(type(placement).__name__)
    if shared.output is not None:
        save("place", shared, answer)
    if shared.verbosity > 0:
        _explain(answer, shared)
    if shared.verbosity >= 0:
        for device in placement.devices:
            card = f" ({device.name}, {device.uuid})" if device.uuid else ""
            write_stderr(printable(f"gpucheck: {device.spec} is {device.resolved}{card}"))
    environment = {**os.environ, **placement.environment}
    keep = frozenset(context.keep) | frozenset(held.descriptors)
    replace(context.child or (), environment, keep_descriptors=keep)
