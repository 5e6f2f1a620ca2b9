"""What the report of a fleet needs of one document, whoever wrote it and in whichever version.

Nothing in a document is trusted: a field of another type than expected is as if it were not there,
texts are cut and made printable, and lists have a most length. Documents of gpucheck are known by
their `schema`, lines of results.jsonl too; a node verdict of NVIDIA's Health Validation by its
`overall_severity` (https://docs.nvidia.com/health-validation/reference/verdict-schema).
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpucheck.fleet.model import Outcome
from gpucheck.report.text import count_of, printable

#: The longest text, and the most GPUs, rows and reasons, that are taken of one document.
LONGEST_TEXT, MOST_GPUS, MOST_ROWS, MOST_REASONS = 200, 256, 20_000, 20
#: The number of a document's schema that this version reads.
KNOWN_NUMBER = 1
_SCHEMA = re.compile(r"gpucheck/([a-z-]+)/([0-9]{1,9})")
#: Documents about a node; others, such as this report's own, are passed over.
_OF_NODES = frozenset(
    {"detect", "list", "bench", "burn", "memlimit", "place", "process", "log", "wheel", "error"}
)
#: Command of a verdict of NVIDIA's Health Validation, and of what does not say which wrote it.
HEALTH_VALIDATION, ANY = "health-validation", "?"
#: Exit code 4 of these says that the node has no usable driver; elsewhere that an extra is missing.
_LOOKS_FOR_GPUS = frozenset({"detect", "list"})
_SEVERITIES = {
    "PASS": Outcome.OK,
    "INFO": Outcome.OK,
    "WARNING": Outcome.OK,
    "CRITICAL": Outcome.FAILED,
    "UNKNOWN": Outcome.INCONCLUSIVE,
}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
#: Names under which such a verdict may carry its node; the published pages show none of them.
_NODE_NAMES = ("node_id", "node_name", "node", "hostname", "host")
#: Kernels whose speed depends on where the GPU sits in its node.
_BY_POSITION = frozenset({"transfer", "p2p"})
#: What a time and a rate in any unit can be; with others, sums would leave a float.
_SHORTEST_S, _LONGEST_S, _SLOWEST, _FASTEST = 1e-12, 1e9, 1e-12, 1e30
#: Doubts by which a figure says nothing about its GPU.
_BUSY = frozenset({"gpu-shared"})


#: What was measured: the row's id, the unit, and the GPU's number where that matters.
Test = tuple[str, str, int | None]


class Config(NamedTuple):
    """What two GPUs must have in common for their speeds to be compared."""

    gpu_name: str
    memory_total_bytes: int | None = None
    power_limit_w: float | None = None
    mig: bool | None = None
    ecc_mode: bool | None = None
    pcie: str | None = None
    driver: str | None = None


class GpuFacts(NamedTuple):
    """GPU as one document describes it; `inventory` is by the names of the report's differences."""

    uuid: str
    index: int | None = None  # type: ignore[assignment]  # as in FleetGpu
    name: str | None = None
    state: str | None = None
    config: Config | None = None
    inventory: Mapping[str, str] = {}
    facts: tuple[str, ...] = ()


