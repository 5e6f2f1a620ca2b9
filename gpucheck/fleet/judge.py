"""Judgement of speeds: which GPUs are slower than those like them, and where they are.

A GPU is compared with its group: the GPUs of the same model, memory, power limit, MIG and ECC mode,
PCIe link and driver, in the same test. Speeds are work per second. The rule and the simulations
behind it: docs/reference/fleet.md. Everything here is values in, values out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucheck.fleet.model import (
    Attribution,
    Correction,
    GpuSpeed,
    Group,
    JudgedBy,
    JudgementRule,
    Scope,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]
    Ints = NDArray[Any]

#: A standard deviation from the median of absolute deviations, if values are normal.
_NORMAL = 1.4826
#: The scale from n values is known about as well as a standard deviation from this share of n.
_MAD_EFFICIENCY = 0.37
#: Above its median plus so many standard deviations lies a tenth of the values.
_TENTH = 1.2816
#: Where the lower part of a group can be sick, this part of it tells whether the whole has moved.
_UPPER = 0.9


#: Verdicts on unhealthy GPUs, the worst first.
_UNHEALTHY = (GpuSpeed.SLOW, GpuSpeed.UNSTABLE, GpuSpeed.WATCH)
#: Group, the number of a GPU for each run, and the speed of each.
GroupSpeeds = tuple[Group, "Ints", "Floats"]


class GpuVerdict(NamedTuple):
    """Verdict on one GPU in its worst test; `group` is the number of that test's group."""

    gpu: int
    speed: GpuSpeed
    group: int
    value: float
    slower_percent: float
    z: float
    runs: int
    slow_runs: int
    tests: int = 1
    judged_tests: int = 1


def judge(
    samples: Sequence[GroupSpeeds],
    gpu_count: int,
    rule: JudgementRule,
    baseline: Mapping[str, Group] | None = None,
) -> tuple[tuple[Group, ...], tuple[GpuVerdict, ...], Floats]:
    """Return the judged groups, the unhealthy GPUs, and how much slower each GPU is at worst.

    The verdicts are corrected for the number of GPUs. The percentages are by the number of the
    GPU, NaN where nothing was judged. `baseline` has the groups of an earlier report by their keys.
    """
    import numpy as np

    baseline = baseline or {}
    groups = []
    worst: dict[GpuSpeed, dict[int, GpuVerdict]] = {speed: {} for speed in _UNHEALTHY}
    least_p = np.ones(gpu_count)
    judged = np.zeros(gpu_count, dtype=np.int64)
    worst_percent = np.full(gpu_count, -np.inf)
    for number, (group, numbers, speeds) in enumerate(samples):
        runs = _runs_by_gpu(numbers, speeds, rule)
        group, centre, scale = _referred(group, runs, rule, baseline)
        groups.append(group)
        if centre is None or scale is None:
            continue
        scores = (runs.confirmed - centre) / scale
        percents = 100 * (1 - runs.confirmed / centre)
        slow_runs, unhealthy = _find_unhealthy(runs, centre, scale, rule)
        judged[runs.gpus] += 1
        worst_percent[runs.gpus] = np.maximum(worst_percent[runs.gpus], percents)
        by_baseline = group.judged_by is JudgedBy.BASELINE
        scaled_by = baseline[group.key].gpus if by_baseline else len(runs.gpus)
        slow = runs.gpus[unhealthy[GpuSpeed.SLOW]]
        chances = tail(scores[unhealthy[GpuSpeed.SLOW]], scaled_by)
        least_p[slow] = np.minimum(least_p[slow], chances)
        for speed, mask in unhealthy.items():
            for place in np.flatnonzero(mask).tolist():
                verdict = GpuVerdict(
                    gpu=int(runs.gpus[place]),
                    speed=speed,
                    group=number,
                    value=float(runs.confirmed[place]),
                    slower_percent=float(percents[place]),
                    z=float(scores[place]),
                    runs=int(runs.counts[place]),
                    slow_runs=int(slow_runs[place]),
                )
                before = worst[speed].get(verdict.gpu)
                if before is not None:
                    worse = min(before, verdict, key=lambda test: test.z)
                    verdict = worse._replace(tests=before.tests + 1)
                worst[speed][verdict.gpu] = verdict
    chance = np.minimum(1.0, least_p * np.maximum(judged, 1))
    candidates = np.array(sorted(worst[GpuSpeed.SLOW]), dtype=np.int64)
    certain = survivors(chance[candidates], int((judged > 0).sum()), rule)
    confirmed = set(candidates[certain].tolist())
    # The first of these kinds that a GPU is of is its verdict.
    by_gpu = worst[GpuSpeed.WATCH] | worst[GpuSpeed.UNSTABLE] | worst[GpuSpeed.SLOW]
    verdicts = [
        # Slow as it looks, but among so many GPUs one may look so by chance.
        verdict._replace(speed=GpuSpeed.WATCH, judged_tests=int(judged[gpu]))
        if verdict.speed is GpuSpeed.SLOW and gpu not in confirmed
        else verdict._replace(judged_tests=int(judged[gpu]))
        for gpu, verdict in by_gpu.items()
    ]
    verdicts.sort(key=lambda verdict: (_UNHEALTHY.index(verdict.speed), verdict.z, verdict.gpu))
    by_group = np.bincount(
        [verdict.group for verdict in verdicts if verdict.speed is GpuSpeed.SLOW],
        minlength=len(groups),
    )
    counted = zip(groups, by_group.tolist(), strict=False)
    judged_groups = tuple(group._replace(slow=count) for group, count in counted)
    return judged_groups, tuple(verdicts), np.where(judged > 0, worst_percent, np.nan)


