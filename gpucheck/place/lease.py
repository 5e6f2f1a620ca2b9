"""Leases on GPUs: choose the best or take named ones, and hold them for a command or a block."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.drivers.interface import Probes
from gpucheck.inventory.condition import Trouble, unfit
from gpucheck.inventory.inventory import NOT_LISTED, error_of, take_inventory
from gpucheck.inventory.memory import caps_of
from gpucheck.inventory.model import Gpu, GpuState, Inventory
from gpucheck.place.claim_store import ClaimStore, Target
from gpucheck.place.claims import (
    Acquisition,
    ClaimOptions,
    Lease,
    NamedSelector,
    OnWait,
    Selector,
    enclosing_ids,
    number_claims,
    open_claims,
    open_store,
    own_command,
    scheduler_of,
    vacancy_on,
)
from gpucheck.place.device_strings import parse_device
from gpucheck.place.lock_files import UNUSABLE
from gpucheck.place.model import MOST_SHARES, Candidate, PlacedDevice, Placement
from gpucheck.place.placement import (
    check_agreement,
    environment_for,
    place_devices,
    placed_gpu,
    prohibited,
)
from gpucheck.place.selection import (
    ALLOW_BUSY_GPUS,
    GpuSelector,
    Machine,
    Preference,
    SelectionRequest,
    check_request,
    id_of,
)
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    MissingError,
    WrongUseError,
    check_argument,
    check_seconds,
)
from gpucheck.report.options import check_arguments, options_of

# ---------------------------------------------------------------------------------- the best


def lease_best(
    request: SelectionRequest,
    options: ClaimOptions,
    probes: Probes,
    environment: Mapping[str, str],
    *,
    on_wait: OnWait = lambda _: None,
) -> Lease:
    """Choose GPUs that fit, and hold them if requested.

    If too few fit, or not in time, the answer's error says why for each GPU.

    Raises:
        WrongUseError: the request is invalid.
        MissingError: there is no GPU, no driver, or no directory for the claims.
        InconclusiveError: the driver does not answer, or the claims stay locked.
    """
    check_request(request)
    machine = _Machine(
        probes, topology=request.prefer is Preference.NVLINK, close_after=options.wait
    )
    selector = GpuSelector(request=request, look=machine.look)
    try:
        lease, more = _acquire(selector, options, environment, on_wait)
    except BadAnswerError as error:
        answer = answer_with(machine.answer, Placement(candidates=tuple(selector.candidates)))
        return Lease(answer=answer._replace(exit_code=error.exit_code, error=Failure.of(error)))
    devices = tuple(
        placed_gpu(
            item,
            ordinal,
            spec=shlex.join(request.words),
            cuda_index=item.cuda_index,
            reason=f"the best that fits, by {request.prefer}",
        )
        for ordinal, item in enumerate(selector.chosen)
    )
    placement = Placement(
        devices=devices,
        environment=environment_for(devices) | dict(lease.environment),
        claims=number_claims(lease.claims, selector.inventory.gpus),
        candidates=tuple(selector.candidates),
        advice=(ALLOW_BUSY_GPUS,) if selector.has_busy_gpus else (),
    )
    notices = (*selector.notices(), *more)
    return replace(
        lease,
        answer=answer_with(machine.answer, placement, notices),
        gpus=selector.inventory.gpus,
    )


def suitable_gpus(
    request: SelectionRequest, probes: Probes, environment: Mapping[str, str]
) -> Sequence[Candidate]:
    """Return the GPUs and MIG instances that could fit; those that are not free now say why.

    Raises:
        WrongUseError: the request is invalid.
        MissingError: there is no GPU, no driver, or no directory for the claims.
        InconclusiveError: the driver does not answer, or the claims stay locked.
    """
    check_request(request)
    machine = _Machine(probes, topology=False, close_after=False)
    selector = GpuSelector(request=request, look=machine.look)
    selector.survey()
    store, blocked = open_claims(environment), dict[str, str]()
    if store.exists():
        with store.mutex() as locked:
            held = locked.held()
        inside = enclosing_ids(environment)
        for target in selector.possible:
            vacancy = vacancy_on(target, held, share=request.share, enclosing=inside)
            if isinstance(vacancy, str):
                blocked[target.uuid] = vacancy
    selector.choose(blocked)
    suitable = {id_of(device) for device in selector.suitable}
    return [item for item in selector.candidates if item.uuid in suitable]


class _Machine:
    """The machine, surveyed at each look, and the answer of its last inventory."""

    def __init__(self, probes: Probes, *, topology: bool, close_after: bool) -> None:
        self._probes = probes
        self._topology = topology
        self._close_after = close_after
        self.answer = Answer(result=None)

    def look(self) -> Machine:
        """Survey the machine, or raise the error that stands in place of its inventory."""
        try:
            answer = take_inventory(self._probes, topology=self._topology)
            # Those that are chosen are named by UUID.
            kept = tuple(n for n in answer.warnings if n.code != "cuda-order-unknown")
            answer = self.answer = answer._replace(warnings=kept)
            inventory = answer.result
            if not isinstance(inventory, Inventory):
                raise error_of(answer)
            answering = [gpu for gpu in inventory.gpus if gpu.state is GpuState.OK]
            if answer.error is not None:
                if not answering:
                    raise error_of(answer)
                # Its error becomes a warning: the other GPUs do answer.
                failure = answer.error
                message = (
                    f"{failure.message} The other GPUs are offered, but CUDA may hang on this one"
                    " too."
                )
                notice = Notice(code=failure.code, message=message)
                self.answer = answer._replace(
                    error=None, exit_code=ExitCode.OK, warnings=(*answer.warnings, notice)
                )
            unfit_gpus = self._judge(answering)
            return inventory, unfit_gpus, answer.host.driver_version
        finally:
            if self._close_after:
                # Hundreds may wait at once, so none of them keeps a driver process open.
                self._probes.close()

    def _judge(self, gpus: Sequence[Gpu]) -> dict[int, Trouble]:
        """Return the GPUs that are unfit for work, by index."""
        if not gpus:
            return {}
        reading = self._probes.health([gpu.index for gpu in gpus])
        if reading.failure is not None:
            message = f"The condition of the GPUs could not be read: {reading.failure.message}."
            notice = Notice(code="condition-unknown", message=message)
            self.answer = self.answer._replace(warnings=(*self.answer.warnings, notice))
        health = {item.index: item for item in reading.gpus}
        troubles = {gpu.index: unfit(gpu, health[gpu.index]) for gpu in gpus if gpu.index in health}
        return {index: bad for index, bad in troubles.items() if bad is not None}


# ---------------------------------------------------------------------------------- named ones


def lease_named(
    specs: Sequence[str],
    options: ClaimOptions,
    probes: Probes,
    environment: Mapping[str, str],
    *,
    soft: bool,
    on_wait: OnWait = lambda _: None,
) -> Lease:
    """Place named devices, and hold their GPUs if requested.

    If the driver does not answer, the answer has that error and no placement.

    Raises:
        WrongUseError: a device string is invalid.
        BadAnswerError: there is no such device, or another process holds it.
        MissingError: there is no GPU at all, or no directory for the claims.
        InconclusiveError: which GPU has which number is not certain.
    """
    for spec in specs:
        parse_device(spec)
    answer = find_gpus(probes)
    inventory = answer.result
    if not isinstance(inventory, Inventory):
        return Lease(answer=answer)
    gpus = inventory.gpus
    with explained_errors(answer.error):
        placement = place_devices(specs, gpus, soft=soft)
    used = {device.index for device in placement.devices if device.kind == "GPU"}
    notices = [*prohibited(gpu for gpu in gpus if gpu.index in used)]
    lease = Lease(gpus=gpus)
    targets = targets_of(placement.devices, gpus) if options.hold else ()
    if targets:
        held, more = _acquire(NamedSelector(possible=targets), options, environment, on_wait)
        notices += more
        variables = placement.environment | dict(held.environment)
        claims = number_claims(held.claims, gpus)
        placement = replace(placement, environment=variables, claims=claims)
        lease = replace(held, gpus=gpus)
    return replace(lease, answer=answer_with(answer, placement, notices))


def targets_of(devices: Sequence[PlacedDevice], gpus: Sequence[Gpu]) -> tuple[Target, ...]:
    """Return the targets to claim, each once; the CPU and GPUs without a UUID have none."""
    cards = {gpu.index: gpu.uuid for gpu in gpus}
    targets = []
    for device in devices:
        card = cards.get(device.index) if device.index is not None else None
        if device.kind == "GPU" and device.uuid and card:
            instance = device.uuid if device.mig_instance else None
            targets.append(Target(card=card, instance=instance))
    return tuple(dict.fromkeys(targets))


def find_gpus(probes: Probes) -> Answer:
    """Return the inventory that names are resolved in, or an answer that says why there is none.

    A machine without GPUs still has its CPU: the device string decides whether that is enough. The
    error then says why there is no GPU.
    """
    answer = take_inventory(probes, names_devices=True)
    if answer.exit_code is ExitCode.INCONCLUSIVE or not isinstance(answer.result, Inventory):
        return answer._replace(result=None)
    check_agreement(answer.result.visibility)
    return answer


@contextlib.contextmanager
def explained_errors(missing: Failure | None) -> Iterator[None]:
    """Say in the error about a missing device why there is no GPU at all, if there is none."""
    try:
        yield
    except (BadAnswerError, MissingError) as error:
        if missing is None:
            raise
        why = missing.message.removeprefix(NOT_LISTED)
        why = why[:1].lower() + why[1:] if why.startswith("There ") else why
        explained = type(error)(
            code=error.code,
            message=f"{error.message.removesuffix('.')}: {why}",
            remedy=(*missing.remedy, *error.remedy),
        )
        explained.details = error.details
        raise explained from None


def answer_with(answer: Answer, placement: Placement, notices: Iterable[Notice] = ()) -> Answer:
    """Return an inventory's answer with a placement in its place.

    A failure that --soft hides is a warning.
    """
    warnings, missing, inventory = [*answer.warnings], answer.error, answer.result
    if missing is not None and any(device.soft for device in placement.devices):
        warnings.append(Notice(code=missing.code, message=missing.message))
    if isinstance(inventory, Inventory):
        placement = replace(placement, memory_limits=caps_of(inventory.gpus))
    return Answer(result=placement, host=answer.host, warnings=(*warnings, *notices))


# ---------------------------------------------------------------------------------- claims


def _acquire(
    selector: Selector, options: ClaimOptions, environment: Mapping[str, str], on_wait: OnWait
) -> tuple[Lease, tuple[Notice, ...]]:
    """Choose and claim; return also what the user should know about the claims."""
    enclosing = enclosing_ids(environment)
    try:
        store = open_store(options, environment)
        lease = Acquisition(store, options, selector, enclosing=enclosing, on_wait=on_wait).run()
    except MissingError as error:
        if error.code == UNUSABLE:
            error.remedy = (*error.remedy, "Or run without claims: --no-claim.")
        raise
    return lease, _notices(options, environment, store)


def _notices(
    options: ClaimOptions, environment: Mapping[str, str], store: ClaimStore | None
) -> tuple[Notice, ...]:
    """Return the notices about the claims, or about their absence."""
    warning = None if store is None else store.warning()
    if warning is not None:
        return (Notice(code="claims-directory-owner", message=warning),)
    scheduler = scheduler_of(environment)
    if store is None and options.hold and options.claim is None and scheduler is not None:
        message = f"Nothing is claimed, since {scheduler} allocated the GPUs (--claim claims them)."
        return (Notice(code="no-claim-in-allocation", message=message),)
    return ()


# ---------------------------------------------------------------------------------- Python


@contextlib.contextmanager
def hold_devices(
    specs: Sequence[str],
    request: SelectionRequest | None,
    options: ClaimOptions,
    *,
    soft: bool,
    probes: Probes,
) -> Iterator[tuple[PlacedDevice, ...]]:
    """Yield the named devices, or those chosen for a request; hold them inside the block.

    Raises:
        WrongUseError: a device string or the request is invalid.
        BadAnswerError: there is no such device, or too few are available.
        MissingError: there is no GPU, no driver, or no directory for the claims.
        InconclusiveError: the driver does not answer.
    """
    _check_options(options)
    check_argument("soft", soft, "True or False", bool)
    options = replace(options, command=own_command(sys.orig_argv))
    lease = Lease()
    try:
        try:
            if request is not None:
                lease = lease_best(request, options, probes, os.environ)
            else:
                try:
                    lease = lease_named(specs, options, probes, os.environ, soft=soft)
                except MissingError as error:
                    missing = find_gpus(probes).error
                    if missing is None:
                        raise
                    # Why there is no GPU at all is the error itself.
                    raise MissingError(
                        code=missing.code, message=missing.message, remedy=error.remedy
                    ) from None
        finally:
            probes.close()
        if lease.answer.error is not None or not isinstance(lease.answer.result, Placement):
            raise error_of(lease.answer)
        yield lease.answer.result.devices
    finally:
        lease.close()


def _check_options(options: ClaimOptions) -> None:
    problem = None
    check_arguments(ClaimOptions, {name: getattr(options, name) for name in options_of(options)})
    if not 1 <= options.share <= MOST_SHARES:
        problem = f"share takes 1 to {MOST_SHARES} claims per GPU, not {options.share}."
    elif options.timeout_s is not None and not options.wait:
        problem = "timeout_s needs wait=True."
    if problem is not None:
        raise WrongUseError(code="usage", message=problem)
    if options.timeout_s is not None:
        check_seconds("timeout_s", options.timeout_s, least=0)


def request_of(specs: Sequence[str], arguments: Mapping[str, Any]) -> SelectionRequest | None:
    """Return the request for a choice from arguments of Python; None if devices are named instead.

    Raises:
        WrongUseError: both are given, or a value is invalid.
    """
    for spec in specs:
        check_argument("place", spec, "names such as '/gpu:0' or '0'", str)
    given = {name: value for name, value in arguments.items() if value is not None}
    request = SelectionRequest(**check_arguments(SelectionRequest, given))
    if not specs:
        check_request(request)
        return request
    if "count" in given:
        raise WrongUseError(
            code="usage", message="Name devices, or give a count of GPUs to choose, but not both."
        )
    return None