class NodeFacts(NamedTuple):
    """What one document says of its node; `host` is null where it does not say that.

    `conclusion` is the document's own sentence over what is wrong, if it has one. `time` is in
    seconds since 1970, null if it cannot be read. `speeds` are those of GPUs, `busy`
    the GPUs that others used. `ignored` says why a document is none of a node. `order` is the
    document's among all that were read, `file` what `gpucheck show` can show of it.
    """

    host: str | None
    command: str
    outcome: Outcome
    reasons: tuple[str, ...] = ()
    conclusion: str | None = None
    time: float | None = None
    gpucheck_version: str | None = None
    inventory: Mapping[str, str] = {}
    gpus: tuple[GpuFacts, ...] = ()
    speeds: tuple[tuple[str, Test, float], ...] = ()
    busy: frozenset[str] = frozenset()
    recorded: bool = False
    ignored: str | None = None
    order: int = 0
    file: str | None = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what is wrong in words."""
        return (self.conclusion,) if self.conclusion else self.reasons


def facts_of(document: Mapping[str, Any]) -> NodeFacts:
    """Return the facts that a parsed document states about its node."""
    schema = _text(document, "schema")
    known = _SCHEMA.fullmatch(schema or "")
    if known is None:
        if _text(document, "overall_severity") in _SEVERITIES:
            return _health_validation(document)
        problem = f"its schema is {schema}" if schema else "it names no schema"
        return _undecided(document, ANY, Outcome.UNREADABLE, f"a foreign document: {problem}")
    name, number = known[1], int(known[2])
    if name == "fleet-node":
        return _answer(document, number)
    if number != KNOWN_NUMBER:
        age = "newer" if number > KNOWN_NUMBER else "older"
        reason = f"{age} than is read here: {schema}"
        command = name if name in _OF_NODES else ANY
        return _undecided(document, command, Outcome.INCOMPATIBLE, reason)
    if name not in _OF_NODES:
        return NodeFacts(None, name, Outcome.OK, ignored=f"{schema} is not about a node")
    return _report(document, name)


def _undecided(
    document: Mapping[str, Any], command: str, outcome: Outcome, reason: str
) -> NodeFacts:
    return NodeFacts(_host_of(document), command, outcome, (reason,), time=_time(document))


def _answer(line: Mapping[str, Any], number: int) -> NodeFacts:
    """Return the facts of a line of results.jsonl: its outcome, and then its document's."""
    host = _text(line, "host")
    named = _text(line, "command")
    command = named if named in _OF_NODES else ANY
    known = _OUTCOMES.get(_text(line, "outcome") or "")
    outcome = known if known and number == KNOWN_NUMBER else Outcome.INCOMPATIBLE
    reason = _text(line, "reason") or f"{outcome}"
    seen = _number(line, "last_seen_s")
    if outcome is Outcome.NO_ANSWER and seen is not None:
        reason += f" (last seen {seen:.0f} s before)"
    inner = line.get("document")
    if not isinstance(inner, dict):
        reasons = () if outcome is Outcome.OK else (reason,)
        if outcome is Outcome.OK:
            outcome, reasons = Outcome.UNREADABLE, ("it answered without a document",)
        version = _text(line, "gpucheck_version")
        return NodeFacts(
            host, command, outcome, reasons, time=_time(line), gpucheck_version=version
        )
    facts = facts_of(inner)
    if facts.ignored is not None:
        facts = facts._replace(ignored=None, outcome=Outcome.UNREADABLE, reasons=(facts.ignored,))
    # The engine knows the host better than the document: in a container its name is another.
    # Its clock is that of all answers, the node's is not; the newest answer of a node counts.
    facts = facts._replace(host=host or facts.host, time=_time(line) or facts.time)
    if outcome not in (Outcome.OK, Outcome.FAILED, facts.outcome) and facts.outcome in (
        Outcome.OK,
        Outcome.INCONCLUSIVE,
    ):
        facts = facts._replace(outcome=outcome, reasons=(reason, *facts.reasons), conclusion=None)
    return facts


def _health_validation(document: Mapping[str, Any]) -> NodeFacts:
    severity = _text(document, "overall_severity") or ""
    parts = []
    for part in _list(document, "affected_components")[:MOST_REASONS]:
        checks = ", ".join(_texts(part, "check_ids"))
        where = ", ".join(_texts(part, "entities"))
        parts.append(" ".join(word for word in (checks, where and f"({where})") if word))
    components = "; ".join(part for part in parts if part)
    outcome = _SEVERITIES[severity]
    reason = f"NVIDIA Health Validation says {severity}{f': {components}' if components else ''}"
    return NodeFacts(
        host=_host_of(document),
        command=HEALTH_VALIDATION,
        outcome=outcome,
        reasons=() if outcome is Outcome.OK else (reason[:LONGEST_TEXT],),
        time=_time(document),
    )


def _report(document: Mapping[str, Any], command: str) -> NodeFacts:
    result = _map(document, "result")
    host = _map(document, "host")
    code = _whole(document, "exit_code")
    outcome = _outcome(code, command)
    gpus = tuple(_gpus(result, host, command))
    lost = [gpu for gpu in gpus if gpu.state in ("lost", "error")]
    unique_reasons = dict.fromkeys(_reasons(document, result, command, code))
    reasons = tuple(itertools.islice(unique_reasons, MOST_REASONS))
    if outcome is Outcome.OK and not isinstance(document.get("result"), dict):
        outcome = Outcome.UNREADABLE
        reasons = ("it ended well, but has no result",)
    if lost and outcome is not Outcome.FAILED:
        outcome = Outcome.FAILED
        reasons = (f"{count_of(len(lost))} lost or unreadable", *reasons)
    busy = frozenset(_busy(result)) if command == "bench" else frozenset[str]()
    speeds = tuple(_speeds(result, busy)) if command == "bench" else ()
    return NodeFacts(
        host=_host_of(document),
        command=command,
        outcome=outcome,
        reasons=reasons,
        conclusion=_text(result, "conclusion") if outcome is not Outcome.OK else None,
        time=_time(document),
        gpucheck_version=_text(_map(document, "tool"), "version"),
        inventory=_node_facts(host, result, command),
        gpus=gpus,
        speeds=speeds,
        busy=busy,
        recorded=host.get("recorded") is True,
    )


