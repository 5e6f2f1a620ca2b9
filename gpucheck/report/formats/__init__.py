"""Registry of the formats, which turn finished reports into text. No decisions, no I/O."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from gpucheck.report.text import Renderer

#: Format name -> module of this folder and its function `(report, view) -> str`. Imported when
#: used: rich is heavy.
FORMATS = MappingProxyType(
    {
        "table": "table:render",
        "json": "json:render",
        "csv": "csv:render",
        "code": "lines:code",
        "uuid": "lines:uuid",
        "index": "lines:index",
        "shell": "lines:shell",
        "junit": "junit:render",
        "github": "github:render",
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    module, _, function = FORMATS[name].partition(":")
    render: Renderer = getattr(import_module(f"gpucheck.report.formats.{module}"), function)
    return render
