"""Registry of the formats, which turn finished reports into text. No decisions, no I/O."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from gpucheck.render.base import Renderer

#: Format name -> module with `render(report, view) -> str`. Imported when used: rich is heavy.
FORMATS = MappingProxyType(
    {
        "table": "gpucheck.render.console",
        "json": "gpucheck.render.json",
        "csv": "gpucheck.render.csv",
        "code": "gpucheck.render.code",
        "uuid": "gpucheck.render.uuid",
        "index": "gpucheck.render.index",
        "shell": "gpucheck.render.shell",
        "junit": "gpucheck.render.junit",
        "github": "gpucheck.render.github",
    }
)


def open_format(name: str) -> Renderer:
    """Return the render function of a registered format."""
    render: Renderer = import_module(FORMATS[name]).render
    return render
