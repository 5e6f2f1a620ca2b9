"""Ranking of the GPUs that fit: by free memory, load, temperature or nearness."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence

from gpucheck.inventory.model import Gpu, Topology
from gpucheck.place.choice_options import Option
from gpucheck.place.model import ChoiceRequest, Preference

#: Nearness of two GPUs: NVLink before any PCIe path, then the path with the fewest hops.
_NEARNESS = {"PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
_NVLINK_NEARNESS = 100


def best(
    options: Sequence[Option],
    request: ChoiceRequest,
    topology: Topology | None,
    *,
    last: Container[int] = (),
) -> list[Option]:
    """Return the `count` best options by the request's preference, in index order.

    GPUs in `last` (by index) are taken only if there are too few others.
    """
    well = [option for option in options if option.gpu.index not in last]
    if len(well) < request.count:
        unwell = sorted(
            (option for option in options if option.gpu.index in last), key=_rank(request.prefer)
        )
        return sorted([*well, *unwell[: request.count - len(well)]], key=_by_index)
    ranked = sorted(well, key=_rank(request.prefer))
    count = request.count
    if request.prefer is Preference.NVLINK and count > 1:
        chosen = _nearest(ranked, count, _link_nearness(topology))
    elif request.prefer is Preference.NUMA and count > 1:
        chosen = _nearest(ranked, count, _same_node)
    else:
        chosen = ranked[:count]
    return sorted(chosen, key=_by_index)


def not_honoured(
    fitting: Sequence[Option],
    chosen: Sequence[Option],
    request: ChoiceRequest,
    topology: Topology | None,
) -> str | None:
    """Return why the preference had no effect; None if it had, or there was nothing to prefer."""
    if not chosen:
        return None
    pairs = [(one, other) for at, one in enumerate(chosen) for other in chosen[at + 1 :]]
    match request.prefer:
        case Preference.NVLINK:
            near = _link_nearness(topology)
            if not pairs:
                return "a single GPU has no link to another" if len(fitting) > 1 else None
            apart = [pair for pair in pairs if near(*pair) < _NVLINK_NEARNESS]
            if not apart:
                return None
            one, other = apart[0]
            return f"no NVLink connects GPU {one.gpu.index} and GPU {other.gpu.index}"
        case Preference.NUMA:
            no_cpus = all(not cpus_in(option.gpu.cpu_affinity or "") for option in fitting)
            no_node = all(option.gpu.numa_node is None for option in fitting)
            if no_cpus and (no_node or not pairs):
                return "which CPUs are near the GPUs is unknown"
            apart = [pair for pair in pairs if not _same_node(*pair)]
            if not apart:
                return None
            one, other = apart[0]
            return (
                f"GPU {one.gpu.index} and GPU {other.gpu.index} are not known to share a NUMA node"
            )
        case Preference.COOL:
            known = any(option.gpu.temperature_c is not None for option in fitting)
            return None if known else "no GPU reports its temperature"
        case _:
            return None


def _by_index(option: Option) -> tuple[int, str]:
    return (option.gpu.index, option.uuid)


def _rank(preference: Preference) -> Callable[[Option], tuple[float, ...]]:
    """Return the key that puts the best first; what cannot be read comes last."""

    def rank(option: Option) -> tuple[float, ...]:
        free = -(option.memory_free_bytes or 0)
        load = _or_last(option.utilization_percent)
        tie = (free, load, option.gpu.index)
        match preference:
            case Preference.IDLE:
                return (len(option.pids), load, *tie)
            case Preference.COOL:
                return (_or_last(option.gpu.temperature_c), *tie)
            case Preference.NUMA:
                return (-_share_of_our_cpus(option.gpu), *tie)
            case _:
                return (free, len(option.pids), load, option.gpu.index)

    return rank


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def _share_of_our_cpus(gpu: Gpu) -> float:
    """Return the share of the CPUs we may run on that is local to the GPU."""
    near = cpus_in(gpu.cpu_affinity or "")
    ours = os.sched_getaffinity(0)
    return len(near & ours) / len(ours)


def cpus_in(text: str) -> frozenset[int]:
    """Parse the kernel's CPU list, such as `0-55,112-167`; other text gives no CPU."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last or first).isdigit() and len(part) < 20:
            found |= set(range(int(first), min(int(last or first), int(first) + 8192) + 1))
    return frozenset(found)


_Nearness = Callable[[Option, Option], float]


def _same_node(one: Option, other: Option) -> float:
    node = one.gpu.numa_node
    return float(node is not None and node == other.gpu.numa_node)


def _link_nearness(topology: Topology | None) -> _Nearness:
    kinds = {}
    for link in topology.links if topology else ():
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = link.kind or ""

    def nearness(one: Option, other: Option) -> float:
        kind = kinds.get((one.gpu.index, other.gpu.index), "")
        if kind.startswith("NV") and kind[2:].isdigit():
            return _NVLINK_NEARNESS + int(kind[2:])
        return _NEARNESS.get(kind, 0)

    return nearness


def _nearest(ranked: Sequence[Option], count: int, nearness: _Nearness) -> list[Option]:
    """Return a set of GPUs that are near each other, grown from each GPU in turn.

    Adding the nearest one at a time does not always find the best set, but trying all sets of 8
    among 64 GPUs would take years.
    """
    best_set: list[Option] = []
    best_sum = -1.0
    for seed in ranked:
        grown, total = [seed], 0.0
        rest = [option for option in ranked if option is not seed]
        while len(grown) < count:
            sums = [sum(nearness(member, option) for member in grown) for option in rest]
            at = max(range(len(rest)), key=lambda place: (sums[place], -place))
            total += sums[at]
            grown.append(rest.pop(at))
        if total > best_sum:
            best_set, best_sum = grown, total
    return best_set
