"""GPU selection for `place`: choose the best GPUs that fit, or take named ones, and hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.drivers.interface import Probes
from gpucheck.inventory.condition import Unfit, unfit
from gpucheck.inventory.inventory import ListRequest, take_inventory
from gpucheck.inventory.model import Gpu, GpuState, Inventory
from gpucheck.place.choice import ALLOW_COMPANY, Chooser, check_request
from gpucheck.place.choice_options import Option
from gpucheck.place.claim_model import Target
from gpucheck.place.claim_rules import ids_around, scheduler_of
from gpucheck.place.claim_store import ClaimStore, LockDirectory, claims_directory
from gpucheck.place.claims import Acquisition, ClaimTerms, Held, Waiting
from gpucheck.place.model import ChoiceRequest, PlacedDevice, Placement, Preference
from gpucheck.place.placement import LOCAL_TASK, environment_for, gpu_names
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
)

OnWait = Callable[[Waiting], None]


def nobody_listens(_waiting: Waiting) -> None:
    """Report nothing while waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Options of a claim.

    `claim` None claims unless a scheduler allocated the GPUs. With `hold` false the claims of
    others count, but none is made.
    """

    share: int = 1
    wait: bool = False
    timeout_s: float | None = None
    claim: bool | None = None
    hold: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """An answer and its lease, which lasts until it is closed or inherited."""

    answer: Answer
    held: Held
    gpus: Sequence[Gpu] = ()


def open_store(wish: Wish, environment: Mapping[str, str]) -> ClaimStore | None:
    """Return the claim store, or None if claims are switched off."""
    claims = wish.claim
    if claims is None:
        claims = scheduler_of(environment) is None
    return open_claims(environment) if claims else None


def open_claims(environment: Mapping[str, str]) -> ClaimStore:
    """Return the store of the claims on this machine's GPUs."""
    return LockDirectory(claims_directory(environment))


def pick_gpus(
    request: ChoiceRequest,
    wish: Wish,
    probes: Probes,
    environment: Mapping[str, str],
    *,
    on_wait: OnWait = nobody_listens,
) -> Picked:
    """Choose GPUs that fit, and hold them if requested.

    If too few fit, or not in time, the answer's error says why for each GPU.

    Raises:
        WrongUseError: the request is invalid.
        MissingError: there is no GPU, no driver, or no directory for the claims.
        InconclusiveError: the driver does not answer, or the claims stay locked.
    """
    check_request(request)
    look = _Look(probes, topology=request.prefer is Preference.NVLINK, close_after=wish.wait)
    chooser = Chooser(
        request=request,
        look=look.inventory,
        driver_version=look.driver_version,
        condition=look.condition,
    )
    store = open_store(wish, environment)
    acquisition = Acquisition(store, _terms(wish, environment), chooser, on_wait=on_wait)
    try:
        _, held = acquisition.run()
    except BadAnswerError as error:
        return _nothing(look, chooser, error)
    devices = tuple(
        _chosen_device(option, ordinal, request)
        for ordinal, option in enumerate(chooser.choice.chosen)
    )
    placement = Placement(
        devices=devices,
        environment=environment_for(devices) | dict(held.environment),
        claims=held.claims,
        candidates=chooser.choice.candidates,
        advice=(ALLOW_COMPANY,) if chooser.choice.has_company else (),
    )
    notices = (*chooser.choice.remarks, *_notices(wish, environment, store))
    gpus = chooser.inventory.gpus if chooser.inventory else ()
    return Picked(answer=look.answer_with(placement, notices), held=held, gpus=gpus)


def _nothing(look: _Look, chooser: Chooser, error: BadAnswerError) -> Picked:
    failure = Failure.of(error)
    answer = look.answer_with(Placement(candidates=chooser.choice.candidates), ())
    answer = answer._replace(exit_code=error.exit_code, error=failure)
    return Picked(answer=answer, held=Held(environment={}))


