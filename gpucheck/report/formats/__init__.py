"""Registry of the formats, which turn finished reports into text.

There are no decisions here, and no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpucheck.report.documents import open_view
from gpucheck.report.envelope import CheckStatus, Report
from gpucheck.report.text import Renderer, View

if TYPE_CHECKING:
    from gpucheck.report.blocks import Block, Headline
    from gpucheck.report.charts import Chart

#: Format name -> module of this folder and its function `(report, view) -> str`. Imported when
#: used: rich is heavy.
FORMATS = MappingProxyType(
    {
        "table": "table:render",
        "json": "json:render",
        "line": "lines:line",
        "csv": "lines:rows",
        "jsonl": "json:render_lines",
        "code": "lines:code",
        "uuid": "lines:uuid",
        "index": "lines:index",
        "env": "lines:env",
        "shell": "lines:shell",
        "nodes": "lines:nodes",
        "junit": "junit:render",
        "github": "github:render",
        "prometheus": "prometheus:render",
        "html": "html:render",
        "markdown": "markdown:render",
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    module, _, function = FORMATS[name].partition(":")
    render: Renderer = getattr(import_module(f"gpucheck.report.formats.{module}"), function)
    return render


def charts_of(report: Report, view: View) -> tuple[Chart, ...]:
    """Return the charts that a report has the values for."""
    if report.result is None:
        return ()
    charts = getattr(open_view(report.command), "charts", None)
    return () if charts is None else tuple(charts(report, view))


#: Words of headlines that have none of their own.
_WORDS = MappingProxyType(
    {"ok": "OK", "warn": "WARNING", "fail": "FAIL", "skip": "UNDECIDED", "unknown": "UNKNOWN"}
)


def headline_of(report: Report, blocks: Sequence[Block]) -> Headline:
    """Return a report's verdict: the last of its blocks, the failure, or what the view says."""
    from gpucheck.report.blocks import Headline

    headlines = [block for block in blocks if isinstance(block, Headline)]
    status = CheckStatus(report.status.value)
    if headlines:
        headline = headlines[-1]
    elif report.error is not None:
        headline = Headline(report.error.message, status)
    elif report.result is not None and hasattr(open_view(report.command), "headline"):
        headline = open_view(report.command).headline(report)
    else:
        headline = Headline(" ".join(notice.message for notice in report.warnings), status)
    text = headline.text[:1].upper() + headline.text[1:]
    return headline._replace(text=text, word=headline.word or _WORDS[headline.status.value])
