"""Registry of the formats, which turn finished reports into text, and of the views they show.

There are no decisions here, and no I/O.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any

from gpucheck.report.text import Renderer

#: Format name -> module of this folder and its function `(report, view) -> str`. Imported when
#: used: rich is heavy.
FORMATS = MappingProxyType(
    {
        "table": "table:render",
        "json": "json:render",
        "line": "lines:line",
        "csv": "csv:render",
        "code": "lines:code",
        "uuid": "lines:uuid",
        "index": "lines:index",
        "shell": "lines:shell",
        "junit": "junit:render",
        "github": "github:render",
    }
)

#: Document -> module of its view. `blocks(report, view)` yields what the table shows; `rows(report,
#: view)` gives the heading and the rows of CSV; `LINES` has a function of the result for each
#: format that is lines to copy; `line(result)` is the sentence of --line; `charts(report, view)`
#: yields the charts (report/charts.py) that --html and --plot draw, each only if the document has
#: its values.
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
        "overview": "gpucheck.cli.overview",
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    module, _, function = FORMATS[name].partition(":")
    render: Renderer = getattr(import_module(f"gpucheck.report.formats.{module}"), function)
    return render


def open_view(command: str) -> Any:
    """Return the view module of a document."""
    return import_module(VIEWS[command])
