"""Cause in a log: rules over its lines, the first cause among its consequences, and its remedy.

The rules are data (gpucheck/data/log_rules.toml). They are chains of literals, so that each takes
time in proportion to the text, whatever it holds. The log streams: what is kept of it is the first
match and a count for each rule.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucheck.data import read_table
from gpucheck.detect.machine import DetectRequest, ignore_progress
from gpucheck.detect.model import Finding
from gpucheck.detect.run import detect
from gpucheck.drivers.host.files import STDIN, open_log
from gpucheck.drivers.interface import Probes
from gpucheck.report.codec import from_plain
from gpucheck.report.envelope import Answer, CheckStatus, Failure
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.text import count_of, printable

if TYPE_CHECKING:
    from codecs import StreamRecoder

TABLE = "log_rules"
#: A line is looked at up to this length; what a progress bar draws anew (`\r`) is one of its own.
MOST_LINE_BYTES = 4096
BLOCK_BYTES = 1 << 20
MOST_EXCERPT = 240
#: What stands before the match in an excerpt that is cut.
_BEFORE_MATCH = 40
#: Processes of one job write in turn: a cause may come so many lines after its consequence.
INTERLEAVED_LINES = 400
PROGRESS_BYTES = 256 << 20

START_AGAIN = (
    "It is not there now, where gpucheck runs: start the program again. If it comes back, or if "
    "the program ran in a container or with other variables:"
)
_BETWEEN = b" :(=coden"
_DIGITS = b"0123456789"
_MOST_BETWEEN, _MOST_DIGITS = 8, 3
#: A line that quotes the source of a program, as tracebacks do, is no message: what it may have
#: anywhere.
_RAISES = b"raise "
#: A command at a shell's prompt is none either.
_PROMPT = b"$ "
#: A program tells at most so many lines after a failure that it went on.
RETRIED_LINES = 5
#: What stands shortly before the name of an error in a line that tells what would be done about it.
_SPEAKS_OF = re.compile(
    rb"if you (?:see|get|encounter|run into)|in case of|to avoid |(?<!\[)hint: |usage: "
    rb"|docs: |faq: |changelog|documentation:|why do i get|see http|monitoring for|patterns"
    rb"|checking for|restart on|how often to|caught expected|expected (?:failure|exception)|fix: "
    rb"|fixed: |fixed a|commit "
)
_TRACEBACK = b"traceback (most recent call last)"
#: Who starts a program may end it so many lines after it has failed by itself.
ENDED_LINES = 200
#: Colours and other commands to a terminal (ECMA-48, control sequences), which may split a message.
_CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-?]{0,32}[ -/]{0,4}[@-~]")
#: What others write before a program's line, in lower case: Docker's JSON files, Kubernetes and
#: GitHub Actions; `kubectl logs --prefix`, torchrun, mpirun; Compose, `srun --label`, Ray, syslog;
#: Python's logging, as vLLM and others use it.
_PREFIXES = re.compile(
    rb'(?:\{"log":"'
    rb"|\d{4}-\d\d-\d\d[t ][\d:.,]{8,24}(?:z|[+-]\d\d:?\d\d)? +"
    rb"(?:[\w.-]{1,64} [\w./-]{1,64}(?:\[\d+\])?: |(?:- [\w.]{1,64} ){1,4}- )?"
    rb"|(?:debug|info|warning|error|critical)(?: [\d-]{5} [\d:]{8} |:? +)"
    rb"|std(?:out|err) [fp] "
    rb"|\[[^][ ]{1,120}\](?:<std(?:out|err)>)?:? *"
    rb"|(?:[\w.-]{1,64} +)?\| "
    rb"|\d{1,6}: "
    rb"|\([\w.<>]{1,64} pid=\d+(?:, ip=[\d.]+)?\) "
    rb"|[a-z]{3} [ \d]\d [\d:]{8} [\w.-]{1,64} [\w./-]{1,64}(?:\[\d+\])?: )*\s*"
)
_MOST_PREFIXES_BYTES = 256
#: What ends the message of a line of Docker's JSON files.
_DOCKER_BEGINS, _DOCKER_ENDS = b'{"log":"', b'\\n","stream":"'


class Level(StrEnum):
    """Whether a program ends of this, or goes on."""

    ERROR = "error"
    WARNING = "warning"


class Seen(StrEnum):
    """Whether the cause that a log names is there on the machine now."""

    YES = "yes"
    NO_LONGER = "no-longer"
    CANNOT_BE_TOLD = "cannot-be-told"


class Rule(NamedTuple):
    """One rule: `lines` are its alternatives, each a chain of literals in lower case.

    `not_after_traceback`: it is no cause in the lines after a traceback, which ended the program.
    """

    id: str
    class_: str
    lines: tuple[tuple[str, ...], ...]
    says: str
    confused_with: str
    checks: tuple[str, ...]
    consequences: tuple[str, ...]
    remedy: tuple[str, ...]
    example: str
    source: str
    level: Level = Level.ERROR
    codes: tuple[int, ...] = ()
    without: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    not_after_traceback: bool = False


class Match(NamedTuple):
    """What a rule found: the number and an excerpt of its first line, and how many it matches.

    Control characters in the excerpt are escaped. `last_line` is the number of its last line.
    """

    rule: str
    class_: str
    level: Level
    line: int
    excerpt: str
    says: str
    matches: int = 1
    last_line: int = 0


class Live(NamedTuple):
    """Whether detect's checks see the cause now; `check` is the one that decided, or null."""

    seen: Seen
    summary: str
    check: str | None = None


