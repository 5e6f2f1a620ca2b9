"""Xids: the driver's lines of GPU errors, joined to bursts, and what NVIDIA and we make of them.

Each number on each GPU is one finding, with NVIDIA's action beside ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from gpucheck.data import read_table
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding
from gpucheck.detect.remedies import steps_for_gpu
from gpucheck.drivers.host.kernel_log import MOST_OF_AN_XID
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import elapsed

#: Silence that ends a burst, in seconds: fleet tools join the lines of one event so.
SILENCE_S = 180.0
#: Source of NVIDIA's actions, as evidence names it.
CATALOGUE = "NVIDIA's Xid catalogue (Ampere and newer)"
#: The driver prints the GPU's bus id, in MIG mode its instances too, the number, and the process if
#: it knows that: open-gpu-kernel-modules, kernel_rc.c, XID_PRINT_WITH_ATTR. Older drivers leave out
#: "PCI:", and end the bus id before the function.
_LINE = (
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]{1,20})(?: [^)]{0,60})?\): (?P<number>[0-9]{1,5})\b"
    r"(?:, *pid='?(?P<pid>[0-9]{1,10}|<unknown>)'?)?(?:, *name='?(?P<process>[^,']{1,64}))?"
)
#: What a line of Xid 154 asks for: "… changed from 0x0 (None) to 0x1 (GPU Reset Required)".
_RECOVERY = r" to 0x[0-9a-fA-F]+ \((?P<action>[A-Za-z0-9 ]{1,40})\)"
#: How a line of NVLink 5 (Xid 144 to 150) calls its error, and the first of its registers. Source:
#: NVIDIA's Xid catalogue, WORKFLOW_NVLINK5_ERR.
_FATAL = r" Fatal +XC[01] +i[01] +Link +-?[0-9]{1,3} +\(0x(?P<register>[0-9a-fA-F]{1,8})\b"
#: Why a link went down: bits 20 to 25 of that register; the reasons after which no reset is needed.
_LINK_DOWN, _WITHOUT_RESET = "NETIR_LINK", frozenset({0b100110, 0b101000})
_UNKNOWN = "<unknown>"
#: The number that says which recovery the others need.
RECOVERY_CHANGED = 154


class Judgement(StrEnum):
    """What an Xid says of the GPU: broken, in doubt, or nothing."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"


class Xid(NamedTuple):
    """Line of an error: its number, the GPU, and the process if the driver knew it.

    `age_s` is how long ago it was written, None if that is not known.
    """

    number: int
    pci_bus_id: str
    line: str
    pid: int | None = None
    process: str | None = None
    age_s: float | None = None

    @property
    def recovery(self) -> str | None:
        """Return the recovery that a line of Xid 154 asks for."""
        match = re.search(_RECOVERY, self.line)
        return match["action"] if match is not None and self.number == RECOVERY_CHANGED else None

    @property
    def fatal(self) -> bool:
        """Return whether a line of NVLink 5 calls its error fatal, and needs a reset."""
        match = re.search(_FATAL, self.line)
        if match is None:
            return False
        reason = int(match["register"], 16) >> 20 & 0b111111
        return not (_LINK_DOWN in self.line and reason in _WITHOUT_RESET)


class Guide(NamedTuple):
    """What the table says of a number: its name, our judgement and steps, NVIDIA's actions.

    `because` is the reason where we judge otherwise than NVIDIA's buckets suggest.
    """

    meaning: str
    judgement: Judgement
    action: str
    remedy: str
    immediate: str | None = None
    investigatory: str | None = None
    because: str | None = None

    @property
    def nvidia(self) -> str | None:
        """Return NVIDIA's actions, the first one and what follows it; None if it names none."""
        steps = dict.fromkeys(step for step in (self.immediate, self.investigatory) if step)
        return ", then ".join(steps) or None


