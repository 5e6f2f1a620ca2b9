"""Registry of the formats, which turn finished reports into text, and of what features give them.

There are no decisions here, and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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
        "csv": "csv:render",
        "jsonl": "jsonl:render",
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

#: Document -> module of its view. `blocks(report, view)` yields what the table shows; `LINES` has a
#: function of the result for each format that is lines to copy; `line(result)` is the sentence of
#: the format `line`; `charts(report, view)` yields the charts (report/charts.py) that --html and
#: --plot draw, each only if the document has its values; `headline(report)` is the `Headline` of a
#: page, where `blocks` have none; `in_table(report)` are the codes of the error and the warnings
#: that `blocks` shows, so that they are not repeated.
VIEWS = MappingProxyType(
    {
        "list": "gpucheck.inventory.view",
        "detect": "gpucheck.detect.view",
        "wheel": "gpucheck.detect.wheels_view",
        "process": "gpucheck.detect.process_view",
        "log": "gpucheck.detect.log_view",
        "place": "gpucheck.place.view",
        "claims": "gpucheck.place.view",
        "bench": "gpucheck.bench.view",
        "burn": "gpucheck.bench.burn_view",
        "peaks": "gpucheck.bench.peaks_view",
        "compare": "gpucheck.bench.ci.view",
        "profile": "gpucheck.bench.ci.profile_view",
        "memlimit": "gpucheck.memlimit.view",
        "fleet": "gpucheck.fleet.view",
        "report": "gpucheck.cli.report",
        "overview": "gpucheck.cli.overview",
    }
)


#: What the formats for other systems take from a document, so that no format imports a feature:
#: mapping -> document -> `module:function`. `verdicts(result)` and `seconds(result)` are for JUnit
#: and GitHub (report/verdicts.py), `metrics(report)` for Prometheus (report/metrics.py),
#: `rows(report, view)`, the heading and the rows, for CSV, `records(result)`, pairs of a word and a
#: record, for JSON lines.
MAPPINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "verdicts": {
            "detect": "gpucheck.detect.verdicts:verdicts",
            **dict.fromkeys(("bench", "burn", "compare"), "gpucheck.bench.ci.verdicts:verdicts"),
            "fleet": "gpucheck.fleet.records:verdicts",
        },
        "seconds": dict.fromkeys(
            ("bench", "burn", "compare"), "gpucheck.bench.ci.verdicts:seconds"
        ),
        "metrics": {
            "list": "gpucheck.inventory.metrics:metrics",
            "detect": "gpucheck.detect.metrics:metrics",
            "bench": "gpucheck.bench.metrics:metrics",
            "burn": "gpucheck.bench.metrics:burn_metrics",
            "fleet": "gpucheck.fleet.records:metrics",
        },
        "rows": {
            "list": "gpucheck.inventory.view:rows",
            "bench": "gpucheck.bench.records:rows",
            "compare": "gpucheck.bench.records:compared_rows",
        },
        "records": {
            "list": "gpucheck.inventory.view:records",
            "detect": "gpucheck.detect.view:records",
            "bench": "gpucheck.bench.records:records",
            "burn": "gpucheck.bench.records:records",
            "compare": "gpucheck.bench.records:records",
            "fleet": "gpucheck.fleet.records:records",
        },
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    module, _, function = FORMATS[name].partition(":")
    render: Renderer = getattr(import_module(f"gpucheck.report.formats.{module}"), function)
    return render


def open_mapping(name: str, command: str) -> Any:
    """Return the function of a mapping for a document; None if the document has none."""
    place = MAPPINGS[name].get(command)
    if place is None:
        return None
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)


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
        found = headlines[-1]
    elif report.error is not None:
        found = Headline(report.error.message, status)
    elif report.result is not None and hasattr(open_view(report.command), "headline"):
        found = open_view(report.command).headline(report)
    else:
        found = Headline(" ".join(one.message for one in report.warnings), status)
    text = found.text[:1].upper() + found.text[1:]
    return found._replace(text=text, word=found.word or _WORDS[found.status.value])


def open_view(command: str) -> Any:
    """Return the view module of a document."""
    return import_module(VIEWS[command])