class LogVerdict(NamedTuple):
    """Result of `gpucheck detect --log`: the first cause, its consequences, and what to do.

    `file` is `-` for stdin. `causes` are all that are no consequence of another, the first of them
    is `cause`; `consequences` follow from one of them.
    """

    file: str
    lines: int
    size_bytes: int
    cause: Match | None
    causes: tuple[Match, ...] = ()
    consequences: tuple[Match, ...] = ()
    live: Live | None = None
    remedy: tuple[str, ...] = ()
    confused_with: str | None = None
    source: str | None = None


# ------------------------------------------------------------------------------------ the rules


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rules by id: a row has what its class does not say, or says it anew."""
    classes = read_table(TABLE)["class"]
    rows = ({**classes[row["class"]], **row} for row in read_table(TABLE)["row"])
    return {row["id"]: from_plain(Rule, row, ignored=[]) for row in rows}


@cache
def _words(name: str) -> tuple[Any, ...]:
    """Return literals that rules share, as bytes, or as tuples of bytes."""
    return tuple(
        word.encode() if isinstance(word, str) else tuple(part.encode() for part in word)
        for word in read_table(TABLE)["words"][name]
    )


#: One alternative of a rule, by the rule's id: the anchor, which each line that matches has, the
#: chain of literals, and those that such a line has not. The anchor is the longest literal that
#: does not come with the word under which the pattern is found.
_Pattern = tuple[str, bytes, tuple[bytes, ...], tuple[bytes, ...]]


@cache
def _rules_by_code() -> Mapping[int, str]:
    """Return the rule of each of CUDA's error numbers."""
    return {code: rule.id for rule in rules().values() for code in rule.codes}


@cache
def _patterns() -> Mapping[bytes, Sequence[_Pattern]]:
    """Return the patterns by the word to search for."""
    patterns: dict[bytes, list[_Pattern]] = {}
    for rule in rules().values():
        for literals in rule.lines:
            bare = [literal.removeprefix("^").removesuffix("$").encode() for literal in literals]
            common = (word for word in _words("common") if any(word in literal for literal in bare))
            word = next(common, max(bare, key=len))
            anchor = max(bare, key=lambda literal: (word not in literal, len(literal)))
            chain = tuple(literal.encode() for literal in literals)
            without = tuple(literal.encode() for literal in rule.without)
            patterns.setdefault(word, []).append((rule.id, anchor, chain, without))
    return patterns


# ------------------------------------------------------------------------------------ the log


