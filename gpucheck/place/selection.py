"""Selection of GPUs: which fit a request, which are best, and why the others do not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.drivers.host.cpu import parse_cpu_list
from gpucheck.inventory.condition import Trouble
from gpucheck.inventory.inventory import select_gpus
from gpucheck.inventory.model import Gpu, GpuProcess, GpuState, Inventory, Topology, Visibility
from gpucheck.inventory.visibility import NOT_BESIDE_OTHERS, ONE_MIG, shows_one_instance
from gpucheck.place.claim_store import Target
from gpucheck.place.model import (
    IN_USE,
    MOST_GPUS,
    MOST_SHARES,
    Candidate,
    already_waiting,
    name_together,
    together,
)
from gpucheck.place.placement import CudaDevice, programs
from gpucheck.report.envelope import Notice
from gpucheck.report.errors import BadAnswerError, WrongUseError
from gpucheck.report.options import command_words, made_of_options, option, words
from gpucheck.report.text import format_gib, group_by
from gpucheck.report.units import Amount

#: What to do about GPUs that processes use without a claim.
ALLOW_BUSY_GPUS = "To accept a GPU in use, say how busy it may be: --min-free or --max-utilization."

_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")

#: Nearness of two GPUs: NVLink before any PCIe path, then the path with the fewest hops.
_NEARNESS = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
_NVLINK_NEARNESS = 100


class Preference(StrEnum):
    """Order of preference among GPUs that fit."""

    FREE_MEMORY = "free-memory"
    IDLE = "idle"
    COOL = "cool"
    NUMA = "numa"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
@made_of_options
class SelectionRequest:
    """Criteria for choosing GPUs; `share` is that of their claim."""

    count: int = 1
    min_free: Amount | None = None
    max_utilization_percent: float | None = option(
        "--max-utilization PCT", "Highest load, 0 to 100."
    )
    min_compute_capability: str | None = option(
        "--min-compute-capability X.Y", "Lowest one, such as 8.0."
    )
    name: str | None = option("--name REGEX", "Only names that match this.")
    exclude: tuple[str, ...] = words("--exclude GPU,...", "Leave out: index, UUID or bus id.")
    prefer: Preference = option(
        "--prefer WHAT",
        "Best first: free-memory, idle, cool, numa (near our CPUs) or nvlink.",
        Preference.FREE_MEMORY,
    )
    share: int = 1

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options of `place` that ask for this."""
        free = () if self.min_free is None else ("--min-free", self.min_free.text)
        share = () if self.share == 1 else ("--share", str(self.share))
        return ("--count", str(self.count), *free, *command_words(self), *share)


