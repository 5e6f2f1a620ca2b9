"""Profile recorded from saved runs of good machines: what they reached, and where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpucheck import __version__
from gpucheck.bench import stats
from gpucheck.bench.ci.baseline import shown
from gpucheck.bench.ci.decision import deviation, without_strays
from gpucheck.bench.ci.model import Fingerprint, SavedRun, Series
from gpucheck.bench.ci.profile_file import SCHEMA
from gpucheck.bench.ci.profile_lint import MOST_TOLERANCE_PERCENT
from gpucheck.bench.ci.profile_model import Check, Profile, Target
from gpucheck.drivers.host.toml_file import keys_of
from gpucheck.report.errors import ExitCode, WrongUseError

#: Fewer processes cannot separate noise from difference.
FEWEST_PROCESSES = 5
#: A tolerance below so many times the noise between processes would fail good machines.
_TIMES_NOISE = 4.0

_Runs = Sequence[tuple[Path, SavedRun]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """Results of one check: the geometric mean by device, and the largest noise in percent."""

    check: Check
    by_device: Mapping[str, float]
    noise_percent: float
    processes: int

    @property
    def value(self) -> float:
        """Return the median device's figure with four digits."""
        return float(f"{stats.median(list(self.by_device.values())):.4g}")

    @property
    def tolerance_percent(self) -> float:
        """Return the base's tolerance, more where the noise needs it, in halves of a percent."""
        needed = math.ceil(2 * _TIMES_NOISE * self.noise_percent) / 2
        return max(self.check.tolerance_percent, needed)


def record_profile(base: Profile, runs: _Runs, *, name: str) -> str:
    """Return a profile's text: the base's demands, its checks with what the runs reached.

    Raises:
        WrongUseError: runs that failed, of another profile, of different boards, of too few
            processes, or that scatter too much.
    """
    _check_runs(base, runs)
    recorded = [found for check in base.checks if (found := _recorded(check, runs)) is not None]
    if not recorded:
        raise _refused(fact="the saved runs have no figures for this profile's checks")
    few = min(recorded, key=lambda one: one.processes)
    if few.processes < FEWEST_PROCESSES:
        raise _refused(
            fact=f"{few.check.id} was measured in {few.processes} processes, and a profile "
            f"needs at least {FEWEST_PROCESSES}"
        )
    worst = max(recorded, key=lambda one: one.tolerance_percent)
    if worst.tolerance_percent >= MOST_TOLERANCE_PERCENT:
        fact = (
            f"{worst.check.id} varies by {worst.noise_percent:.1f} % between processes, "
            f"which needs a tolerance of {worst.tolerance_percent:g} %"
        )
        raise _refused(fact=fact, remedy="Save the runs while nothing else uses the machine.")
    return "\n".join(_lines(base, runs, recorded, name)) + "\n"


_SAVE = "Save a run with more processes: gpucheck bench --profile NAME --save FILE"


def _refused(*, fact: str, remedy: str = _SAVE) -> WrongUseError:
    message = f"No profile can be recorded: {fact}."
    return WrongUseError(code="cannot-record", message=message, remedy=(remedy,))


def _check_runs(base: Profile, runs: _Runs) -> None:
    for path, run in runs:
        if run.exit_code == ExitCode.BAD:
            raise _refused(fact=f"{path} holds a run that failed")
        if (run.profile or "").split("/")[0] != base.name:
            fact = f"{path} was not measured with the profile {base.name}"
            save = f"gpucheck bench --profile {base.name} --save FILE"
            raise _refused(fact=fact, remedy=f"Save a run of it: {save}")
    boards = {one.board for one in _fingerprints(runs) if one.board is not None}
    if len(boards) > 1:
        raise _refused(fact=f"the runs are of different boards: {', '.join(sorted(boards))}")


def _fingerprints(runs: _Runs) -> list[Fingerprint]:
    return [device.fingerprint for _, run in runs for device in run.devices]


def _recorded(check: Check, runs: _Runs) -> _Recorded | None:
    found: list[tuple[str, Series]] = [
        (f"{run.host or path}/{series.device}", series)
        for path, run in runs
        for series in run.series
        if series.id == check.id and series.unit == check.unit
    ]
    if not found:
        return None
    # As gates are decided: a process that was disturbed moves neither the value nor the tolerance.
    logs = {
        key: without_strays([math.log(value) for value in series.values]) for key, series in found
    }
    means = {key: math.fsum(values) / len(values) for key, values in logs.items()}
    noise = max(deviation(values, means[key]) for key, values in logs.items())
    return _Recorded(
        check=check,
        by_device={key: math.exp(mean) for key, mean in means.items()},
        noise_percent=100 * noise,
        processes=min(len(series.values) for _, series in found),
    )