class Scan:
    """Scan of a log, block by block: the first match and a count for each rule.

    `interrupted`: a request to stop came before the log ended.
    """

    def __init__(self) -> None:
        self.matches: dict[str, Match] = {}
        self.lines = 0
        self.size_bytes = 0
        self.interrupted = False
        self._rest = b""
        self._traceback_line: int | None = None
        # The last line of a rule's matches, if the program then went on in another way.
        self._retried: dict[str, int] = {}

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the log; the same ones again if a request to stop came here."""
        text = self._rest + block
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._look_at(text[:end])
        # Of a line that has not ended, only what is looked at is kept.
        self._rest = text[end : end + MOST_LINE_BYTES]
        self.size_bytes += len(block)

    def close(self) -> None:
        """Take the last line, if nothing ends it, and leave out what the program tried again."""
        rest, self._rest = self._rest, b""
        if rest:
            self._look_at(rest + b"\n")
        for name, last_line in self._retried.items():
            if self.matches[name].last_line == last_line:
                del self.matches[name]

    def _look_at(self, text: bytes) -> None:
        """Match the rules against whole lines."""
        if b"\x1b[" in text:
            text = _CONTROL_SEQUENCE.sub(b"", text)
        lower = text.lower().replace(b"\r", b"\n")
        places_by_rule: dict[str, dict[int, int]] = {}
        for word, patterns in _patterns().items():
            known: dict[bytes, Sequence[tuple[str, int]]] = {}
            for start, line in _lines_with(word, lower):
                hits = known.get(line)
                if hits is None:
                    known[line] = hits = _hits(patterns, line)
                for rule, position in hits:
                    places_by_rule.setdefault(rule, {}).setdefault(start, position)
        for start, number, position in _numbers(lower):
            by_code = _rules_by_code().get(number)
            if by_code is not None:
                places_by_rule.setdefault(by_code, {}).setdefault(start, position)
        tracebacks = (
            [start for start, _ in _lines_with(_TRACEBACK, lower)] if places_by_rule else []
        )
        for name, places in places_by_rule.items():
            if rules()[name].not_after_traceback:
                self._leave_out_ended(places, tracebacks, text)
            if places:
                self._note(name, places, text)
        if tracebacks or _TRACEBACK in lower:
            self._traceback_line = self.lines + 1 + text.count(b"\n", 0, lower.rfind(_TRACEBACK))
        self._note_retries(text, lower)
        self.lines += text.count(b"\n")

    def _note_retries(self, text: bytes, lower: bytes) -> None:
        """Note the rules whose last line stands shortly before one that tells of another try."""
        number, counted, retries = self.lines + 1, 0, [0]
        for start in sorted(at for word in _words("went_on") for at, _ in _lines_with(word, lower)):
            number += text.count(b"\n", counted, start)
            counted = start
            retries.append(number)
        for match in self.matches.values() if len(retries) > 1 else ():
            after = bisect_right(retries, match.last_line)
            if after < len(retries) and retries[after] - match.last_line <= RETRIED_LINES:
                self._retried[match.rule] = match.last_line

    def _leave_out_ended(
        self, places: dict[int, int], tracebacks: Sequence[int], text: bytes
    ) -> None:
        """Remove the lines that stand shortly after a traceback, here or in the block before."""
        number, counted, last = self.lines + 1, 0, self._traceback_line
        for start in sorted({*places, *tracebacks}):
            number += text.count(b"\n", counted, start)
            counted = start
            if start not in places:
                last = number
            elif last is not None and number - last <= ENDED_LINES:
                del places[start]

    def _note(self, name: str, places: Mapping[int, int], text: bytes) -> None:
        """Count the lines that a rule matches; `places` has where in each the match begins."""
        first, last = min(places), max(places)
        last_line = self.lines + 1 + text.count(b"\n", 0, last)
        before = self.matches.get(name)
        if before is not None:
            count = before.matches + len(places)
            self.matches[name] = before._replace(matches=count, last_line=last_line)
            return
        rule = rules()[name]
        self.matches[name] = Match(
            name,
            rule.class_,
            rule.level,
            self.lines + 1 + text.count(b"\n", 0, first),
            _excerpt(text, first, places[first]),
            rule.says,
            len(places),
            last_line,
        )


def _hits(patterns: Sequence[_Pattern], line: bytes) -> list[tuple[str, int]]:
    """Return the rules that match a line, and where each match begins."""
    hits = [
        (rule, position)
        for rule, anchor, chain, without in patterns
        if anchor in line and (position := _position(line, chain, without)) is not None
    ]
    if not hits or _is_no_failure(line):
        return []
    goes_on = any(words in line for words in _words("falls_back"))
    return [
        (rule, position)
        for rule, position in hits
        if not (goes_on and rules()[rule].level is Level.ERROR)
        and not _SPEAKS_OF.search(line, max(0, position - _MOST_PREFIXES_BYTES), position)
    ]


def _lines_with(word: bytes, text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the start of each line with a word, and the part that is looked at."""
    at = text.find(word)
    while at >= 0:
        start, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
        yield start, text[start : min(end, start + MOST_LINE_BYTES)]
        at = text.find(word, end)