def _outcome(code: int | None, command: str) -> Outcome:
    if code == 0:
        return Outcome.OK
    if code == 1 or (code == 4 and command in _LOOKS_FOR_GPUS):
        return Outcome.FAILED
    return Outcome.INCONCLUSIVE


def _reasons(
    document: Mapping[str, Any], result: Mapping[str, Any], command: str, code: int | None
) -> Iterator[str]:
    """Yield the failures that the document names, in its own words."""
    for check in _list(result, "checks"):
        if check.get("status") == "fail" and command == "detect":
            cause = _text(check, "cause") or _text(check, "summary") or ""
            yield f"{_text(check, 'id')}: {cause}"
    for gate in _list(result, "gates"):
        if gate.get("status") == "fail" and gate.get("severity", "error") == "error":
            yield f"{_text(gate, 'id')} on {_text(gate, 'device')}: {_text(gate, 'reason') or ''}"
    for row in _list(result, "measurements"):
        if _map(row, "verified").get("ok") is False:
            yield f"wrong result: {_text(row, 'id')} on {_text(row, 'device')}"
    for check in _list(result, "corruption"):
        if _number(check, "mismatches") or check.get("reference_ok") is False:
            yield f"silent data corruption on {_text(check, 'device')}"
    message = _text(_map(document, "error"), "message")
    if message is not None:
        yield message
    elif code is None:
        yield f"{command} names no exit code"
    elif code > 1:
        yield f"{command} ended with code {code}"


def _node_facts(host: Mapping[str, Any], result: Mapping[str, Any], command: str) -> dict[str, str]:
    """Return the facts of a node that should be alike, by name."""
    facts = {key: _text(host, key) for key in ("driver_version", "cuda_driver_version", "kernel")}
    if command == "list":
        facts["gpu_count"] = str(len(_list(result, "gpus")))
        links = _list(_map(result, "topology"), "links")
        kinds = Counter(_text(link, "kind") or "?" for link in links)
        if kinds:
            counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))
            facts["links"] = _short(counts)
    return {key: value for key, value in facts.items() if value is not None}


def _gpus(result: Mapping[str, Any], host: Mapping[str, Any], command: str) -> Iterator[GpuFacts]:
    driver = _text(host, "driver_version")
    if command == "list":
        for gpu in _list(result, "gpus")[:MOST_GPUS]:
            yield from _listed(gpu, driver)
    elif command == "detect":
        for gpu in _list(result, "gpus")[:MOST_GPUS]:
            uuid = _text(gpu, "uuid")
            if uuid is not None:
                yield GpuFacts(uuid, _whole(gpu, "index"), _text(gpu, "name"))
    elif command in ("bench", "burn"):
        yield from _measured(result, driver)


def _listed(gpu: Mapping[str, Any], driver: str | None) -> Iterator[GpuFacts]:
    uuid, pcie = _text(gpu, "uuid"), _map(gpu, "pcie")
    if uuid is None:
        return
    facts = {
        "memory_total_bytes": _whole(gpu, "memory_total_bytes"),
        "power_limit_w": _number(gpu, "power_limit_w"),
        "ecc_mode": gpu.get("ecc_mode"),
        "mig": _map(gpu, "mig").get("enabled"),
        "persistence_mode": gpu.get("persistence_mode"),
        "compute_mode": _text(gpu, "compute_mode"),
        "pcie_generation_max": _whole(pcie, "generation_max"),
        "pcie_width": _whole(pcie, "width"),
    }
    yield GpuFacts(
        uuid=uuid,
        index=_whole(gpu, "index"),
        name=_text(gpu, "name"),
        state=_text(gpu, "state"),
        inventory=_shown(facts),
    )


def _measured(result: Mapping[str, Any], driver: str | None) -> Iterator[GpuFacts]:
    """Yield the GPUs of a benchmark, as the runtime and the sensors saw them."""
    sensors = {
        _text(sensor, "uuid"): sensor
        for sensor in _list(_map(result, "telemetry"), "gpus")[:MOST_GPUS]
    }
    for gpu in _list(_map(result, "environment"), "gpus")[:MOST_GPUS]:
        uuid = _text(gpu, "uuid")
        if uuid is None:
            continue
        seen = sensors.get(uuid, {})
        name = _text(gpu, "name")
        generation, width = _whole(seen, "pcie_generation"), _whole(seen, "pcie_width")
        ecc = seen.get("ecc_mode")
        power = _number(seen, "power_limit_w")
        yield GpuFacts(
            uuid=uuid,
            index=_whole(gpu, "cuda_index"),
            name=name,
            config=Config(
                gpu_name=name or "GPU of unknown name",
                memory_total_bytes=_whole(gpu, "memory_total_bytes"),
                power_limit_w=power,
                mig=uuid.startswith("MIG-"),
                ecc_mode=ecc if isinstance(ecc, bool) else None,
                pcie=f"{generation} x{width}" if generation and width else None,
                driver=driver and driver.partition(".")[0],
            ),
            inventory=_shown(
                {
                    "vbios_version": _text(seen, "vbios_version"),
                    "power_limit_w": power,
                    "ecc_mode": ecc,
                }
            ),
            facts=tuple(_explanations(seen)),
        )


