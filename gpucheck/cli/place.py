"""`gpucheck place`: resolve device names or choose GPUs, and run a command on just those."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpucheck.cli.options import COMMAND_LOG, Shared, check_command_log
from gpucheck.cli.output import (
    COMMAND_AFTER_DASHES,
    amount_in_two,
    check_runnable,
    deliver,
    machine,
    machine_for_child,
    refuse_recording,
    save,
)
from gpucheck.cli.terminal import shows_to_person, write_message, write_step
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.drivers.readings import NvmlRequest
from gpucheck.inventory.memory import capped_sentences
from gpucheck.place.claims import ClaimOptions, own_command
from gpucheck.place.model import (
    MOST_SHARES,
    PlacedDevice,
    Placement,
    name_together,
    together,
    who_can_remove,
)
from gpucheck.place.selection import SelectionRequest
from gpucheck.place.view import chosen_line, is_chosen
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import (
    GpucheckError,
    LaunchError,
    WrongUseError,
    check_seconds,
)
from gpucheck.report.options import flag, option, options_of, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpucheck.inventory.model import Gpu
    from gpucheck.place.claims import Lease, Waiting
    from gpucheck.place.graph import Graph
    from gpucheck.report.units import Amount

#: Interval of the line that we still wait, if nothing else has changed.
_REMINDER_S = 60.0


def command(
    *,
    specs: tuple[str, ...] = words(
        "[DEVICE]...",
        "/gpu:0, /cpu:0, cuda:1 or 2; several are towers.",
        group="Which device",
        commas=False,
    ),
    soft: bool = flag("--soft", "Take another device if this one does not exist."),
    count: int | None = option("--count N", "Choose N GPUs that fit.", group="Choose free GPUs"),
    min_free: str | None = option("--min-free SIZE", "Least free memory: 8GiB or 30%."),
    request: SelectionRequest,
    holding: ClaimOptions,
    claims: bool = flag("--claims", "Show who holds which GPU, and nothing else."),
    log: str | None = COMMAND_LOG._replace(group="The command that gets them"),
    run: bool = flag("--run", "Run the operations where they are placed.", group="Operations"),
    graph: Path | None = option("--graph FILE", "Place the operations of this TOML file."),
    shared: Shared,
) -> int:
    """Show which device a program gets; after -- run it there."""
    joined = amount_in_two((min_free or "", *specs))
    if joined is not None:
        raise wrong(fact=f"An amount is one word: write --min-free {joined}.")
    modes = {
        "a device": bool(specs),
        "--count": count is not None,
        "--graph": graph is not None,
        "--claims": claims,
    }
    check([name for name, given in modes.items() if given], holding, shared, run=run)
    check_command_log(shared, log)
    if shared.context.child is not None:
        refuse_recording(shared)
    if holding.wait and shared.recording is not None:
        raise wrong(fact="--wait waits for GPUs of this machine: leave --from or --wait out.")
    if claims:
        return _show_claims(shared)
    if graph is not None:
        return _place_graph(graph, shared, soft=soft, run=run)
    holding = dataclasses.replace(
        holding,
        # The claims of this machine say nothing about a recorded one.
        claim=holding.claim if shared.recording is None else False,
        hold=shared.context.child is not None,
        command=own_command(shared.context.child or ()),
    )
    if count is None:
        return _place_named(specs, holding, shared, soft=soft, run=run, log=log)
    least = None if min_free is None else _amount(min_free)
    request = dataclasses.replace(request, count=count, min_free=least, share=holding.share)
    return _choose(request, holding, shared, log=log)


# ---------------------------------------------------------------------------------- options


def check(
    asked: Sequence[str], holding: ClaimOptions, shared: Shared, *, run: bool = False
) -> None:
    """Refuse options that ask two questions, or none, and those without effect.

    `asked` are the questions, as in messages. Options of a file are for those that they fit.

    Raises:
        WrongUseError: with what to write instead.
    """
    child = shared.context.child is not None
    if not asked:
        raise wrong(
            fact="Name a device such as /gpu:0, or give --count N, --graph FILE or --claims.",
        )
    if len(asked) > 1:
        forgotten = (COMMAND_AFTER_DASHES,) if "a device" in asked and not child else ()
        raise wrong(fact=f"Give only one of these: {', '.join(asked)}.", remedy=forgotten)
    (question,) = asked
    if child and (run or question in ("--graph", "--claims")):
        raise wrong(fact=f"{'--run' if run else question} takes no command after `--`.")
    if holding.timeout_s is not None:
        if not holding.wait:
            raise wrong(fact="--timeout needs --wait.")
        check_seconds("--timeout", holding.timeout_s, least=0)
    if not 1 <= holding.share <= MOST_SHARES:
        raise wrong(fact=f"--share takes 1 to {MOST_SHARES} claims per GPU, not {holding.share}.")
    if not child:
        # Only a command holds GPUs, and only --count waits.
        names = ["claim"] if holding.claim else []
        names += ["wait", "share"] if question != "--count" else []
        _refuse(names, shared, "is for holding GPUs: it needs a command after `--`")
    if question != "--count":
        choosing = ("min_free", *options_of(SelectionRequest))
        _refuse(choosing, shared, "is for choosing: it needs --count N")
    if question in ("--count", "--claims"):
        _refuse(["soft", "run"], shared, "is for devices: name them or give --graph instead")


def _refuse(names: Iterable[str], shared: Shared, fact: str) -> None:
    """Refuse the first of these that is on the command line."""
    lonely = next((name for name in names if name in shared.typed), None)
    if lonely is not None:
        raise wrong(fact=f"{shared.typed[lonely].long} {fact}.")


def wrong(*, fact: str, remedy: tuple[str, ...] = ()) -> WrongUseError:
    """Return the error for a wrong use of the command."""
    steps = (*remedy, "See: gpucheck place --help")
    return WrongUseError(code="usage", message=fact, remedy=steps)


# ---------------------------------------------------------------------------------- questions


def _show_claims(shared: Shared) -> int:
    from gpucheck.inventory.inventory import nvml_failure
    from gpucheck.inventory.without_nvml import explain_failure
    from gpucheck.place.claim_store import list_claims
    from gpucheck.place.claims import number_claims, open_claims

    if shared.recording is not None:
        raise wrong(
            fact="--claims reads this machine, and a snapshot has no claims: leave --from out."
        )

    with machine("claims", shared) as probes:
        store = open_claims(os.environ)
        listed = list_claims(store)
        notices = [
            Notice(
                code="lock-file-unusable",
                message=f"{lock.path}: {lock.problem}. Until {who_can_remove(lock.user)} removes"
                f" it, others cannot claim {lock.uuid}.",
            )
            for lock in listed.unusable
        ]
        if listed.claims:
            reading = probes.nvml(NvmlRequest())
            claims = number_claims(listed.claims, reading.gpus)
            listed = dataclasses.replace(listed, claims=claims)
            silent = reading.failure
            if silent is not None:
                failure, words = explain_failure(nvml_failure(silent), reading, probes)
                unknown = f"{silent.message}: not every number of a GPU is known."
                message = failure.message if words else unknown
                notices += [Notice(code=silent.code, message=message), *words]
        warning = store.warning()
        if warning is not None:
            notices.append(Notice(code="claims-directory-owner", message=warning))
        answer = Answer(result=listed, host=probes.host(), warnings=tuple(notices))
    return deliver("claims", shared, answer, probes.time())


def _choose(
    request: SelectionRequest,
    holding: ClaimOptions,
    shared: Shared,
    *,
    log: str | None,
) -> int:
    from gpucheck.place.lease import lease_best

    def take(probes: Probes) -> Lease:
        recorded = shared.recording is not None
        environment = probes.environment() if recorded else os.environ
        return lease_best(request, holding, probes, environment, on_wait=WaitReporter(shared))

    if shared.context.child is not None:
        return _run_command(take, shared, log)
    # A person gets the table; a variable or a file gets the names alone.
    given = shared.format_is_given or shared.format != "table"
    bare = not given and not (shared.output is None and shows_to_person())
    wanted = shared._replace(format="uuid") if bare else shared
    with machine("place", wanted) as probes:
        lease = take(probes)
        answer = _answer_for_format(lease.answer, wanted, lease.gpus, probes)
    if wanted.format not in ("table", "json") and answer.error is None:
        explain(answer, shared)
    return deliver("place", wanted, answer, probes.time())


def _amount(text: str) -> Amount:
    from gpucheck.report.units import parse_amount

    try:
        return parse_amount(text)
    except WrongUseError as error:
        raise wrong(fact=f"--min-free: {error.message}") from None


def _place_named(
    specs: Sequence[str],
    holding: ClaimOptions,
    shared: Shared,
    *,
    soft: bool,
    run: bool,
    log: str | None,
) -> int:
    from gpucheck.place.device_strings import parse_device
    from gpucheck.place.graph import towers
    from gpucheck.place.lease import lease_named

    for spec in specs:
        try:
            parse_device(spec)
        except WrongUseError as error:
            if len(specs) == 1 or shared.context.child is not None:
                raise
            remedy = (*error.remedy, COMMAND_AFTER_DASHES)
            raise WrongUseError(code=error.code, message=error.message, remedy=remedy) from None

    def take(probes: Probes) -> Lease:
        return lease_named(
            specs,
            holding,
            probes,
            os.environ,
            soft=soft,
            on_wait=WaitReporter(shared),
        )

    if shared.context.child is not None:
        return _run_command(take, shared, log)
    _check_run(shared, run=run)

    with machine("place", shared) as probes, add_error_details(shared):
        lease = take(probes)
        answer, named = lease.answer, lease.answer.result
        if isinstance(named, Placement):
            drawn = _draw(towers(specs), lease.gpus, probes, soft=soft, run=run)
            shown = dataclasses.replace(
                drawn,
                devices=named.devices,
                environment=named.environment,
                advice=(),
                memory_limits=named.memory_limits,
            )
            answer = _answer_for_format(answer._replace(result=shown), shared, lease.gpus, probes)
    return deliver("place", shared, answer, probes.time())


def _place_graph(path: Path, shared: Shared, *, soft: bool, run: bool) -> int:
    from gpucheck.inventory.model import Inventory
    from gpucheck.place.graph_file import read_graph
    from gpucheck.place.lease import answer_with, explained_errors, find_gpus

    graph = read_graph(path)
    _check_run(shared, run=run)

    with machine("place", shared) as probes, add_error_details(shared):
        answer = find_gpus(probes)
        if isinstance(answer.result, Inventory):
            gpus = answer.result.gpus
            with explained_errors(answer.error):
                drawn = _draw(graph, gpus, probes, soft=soft, run=run)
            answer = _answer_for_format(answer_with(answer, drawn), shared, gpus, probes)
    return deliver("place", shared, answer, probes.time())


def _check_run(shared: Shared, *, run: bool) -> None:
    if run and shared.recording is not None:
        raise wrong(fact="--run runs on this machine: leave --from out.")


def _draw(graph: Graph, gpus: Sequence[Gpu], probes: Probes, *, soft: bool, run: bool) -> Placement:
    """Place a graph, and run it with --run."""
    from gpucheck.place.graph import describe, open_placed, place_graph, run_graph

    graph = place_graph(graph, gpus, soft=soft)
    placement = describe(graph)
    if not run:
        return placement
    from gpucheck.drivers.host.clock import monotonic_s

    return run_graph(graph, placement, open_placed(probes), monotonic_s)


def _answer_for_format(
    answer: Answer, shared: Shared, gpus: Sequence[Gpu], probes: Probes
) -> Answer:
    """Return the answer with what the format shows, or fail if that is not certain."""
    from gpucheck.place.placement import check_nameable, environment_by_index

    placement = answer.result
    if not isinstance(placement, Placement) or not placement.devices:
        return answer
    if shared.format in ("index", "env"):
        environment = environment_by_index(
            placement,
            gpus,
            lambda: probes.cuda(unrestricted=True),
            ordered=shared.format == "env",
        )
        return answer._replace(result=dataclasses.replace(placement, environment=environment))
    if shared.format in ("uuid", "shell"):
        check_nameable(placement.devices, by_uuid=shared.format == "uuid")
    return answer


def _run_command(take: Callable[[Probes], Lease], shared: Shared, log: str | None) -> int:
    """Take the GPUs and run the command, which inherits the claims; a failure is 125.

    Quietly we become the command; else we wait for it, to say what is known of a bad end.
    """
    from gpucheck.place.exec import environment_before, exec_command, supervise

    with machine_for_child("place", shared) as probes, add_error_details(shared):
        lease = take(probes)
    placement = check_runnable(lease.answer, shared, Placement)
    if lease.answer.error is not None:
        raise lease.answer.error.as_error(LaunchError)
    if shared.output is not None:
        save("place", shared, lease.answer)
    if shared.verbosity > 0:
        explain(lease.answer, shared)
    if shared.verbosity >= 0:
        report_devices(placement, more=shared.verbosity > 0)
    environment = {**environment_before(), **placement.environment}
    keep = frozenset(shared.context.keep) | frozenset(lease.descriptors)
    command = shared.context.child or ()
    if shared.verbosity < 0:
        exec_command(command, environment, keep_descriptors=keep)
    from gpucheck.cli.after_command import AfterCommand

    after = AfterCommand(log)
    exit_code = supervise(command, environment, keep_descriptors=keep)
    REQUESTS.settle()  # the code is the command's
    after.report(exit_code, shared)
    return exit_code


# ---------------------------------------------------------------------------------- messages


class WaitReporter:
    """Messages about a wait: a line when it changes, or once a minute."""

    def __init__(self, shared: Shared) -> None:
        self._quiet = shared.verbosity < 0
        self._line = ""
        self._reported_s = 0.0
        self._details: tuple[str, ...] = ()

    def __call__(self, waiting: Waiting) -> None:
        """Report how many are ahead, and what is missing."""
        ahead = {0: "next in line", 1: "1 is ahead of us"}
        position = ahead.get(waiting.ahead, f"{waiting.ahead} are ahead of us")
        line = f"{position}: {waiting.reason}"
        is_new = self._line != line
        is_due = is_new or waiting.waited_s - self._reported_s >= _REMINDER_S
        if self._quiet or not is_due:
            return
        length = "" if is_new else f" for {waiting.waited_s / 60:.0f} min"
        self._line, self._reported_s = line, waiting.waited_s
        write_message(f"waiting{length}, {line}")
        if self._details != waiting.details:
            self._details = waiting.details
            for detail in waiting.details:
                write_step(detail)


@contextmanager
def add_error_details(shared: Shared) -> Iterator[None]:
    """Add to an error what `-v` says in addition."""
    try:
        yield
    except GpucheckError as error:
        if shared.verbosity > 0:
            error.remedy = (*error.details, *error.remedy)
        raise


def report_devices(placement: Placement, *, more: bool) -> None:
    """Report the command's devices: those chosen in a line, named ones by their names."""
    for sentence in capped_sentences(placement.memory_limits):
        write_message(sentence)
    if placement.candidates and not more:
        names = {device.name for device in placement.devices}
        name = f" ({names.pop()})" if len(names) == 1 else ""
        chosen = [item for item in placement.candidates if is_chosen(item, placement)]
        write_message(f"the command gets {name_together(chosen)}{name}")
        return
    for device in placement.devices:
        write_message(_outcome(device))