# ----------------------------------------------------------------------------- one group


@dataclass(slots=True)
class _Runs:
    """Speeds of a group by GPU: number, median, confirmed speed; and all of them."""

    gpus: Ints
    counts: Ints
    medians: Floats
    confirmed: Floats
    starts: Ints
    values: Floats


def _runs_by_gpu(numbers: Ints, speeds: Floats, rule: JudgementRule) -> _Runs:
    """Return the runs of each GPU.

    Its confirmed speed is the one that so many of its runs do not exceed as must agree: the
    slower of two, the second slowest of three.
    """
    import numpy as np

    order = np.lexsort((speeds, numbers))
    gpus, values = numbers[order].astype(np.int64), speeds[order]
    starts = np.flatnonzero(np.r_[True, gpus[1:] != gpus[:-1]])
    counts = np.diff(np.r_[starts, len(gpus)])
    needed = np.ceil(rule.confirmed_share * counts - 1e-9).astype(np.int64)
    needed = np.where(counts == 1, 1, np.clip(needed, 2, counts))
    return _Runs(
        gpus=gpus[starts],
        counts=counts,
        medians=(values[starts + (counts - 1) // 2] + values[starts + counts // 2]) / 2,
        confirmed=values[starts + needed - 1],
        starts=starts,
        values=values,
    )


def _referred(
    group: Group, runs: _Runs, rule: JudgementRule, baseline: Mapping[str, Group]
) -> tuple[Group, float | None, float | None]:
    """Return a group with its reference, the median and the scale to judge by, or none."""
    count = len(runs.gpus)
    centre, scale = healthy_part(runs.medians, rule)
    group = group._replace(gpus=count, median=centre, scale=scale)
    stored = baseline.get(group.key)
    if stored is not None and stored.median and stored.scale is not None:
        usual, usual_scale = stored.median, stored.scale
        centre, scale, shift = _scale_by_baseline(runs.medians, usual, usual_scale, rule)
        group = group._replace(
            judged_by=JudgedBy.BASELINE, baseline_median=usual, shift_percent=shift
        )
    elif count < rule.least_group:
        reason = f"only {count} alike, and no baseline"
        return group._replace(judged_by=JudgedBy.NOTHING, reason=reason), None, None
    elif 100 * scale > rule.most_scale_percent * centre:
        reason = f"they vary by {100 * scale / centre:.1f} %: perhaps two kinds in one group"
        return group._replace(judged_by=JudgedBy.NOTHING, reason=reason), None, None
    finds = max(rule.least_percent, -100 * rule.slow_z * scale / centre)
    return group._replace(finds_percent=finds), centre, scale


def healthy_part(medians: Floats, rule: JudgementRule) -> tuple[float, float]:
    """Return the median and the scale of the GPUs that are not slow, in their unit.

    The median of absolute deviations grows as soon as a fifth of a group is slow, and hides them
    all. But slow GPUs lie on one side: so the scale is first that of the upper half, and what is
    far below it is left out, again and again until nothing more is; only then both are taken from
    what remains. This holds up to 45 % slow GPUs.
    """
    import numpy as np

    kept = medians
    for upper in (True, False):
        while True:
            centre = float(np.median(kept))
            distances = kept[kept >= centre] - centre if upper else np.abs(kept - centre)
            scale = max(
                _NORMAL * float(np.median(distances)), rule.least_scale_percent / 100 * centre
            )
            far = (kept - centre <= rule.watch_z * scale) & (
                kept <= (1 - rule.least_percent / 100) * centre
            )
            if not far.any():
                break
            kept = kept[~far]
    return centre, scale


def _scale_by_baseline(
    medians: Floats, usual: float, usual_scale: float, rule: JudgementRule
) -> tuple[float, float, float]:
    """Return the centre and the scale by the baseline's, and how far the group has moved.

    Whether a whole group has moved is seen in its upper tenth, which is healthy even where most of
    it is slow. That much everybody has lost, and it is held against nobody.
    """
    import numpy as np

    scale = max(usual_scale, rule.least_scale_percent / 100 * usual)
    if len(medians) < rule.least_group:
        shift = 1 - float(np.median(medians)) / usual
        return usual, scale, 100 * shift
    expected = usual + _TENTH * scale
    shift = 1 - float(np.quantile(medians, _UPPER)) / expected
    return usual * (1 - shift), scale, 100 * shift


def _find_unhealthy(
    runs: _Runs, centre: float, scale: float, rule: JudgementRule
) -> tuple[Ints, dict[GpuSpeed, Any]]:
    """Return how many runs of each GPU are slow, and which GPUs are slow, unstable or watched."""
    import numpy as np

    def below(values: Floats, limit: float) -> Any:
        """Return which values are both unusual and worth something."""
        far = (values - centre) / scale <= limit
        return far & (values <= (1 - rule.least_percent / 100) * centre)

    slow_runs = np.add.reduceat(below(runs.values, rule.slow_z).astype(np.int64), runs.starts)
    slow = below(runs.confirmed, rule.slow_z)
    return slow_runs, {
        GpuSpeed.SLOW: slow,
        GpuSpeed.UNSTABLE: (slow_runs > 0) & ~slow,
        GpuSpeed.WATCH: below(runs.confirmed, rule.watch_z) & ~slow,
    }


# ---------------------------------------------------------------------------- correction


def tail(z: Floats, count: int) -> Floats:
    """Return how likely a healthy GPU has such a score or a lower one, by a scale from `count`.

    It is Student's tail, since the scale is an estimate, by Wallace's normal approximation
    (Wallace 1959, Annals of Mathematical Statistics 30).
    """
    import numpy as np

    freedom = max(3.0, _MAD_EFFICIENCY * (count - 1))
    root = np.sqrt(freedom * np.log1p(z * z / freedom))
    normal = (8 * freedom + 1) / (8 * freedom + 3) * root
    return np.array([0.5 * math.erfc(root / math.sqrt(2)) for root in normal.tolist()])


def survivors(chances: Floats, total: int, rule: JudgementRule) -> Any:
    """Return which of these chances are small enough among `total` GPUs.

    The others of the total were not suspect: their chance counts as 1. Holm's step-down bounds the
    chance of one false name, Benjamini's and Hochberg's step-up the share of false ones.
    """
    import numpy as np

    if rule.correction is Correction.NONE or not len(chances):
        return np.ones(len(chances), dtype=bool)
    order = np.argsort(chances, kind="stable")
    ranks = np.arange(1, len(chances) + 1)
    ordered = chances[order]
    if rule.correction is Correction.HOLM:
        good = ordered <= rule.risk / (total - ranks + 1)
        last = len(good) if good.all() else int(np.argmin(good))
    else:
        below = np.flatnonzero(ordered <= rule.risk * ranks / total)
        last = int(below[-1]) + 1 if len(below) else 0
    certain = np.zeros(len(chances), dtype=bool)
    certain[order[:last]] = True
    return certain


# --------------------------------------------------------------------------- attribution


def attribute(
    places: Mapping[int, tuple[str, str | None]],
    slow: Sequence[int],
    judged: Sequence[int],
    rule: JudgementRule,
) -> Iterator[Attribution]:
    """Yield the nodes of which half the GPUs are slow, and the racks that have too many such nodes.

    `places` has each GPU's node and rack. Nothing that may be chance, which is hypergeometric. A
    rack counts by its nodes with a slow GPU: GPUs of one node are slow together more often than by
    chance.
    """
    of_node: dict[str, list[int]] = {}
    racks: dict[str, set[str]] = {}
    for gpu in judged:
        host, rack = places[gpu]
        of_node.setdefault(host, []).append(gpu)
        if rack is not None:
            racks.setdefault(rack, set()).add(host)
    bad = set(slow)
    counts = {host: sum(1 for gpu in gpus if gpu in bad) for host, gpus in of_node.items()}
    for host, count in counts.items():
        total = len(of_node[host])
        if count < 2 or count < rule.node_share * total:
            continue
        # Where a fifth of all GPUs are slow, many nodes have half of theirs by chance.
        chance = chance_of_at_least(count, total, len(bad), len(judged))
        if chance * len(of_node) <= rule.risk:
            text = f"{count} of {total} GPUs of {host} are slow: seek the cause in the node"
            yield Attribution(Scope.NODE, host, count, total, text, chance)
    known = [host for hosts in racks.values() for host in hosts]
    slow_nodes = {host for host in known if counts[host]}
    for rack, hosts in racks.items():
        here = len(hosts & slow_nodes)
        if here < 3:
            continue
        chance = chance_of_at_least(here, len(hosts), len(slow_nodes), len(known))
        if chance * len(racks) <= rule.rack_risk:
            text = (
                f"{here} of {len(hosts)} nodes of rack {rack} have slow GPUs: seek it in the rack"
            )
            yield Attribution(Scope.RACK, rack, here, len(hosts), text, chance)


def chance_of_at_least(here: int, size: int, bad: int, total: int) -> float:
    """Return how likely at least `here` of `size` are bad, if `bad` of `total` are, by chance.

    By logarithms: of whole numbers, two racks of ten thousands of nodes would take minutes.
    """
    if here <= max(0, size + bad - total):
        return 1.0

    def ways(count: int, chosen: int) -> float:
        rest = count - chosen
        return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(rest + 1)

    all_ways = ways(total, size)
    return math.fsum(
        math.exp(ways(bad, there) + ways(total - bad, size - there) - all_ways)
        for there in range(here, min(size, bad) + 1)
    )


def shifts(groups: Sequence[Group], rule: JudgementRule) -> Iterator[Attribution]:
    """Yield the groups that are slower than their baseline as a whole."""
    for group in groups:
        if group.shift_percent is not None and group.shift_percent > rule.shift_percent:
            text = (
                f"all {group.gpus} {group.gpu_name} are {group.shift_percent:.1f} % slower in"
                f" {group.test} than in the baseline: seek it in what they share"
            )
            yield Attribution(Scope.GROUP, group.key, group.gpus, group.gpus, text)
