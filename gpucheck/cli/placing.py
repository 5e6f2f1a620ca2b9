"""Modes of `gpucheck place`, once its options are parsed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from gpucheck.cli.output import (
    COMMAND_AFTER_DASHES,
    Context,
    check_runnable,
    deliver,
    machine,
    machine_for_child,
    refuse_recording,
    save,
)
from gpucheck.cli.place_options import PlaceOptions, check, wrong
from gpucheck.cli.place_remarks import explain, reporter, say_devices
from gpucheck.cli.shared import Shared, split_words
from gpucheck.cli.streams import write_stderr
from gpucheck.drivers.interface import Probes
from gpucheck.place.model import ChoiceRequest, Placement, Preference
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    LaunchError,
    MissingError,
    WrongUseError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpucheck.inventory.model import Gpu
    from gpucheck.place.claims import Held
    from gpucheck.place.graph_model import Graph
    from gpucheck.place.picking import Wish
    from gpucheck.report.units import Amount


def place(options: PlaceOptions, shared: Shared, context: Context) -> int:
    """Check that the options ask one question, and answer it."""
    check(options, context)
    if context.child is not None:
        refuse_recording(shared)
    if options.claims:
        return _show_claims(shared)
    if options.count is not None:
        return _choose(options, shared, context)
    if options.graph is not None:
        return _place_graph(options.graph, options, shared)
    return _place_named(options, shared, context)


# ---------------------------------------------------------------------------------- claims


def _show_claims(shared: Shared) -> int:
    from gpucheck.place.claim_list import list_claims
    from gpucheck.place.picking import open_claims

    if shared.recording is not None:
        raise wrong(
            fact="--claims reads this machine, and a snapshot has no claims: leave --from out."
        )

    with machine("claims", shared, ("table", "json")) as probes:
        store = open_claims(os.environ)
        found = list_claims(store)
        notices = [
            Notice(
                code="lock-file-unusable",
                message=f"{lock.path}: {lock.problem}. Its owner, {lock.user}, or root can remove"
                f" it; until then others cannot claim {lock.uuid}.",
            )
            for lock in found.unusable
        ]
        said = store.warning()
        if said is not None:
            notices.append(Notice(code="claims-directory-owner", message=said))
        answer = Answer(result=found, host=probes.host(), warnings=tuple(notices))
    return deliver("claims", shared, answer, probes.time())


# ---------------------------------------------------------------------------------- choosing


def _choose(options: PlaceOptions, shared: Shared, context: Context) -> int:
    from gpucheck.place.picking import pick_gpus

    request = _request(options)
    wish = _wish(options, shared, context)
    if context.child is not None:
        with machine_for_child("place", shared) as probes:
            picked = pick_gpus(request, wish, probes, os.environ, on_wait=reporter(shared))
        _become(context, picked.answer, picked.held, shared)
    given = options.format_given or shared.format != "table"
    wanted = shared if given else shared._replace(format="uuid")
    with machine("place", wanted) as probes:
        environment = _environment(shared, probes)
        picked = pick_gpus(request, wish, probes, environment, on_wait=reporter(shared))
        answer = _for_format(picked.answer, wanted, picked.gpus, probes)
    if wanted.format not in ("table", "json") and answer.error is None:
        # stdout goes into a variable.
        explain(answer, shared)
        if shared.verbosity >= 0:
            write_stderr("gpucheck: no GPU is held; add -- COMMAND to hold them for it")
    return deliver("place", wanted, answer, probes.time())


def _for_format(answer: Answer, shared: Shared, gpus: Sequence[Gpu], probes: Probes) -> Answer:
    """Return the answer with what the format shows, or fail if that is not certain."""
    from gpucheck.place.placement import check_nameable, environment_by_index

    placement = answer.result
    if not isinstance(placement, Placement) or not placement.devices:
        return answer
    if shared.format == "index":
        environment = environment_by_index(placement, gpus, probes.cuda_unrestricted)
        return answer._replace(result=dataclasses.replace(placement, environment=environment))
    if shared.format in ("uuid", "shell"):
        check_nameable(placement.devices, by_uuid=shared.format == "uuid")
    return answer


def _request(options: PlaceOptions) -> ChoiceRequest:
    try:
        prefer = Preference(options.prefer)
    except ValueError:
        known = ", ".join(Preference)
        raise wrong(fact=f"--prefer takes {known}, not {options.prefer[:40]!a}.") from None
    return ChoiceRequest(
        count=options.count or 0,
        min_free=None if options.min_free is None else _amount(options.min_free),
        max_utilization_percent=options.max_utilization,
        min_compute_capability=options.min_compute_capability,
        name=options.name,
        exclude=split_words(options.exclude),
        prefer=prefer,
        share=options.share,
    )


def _amount(text: str) -> Amount:
    from gpucheck.report.units import parse_amount

    try:
        return parse_amount(text)
    except WrongUseError:
        fact = f"--min-free takes an amount above 0 such as 8GiB or 30%, not {text[:40]!a}."
        raise wrong(fact=fact) from None


def _wish(options: PlaceOptions, shared: Shared, context: Context) -> Wish:
    from gpucheck.place.picking import Wish, own_command

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


# ---------------------------------------------------------------------------------- devices


def _place_named(options: PlaceOptions, shared: Shared, context: Context) -> int:
    from gpucheck.place.device_strings import parse_device
    from gpucheck.place.graph import towers
    from gpucheck.place.picking import hold_named

    for spec in options.specs:
        try:
            parse_device(spec)
        except WrongUseError as error:
            if spec == options.specs[0] or context.child is not None:
                raise
            remedy = (*error.remedy, COMMAND_AFTER_DASHES)
            raise WrongUseError(code=error.code, message=error.message, remedy=remedy) from None
    if context.child is not None:
        with machine_for_child("place", shared) as probes:
            answer, gpus = _resolve(options.specs, options, probes)
            held = None
            if gpus is not None:
                wish = _wish(options, shared, context)
                picked = hold_named(answer, gpus, wish, os.environ, on_wait=reporter(shared))
                answer, held = picked.answer, picked.held
        _become(context, answer, held, shared)
    _check_run(options, shared)
    with machine("place", shared) as probes:
        answer, gpus = _resolve(options.specs, options, probes)
        named = answer.result
        if gpus is not None and isinstance(named, Placement):
            drawn = _draw(towers(options.specs), gpus, options, probes)
            shown = dataclasses.replace(
                drawn, devices=named.devices, environment=named.environment, advice=()
            )
            answer = _for_format(answer._replace(result=shown), shared, gpus, probes)
    return deliver("place", shared, answer, probes.time())


def _resolve(
    specs: Sequence[str], options: PlaceOptions, probes: Probes
) -> tuple[Answer, Sequence[Gpu] | None]:
    """Return the devices that the strings name, and the GPUs of the machine if they are known."""
    from gpucheck.place.placement import place_devices, prohibited

    answer, gpus, lack = _look(probes)
    if gpus is None:
        return answer, None
    with _saying_why(lack):
        named = place_devices(specs, gpus, soft=options.soft)
    answer = _with_notice(answer, named, lack)
    taken = {device.index for device in named.devices if device.kind == "GPU"}
    said = prohibited(gpu for gpu in gpus if gpu.index in taken)
    return answer._replace(warnings=(*answer.warnings, *said)), gpus


class _Look(NamedTuple):
    """The GPUs of the machine, None if unknown, and why none can be listed."""

    answer: Answer
    gpus: Sequence[Gpu] | None
    lack: Failure | None = None


def _look(probes: Probes) -> _Look:
    """Return the GPUs of the machine, or an answer that says why they are unknown.

    A machine without GPUs still has its CPU: the device string decides whether that is enough.
    """
    from gpucheck.inventory.inventory import ListRequest, take_inventory
    from gpucheck.inventory.model import Inventory
    from gpucheck.place.placement import check_agreement

    answer = take_inventory(ListRequest(ask_driver=True), probes)
    if answer.exit_code is ExitCode.INCONCLUSIVE or not isinstance(answer.result, Inventory):
        return _Look(answer._replace(result=None), None)
    check_agreement(answer.result.visibility)
    plain = answer._replace(result=None, exit_code=ExitCode.OK, error=None)
    return _Look(plain, answer.result.gpus, answer.error)


@contextlib.contextmanager
def _saying_why(lack: Failure | None) -> Iterator[None]:
    """Add to the error about a missing device why there is no GPU at all."""
    try:
        yield
    except (BadAnswerError, MissingError) as error:
        if lack is None:
            raise
        remedy = (lack.message, *lack.remedy, *error.remedy)
        raise type(error)(code=error.code, message=error.message, remedy=remedy) from None


def _with_notice(answer: Answer, placement: Placement, lack: Failure | None) -> Answer:
    """Return the answer with its placement; a failure that --soft hides is a warning."""
    if lack is not None and any(device.soft for device in placement.devices):
        notice = Notice(code=lack.code, message=lack.message)
        answer = answer._replace(warnings=(*answer.warnings, notice))
    return answer._replace(result=placement)


# ---------------------------------------------------------------------------------- graphs


def _place_graph(path: Path, options: PlaceOptions, shared: Shared) -> int:
    from gpucheck.place.graph_file import read_graph

    graph = read_graph(path)
    _check_run(options, shared)

    with machine("place", shared) as probes:
        answer, gpus, lack = _look(probes)
        if gpus is not None:
            with _saying_why(lack):
                drawn = _draw(graph, gpus, options, probes)
            answer = _for_format(_with_notice(answer, drawn, lack), shared, gpus, probes)
    return deliver("place", shared, answer, probes.time())


def _check_run(options: PlaceOptions, shared: Shared) -> None:
    if options.run and shared.recording is not None:
        raise wrong(fact="--run runs on this machine: leave --from out.")


def _draw(graph: Graph, gpus: Sequence[Gpu], options: PlaceOptions, probes: Probes) -> Placement:
    """Place a graph, and run it with --run."""
    from gpucheck.place.graph import describe, place_graph

    placed = place_graph(graph, gpus, soft=options.soft)
    placement = describe(placed)
    if not options.run:
        return placement
    from gpucheck.drivers.host.clock import MonotonicClock
    from gpucheck.place.graph_run import open_placed, run_graph

    return run_graph(placed, placement, open_placed(probes), MonotonicClock())


# ---------------------------------------------------------------------------------- commands


def _become(context: Context, answer: Answer, held: Held | None, shared: Shared) -> NoReturn:
    """Replace this process by the command, which inherits the claims.

    Raises:
        LaunchError: there is no usable answer; nothing was started.
    """
    from gpucheck.place.exec import environment_before, exec_command

    check_runnable(answer)
    if answer.error is not None:
        raise answer.error.as_error(LaunchError)
    placement = answer.result
    if not isinstance(placement, Placement) or held is None:
        raise TypeError(type(placement).__name__)
    if shared.output is not None:
        save("place", shared, answer)
    if shared.verbosity > 0:
        explain(answer, shared)
    if shared.verbosity >= 0:
        say_devices(placement)
    environment = {**environment_before(), **placement.environment}
    keep = frozenset(context.keep) | frozenset(held.descriptors)
    exec_command(context.child or (), environment, keep_descriptors=keep)
