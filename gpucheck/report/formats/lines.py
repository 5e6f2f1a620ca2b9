"""Formats of lines to copy or to evaluate, which the view of a command writes."""

from __future__ import annotations

from gpucheck.report.envelope import Report
from gpucheck.report.formats import open_view
from gpucheck.report.text import Renderer, View


def _lines(name: str) -> Renderer:
    """Return the format of this name; no result gives no text."""

    def render(report: Report, view: View) -> str:
        if report.result is None:
            return ""
        text: str = open_view(report.command).LINES[name](report.result)
        return text

    return render


#: Lines of Python, for `gpucheck memlimit 30% --code FRAMEWORK`.
code = _lines("code")
#: The GPUs as CUDA_VISIBLE_DEVICES takes them, with commas.
uuid = _lines("uuid")
#: The GPUs by index, with the order that gives the indices meaning.
index = _lines("index")
#: `export` lines, for `eval "$(gpucheck … --format shell)"`.
shell = _lines("shell")
