"""`gpucheck report`: what a ticket needs of this machine, in one archive or folder."""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import re
import sys
import tarfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpucheck.cli.commands import load_documents
from gpucheck.cli.options import Shared
from gpucheck.cli.outlets import chart_remedy
from gpucheck.cli.output import deliver, machine, wrap
from gpucheck.cli.report_file import PRIVATE, check_writable, write_file, write_folder
from gpucheck.cli.terminal import (
    is_watched,
    status_line,
    view_for,
    write_message,
    write_stderr,
    write_stdout,
)
from gpucheck.drivers.host.files import MOST_JSON_BYTES
from gpucheck.drivers.interface import Probes
from gpucheck.inventory.snapshot import ReadOnce, Redactor
from gpucheck.report.blocks import Block, Column, Gap, Head, Line, Row, Table, verdict
from gpucheck.report.envelope import Answer, CheckStatus, Failure, Report
from gpucheck.report.errors import ExitCode, GpucheckError, InconclusiveError, WrongUseError
from gpucheck.report.formats import open_format
from gpucheck.report.formats.json import document
from gpucheck.report.options import flag, option
from gpucheck.report.saved import read_document
from gpucheck.report.text import View, binary_bytes, count_of, printable
from gpucheck.version import __version__

Tell = Callable[[str], None]

#: As wide as a ticket's block of text.
WIDTH = 100
README = "README.txt"
#: What each part is for.
ABOUT = {
    "detect": "whether the GPUs can be used",
    "list": "the GPUs, their users and links",
    "snapshot": "all readings, for --from",
    "bench": "a quick benchmark",
}
_FORMS = {"json": "for programs", "txt": "for people", "html": "as a page"}
#: What has stand-ins: one, and several.
_KINDS = {
    "hosts": ("host", "hosts"),
    "users": ("user", "users"),
    "processes": ("process", "processes"),
    "serials": ("serial number", "serial numbers"),
    "gpu_uuids": ("UUID of a GPU", "UUIDs of GPUs"),
    "mig_uuids": ("UUID of a MIG instance", "UUIDs of MIG instances"),
}
#: How long the quick benchmark may take, with everything around it.
BENCH_S = 180.0
#: The process that measures writes one small document.
_BENCH = ("bench", "--quick", "--json", "--samples", "summary", "--quiet", "--no-github")
#: Sentences and paths: words of closed lists have neither.
_FREE_TEXT = re.compile(r"[\s/\\]")
SUFFIXES = (".tar.gz", ".tgz")
#: The folder within an archive.
FOLDER = "gpucheck-report"
#: What is meant as a file, and is no archive that we write.
_FILES = frozenset((".bz2", ".gz", ".html", ".json", ".tar", ".txt", ".xz", ".zip", ".zst"))
_YES = ("", "y", "yes")


class ReportFile(NamedTuple):
    """File of a report, what it is, and why the part that it is of has no full answer."""

    name: str
    size_bytes: int
    about: str
    error: str | None = None


class MachineReport(NamedTuple):
    """Result of `gpucheck report`: where it is, and what is in it.

    `redacted` counts the stand-ins by kind; null: every name is as it was read. `conclusion` is
    what detect says, or why it says nothing.
    """

    path: str
    redacted: Mapping[str, int] | None
    files: tuple[ReportFile, ...]
    conclusion: str | None = None
    conclusion_status: CheckStatus | None = None