def check_request(request: SelectionRequest) -> None:
    """Refuse a request that no machine could answer.

    Raises:
        WrongUseError: a number is out of range, or a text is not a capability or expression.
    """
    if not 1 <= request.count <= MOST_GPUS:
        raise WrongUseError(
            code="bad-count", message=f"--count takes 1 to {MOST_GPUS} GPUs, not {request.count}."
        )
    if not 1 <= request.share <= MOST_SHARES:
        raise WrongUseError(
            code="bad-share",
            message=f"--share takes 1 to {MOST_SHARES} claims per GPU, not {request.share}.",
        )
    percent = request.max_utilization_percent
    if percent is not None and not 0 <= percent <= 100:
        raise WrongUseError(
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
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        message = f"A compute capability is a number such as 9.0, not {text[:40]!r}."
        raise WrongUseError(code="bad-compute-capability", message=message)
    return int(match[1]), int(match[2])


#: Escaped characters and sets, in which a repetition's sign stands for itself.
_LITERAL = re.compile(r"\\.|\[\]?[^]]*\]", re.DOTALL)
_REPETITION = re.compile(r"[*+{]")
#: Each repetition multiplies the time by a name's length at most, if no group is repeated.
MOST_REPETITIONS = 4


def _expression(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    plain = _LITERAL.sub("", text)
    if (
        ")*" in plain
        or ")+" in plain
        or "){" in plain
        or (len(_REPETITION.findall(plain)) > MOST_REPETITIONS)
    ):
        message = (
            f"--name takes at most {MOST_REPETITIONS} repetitions (* + {{) and no repeated group,"
            " which could take for ever."
        )
        raise WrongUseError(code="bad-name-expression", message=message)
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"--name takes a regular expression; {text[:60]!r} is not one: {error}."
        raise WrongUseError(code="bad-name-expression", message=message) from None


# ---------------------------------------------------------------------------------- candidates


def selectable_devices(gpus: Sequence[Gpu]) -> tuple[CudaDevice, ...]:
    """Return each GPU, or its MIG instances in its place."""
    return tuple(
        CudaDevice(gpu, instance)
        for gpu in gpus
        for instance in ((gpu.mig.enabled and gpu.mig.instances) or (None,))
    )


def target_of(item: CudaDevice) -> Target | None:
    """Return the target to claim for a device, None if it cannot be named for certain."""
    if not (item.gpu.uuid and item.uuid):
        return None
    return Target(card=item.gpu.uuid, instance=item.uuid if item.instance else None)


def id_of(item: CudaDevice) -> str:
    """Return a device's UUID, or its index if it cannot be named for certain."""
    return item.uuid if item.uuid and item.gpu.uuid else f"index {item.gpu.index}"


def allowed_uuids(visibility: Visibility) -> frozenset[str] | None:
    """Return the UUIDs that the inherited CUDA_VISIBLE_DEVICES allows; None means all.

    This includes a MIG instance or a GPU that the driver hides beside the first instance: alone it
    can be chosen.
    """
    if visibility.cuda_visible_devices is None:
        return None
    named = {
        entry.uuid
        for entry in visibility.entries
        if entry.uuid and (entry.status == "kept" or entry.reason in (ONE_MIG, NOT_BESIDE_OTHERS))
    }
    return frozenset(named | set(visibility.visible or ()))


# ---------------------------------------------------------------------------------- selector


#: The machine at one moment: its GPUs, those unfit for work by index, and its driver's version.
Machine = tuple[Inventory, Mapping[int, Trouble], str | None]


@dataclass(kw_only=True)
class GpuSelector:
    """Selector for one request; `look` returns the machine as it is at each survey.

    `inventory` is that of the last survey. After a choice `chosen` holds the best, in index order;
    it is empty if too few fit.
    """

    request: SelectionRequest
    look: Callable[[], Machine]
    own_pids: frozenset[int] = field(default_factory=lambda: frozenset({os.getpid()}))
    inventory: Inventory = field(init=False)
    chosen: Sequence[CudaDevice] = ()
    candidates: Sequence[Candidate] = ()
    _selectable: Sequence[CudaDevice] = ()
    _fitting: Sequence[CudaDevice] = ()
    _unfit: dict[str, str] = field(default_factory=dict)
    #: The GPUs, by index, that are taken only if too few others fit, and why.
    _last: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Return how many GPUs are requested."""
        return self.request.count

    @property
    def suitable(self) -> Sequence[CudaDevice]:
        """Return the devices that could fit, now or later: those not ruled out for good."""
        return [item for item in self._selectable if id_of(item) not in self._unfit]

    @property
    def possible(self) -> Sequence[Target]:
        """Return the claim targets of all devices that could fit."""
        return [target for target in map(target_of, self.suitable) if target is not None]

    @property
    def has_busy_gpus(self) -> bool:
        """Return whether a GPU is ruled out only because a process uses it without a claim."""
        return any(item.reason.startswith(IN_USE) for item in self.candidates)

    def survey(self) -> None:
        """Take the inventory and rule out what can never fit."""
        inventory, unfit, driver_version = self.look()
        self.inventory = inventory
        self._selectable = selectable_devices(inventory.gpus)
        excluded = _excluded(inventory, self.request.exclude)
        allowed = allowed_uuids(inventory.visibility)
        self._last = {index: bad.summary for index, bad in unfit.items() if not bad.refuses_work}
        self._unfit = {}
        one_instance = shows_one_instance(driver_version)
        # Beside an instance such a driver hides whole GPUs, but not one that is named alone.
        hides_whole = one_instance and any(item.instance for item in self._selectable)
        for item in self._selectable:
            bad = unfit.get(item.gpu.index)
            reason = _ruled_out(item, self.request, allowed, excluded, hides_whole=hides_whole)
            if reason is None:
                reason = _same_name(item, self._selectable)
            if reason is None and bad is not None and bad.refuses_work:
                reason = f"{bad.summary}: it is unfit for work (see: gpucheck detect)"
            if reason is None and item.instance is not None and one_instance and self.count > 1:
                reason = ONE_MIG
            if reason is not None:
                self._unfit[id_of(item)] = reason

    def choose(self, blocked: Mapping[str, str], *, behind: int = 0) -> Sequence[Target]:
        """Return the best that fits and is not blocked; nothing while others are ahead."""
        self.candidates = [self._verdict(item, blocked, behind) for item in self._selectable]
        verdicts = zip(self._selectable, self.candidates, strict=True)
        self._fitting = [item for item, verdict in verdicts if verdict.eligible]
        self.chosen = ()
        if len(self._fitting) >= self.request.count:
            topology = self.inventory.topology
            self.chosen = best(self._fitting, self.request, topology, last=self._last)
        return [target for target in map(target_of, self.chosen) if target is not None]

    def notices(self) -> Iterator[Notice]:
        """Yield warnings about the chosen GPUs."""
        unhealthy = (item.gpu.index for item in self.chosen if item.gpu.index in self._last)
        for index in dict.fromkeys(unhealthy):
            message = (
                f"GPU {index} was chosen only because too few others fit: {self._last[index]}"
                " (see: gpucheck detect)."
            )
            yield Notice(code="gpu-unwell", message=message)
        topology = self.inventory.topology
        reason = unmet_preference(self._fitting, self.chosen, self.request, topology)
        if reason is not None:
            message = f"--prefer {self.request.prefer} could not be honoured: {reason}."
            yield Notice(code="preference-not-honoured", message=message)

    def _verdict(self, item: CudaDevice, blocked: Mapping[str, str], behind: int) -> Candidate:
        reason = (
            self._unfit.get(id_of(item))
            or blocked.get(id_of(item))
            or _too_busy(item, self.request, self._others_on(item))
            or (already_waiting(behind) if behind else None)
        )
        last = self._last.get(item.gpu.index)
        shown = reason or _described(item) + (f"; a last resort: {last}" if last else "")
        return Candidate(
            uuid=id_of(item),
            index=item.gpu.index,
            name=item.name,
            eligible=reason is None,
            reason=shown,
            countable=item.gpu.state is GpuState.OK and not item.gpu.mig.enabled,
            memory_free_bytes=item.memory_free_bytes,
            used_by=programs(self._others_on(item), "{user}: {program}"),
        )

    def _others_on(self, item: CudaDevice) -> list[GpuProcess]:
        return [process for process in item.processes if process.pid not in self.own_pids]

    def failure(self) -> BadAnswerError:
        """Return the error that says how many fit, and why the others do not."""
        fits, count = len(self._fitting), self.request.count
        are = f"only {fits} fit" if fits > 1 else "only 1 fits" if fits else "none fits"
        noun = "GPU was" if count == 1 else "GPUs were"
        busy = [ALLOW_BUSY_GPUS] if self.has_busy_gpus else []
        less = "Ask for less, or wait" if self.request != SelectionRequest() else "Wait"
        later = f"{less}: add --wait."
        if len(self.possible) < count:
            hides = any("CUDA_VISIBLE_DEVICES" in reason for reason in self._unfit.values())
            more = "allow more GPUs in CUDA_VISIBLE_DEVICES (see: gpucheck list)"
            some = len(self.possible)
            ways = [f"only {some} can ever fit, so ask for less"] * bool(some) + [more] * hides
            advice = ", or ".join(ways) if ways else "no GPU here can ever fit"
            busy = []
            later = f"Waiting would not help: {advice}."
        refused = (item for item in self.candidates if not item.eligible)
        by_reason = group_by(refused, lambda item: item.reason)
        reasons = [f"{name_together(items)}: {reason}" for reason, items in by_reason.items()]
        return BadAnswerError(
            code="nothing-fits",
            message=f"{count} {noun} requested, but {are}.",
            remedy=(*reasons, *busy, later),
        )


# ---------------------------------------------------------------------------------- eligibility


def _excluded(inventory: Inventory, names: Sequence[str]) -> frozenset[str]:
    """Return the UUIDs of the named GPUs (by index, UUID or bus id) and MIG instances."""
    excluded: set[str] = set()
    for name in names:
        if name.casefold().startswith("mig-"):
            excluded |= {
                mig.uuid
                for gpu in inventory.gpus
                for mig in gpu.mig.instances
                if mig.uuid and mig.uuid.casefold().startswith(name.casefold())
            }
            continue
        for gpu in select_gpus(inventory, [name]).gpus:
            excluded |= {id_of(item) for item in selectable_devices([gpu])}
    return frozenset(excluded)


def _same_name(item: CudaDevice, gpus: Sequence[CudaDevice]) -> str | None:
    """Return a reason if another GPU has the same UUID: CUDA would see none of them."""
    mine = id_of(item)
    same = [other.gpu.index for other in gpus if id_of(other) == mine]
    if len(same) == 1:
        return None
    names = " and ".join(str(index) for index in same)
    return f"GPUs {names} report the same UUID, so neither can be named for certain"


def _ruled_out(
    item: CudaDevice,
    request: SelectionRequest,
    allowed: frozenset[str] | None,
    excluded: frozenset[str],
    *,
    hides_whole: bool,
) -> str | None:
    """Return why a GPU can never fit this request."""
    gpu = item.gpu
    if gpu.state is not GpuState.OK:
        return "lost" if gpu.state is GpuState.LOST else gpu.error or "no answer to NVML"
    if target_of(item) is None:
        return "its UUID cannot be read, so it cannot be named for certain"
    if gpu.mig.enabled and item.instance is None:
        return "MIG is enabled, but there is no instance"
    if allowed is not None and not allowed & {id_of(item), gpu.uuid}:
        return gpu.hidden_reason or "not named in the inherited CUDA_VISIBLE_DEVICES"
    unexplained = allowed is None and gpu.visible is False and not hides_whole
    if unexplained and item.instance is None:
        return f"CUDA does not see it: {gpu.hidden_reason or 'the reason is unknown'}"
    if id_of(item) in excluded:
        return "it is excluded"
    if gpu.compute_mode == "prohibited":
        return "its compute mode forbids all programs"
    return _wrong_kind(item, request)


def _wrong_kind(item: CudaDevice, request: SelectionRequest) -> str | None:
    name = _expression(request.name)
    if name is not None and not name.search(item.name or ""):
        return f"its name is {item.name}"
    wanted = request.min_compute_capability
    if wanted is not None:
        capability = item.gpu.compute_capability
        if capability is None:
            return "its compute capability cannot be read"
        if capability_of(capability) < capability_of(wanted):
            return f"its compute capability is {capability}"
    total = item.memory_total_bytes
    least = request.min_free
    if least is not None and total is not None and least.bytes_of(total) > total:
        return f"it has only {format_gib(total)}"
    return None


def _too_busy(
    item: CudaDevice, request: SelectionRequest, others: Sequence[GpuProcess]
) -> str | None:
    """Return why a GPU does not fit now, though it may later."""
    if request.min_free is not None:
        free, total = item.memory_free_bytes, item.memory_total_bytes
        if free is None or total is None:
            return "its free memory cannot be read"
        if free < request.min_free.bytes_of(total):
            return f"only {format_gib(free)} is free"
    most = request.max_utilization_percent
    if most is not None:
        load = _load(item)
        if load is None:
            return "a MIG instance reports no load" if item.instance else "its load cannot be read"
        if load > most:
            return f"its load is {load} %"
    if others and request.share == 1 and request.min_free is None and most is None:
        return f"{IN_USE}{together(programs(others, '{user} ({program})'))}"
    return None


def _load(item: CudaDevice) -> int | None:
    """Return the load in percent, which NVML reports for no MIG instance."""
    return None if item.instance else item.gpu.utilization_gpu_percent


def _described(item: CudaDevice) -> str:
    parts = []
    if item.memory_free_bytes is not None:
        parts.append(f"{format_gib(item.memory_free_bytes)} free")
    load = _load(item)
    if load is not None:
        parts.append(f"load {load} %")
    if item.instance is None and item.gpu.temperature_c is not None:
        parts.append(f"{item.gpu.temperature_c} C")
    return ", ".join(parts) or "it fits"


# ---------------------------------------------------------------------------------- ranking


def best(
    gpus: Sequence[CudaDevice],
    request: SelectionRequest,
    topology: Topology | None,
    *,
    last: Container[int] = (),
) -> list[CudaDevice]:
    """Return the `count` best GPUs by the request's preference, in index order.

    GPUs in `last` (by index) are taken only if there are too few others.
    """
    healthy = [item for item in gpus if item.gpu.index not in last]
    if len(healthy) < request.count:
        unhealthy = sorted(
            (item for item in gpus if item.gpu.index in last), key=_rank(request.prefer)
        )
        return sorted([*healthy, *unhealthy[: request.count - len(healthy)]], key=_index_key)
    ranked = sorted(healthy, key=_rank(request.prefer))
    count = request.count
    if request.prefer is Preference.NVLINK and count > 1:
        chosen = _nearest(ranked, count, _link_nearness(topology))
    elif request.prefer is Preference.NUMA and count > 1:
        chosen = _nearest(ranked, count, _same_node)
    else:
        chosen = ranked[:count]
    return sorted(chosen, key=_index_key)


def unmet_preference(
    fitting: Sequence[CudaDevice],
    chosen: Sequence[CudaDevice],
    request: SelectionRequest,
    topology: Topology | None,
) -> str | None:
    """Return why the preference had no effect; None if it had, or there was nothing to prefer."""
    if not chosen:
        return None
    pairs = [(this, other) for at, this in enumerate(chosen) for other in chosen[at + 1 :]]
    match request.prefer:
        case Preference.NVLINK:
            near = _link_nearness(topology)
            if not pairs:
                return "a single GPU has no link to another" if len(fitting) > 1 else None
            apart = [pair for pair in pairs if near(*pair) < _NVLINK_NEARNESS]
            if not apart:
                return None
            this, other = apart[0]
            return f"no NVLink connects GPU {this.gpu.index} and GPU {other.gpu.index}"
        case Preference.NUMA:
            no_cpus = all(not parse_cpu_list(item.gpu.cpu_affinity) for item in fitting)
            no_node = all(item.gpu.numa_node is None for item in fitting)
            if no_cpus and (no_node or not pairs):
                return "which CPUs are near the GPUs is unknown"
            apart = [pair for pair in pairs if not _same_node(*pair)]
            if not apart:
                return None
            this, other = apart[0]
            return (
                f"GPU {this.gpu.index} and GPU {other.gpu.index} are not known to share a NUMA node"
            )
        case Preference.COOL:
            known = any(item.gpu.temperature_c is not None for item in fitting)
            return None if known else "no GPU reports its temperature"
        case _:
            return None


def _index_key(item: CudaDevice) -> tuple[int, str]:
    return (item.gpu.index, id_of(item))


def _rank(preference: Preference) -> Callable[[CudaDevice], tuple[float, ...]]:
    """Return the key that puts the best first; what cannot be read comes last."""

    def rank(item: CudaDevice) -> tuple[float, ...]:
        free = -(item.memory_free_bytes or 0)
        load = _or_last(_load(item))
        tie = (free, load, item.gpu.index)
        match preference:
            case Preference.IDLE:
                return (len(item.pids), load, *tie)
            case Preference.COOL:
                return (_or_last(item.gpu.temperature_c), *tie)
            case Preference.NUMA:
                # The share of the CPUs we may run on that is local to the GPU.
                near = parse_cpu_list(item.gpu.cpu_affinity)
                ours = os.sched_getaffinity(0)
                return (-len(near & ours) / len(ours), *tie)
            case _:
                return (free, len(item.pids), load, item.gpu.index)

    return rank


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


_Nearness = Callable[[CudaDevice, CudaDevice], float]


def _same_node(first: CudaDevice, other: CudaDevice) -> float:
    node = first.gpu.numa_node
    return float(node is not None and node == other.gpu.numa_node)


def _link_nearness(topology: Topology | None) -> _Nearness:
    kinds = {}
    for link in topology.links if topology else ():
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = link.kind or ""

    def nearness(first: CudaDevice, other: CudaDevice) -> float:
        kind = kinds.get((first.gpu.index, other.gpu.index), "")
        if kind.startswith("NV") and kind[2:].isdigit():
            return _NVLINK_NEARNESS + int(kind[2:])
        return _NEARNESS.get(kind, 0)

    return nearness


def _nearest(ranked: Sequence[CudaDevice], count: int, nearness: _Nearness) -> list[CudaDevice]:
    """Return a set of GPUs that are near each other, grown from each GPU in turn.

    Adding the nearest one at a time does not always find the best set, but trying all sets of 8
    among 64 GPUs would take years.
    """
    best_set: list[CudaDevice] = []
    best_sum = -1.0
    for seed in ranked:
        grown, total = [seed], 0.0
        rest = [item for item in ranked if item is not seed]
        while len(grown) < count:
            sums = [sum(nearness(member, item) for member in grown) for item in rest]
            at = max(range(len(rest)), key=lambda place: (sums[place], -place))
            total += sums[at]
            grown.append(rest.pop(at))
        if total > best_sum:
            best_set, best_sum = grown, total
    return best_set