def hold_named(
    answer: Answer,
    gpus: Sequence[Gpu],
    wish: Wish,
    environment: Mapping[str, str],
    *,
    on_wait: OnWait = nobody_listens,
) -> Picked:
    """Hold the named GPUs of a placement.

    Raises:
        BadAnswerError: another process holds one of them, and still does at the timeout.
        MissingError: there is no directory for the claims.
    """
    placement = answer.result
    if not isinstance(placement, Placement):
        raise TypeError(type(placement).__name__)
    targets = targets_of(placement.devices, gpus)
    store = open_store(wish, environment) if targets else None
    if store is None:
        notices = _notices(wish, environment, store) if targets else ()
        warnings = (*answer.warnings, *notices)
        return Picked(answer=answer._replace(warnings=warnings), held=Held(environment={}))
    chooser = NamedTargets(targets=targets)
    _, held = Acquisition(store, _terms(wish, environment), chooser, on_wait=on_wait).run()
    placement = replace(
        placement,
        environment=placement.environment | dict(held.environment),
        claims=held.claims,
    )
    warnings = (*answer.warnings, *_notices(wish, environment, store))
    return Picked(answer=answer._replace(result=placement, warnings=warnings), held=held)


def targets_of(devices: Sequence[PlacedDevice], gpus: Sequence[Gpu]) -> tuple[Target, ...]:
    """Return the targets to claim, each once; the CPU and GPUs without a UUID have none."""
    cards = {gpu.index: gpu.uuid for gpu in gpus}
    found = []
    for device in devices:
        card = cards.get(device.index) if device.index is not None else None
        if device.kind == "GPU" and device.uuid and card:
            instance = device.uuid if device.mig_instance else None
            found.append(Target(card=card, instance=instance))
    return tuple(dict.fromkeys(found))


@dataclass(kw_only=True)
class NamedTargets:
    """Selector that takes all of the named targets, or nothing."""

    targets: tuple[Target, ...]
    blocked: Mapping[str, str] = field(default_factory=dict)
    behind: int = 0

    @property
    def possible(self) -> Sequence[Target]:
        """Return the named targets."""
        return self.targets

    @property
    def count(self) -> int:
        """Return how many were named."""
        return len(self.targets)

    def survey(self) -> None:
        """Do nothing: named targets do not depend on the machine's load."""

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        """Return all of them, or nothing if one is blocked or others are ahead."""
        self.blocked, self.behind = blocked, behind
        return () if blocked or behind else self.targets

    def failure(self) -> BadAnswerError:
        """Return the error that says which are blocked, and by whom."""
        reasons = [f"{uuid}: {reason}" for uuid, reason in self.blocked.items()]
        if not reasons:
            many = "another process is" if self.behind == 1 else f"{self.behind} others are"
            reasons = [f"{many} already waiting for it"]
        return BadAnswerError(
            code="gpu-claimed",
            message=f"The GPU is not available: {'; '.join(reasons)}.",
            remedy=(
                "Wait for it (--wait), share it (--share N), or run without a claim (--no-claim).",
            ),
        )


