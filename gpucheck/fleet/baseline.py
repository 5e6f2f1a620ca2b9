"""Files that a judgement takes: the baseline, an earlier report's groups; and its rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.drivers.host.toml_file import read_toml
from gpucheck.fleet.judge import Reference
from gpucheck.fleet.model import JudgementRule
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import printable

#: A report names every node and GPU: about 20 MB for 10,000 nodes.
_MOST_BYTES = 256 * MIB
_SCHEMA = "gpucheck/fleet/1"
#: More than any group has.
_MOST_GPUS = 10**9


class Baseline(NamedTuple):
    """Reference of each group by its key, and the file they are from."""

    file: str
    references: dict[str, Reference]


def read_baseline(path: Path) -> Baseline:
    """Return the groups of a report that `gpucheck fleet report --json` wrote.

    Raises:
        WrongUseError: it cannot be read, is another document, or holds no group.
    """
    name = printable(str(path))
    try:
        document = json.loads(read_file(path, _MOST_BYTES))
    except OSError as error:
        raise _unusable(name, f"cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _unusable(name, "is no JSON document") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != _SCHEMA:
        given = printable(str(schema)[:60]) if isinstance(schema, str) else "no schema"
        raise _unusable(name, f"has {given}, not {_SCHEMA}")
    result = document.get("result")
    groups = result.get("groups") if isinstance(result, dict) else None
    found = dict(_references(groups if isinstance(groups, list) else []))
    if not found:
        raise _unusable(name, "has no group with a speed")
    return Baseline(name, found)


def _references(groups: list[Any]) -> list[tuple[str, Reference]]:
    """Return the groups with a median that a speed can have; what is malformed is left out."""
    found = []
    for group in groups:
        if not isinstance(group, dict):
            continue
        key = group.get("key")
        given = [group.get(name) for name in ("median", "scale", "gpus")]
        numbers = [one for one in given if isinstance(one, float | int)]
        if not isinstance(key, str) or len(numbers) < 3:
            continue
        median, scale, gpus = numbers
        if median > 0 and scale >= 0 and 1 <= gpus <= _MOST_GPUS:
            found.append((key, Reference(float(median), float(scale), int(gpus))))
    return found


def _unusable(name: str, problem: str) -> WrongUseError:
    return WrongUseError(
        code="baseline-unusable",
        message=f"The baseline {name!r} {problem}.",
        remedy=("Write one from a good day: gpucheck fleet report out/ --json -o baseline.json",),
    )


def read_rule(path: Path) -> JudgementRule:
    """Return the rule in a TOML file: its keys are the parameters, the others keep their default.

    Raises:
        WrongUseError: it cannot be read, or has a key or a value that there is not.
    """
    table = read_toml(path, "rule")
    rule = JudgementRule(**table.fields_of(JudgementRule, but=("source",)))
    table.finish()
    problem = next(_problems(rule), None)
    if problem is not None:
        raise table.source.error(problem=problem)
    return rule._replace(source=printable(str(path)))


def _problems(rule: JudgementRule) -> Iterator[str]:
    """Yield what contradicts itself."""
    if not rule.slow_z <= rule.watch_z < 0:
        yield "slow_z must be at most watch_z, and both below 0"
    if not 0 <= rule.least_percent < 100:
        yield "least_percent goes from 0 to 100"
    if rule.least_group < 3:
        yield "least_group must be at least 3"
    shares = (rule.confirmed_share, rule.risk, rule.node_share, rule.rack_risk)
    if not all(0 < share <= 1 for share in (*shares, rule.majority_share)):
        yield "the shares and risks go from above 0 to 1"
    positive = (rule.least_scale_percent, rule.most_scale_percent, rule.most_age_s)
    if not all(one > 0 for one in (*positive, rule.shift_percent)):
        yield "the percentages and most_age_s must be above 0"