def _explanations(seen: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sensors' readings that may explain a slow GPU."""
    reasons = _map(seen, "reasons")
    for reason in itertools.islice(reasons, MOST_REASONS):
        share = _number(reasons, reason)
        if share is not None and share >= 0.05:
            yield f"{_short(reason)} {100 * share:.0f} % of the time"
    hot = _number(_map(seen, "temperature_c"), "high")
    if hot is not None:
        yield f"{hot:.0f} C"
    clock = _number(_map(seen, "clock_sm_mhz"), "median")
    if clock is not None:
        yield f"{clock:.0f} MHz"
    errors = _map(seen, "new_errors")
    for name in itertools.islice(errors, MOST_REASONS):
        count = _whole(errors, name)
        if count:
            yield f"{count} new {_short(name)}"


def _busy(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the GPUs that other processes used while they were measured."""
    for sensor in _list(_map(result, "telemetry"), "gpus")[:MOST_GPUS]:
        uuid = _text(sensor, "uuid")
        if uuid is not None and sensor.get("other_processes"):
            yield uuid
    for row in _list(result, "measurements")[:MOST_ROWS]:
        uuid = row.get("gpu_uuid")
        if isinstance(uuid, str) and any(
            _text(doubt, "code") in _BUSY for doubt in _list(row, "doubts")
        ):
            yield _short(uuid)


def _speeds(result: Mapping[str, Any], busy: frozenset[str]) -> Iterator[tuple[str, Test, float]]:
    for row in _list(result, "measurements")[:MOST_ROWS]:
        uuid, test, seconds = row.get("gpu_uuid"), row.get("id"), _number(row, "time_s")
        if not isinstance(uuid, str) or not isinstance(test, str):
            continue
        uuid = _short(uuid)
        work = _map(row, "throughput")
        rate = _number(work, "value")
        if rate is not None and _SLOWEST < rate < _FASTEST:
            value, unit = rate, _text(work, "unit") or "1/s"
        elif seconds is not None and _SHORTEST_S <= seconds <= _LONGEST_S:
            value, unit = 1 / seconds, "1/s"
        else:
            continue
        if uuid in busy:
            continue
        position = None
        if _text(row, "kernel") in _BY_POSITION or row.get("scope") == "end-to-end":
            _, _, number = str(row.get("device")).partition(":")
            position = int(number) if number.isdecimal() and len(number) < 4 else None
        yield uuid, (_short(test), unit, position), value


# ------------------------------------------------------------------------- tolerant access


def _map(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _list(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    items = value.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _texts(value: Mapping[str, Any], key: str) -> list[str]:
    items = value.get(key)
    texts = items if isinstance(items, list) else []
    return [_short(item) for item in texts[:MOST_REASONS] if isinstance(item, str)]


def _text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    return _short(text) if isinstance(text, str) and text else None


def _short(text: str) -> str:
    """Return an outside text that is safe to show."""
    if text.isprintable() and len(text) <= LONGEST_TEXT:
        return text
    return printable(text[:LONGEST_TEXT])[:LONGEST_TEXT]


def _number(value: Mapping[str, Any], key: str) -> float | None:
    given = value.get(key)
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    try:
        number = float(given)
    except OverflowError:  # a whole number of any length
        return None
    return number if math.isfinite(number) else None


def _whole(value: Mapping[str, Any], key: str) -> int | None:
    given = value.get(key)
    fits = isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**63
    return given if fits else None


def _shown(facts: Mapping[str, object]) -> dict[str, str]:
    """Return facts as texts to compare; what is not known is left out."""
    words = {key: word_of(value) for key, value in facts.items()}
    return {key: word for key, word in words.items() if word is not None}


def word_of(value: object) -> str | None:
    """Return a value as a text to compare; None where it has none."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return _short(str(value)) if isinstance(value, int | str) else None


def _host_of(document: Mapping[str, Any]) -> str | None:
    name = _text(_map(document, "host"), "name")
    if name is not None:
        return name
    return next((name for key in _NODE_NAMES if (name := _text(document, key))), None)


def _time(document: Mapping[str, Any]) -> float | None:
    from datetime import UTC, datetime

    text = _text(document, "time") or _text(document, "timestamp")
    try:
        time = datetime.fromisoformat(text or "")
        # In UTC the first and the last day of the calendar may be outside of it.
        utc = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        return utc.timestamp()
    except (ValueError, OverflowError):
        return None