def _outcome(device: PlacedDevice) -> str:
    if device.kind != "GPU":
        return f"{device.spec} is the CPU"
    gpu = f"GPU {device.index} ({device.name}, {device.uuid})"
    if device.spec.startswith("--count"):
        return f"the command's GPU {device.resolved.rpartition(':')[2]} is {gpu}"
    users = f"; in use: {together(device.used_by)}" if device.used_by else ""
    return f"{device.spec} is {gpu}{users}"


def explain(answer: Answer, shared: Shared) -> None:
    """Report what was chosen, beside names that go into a variable; with -v the verdict on each."""
    placement = answer.result
    if shared.verbosity < 0 or not isinstance(placement, Placement) or not placement.devices:
        return
    if shared.verbosity == 0:
        write_message(f"{chosen_line(placement)}; not held (add -- CMD to hold while CMD runs)")
        return
    verdicts = [
        ("chosen" if is_chosen(item, placement) else "fits" if item.eligible else "no", item)
        for item in placement.candidates
    ]
    # Chosen, fits, no: this is also their alphabetical order.
    for verdict, item in sorted(verdicts, key=lambda pair: pair[0]):
        name = " ".join(filter(None, ("GPU", str(item.index), item.name, item.uuid)))
        write_message(f"{name}: {verdict}: {item.reason}")
    for advice in placement.advice:
        write_message(advice)
