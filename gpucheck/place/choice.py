"""Selection of GPUs: which fit a request, which are best, and why the others do not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpucheck.inventory.condition import Unfit
from gpucheck.inventory.inventory import select_gpus
from gpucheck.inventory.model import GpuState, Inventory
from gpucheck.inventory.visibility import SEVERAL_MIG_DRIVER, shows_one_instance
from gpucheck.place.choice_options import Option, allowed_uuids, options_of, options_on
from gpucheck.place.choice_rank import best, not_honoured
from gpucheck.place.claim_model import MOST_SHARES, Target
from gpucheck.place.model import Candidate, ChoiceRequest
from gpucheck.place.numbers import name_together
from gpucheck.report.envelope import Notice
from gpucheck.report.errors import BadAnswerError, WrongUseError

_UNCLAIMED = "without a claim"
#: What to do about GPUs that processes use without a claim.
ALLOW_COMPANY = "To accept a GPU in use, say how busy it may be: --min-free or --max-utilization."

_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Result of a choice: `chosen` holds the best, and is empty if too few fit."""

    chosen: tuple[Option, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    fitting: int = 0
    remarks: tuple[Notice, ...] = ()

    @property
    def has_company(self) -> bool:
        """Return whether a GPU is ruled out only because a process uses it without a claim."""
        return any(item.reason.endswith(_UNCLAIMED) for item in self.candidates)


def check_request(request: ChoiceRequest) -> None:
    """Refuse a request that no machine could answer.

    Raises:
        WrongUseError: a number is out of range, or a text is not a capability or expression.
    """
    if not 1 <= request.count <= 1024:
        raise _wrong(
            code="bad-count", message=f"--count takes 1 or more GPUs, not {request.count}."
        )
    if not 1 <= request.share <= MOST_SHARES:
        raise _wrong(
            code="bad-share",
            message=f"--share takes 1 to {MOST_SHARES} claims per GPU, not {request.share}.",
        )
    percent = request.max_utilization_percent
    if percent is not None and not 0 <= percent <= 100:
        raise _wrong(
            code="bad-utilization", message=f"--max-utilization takes 0 to 100, not {percent:g}."
        )
    if request.min_compute_capability is not None:
        capability_of(request.min_compute_capability)
    _expression(request.name)


def capability_of(text: str) -> tuple[int, int]:
    """Return `9.0` as (9, 0), so that 10.0 compares as more than 9.0.

    Raises:
        WrongUseError: it is not a compute capability.
    """
    found = _CAPABILITY.fullmatch(text)
    if found is None:
        message = f"A compute capability is a number such as 9.0, not {text[:40]!a}."
        raise _wrong(code="bad-compute-capability", message=message)
    return int(found[1]), int(found[2])


def _expression(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"--name takes a regular expression; {text[:60]!a} is not one: {error}."
        raise _wrong(code="bad-name-expression", message=message) from None


def _wrong(*, code: str, message: str) -> WrongUseError:
    return WrongUseError(code=code, message=message)


# ---------------------------------------------------------------------------------- eligibility


@dataclass(kw_only=True)
class Chooser:
    """Selector for one request; `look` returns the machine as it is at each survey."""

    request: ChoiceRequest
    look: Callable[[], Inventory]
    driver_version: Callable[[], str | None] = lambda: None
    condition: Callable[[], Mapping[int, Unfit]] = dict
    own_pids: frozenset[int] = field(default_factory=lambda: frozenset({os.getpid()}))
    inventory: Inventory | None = None
    choice: Choice = field(default_factory=Choice)
    _options: tuple[Option, ...] = ()
    _unfit: dict[str, str] = field(default_factory=dict)
    #: The GPUs, by index, that are taken only if too few others fit, and why.
    _last: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return how many GPUs are requested."""
        return self.request.count

    @property
    def possible(self) -> Sequence[Target]:
        """Return every target that could fit, now or later: all that are not ruled out for good."""
        return [
            option.target
            for option in self._options
            if option.target is not None and option.uuid not in self._unfit
        ]

    def survey(self) -> None:
        """Take the inventory and rule out what can never fit."""
        self.inventory = self.look()
        gpus = self.inventory.gpus
        self._options = options_of(gpus)
        excluded = _excluded(self.inventory, self.request.exclude)
        allowed = allowed_uuids(self.inventory.visibility)
        self._unfit = {}
        condition = self.condition()
        self._last = {index: bad.reason for index, bad in condition.items() if not bad.refused}
        for option in self._options:
            reason = _ruled_out(option, self.request, allowed, excluded)
            if reason is None:
                reason = _same_name(option, self._options)
            bad = condition.get(option.gpu.index)
            if reason is None and bad is not None and bad.refused:
                reason = f"{bad.reason}: it is unfit for work (see: gpucheck detect)"
            if reason is None and option.instance is not None:
                reason = self._beside_others()
            if reason is not None:
                self._unfit[option.uuid] = reason

    def _beside_others(self) -> str | None:
        if self.request.count > 1 and shows_one_instance(self.driver_version()):
            return f"before driver {SEVERAL_MIG_DRIVER} a program sees only one MIG instance"
        return None

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        """Return the best that fits and is not blocked; nothing while others are ahead."""
        verdicts = [self._verdict(option, blocked, behind) for option in self._options]
        fitting = [
            option
            for option, verdict in zip(self._options, verdicts, strict=True)
            if verdict.eligible
        ]
        chosen: tuple[Option, ...] = ()
        if len(fitting) >= self.request.count:
            topology = self.inventory.topology if self.inventory else None
            chosen = tuple(best(fitting, self.request, topology, last=self._last))
        self.choice = Choice(
            chosen=chosen,
            candidates=tuple(verdicts),
            fitting=len(fitting),
            remarks=tuple(self._remarks(fitting, chosen)),
        )
        return [option.target for option in chosen if option.target is not None]

    def _remarks(self, fitting: Sequence[Option], chosen: Sequence[Option]) -> Iterator[Notice]:
        """Yield warnings about the chosen GPUs."""
        unwell = dict.fromkeys(
            option.gpu.index for option in chosen if option.gpu.index in self._last
        )
        for index in unwell:
            message = (
                f"GPU {index} was chosen only because too few others fit: {self._last[index]}"
                " (see: gpucheck detect)."
            )
            yield Notice(code="gpu-unwell", message=message)
        lack = not_honoured(
            fitting, chosen, self.request, self.inventory.topology if self.inventory else None
        )
        if lack is not None:
            message = f"--prefer {self.request.prefer} could not be honoured: {lack}."
            yield Notice(code="preference-not-honoured", message=message)

    def _verdict(self, option: Option, blocked: Mapping[str, str], behind: int) -> Candidate:
        reason = (
            self._unfit.get(option.uuid)
            or blocked.get(option.uuid)
            or _too_busy(option, self.request, self.own_pids)
            or _queued(behind)
        )
        last = self._last.get(option.gpu.index)
        shown = reason or _described(option) + (f"; a last resort: {last}" if last else "")
        return Candidate(
            uuid=option.uuid,
            index=option.gpu.index,
            name=option.name,
            eligible=reason is None,
            reason=shown,
            countable=option.gpu.state is GpuState.OK and not option.gpu.mig.enabled,
        )

    def failure(self) -> BadAnswerError:
        """Return the error that says how many fit, and why the others do not."""
        fits, count = self.choice.fitting, self.request.count
        are = f"only {fits} fit" if fits > 1 else "only 1 fits" if fits else "none fits"
        what = "GPU was" if count == 1 else "GPUs were"
        company = [ALLOW_COMPANY] if self.choice.has_company else []
        less = "Ask for less, or wait" if self.request != ChoiceRequest() else "Wait"
        later = f"{less}: add --wait."
        if len(self.possible) < count:
            hides = any("CUDA_VISIBLE_DEVICES" in reason for reason in self._unfit.values())
            more = "allow more GPUs in CUDA_VISIBLE_DEVICES (see: gpucheck list)"
            ways = ["ask for less"] * bool(self.possible) + [more] * hides
            advice = ", or ".join(ways) if ways else "no GPU here can ever fit"
            later = f"Waiting would not help: {advice}."
        return BadAnswerError(
            code="nothing-fits",
            message=f"{count} {what} requested, but {are}.",
            remedy=(*_reasons(self.choice.candidates), *company, later),
        )


def _reasons(candidates: Sequence[Candidate]) -> list[str]:
    """Return why candidates are not eligible, each reason once."""
    found: dict[str, list[Candidate]] = {}
    for item in candidates:
        if not item.eligible:
            found.setdefault(item.reason, []).append(item)
    return [f"{name_together(items)}: {reason}" for reason, items in found.items()]


def _excluded(inventory: Inventory, names: Sequence[str]) -> frozenset[str]:
    """Return the UUIDs of the named GPUs (by index, UUID or bus id) and MIG instances."""
    found: set[str] = set()
    for name in names:
        if name.casefold().startswith("mig-"):
            found |= {
                mig.uuid
                for gpu in inventory.gpus
                for mig in gpu.mig.instances
                if mig.uuid and mig.uuid.casefold().startswith(name.casefold())
            }
            continue
        for gpu in select_gpus(inventory, [name]).gpus:
            found |= {option.uuid for option in options_on(gpu)}
    return frozenset(found)


def _same_name(option: Option, options: Sequence[Option]) -> str | None:
    """Return a reason if another GPU has the same UUID: CUDA would see none of them."""
    same = [other.gpu.index for other in options if other.uuid == option.uuid]
    if len(same) == 1:
        return None
    names = " and ".join(str(index) for index in same)
    return f"GPUs {names} report the same UUID, so neither can be named for certain"


def _ruled_out(
    option: Option,
    request: ChoiceRequest,
    allowed: frozenset[str] | None,
    excluded: frozenset[str],
) -> str | None:
    """Return why a GPU can never fit this request."""
    gpu = option.gpu
    if gpu.state is not GpuState.OK:
        return "lost" if gpu.state is GpuState.LOST else gpu.error or "no answer to NVML"
    if option.target is None:
        return "its UUID cannot be read, so it cannot be named for certain"
    if gpu.mig.enabled and option.instance is None:
        return "MIG is enabled, but there is no instance"
    if allowed is not None and not allowed & {option.uuid, gpu.uuid}:
        return gpu.hidden_reason or "the inherited CUDA_VISIBLE_DEVICES does not name it"
    if allowed is None and gpu.visible is False and option.instance is None:
        return f"CUDA does not see it: {gpu.hidden_reason or 'the reason is unknown'}"
    if option.uuid in excluded:
        return "it is excluded"
    if gpu.compute_mode == "prohibited":
        return "its compute mode forbids all programs"
    return _wrong_kind(option, request)


def _wrong_kind(option: Option, request: ChoiceRequest) -> str | None:
    name = _expression(request.name)
    if name is not None and not name.search(option.name or ""):
        return f"its name is {option.name}"
    wanted = request.min_compute_capability
    if wanted is not None:
        capability = option.gpu.compute_capability
        if capability is None:
            return "its compute capability cannot be read"
        if capability_of(capability) < capability_of(wanted):
            return f"its compute capability is {capability}"
    total = option.memory_total_bytes
    least = request.min_free
    if least is not None and total is not None and least.bytes_of(total) > total:
        return f"it has only {_size(total)}"
    return None


def _too_busy(option: Option, request: ChoiceRequest, own_pids: frozenset[int]) -> str | None:
    """Return why a GPU does not fit now, though it may later."""
    if request.min_free is not None:
        free, total = option.memory_free_bytes, option.memory_total_bytes
        if free is None or total is None:
            return "its free memory cannot be read"
        if free < request.min_free.bytes_of(total):
            return f"only {_size(free)} is free"
    most = request.max_utilization_percent
    if most is not None:
        load = option.utilization_percent
        if load is None:
            return (
                "a MIG instance reports no load" if option.instance else "its load cannot be read"
            )
        if load > most:
            return f"its load is {load} %"
    others = option.pids - own_pids
    if others and request.share == 1 and request.min_free is None and most is None:
        return f"{_processes(others)} {_UNCLAIMED}"
    return None


def _queued(behind: int) -> str | None:
    if behind == 0:
        return None
    return (
        f"{'another process is' if behind == 1 else f'{behind} others are'} already waiting for it"
    )


def _processes(pids: frozenset[int]) -> str:
    shown = ", ".join(str(pid) for pid in sorted(pids)[:3])
    more = ", ..." if len(pids) > 3 else ""
    return f"process {shown} uses it" if len(pids) == 1 else f"processes {shown}{more} use it"


def _described(option: Option) -> str:
    parts = []
    if option.memory_free_bytes is not None:
        parts.append(f"{_size(option.memory_free_bytes)} free")
    if option.utilization_percent is not None:
        parts.append(f"load {option.utilization_percent} %")
    if option.instance is None and option.gpu.temperature_c is not None:
        parts.append(f"{option.gpu.temperature_c} C")
    return ", ".join(parts) or "it fits"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