def command(
    *,
    path: Path = option(
        "DIR|FILE.tar.gz", "The folder or archive to write.", ..., group="The report"
    ),
    bench: bool = flag("--bench", "Measure for about 10 s, too."),
    no_redact: bool = flag("--no-redact", "Keep names, paths, serial numbers and UUIDs."),
    replace: bool = flag("--replace", "Replace a report."),
    yes: bool = flag("--yes, -y", "Write it without a question."),
    shared: Shared,
) -> int:
    """Write what a ticket needs into one archive: detect, list, a snapshot."""
    if bench and shared.recording is not None:
        message = "--bench measures this machine: it cannot be given with --from."
        raise WrongUseError(code="bench-from-snapshot", message=message)
    _check(path, replace=replace)
    gc.enable()
    with machine("report", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        result, files = gather(probes, path, redacted=not no_redact, bench=bench, tell=tell)
        host, time = probes.host(), probes.time()
    if not no_redact:
        host = host._replace(name=None)
    answer = Answer(result=result, host=host)
    shown = shared.format == "table" and shared.output is None
    text = open_format("table")(wrap("report", answer, time=time), view_for(shared))
    if shown:
        write_stdout(text)
    if not yes and not _agreed(None if shown else text):
        write_message("Nothing was written.")
        return int(ExitCode.BAD)

    mode = PRIVATE if no_redact else None
    if _is_archive(path):
        write_file(path, archive(files, time, folder=FOLDER), mode=mode)
    else:
        write_folder(path, files, mode=mode)
    if shared.verbosity >= 0:
        advice = "Look at it, then attach it" if not no_redact else "It is for people you trust"
        write_stderr(printable(f"Wrote {path}. {advice}."))
    return int(ExitCode.OK) if shown else deliver("report", shared, answer, time)


def _is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def _check(path: Path, *, replace: bool) -> None:
    """Check where the report is to be written, before anything is read.

    Raises:
        WrongUseError: it cannot be written there, or would replace something.
    """
    if _is_archive(path):
        check_writable(path)
        if path.exists() and not replace:
            raise _exists(path)
        return
    if path.name in ("", "..", "-") or path.suffix in _FILES or path.is_symlink():
        message = f"A report is a new folder or a file that ends with .tar.gz, not {str(path)!r}."
        raise WrongUseError(code="report-name", message=message)
    if path.exists() and not path.is_dir():
        raise WrongUseError(code="report-name", message=f"{str(path)!r} is not a folder.")
    check_writable(path.with_name(f"{path.name}.draft"))
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    ours = {README, *(f"{name}.{form}" for name in ABOUT for form in ("json", "txt", "html"))}
    if names - ours:
        message = f"The folder {str(path)!r} has other files, which a report would remove."
        raise WrongUseError(
            code="report-exists", message=message, remedy=("Name a folder that is not there.",)
        )
    if names and not replace:
        raise _exists(path)


def _exists(path: Path) -> WrongUseError:
    return WrongUseError(
        code="report-exists",
        message=f"There is a report at {str(path)!r} already.",
        remedy=("Replace it with --replace, or give another name.",),
    )


def _agreed(text: str | None) -> bool:
    """Ask a person whether to write what is shown; a program is not asked."""
    if not (is_watched() and sys.stdin is not None and sys.stdin.isatty()):
        return True
    if text is not None:
        write_stderr(text)
    sys.stderr.write("Write it? [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in _YES


# --------------------------------------------------------------------------------- gathering


def gather(
    probes: Probes, path: Path, *, redacted: bool, bench: bool, tell: Tell
) -> tuple[MachineReport, dict[str, bytes]]:
    """Return the report of this machine for a path, and the contents of its files by name.

    The machine is read once. Where a part fails, its document has the failure.
    """
    tell("reading the machine")
    redactor = Redactor() if redacted else None
    if redactor is not None:
        me = probes.identify((os.getpid(),)).get(os.getpid())
        redactor.users.of(None if me is None or me.user == "root" else me.user)
    once = ReadOnce(probes, redactor)
    contents: dict[ReportFile, bytes] = {}
    conclusion, status = "", CheckStatus.UNKNOWN
    questions: dict[str, Callable[[], Report]] = {
        "detect": lambda: _detect(once, tell),
        "list": lambda: _list(once),
        "snapshot": lambda: _snapshot(once),
    }
    if bench:
        questions["bench"] = lambda: _bench(tell)
    for name, ask in questions.items():
        report = _answered(name, ask, once)
        if name != "snapshot" and redactor is not None:
            report = _without_names(name, report, once, redactor)
        if name == "detect":
            conclusion, status = _conclude(report)
        contents |= _files(name, report)
    counts = None if redactor is None else redactor.stand_ins()
    readme = _readme(once, [*contents], counts, conclusion).encode()
    contents = {ReportFile(README, len(readme), "what each file is"): readme, **contents}
    result = MachineReport(str(path), counts, tuple(contents), conclusion, status)
    return result, {file.name: content for file, content in contents.items()}


def _conclude(report: Report) -> tuple[str, CheckStatus]:
    """Return the verdict of detect's report with its mark, or why there is none."""
    from gpucheck.detect.model import Detection
    from gpucheck.detect.view import mark_of

    if isinstance(report.result, Detection):
        return report.result.conclusion, mark_of(report, report.result)
    return "" if report.error is None else report.error.message, CheckStatus.UNKNOWN


def _detect(once: ReadOnce, tell: Tell) -> Report:
    from gpucheck.detect.machine import DetectRequest
    from gpucheck.detect.run import detect

    return wrap("detect", detect(once, DetectRequest(), tell), time=once.time())


def _list(once: ReadOnce) -> Report:
    from gpucheck.inventory.condition import read_condition
    from gpucheck.inventory.inventory import judge_list, take_inventory
    from gpucheck.inventory.memory import find_unowned
    from gpucheck.inventory.model import Inventory

    answer = judge_list(take_inventory(once, topology=True, process_utilization=True))
    if isinstance(answer.result, Inventory):
        answer = answer._replace(result=read_condition(find_unowned(answer.result, once), once))
    return wrap("list", answer, time=once.time())


def _snapshot(once: ReadOnce) -> Report:
    from gpucheck.inventory.snapshot import as_answer

    answer = as_answer(once.snapshot, recorded=once.host().recorded)
    return wrap("snapshot", answer, time=once.time())


def _bench(tell: Tell) -> Report:
    """Measure in a process of its own: a card that hangs does not take the report with it."""
    from gpucheck.bench.workers import WorkerDevice, Workers

    order = WorkerDevice(device="all", arguments=_BENCH)
    (answer,) = Workers(report_progress=tell).round([order], sequential=True, deadline_s=BENCH_S)
    if isinstance(answer, Failure):
        raise answer.as_error(InconclusiveError)
    return read_document(json.dumps(answer).encode(), MOST_JSON_BYTES, load_documents())[0]


def _answered(name: str, ask: Callable[[], Report], once: ReadOnce) -> Report:
    """Return the report of a part; what is wrong with the machine, or with us, is in it."""
    try:
        return ask()
    except GpucheckError as error:
        failure, code = Failure.of(error), error.exit_code
    except Exception as error:  # a report of a bug is worth more than none
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        message = f"This is a bug in gpucheck ({type(error).__name__} in {where})."
        failure, code = Failure(code="internal-error", message=message), ExitCode.BUG
    answer = Answer(result=None, exit_code=code, host=once.host(), error=failure)
    return wrap(name, answer, time=once.time())


def _without_names(name: str, report: Report, once: ReadOnce, redactor: Redactor) -> Report:
    """Return a report without names that did not come by the redacted readings.

    The path of this program is such a one, and all that a benchmark has read by itself.
    """
    change = redactor.text if name == "bench" else redactor.sentence
    plain = _redacted(document(report), change, redactor)
    plain["host"]["name"] = once.host().name
    return read_document(json.dumps(plain).encode(), MOST_JSON_BYTES, load_documents())[0]


def _redacted(value: Any, change: Callable[[str], str], redactor: Redactor) -> Any:
    if isinstance(value, str):
        if _FREE_TEXT.search(value):
            return change(value)
        return redactor.everything(value) if redactor.is_of_a_gpu(value) else value
    if isinstance(value, list):
        return [_redacted(item, change, redactor) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: redactor.variable(name, value) for name, value in item.items()}
        if key == "variables" and isinstance(item, dict)
        else _redacted(item, change, redactor)
        for key, item in value.items()
    }


# ------------------------------------------------------------------------------------- files


def _files(name: str, report: Report) -> dict[ReportFile, bytes]:
    """Return the files of a part, one for every form that it has, with their contents."""
    error = None if report.error is None else report.error.message
    view = View(width=WIDTH, verbosity=1, processes=True, chart_remedy=chart_remedy())
    texts = {"json": open_format("json")(report, view._replace(indented=True))}
    if load_documents()[name].view is not None:
        screens = list(_screens(report))
        texts["txt"] = "\n".join(_text(screen, view) for screen in screens)
        texts["html"] = open_format("html")(screens[0], view)
    return {
        ReportFile(
            f"{name}.{form}", len(text.encode()), f"{_FORMS[form]}: {ABOUT[name]}", error
        ): text.encode()
        for form, text in texts.items()
    }


def _screens(report: Report) -> Iterator[Report]:
    """Yield what is shown of a report: of a list first its rows, then how they are connected."""
    from gpucheck.inventory.model import Inventory

    if isinstance(report.result, Inventory):
        yield report._replace(result=report.result._replace(topology=None))
    if not isinstance(report.result, Inventory) or len(report.result.gpus) > 1:
        yield report


def _text(report: Report, view: View) -> str:
    """Return a screen; of a failure what a terminal gets on stderr."""
    text = "" if report.error is None else "\n".join((report.error.message, *report.error.remedy))
    return (f"{text}\n\n" if text else "") + open_format("table")(report, view)


def _readme(
    once: ReadOnce, files: Sequence[ReportFile], counts: Mapping[str, int] | None, conclusion: str
) -> str:
    host = once.host()
    driver = host.driver_version or "not known"
    widest = max(len(file.name) for file in files)
    whose = (host.name if counts is None else None) or "a machine"
    lines = [
        conclusion,
        "",
        f"Report of {whose}, {once.time()}, by gpucheck {__version__}",
        "",
        f"system  {host.os or 'not known'}, kernel {host.kernel or 'not known'}",
        f"python  {host.python or 'not known'}",
        f"driver  {driver}",
        "",
        *(f"{file.name:<{widest}}  {file.about}" for file in files),
        "",
        redaction(counts),
        "",
        "To look at it again, on any machine with gpucheck:",
        "    gpucheck show detect.json",
        "    gpucheck list --from snapshot.json",
    ]
    failed = failed_parts(files)
    lines += ["", *failed] if failed else []
    return "".join(f"{line}\n" for line in lines)


def failed_parts(files: Iterable[ReportFile]) -> list[str]:
    """Return the parts without a full answer, each with its error."""
    parts = {file.error: file.name.partition(".")[0] for file in files if file.error is not None}
    return [f"{part}: {error}" for error, part in parts.items()]


def redaction(counts: Mapping[str, int] | None) -> str:
    """Return the sentence that says which names are left."""
    if counts is None:
        return (
            "Not redacted: it names the host, users, processes with their command lines, paths,"
            " serial numbers and UUIDs."
        )
    names = ", ".join(f"{number} {_KINDS[kind][number > 1]}" for kind, number in counts.items())
    return (
        f"Redacted: paths, values of variables that are no settings, and {names or 'no name'}."
        " In lines of the kernel log a name can remain."
    )


def archive(files: Mapping[str, bytes], time: str, *, folder: str) -> bytes:
    """Return a tar.gz of these files below a folder, the same for the same content."""
    moment = int(datetime.fromisoformat(time).timestamp())
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=moment) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            entry = tarfile.TarInfo(os.path.join(folder, name))  # noqa: PTH118 - a name in a tar
            entry.size, entry.mtime, entry.mode = len(files[name]), moment, 0o644
            tar.addfile(entry, io.BytesIO(files[name]))
    return packed.getvalue()


# -------------------------------------------------------------------------------------- view


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield detect's verdict, the files with their sizes, and what was redacted."""
    contents = report.result
    if not isinstance(contents, MachineReport):
        raise TypeError(type(contents).__name__)
    size = sum(file.size_bytes for file in contents.files)
    if contents.conclusion is not None:
        yield verdict(contents.conclusion, contents.conclusion_status or CheckStatus.UNKNOWN)
        yield Gap()
    if view.verbosity >= 0:
        facts = (count_of(len(contents.files), "file"), binary_bytes(size, digits=0))
        yield Head((f"{contents.path}", *facts))
    columns = [Column("File"), Column("Size", right=True), Column("What it is", least=20)]
    rows = [
        Row((file.name, binary_bytes(file.size_bytes, digits=0), file.about))
        for file in contents.files
    ]
    yield Table(columns, rows)
    yield Gap()
    mark = CheckStatus.WARN if contents.redacted is None else CheckStatus.OK
    yield Line(redaction(contents.redacted), mark)
    yield from (Line(text, CheckStatus.WARN) for text in failed_parts(contents.files))
