"""Formats of lines to copy or to evaluate, which the view of a command writes."""

from __future__ import annotations

from gpucheck.report.documents import open_view
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import Renderer, View, printable

#: The longest line of `--format line`, in bytes.
LONGEST_LINE = 80


def _lines(name: str) -> Renderer:
    """Return the format of this name; no result gives no text."""

    def render(report: Report, view: View) -> str:
        if report.result is None:
            return ""
        text: str = open_view(report.command).LINES[name](report.result)
        return text

    return render


def line(report: Report, view: View) -> str:
    """Return the status and a sentence for monitors, in at most 80 bytes of ASCII and a newline.

    What was found before an interrupt is said; any other failure is itself the sentence.
    """
    failure, result = report.error, report.result
    interrupted = report.exit_code is ExitCode.INTERRUPTED and result is not None
    if failure is None or interrupted:
        found: str = open_view(report.command).line(result)
        summary = f"interrupted; {found}" if interrupted else found
    else:
        summary = failure.message
    text = printable(f"{report.status.value.upper()} {summary}", unicode=False)
    fitting = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
    return f"{fitting}\n"


#: Lines of Python, for `gpucheck memlimit 30% --code FRAMEWORK`.
code = _lines("code")
#: The GPUs as CUDA_VISIBLE_DEVICES takes them, with commas.
uuid = _lines("uuid")
#: CUDA's numbers of the GPUs, with commas.
index = _lines("index")
#: Both variables on a line for `env`: the numbers, and the order that gives them meaning.
env = _lines("env")
#: `export` lines, for `eval "$(gpucheck … --format shell)"`.
shell = _lines("shell")
#: Unhealthy nodes, one a line with its reason, for a scheduler.
nodes = _lines("nodes")