_LIST = "Look the number up in NVIDIA's list of XID errors."
#: Buckets after which a GPU is not to be used as it is.
_BROKEN = frozenset({"RESET_GPU", "RESTART_BM", "WORKFLOW_NVLINK_ERR", "WORKFLOW_XID_48"})
#: Buckets that leave the GPU alone.
_HARMLESS = frozenset({"IGNORE", "RESTART_APP"})
#: Second buckets that look for the fault in the program, or for none.
_OF_PROGRAMS = frozenset(
    {"CHECK_APP/CUDA", "IGNORE", "WORKFLOW_XID_13", "WORKFLOW_XID_31", "XID_137_FLOW"}
)
#: Follows another error, which is judged by itself.
_FOLLOWS = "WORKFLOW_XID_45"


def suggested(immediate: str | None, investigatory: str | None) -> Judgement:
    """Return the judgement by NVIDIA's buckets: a program's error is a note, a reset a failure."""
    if immediate in _BROKEN:
        return Judgement.FAIL
    if immediate == _FOLLOWS or (immediate in _HARMLESS and investigatory in _OF_PROGRAMS):
        return Judgement.NOTE
    return Judgement.WARN


def guide(number: int, *, fatal: bool = False) -> Guide:
    """Return the table's guide to a number, or to its lines that call themselves fatal."""
    row = _row(number)
    if row is None:
        action = "look the number up"
        return Guide("not in NVIDIA's catalogue", Judgement.WARN, action, _LIST)
    immediate, investigatory = row.get("immediate"), row.get("investigatory")
    if fatal and "fatal" in row:
        immediate, investigatory = row["fatal"], None
    bucket = read_table("xid")["buckets"].get(immediate, {})
    own = row.get("judgement")
    return Guide(
        meaning=row.get("meaning", row["description"]),
        judgement=Judgement(own) if own else suggested(immediate, investigatory),
        action=row.get("action", bucket.get("action", "look the number up")),
        remedy=row.get("remedy", bucket.get("remedy", _LIST)),
        immediate=immediate,
        investigatory=investigatory,
        because=row.get("because"),
    )


def described(number: int) -> tuple[str, About] | None:
    """Return a number's name and description; None if it is not in the catalogue."""
    row = _row(number)
    if row is None:
        return None
    facts = guide(number)
    products = ", ".join(row["applies"]) or "none of the catalogue's products"
    reason = "as NVIDIA's actions suggest" if facts.immediate else "since NVIDIA names no action"
    if facts.because:
        reason = f"because {facts.because}"
    worst = guide(number, fatal=True)
    about = About(
        looks_at=(f"lines `NVRM: Xid (…): {number}` of the kernel log",),
        why=f"{row['description']} ({row.get('mnemonic', 'no mnemonic')}).",
        rules=(
            f"{facts.judgement}, {reason}",
            *(
                (f"{worst.judgement} if a line says Fatal: NVIDIA's action is then {worst.nvidia}",)
                if worst != facts
                else ()
            ),
            f"NVIDIA: {facts.nvidia or 'no action'} ({products})",
            f"what to do: {facts.remedy}",
        ),
        sources=(f"{row['source']} (read {row['date']})",),
        causes=(f"xid-{number}",),
    )
    return f"Xid {number}: {facts.meaning}", about


def _row(number: int) -> Mapping[str, Any] | None:
    name = f"xid-{number}"
    return next(
        (r for r in read_table("xid")["row"] if r["id"] == name or number in r.get("numbers", ())),
        None,
    )


def parse_lines(lines: Sequence[str], ages_s: Sequence[float | None]) -> list[Xid]:
    """Return the errors in lines of the kernel log; `ages_s` may be empty."""
    ages = ages_s if len(ages_s) == len(lines) else (None,) * len(lines)
    xids = (parse_line(line, age_s) for line, age_s in zip(lines, ages, strict=True))
    return [xid for xid in xids if xid is not None]


