"""Registry of the formats, which turn finished reports into text. No decisions, no I/O."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from gpucheck.report.text import Renderer

#: Format name -> module with `render(report, view) -> str`. Imported when used: rich is heavy.
FORMATS = MappingProxyType(
    {
        "table": "gpucheck.report.formats.table",
        "json": "gpucheck.report.formats.json",
        "csv": "gpucheck.report.formats.csv",
        "code": "gpucheck.report.formats.code",
        "uuid": "gpucheck.report.formats.uuid",
        "index": "gpucheck.report.formats.index",
        "shell": "gpucheck.report.formats.shell",
        "junit": "gpucheck.report.formats.junit",
        "github": "gpucheck.report.formats.github",
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    render: Renderer = import_module(FORMATS[name]).render
    return render