# ---------------------------------------------------------------------------------- the text


def _lines(base: Profile, runs: _Runs, recorded: Sequence[_Recorded], name: str) -> Iterator[str]:
    day = max(run.time for _, run in runs)[:10]
    hosts = sorted({run.host or path.name for path, run in runs})
    devices = sum(len(run.devices) for _, run in runs)
    yield f"# Recorded by gpucheck {__version__} from {len(runs)} saved runs; edit it as you like."
    yield ""
    head = {
        "schema": SCHEMA,
        "name": name,
        "version": 1,
        "description": f"recorded from {devices} devices of {', '.join(hosts)[:200]}",
        "requires_gpucheck": __version__,
    }
    yield from _table("profile", head)
    yield from _table("match", _match(base, runs))
    yield from _table("inventory", _given(base.inventory))
    yield from _table("run", _given(base.run, {"corruption_s": base.run.corruption_s or None}))
    for one in recorded:
        yield from _table("check", _check(one, hosts, day), listed=True)
    calm = _given(base.stability)
    throttle = calm.pop("throttle_s", {})
    yield from _table("stability", calm)
    if isinstance(throttle, dict):
        yield from _table("stability.throttle_s", throttle)
    yield from _table("provenance", _provenance(base, runs, recorded, day))


def _given(record: Any, instead: Mapping[str, object] = MappingProxyType({})) -> dict[str, object]:
    """Return the fields of a record that are set, by their keys in the file.

    `instead` has other values for some of its fields.
    """
    values = {
        key: instead[name] if name in instead else getattr(record, name)
        for name, (key, _, _) in keys_of(record.__class__).items()
    }
    return {key: value for key, value in values.items() if value not in (None, (), {}, "")}


def _match(base: Profile, runs: _Runs) -> dict[str, object]:
    if base.match.target is Target.CPU:
        return {"device": Target.CPU}
    ids = {(one.pci_device_id or "")[:4].lower() for one in _fingerprints(runs)}
    names = {one.board for one in _fingerprints(runs) if one.board is not None}
    counts = {len(run.devices) for _, run in runs}
    found: dict[str, object] = {"device": Target.GPU}
    if "" not in ids:
        found["pci_device_ids"] = sorted(ids)
    else:
        found["names"] = sorted(names)
    if len(counts) == 1:
        found["count"] = counts.pop()
    if base.match.mig is not None:
        found["mig"] = base.match.mig
    return found


def _check(found: _Recorded, hosts: Sequence[str], day: str) -> dict[str, object]:
    devices = f"{len(found.by_device)} devices of {', '.join(hosts)[:200]}"
    source = (
        f"recorded: {found.processes} processes on each of {devices}, "
        f"noise {found.noise_percent:.2g} %"
    )
    reached = {
        "together": found.check.together or None,
        "expectation": found.value,
        "tolerance_percent": found.tolerance_percent,
        "source": source,
        "date": day,
        "line": None,
    }
    written = _given(found.check, reached)
    return {"value" if key == "expectation" else key: one for key, one in written.items()}


def _provenance(
    base: Profile, runs: _Runs, recorded: Sequence[_Recorded], day: str
) -> dict[str, object]:
    known = _fingerprints(runs)
    found: dict[str, object] = {
        "base": f"{base.name} version {base.version}",
        "gpucheck": __version__,
        "date": day,
    }
    for key in ("board", "vbios", "driver", "cuda", "cupy", "cublas", "cpu", "blas", "frameworks"):
        values = sorted({shown(value) for one in known if (value := getattr(one, key)) is not None})
        if values:
            found[key] = ", ".join(values)
    for one in recorded:
        reached = ", ".join(f"{key} {value:.4g}" for key, value in one.by_device.items())
        found[f"reached-{one.check.id}"] = f"{reached} {one.check.unit}"
    return found


def _table(name: str, values: Mapping[str, object], *, listed: bool = False) -> Iterator[str]:
    if not values:
        return
    yield f"[[{name}]]" if listed else f"[{name}]"
    for key, value in values.items():
        yield f"{key} = {_toml(value)}"
    yield ""


def _toml(value: object) -> str:
    """Return a value as TOML writes it; JSON's texts are TOML's, but for the delete character."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_toml(str(key))} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