def parse_line(line: str, age_s: float | None = None) -> Xid | None:
    """Return the error that a line reports, None if it reports none."""
    match = re.search(_LINE, line)
    if match is None:
        return None
    pid, process = match["pid"], match["process"]
    return Xid(
        number=int(match["number"]),
        pci_bus_id=_bus_id(match["bus"]),
        line=line,
        pid=int(pid) if pid and pid != _UNKNOWN else None,
        process=process if process and process != _UNKNOWN else None,
        age_s=age_s,
    )


def _bus_id(text: str) -> str:
    """Return the kernel's form of a bus id: a domain of four digits, lower case, the function."""
    bus = text.lower().rstrip(".:")
    domain, _, rest = bus.partition(":")
    name = f"{domain[-4:]}:{rest}" if rest.count(":") else bus
    return name if "." in name else f"{name}.0"


# ------------------------------------------------------------------------------------ in words


def count_bursts(xids: Iterable[Xid]) -> int | None:
    """Return into how many bursts errors fall; None if the time of one is not known."""
    ages = [xid.age_s for xid in xids]
    known = sorted(age for age in ages if age is not None)
    if not known or len(known) < len(ages):
        return None
    return 1 + sum(later - earlier >= SILENCE_S for earlier, later in pairwise(known))


def how_often(xids: Sequence[Xid], most: int) -> str:
    """Return "once", "× 17 in one burst", "× 3 in 2 bursts"; of `most`, more were not kept."""
    if len(xids) == 1:
        return "once"
    times = f"× {len(xids)}" + (" or more" if len(xids) >= most else "")
    bursts = count_bursts(xids)
    if bursts is None:
        return times
    return f"{times} in {'one burst' if bursts == 1 else f'{bursts} bursts'}"


def how_long_ago(xids: Iterable[Xid]) -> str | None:
    """Return when the last of them was: "3 h ago"; None if not known."""
    ages = [xid.age_s for xid in xids if xid.age_s is not None]
    return ago(min(ages)) if ages else None


def ago(seconds: float) -> str:
    """Return a time before now: "3 h ago"."""
    return f"{elapsed(seconds)} ago"


#: So many processes are named.
_MOST_NAMED = 3


def which_processes(xids: Sequence[Xid]) -> str | None:
    """Return the processes: "only PID 8812 (python3)"; None if the driver knew none."""
    known = {xid.pid: xid.process for xid in xids if xid.pid is not None}
    if not known:
        return None
    names = [f"{pid} ({name})" if name else str(pid) for pid, name in known.items()]
    if len(names) > _MOST_NAMED:
        names = [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} more"]
    only = len(known) == 1 and len(xids) > 1 and all(xid.pid is not None for xid in xids)
    return f"{'only ' if only else ''}PID{'s' if len(known) > 1 else ''} {', '.join(names)}"


# -------------------------------------------------------------------------------- findings

_STATUS = {Judgement.FAIL: CheckStatus.FAIL, Judgement.WARN: CheckStatus.WARN}
#: The errors of one number on one GPU, by the two.
_Groups = Mapping[tuple[int, str], Sequence[Xid]]


def judge_lines(machine: Machine, finding: Callable[..., Finding]) -> list[Finding]:
    """Judge the errors in the kernel log; `finding` makes one of the check."""
    log = machine.system.log
    now = _grouped(parse_lines(log.lines or (), log.ages_s))
    before = _grouped(parse_lines(log.earlier.lines or (), log.earlier.ages_s))
    bad = [
        _judge(machine, finding, xids, before.get(key, ()))
        for key, xids in now.items()
        if guide(key[0]).judgement is not Judgement.NOTE
    ]
    if bad:
        return sorted(bad, key=lambda judged: judged.status is not CheckStatus.FAIL)
    parts = [_notes(machine, now) if now else f"no GPU error (Xid) in {log.source}"]
    parts += _not_come_back(machine, before)
    shown = [Evidence(log.source, xids[-1].line) for xids in now.values()]
    shown += [Evidence(log.earlier.source, xids[-1].line) for xids in before.values()]
    return [finding(CheckStatus.OK, "; ".join(parts), *shown)]


