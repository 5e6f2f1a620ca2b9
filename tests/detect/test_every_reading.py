"""What detect makes of each single reading, if it is absent, zero, more, less or the contrary.

The machines are the recorded examples. A change of one reading is told by the findings that it
changes, whole, so that no check's evidence, remedy or limit changes without being seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpucheck.detect.model import Detection
from gpucheck.detect.run import detect
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.report.codec import DecodeError, from_plain
from tests.architecture.house import ROOT
from tests.report.formats.recorded import in_lines, recorded

EXAMPLES = ROOT / "gpucheck" / "data" / "examples"
#: Readings of these name or describe, and decide nothing.
NAMES = ("time", "redacted", "serial", "nvml_calls", "processes", "topology")

#: The parts that a snapshot must have.
NOTHING = {"time": "", "host": {}, "environment": {}}

Path = tuple[Any, ...]


def readings(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every reading of a recording with its path; of several alike only the first two."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in NAMES:
                yield from readings(inner, (*path, key))
    elif isinstance(value, list) and value:
        for at, inner in enumerate(value[:2]):
            yield from readings(inner, (*path, at))
    else:
        yield path, value


def others(value: Any) -> list[Any]:
    """Return what else a reading may be; what its field does not take is passed over."""
    if value is None:
        return [True, 1, 8, 0.5, "x"]
    if isinstance(value, bool):
        return [None, not value]
    if isinstance(value, int | float):
        return [None, 0, value + 1, 2 * value, value / 2, value - 1]
    return [None, [], ""] if isinstance(value, list) else [None, f"{value}9", ""]


def put(value: Any, path: Path, other: Any) -> Any:
    """Return a value with another reading at a path; the rest is shared."""
    if not path:
        return other
    key, *rest = path
    found = value.copy()
    found[key] = put(value[key], tuple(rest), other)
    return found


def findings(snapshot: Snapshot) -> list[Any]:
    """Return what is found: the whole, then each check."""
    answer = detect(RecordedProbes(snapshot))
    assert isinstance(answer.result, Detection)
    found = answer.result
    return [
        {"code": answer.exit_code, "verdict": found.verdict, "it": found.conclusion},
        *found.checks,
    ]


@pytest.mark.parametrize("name", ["geforce", "mig", "nouveau", "version-mismatch"])
def test_each_reading_changes_the_findings_as_recorded(name: str) -> None:
    recording = json.loads((EXAMPLES / f"{name}.json").read_text())["result"]
    whole = from_plain(Snapshot, recording)
    usual = findings(whole)
    text = in_lines(usual)
    for path, value in readings(recording):
        for other in others(value):
            part = {path[0]: put(recording, path, other)[path[0]]}
            try:
                read = from_plain(Snapshot, NOTHING | part)
            except DecodeError:
                continue
            found = findings(whole._replace(**{path[0]: getattr(read, path[0])}))
            if found != usual:
                text += f"## {'.'.join(map(str, path))} {value!r} is {other!r}\n"
                text += in_lines(one for one in found if one not in usual)

    assert text == recorded(f"readings-{name}", text)