def _numbers(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each error number of CUDA: where its line begins, the number, its place in the line."""
    for word, needed, suffix in _words("number_after"):
        for start, line in _lines_with(word, text):
            if needed not in line or _is_no_failure(line):
                continue
            at = line.find(word)
            while at >= 0:
                begins = at + len(word)
                rest = line[begins : begins + _MOST_BETWEEN + _MOST_DIGITS + 1].lstrip(_BETWEEN)
                digits = rest[: len(rest) - len(rest.lstrip(_DIGITS))]
                if (
                    digits
                    and len(digits) <= _MOST_DIGITS
                    and rest[len(digits) :].startswith(suffix)
                ):
                    yield start, int(digits), at
                at = line.find(word, begins)
    for word, needed in _words("number_before"):
        for start, line in _lines_with(word, text):
            before = line[: max(0, line.find(word))]
            digits = before[len(before.rstrip(_DIGITS)) :]
            if needed in line and digits and len(digits) <= _MOST_DIGITS:
                yield start, int(digits), len(before) - len(digits)


def _position(line: bytes, chain: Sequence[bytes], without: Sequence[bytes]) -> int | None:
    """Return where a line's match begins, or None if it has none."""
    first = end = None
    at = 0
    for literal in chain:
        place = _find(literal, line, at)
        if place is None:
            return None
        begins, at = place
        first = begins if first is None else first
        end = at
    excluded = any(_find(literal, line, 0) is not None for literal in without)
    return None if end is None or excluded else first


def _is_no_failure(line: bytes) -> bool:
    """Return whether a line tells of no failure, whatever error it names."""
    return (
        _is_passed_test(line)
        or _is_quoted_source(line)
        or any(words in line for words in _words("tries_again"))
    )


def _is_passed_test(line: bytes) -> bool:
    tail = line.strip()
    if tail.endswith(b"%]"):
        tail = tail[: tail.rfind(b"[")].rstrip()
    return (
        tail.endswith(_words("passed_ends"))
        or tail.startswith(_words("passed_begins"))
        or any(words in line for words in _words("passed_has"))
    )


def _is_quoted_source(line: bytes) -> bool:
    at = line.find(_RAISES)
    if at == 0 or (at > 0 and line[max(0, at - 2) : at] == b"  "):
        return True
    before = _PREFIXES.match(line[:_MOST_PREFIXES_BYTES])
    message = line[before.end() if before else 0 :]
    indented = line[: len(line) - len(message)].endswith((b"  ", b"\t"))
    return message.startswith(_PROMPT) or (indented and message.startswith(_words("source")))


def _find(literal: bytes, line: bytes, after: int) -> tuple[int, int] | None:
    """Return where a literal begins and ends; a number in it must be a whole number."""
    at_start, at_end = literal.startswith(b"^"), literal.endswith(b"$")
    bare = literal.removeprefix(b"^").removesuffix(b"$")
    body = _without_end(line) if at_end else line
    while True:
        begins = body.find(bare, after)
        if begins < 0:
            return None
        ends = begins + len(bare)
        if (
            (not at_start or _starts_message(body[:begins]))
            and (not at_end or ends == len(body))
            and not (bare[:1].isdigit() and body[begins - 1 : begins].isdigit())
            and not (bare[-1:].isdigit() and body[ends : ends + 1].isdigit())
        ):
            return begins, ends
        if at_start:
            return None
        after = begins + 1


def _starts_message(before: bytes) -> bool:
    """Return whether a program's own line begins after these bytes."""
    return not before.strip() or (
        len(before) <= _MOST_PREFIXES_BYTES and _PREFIXES.fullmatch(before) is not None
    )


def _without_end(line: bytes) -> bytes:
    """Return a line without what stands after the program's own, for which `$` stands."""
    if line.startswith(_DOCKER_BEGINS) and (ends := line.rfind(_DOCKER_ENDS)) >= 0:
        line = line[:ends].removesuffix(b"\\r")
    return line.rstrip()


def _excerpt(text: bytes, start: int, position: int) -> str:
    """Return a line around its match, in one line of printable characters."""
    line = text[start : start + MOST_LINE_BYTES]
    line = line.partition(b"\n")[0].partition(b"\r")[0]
    cut = max(0, position - _BEFORE_MATCH) if len(line) > MOST_EXCERPT else 0
    words = line[cut : cut + MOST_EXCERPT].decode("utf-8", "replace").strip()
    ends = "…" if cut + MOST_EXCERPT < len(line) else ""
    return f"{'…' if cut else ''}{printable(words)}{ends}"


def read_log(
    name: str, report_progress: Callable[[str], None] = ignore_progress, *, skip_bytes: int = 0
) -> Scan:
    """Return the scan of a log after its first bytes.

    Raises:
        WrongUseError: it cannot be read, or is no text.
    """
    try:
        with open_log(name) as file:
            return scan(file, report_progress, skip_bytes=skip_bytes)
    except (OSError, EOFError) as error:
        shown = "on standard input" if name == STDIN else printable(name) or "''"
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise WrongUseError(
            code="log-unreadable", message=f"The log {shown} cannot be read: {reason}."
        ) from None


def scan(
    file: BufferedIOBase | StreamRecoder,
    report_progress: Callable[[str], None] = ignore_progress,
    *,
    skip_bytes: int = 0,
) -> Scan:
    """Return the scan of a log; of its first bytes only the lines are counted.

    A request to stop ends the log where it is: that of a program that still runs has no end.

    Raises:
        OSError, EOFError: it cannot be read to its end.
    """
    result = Scan()
    while skip_bytes > 0 and (block := file.read(min(BLOCK_BYTES, skip_bytes))):
        result.lines += block.count(b"\n")
        skip_bytes -= len(block)
    # A pipe gives what it has; what has come must not be lost when nothing more does.
    read = file.read1 if isinstance(file, BufferedIOBase) else file.read
    reported_bytes, came = 0, bytearray()
    try:
        while block := read(BLOCK_BYTES):
            came += block
            if len(came) >= BLOCK_BYTES:
                result.feed(bytes(came))
                came = bytearray()
            if result.size_bytes - reported_bytes >= PROGRESS_BYTES:
                reported_bytes = result.size_bytes
                report_progress(f"reading the log, {reported_bytes >> 20} MiB so far")
    except KeyboardInterrupt:
        result.interrupted = True
    result.feed(bytes(came))
    result.close()
    return result


# ------------------------------------------------------------------------------------ the cause


def first_causes(matches: Iterable[Match]) -> tuple[list[Match], list[Match]]:
    """Return the causes, the first one first, and the consequences of one of them.

    An error comes before a warning, which the program survived; then the earlier line. A match
    follows from another whose rule names its class, if that stands before it, or so shortly after
    it that the processes of one job may have written in turn.
    """
    ordered = sorted(matches, key=lambda match: (match.line, match.rule))
    because = {
        candidate.rule: [other for other in ordered if _explains(other, candidate)]
        for candidate in ordered
    }
    causes = [candidate for candidate in ordered if not because[candidate.rule]]
    # A line that two rules know is one message.
    explained = [
        candidate
        for candidate in ordered
        if because[candidate.rule]
        and all(other.line != candidate.line for other in because[candidate.rule])
    ]
    causes.sort(key=lambda match: (match.level is Level.WARNING, match.line))
    return causes, explained


def _explains(cause: Match, other: Match) -> bool:
    if cause.rule == other.rule or other.class_ not in rules()[cause.rule].consequences:
        return False
    if cause.class_ == other.class_:
        # The earlier one; an error is no consequence of a mere warning unless that is earlier.
        return (cause.line, cause.rule) < (other.line, other.rule)
    mutual = cause.class_ in rules()[other.rule].consequences
    if mutual:
        return (cause.line, cause.rule) < (other.line, other.rule)
    return cause.line <= other.line + INTERLEAVED_LINES


def conclusion(verdict: LogVerdict) -> str:
    """Return the verdict in a sentence: `train.log:8812: the GPU's memory ran out`."""
    name = "standard input" if verdict.file == STDIN else printable(verdict.file)
    if verdict.cause is None:
        if not verdict.lines:
            return f"{name} is empty"
        return f"{name}: no known cause in {count_of(verdict.lines, 'line')}"
    return f"{name}:{verdict.cause.line}: {verdict.cause.says}"


def check_log(
    name: str,
    result: Scan,
    probes: Probes,
    report_progress: Callable[[str], None] = ignore_progress,
) -> Answer:
    """Name the first cause in a log, and look whether this machine still has it: 1; 0 without.

    130, and no look at the machine, if reading the log was interrupted.
    """
    causes, consequences = first_causes(result.matches.values())
    host = probes.host()
    code, error = (ExitCode.BAD if causes else ExitCode.OK), None
    if result.interrupted:
        message = f"Interrupted after {count_of(result.lines, 'line')} of the log."
        code, error = ExitCode.INTERRUPTED, Failure(code="interrupted", message=message)
    if not causes:
        nothing = LogVerdict(name, result.lines, result.size_bytes, None)
        return Answer(result=nothing, exit_code=code, host=host, error=error)
    rule = rules()[causes[0].rule]
    live, remedy, checked = (
        _look_live(rule, causes[0].excerpt, probes, report_progress)
        if not result.interrupted
        else NOT_LOOKED
    )
    verdict = LogVerdict(
        file=name,
        lines=result.lines,
        size_bytes=result.size_bytes,
        cause=causes[0],
        causes=tuple(causes),
        consequences=tuple(consequences),
        live=live,
        remedy=remedy or (*((START_AGAIN,) if live.seen is Seen.NO_LONGER else ()), *rule.remedy),
        confused_with=rule.confused_with,
        source=rule.source,
    )
    host = checked.host if checked else host
    return Answer(result=verdict, exit_code=code, host=host, error=error)


#: What is known of the machine when reading the log was interrupted.
NOT_LOOKED: tuple[Live, tuple[str, ...], Answer | None] = (
    Live(Seen.CANNOT_BE_TOLD, "interrupted before the machine was looked at"),
    (),
    None,
)
#: `PCI:0000:44:00` as the kernel writes a bus id, or `00000000:44:00.0` with a function.
_BUS_ID = (
    r"(?:(?<=pci:)|\b(?=[0-9a-f:]{10,14}\.[0-7]\b))([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2})\b"
)


def _look_live(
    rule: Rule, line: str, probes: Probes, report_progress: Callable[[str], None]
) -> tuple[Live, tuple[str, ...], Answer | None]:
    """Return whether the checks of a rule see its cause now, and then their remedy."""
    if not rule.checks:
        summary = "no check of the machine shows it afterwards"
        return Live(Seen.CANNOT_BE_TOLD, summary), (), None
    answer = detect(probes, DetectRequest(only=rule.checks), report_progress)
    findings: Sequence[Finding] = getattr(answer.result, "checks", ())
    order = sorted(findings, key=lambda finding: rule.checks.index(finding.id))
    wrong = (CheckStatus.FAIL, CheckStatus.WARN)
    same = next(
        (
            finding
            for finding in order
            if finding.status in wrong and (not rule.causes or finding.cause in rule.causes)
        ),
        None,
    )
    if same is not None and (other := _other_gpu(line, same)) is not None:
        summary = f"{same.id}: {same.summary}; the log names {other}"
        return Live(Seen.CANNOT_BE_TOLD, summary, same.id), (), answer
    if same is not None:
        return Live(Seen.YES, same.summary, same.id), same.remedy, answer
    # A check that fails for another cause decides: the machine is unhealthy. Otherwise it is the
    # first that could be made and would show the cause. One that was skipped says why.
    broken = next((finding for finding in order if finding.status is CheckStatus.FAIL), None)
    telling = [finding for finding in order if finding.id not in rule.inconclusive]
    made = broken or next(
        (finding for finding in telling if finding.status is not CheckStatus.SKIP), None
    )
    if made is not None and made.status is CheckStatus.OK:
        return Live(Seen.NO_LONGER, f"{made.id}: {made.summary}", made.id), (), answer
    used = made or next(iter(order), None)
    summary = "none of its checks could be made" if used is None else f"{used.id}: {used.summary}"
    return Live(Seen.CANNOT_BE_TOLD, summary, made.id if made else None), (), answer


def _other_gpu(line: str, finding: Finding) -> str | None:
    """Return the bus id that the line names, if the finding names only other ones."""
    text = " ".join([finding.summary, *(evidence.value for evidence in finding.evidence)])
    named, seen = _bus_ids(line), _bus_ids(text)
    return named[0] if named and seen and not set(named) & set(seen) else None


def _bus_ids(text: str) -> list[str]:
    """Return the bus ids in a text, without the function: the kernel and NVML write it or not."""
    return [f"{domain[-4:]}:{rest}" for domain, rest in re.findall(_BUS_ID, text.lower())]