def _grouped(xids: Iterable[Xid]) -> _Groups:
    groups: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.number, xid.pci_bus_id), []).append(xid)
    return groups


def _notes(machine: Machine, now: _Groups) -> str:
    """Return the last of several program errors, and the numbers of the others."""
    (number, pci_bus_id), xids = [*now.items()][-1]
    sentence = _sentence(_name(machine, pci_bus_id), xids, came_back=False)
    others = sorted({other for other, _ in now} - {number})
    also = f"; also Xid {', '.join(map(str, others))}" if others else ""
    return f"only program errors: {sentence}{also}"


def _not_come_back(machine: Machine, before: _Groups) -> Iterable[str]:
    """Yield the errors of earlier boots that would be a finding today."""
    for (number, pci_bus_id), xids in before.items():
        if guide(number).judgement is Judgement.NOTE:
            continue
        when = how_long_ago(xids)
        xid = f"Xid {number} {how_often(xids, MOST_OF_AN_XID)}" + (f", {when}," if when else "")
        yield f"before the last boot: {xid} on {_name(machine, pci_bus_id)}; not seen again since"


def _name(machine: Machine, pci_bus_id: str) -> str:
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    return pci_bus_id if gpu is None else f"GPU {gpu.index}"


def _judge(
    machine: Machine, finding: Callable[..., Finding], xids: Sequence[Xid], before: Sequence[Xid]
) -> Finding:
    number, pci_bus_id = xids[-1].number, xids[-1].pci_bus_id
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    facts = _guide(_worst(xids))
    steps = (facts.remedy,)
    return finding(
        _STATUS[facts.judgement],
        _sentence(_name(machine, pci_bus_id), xids, came_back=bool(before)),
        *_evidence(machine, xids, before),
        remedy=steps if gpu is None else steps_for_gpu(gpu.index, steps),
        gpu=gpu.uuid if gpu else None,
        cause=f"xid-{number}",
    )


def _worst(xids: Sequence[Xid]) -> Xid:
    """Return the last line that calls its error fatal, else the last one."""
    return next((xid for xid in reversed(xids) if xid.fatal), xids[-1])


def _guide(xid: Xid) -> Guide:
    return guide(xid.number, fatal=xid.fatal)


def _sentence(name: str, xids: Sequence[Xid], *, came_back: bool) -> str:
    """Return which error, how often, when, whose, and what to do by us and by NVIDIA."""
    last = _worst(xids)
    facts = _guide(last)
    often = f" {how_often(xids, MOST_OF_AN_XID)}" if len(xids) > 1 else ""
    again = "it came back after the last boot" if came_back else None
    parts = [
        f"{name}: Xid {last.number} ({facts.meaning}){often}",
        *(part for part in (how_long_ago(xids), which_processes(xids), again) if part),
    ]
    action = facts.action if last.recovery is None else f"it asks for: {last.recovery}"
    nvidia = f" (NVIDIA: {facts.immediate})" if facts.immediate else ""
    return f"{', '.join(parts)}: {action}{nvidia}"


def _evidence(machine: Machine, xids: Sequence[Xid], before: Sequence[Xid]) -> Iterable[Evidence]:
    """Yield the last line, NVIDIA's actions beside it, and what earlier boots show."""
    log, worst = machine.system.log, _worst(xids)
    facts = _guide(worst)
    yield Evidence(log.source, worst.line)
    if facts.nvidia is not None:
        yield Evidence(CATALOGUE, facts.nvidia)
    if facts.because is not None:
        yield Evidence("gpucheck/data/xid.toml", f"{facts.judgement}, because {facts.because}")
    if before:
        yield Evidence(f"{log.earlier.source}, before this boot", before[-1].line)
    elif log.earlier.lines is None:
        reason = log.earlier.unavailable or "not recorded"
        yield Evidence("earlier boots", f"not read, so it is unknown if it came back: {reason}")