class _Look:
    """Inventory of the machine, taken at each look, with the last answer."""

    def __init__(self, probes: Probes, *, topology: bool, close_after: bool) -> None:
        self._probes = probes
        self._request = ListRequest(topology=topology)
        self._close_after = close_after
        self._answer = Answer(result=None)
        self._unfit: dict[int, Unfit] = {}

    def inventory(self) -> Inventory:
        """Take the inventory, or raise the error that stands in its place."""
        try:
            answer = take_inventory(self._request, self._probes)
            self._answer = answer
            inventory = answer.result
            if not isinstance(inventory, Inventory):
                raise _as_error(answer)
            answering = [gpu for gpu in inventory.gpus if gpu.state is GpuState.OK]
            if answer.error is not None:
                if not answering:
                    raise _as_error(answer)
                self._answer = _beside_silent_ones(answer, answer.error)
            self._judge(answering)
            return inventory
        finally:
            if self._close_after:
                # Hundreds may wait at once, so none of them keeps a driver process open.
                self._probes.close()

    def _judge(self, gpus: Sequence[Gpu]) -> None:
        """Judge whether the GPUs that answer are fit for work."""
        self._unfit = {}
        if not gpus:
            return
        reading = self._probes.condition([gpu.index for gpu in gpus])
        health = {item.index: item for item in reading.gpus}
        for gpu in gpus:
            found = unfit(gpu, health[gpu.index]) if gpu.index in health else None
            if found is not None:
                self._unfit[gpu.index] = found
        if reading.failure is not None:
            message = f"The condition of the GPUs could not be read: {reading.failure.message}."
            notice = Notice(code="condition-unknown", message=message)
            self._answer = self._answer._replace(warnings=(*self._answer.warnings, notice))

    def condition(self) -> Mapping[int, Unfit]:
        """Return the unfit GPUs as of the last look, by index."""
        return self._unfit

    def driver_version(self) -> str | None:
        """Return the driver's version as of the last look."""
        return self._answer.host.driver_version

    def answer_with(self, placement: Placement, notices: tuple[Notice, ...]) -> Answer:
        """Return the last answer with a placement in place of the inventory."""
        kept = tuple(
            notice for notice in self._answer.warnings if notice.code != "cuda-order-unknown"
        )
        return self._answer._replace(result=placement, warnings=(*kept, *notices))


def _beside_silent_ones(answer: Answer, failure: Failure) -> Answer:
    """Return the answer with its error as a warning: the other GPUs do answer."""
    message = f"{failure.message} The other GPUs are offered, but CUDA may hang on this one too."
    notice = Notice(code=failure.code, message=message)
    return answer._replace(error=None, exit_code=ExitCode.OK, warnings=(*answer.warnings, notice))


def _as_error(answer: Answer) -> GpucheckError:
    failure = answer.error
    kind = InconclusiveError if answer.exit_code is ExitCode.INCONCLUSIVE else MissingError
    if failure is None:
        return kind(code="no-inventory", message="The GPUs cannot be listed.")
    return failure.as_error(kind)


def _terms(wish: Wish, environment: Mapping[str, str]) -> ClaimTerms:
    return ClaimTerms(
        share=wish.share,
        wait=wish.wait,
        timeout_s=wish.timeout_s,
        hold=wish.hold,
        command=wish.command,
        around=ids_around(environment),
    )


def _notices(
    wish: Wish, environment: Mapping[str, str], store: ClaimStore | None
) -> tuple[Notice, ...]:
    said = None if store is None else store.warning()
    if said is not None:
        return (Notice(code="claims-directory-owner", message=said),)
    scheduler = scheduler_of(environment)
    if store is None and wish.hold and wish.claim is None and scheduler is not None:
        message = f"Nothing is claimed, since {scheduler} allocated the GPUs (--claim claims them)."
        return (Notice(code="no-claim-in-allocation", message=message),)
    return ()


def _chosen_device(option: Option, ordinal: int, request: ChoiceRequest) -> PlacedDevice:
    """Return a chosen GPU under the ordinal that the placement's environment gives it."""
    gpu = option.gpu
    return PlacedDevice(
        spec=f"--count {request.count}",
        resolved=f"{LOCAL_TASK}/device:GPU:{ordinal}",
        kind="GPU",
        cuda_index=option.instance.cuda_index if option.instance else gpu.cuda_index,
        index=gpu.index,
        uuid=option.uuid,
        name=option.name,
        pci_bus_id=gpu.pci_bus_id,
        mig_instance=option.instance is not None,
        reason=f"the best that fits, by {request.prefer}",
        names=gpu_names(ordinal, None if option.instance else gpu.index, option.uuid),
    )


def own_command(words: Sequence[str]) -> str:
    """Return a command line for the record of a claim, without secrets."""
    import shlex

    from gpucheck.drivers.host.processes import without_secrets

    return shlex.join(without_secrets(words))
