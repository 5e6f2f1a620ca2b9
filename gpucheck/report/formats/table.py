"""Table format for people: rich tables on a terminal of any width, with or without colour."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from io import StringIO
from typing import TYPE_CHECKING, Any

from gpucheck.report.codec import is_record
from gpucheck.report.envelope import Report
from gpucheck.report.text import View
from gpucheck.report.views import open_view

if TYPE_CHECKING:
    from rich.console import RenderableType

#: ASCII for typographic characters, for terminals that have nothing else.
_ASCII = str.maketrans({"…": "~", "·": "|", "└": "`", "├": "|", "─": "-", "×": "x", "±": "+"})


def render(report: Report, view: View) -> str:
    """Return the report as terminal text; a failure without a result gives no text at all."""
    if report.result is None:
        return ""
    from rich.console import Console

    if not view.unicode:
        report = in_ascii(report)
    renderable: RenderableType = open_view(report.command).build(report, view)
    console = Console(
        # Not stdout, which rich would flush at the end and which may be full: we only make text.
        file=StringIO(),
        width=view.width,
        color_system="standard" if view.color else None,
        force_terminal=view.color,
        no_color=not view.color,
        markup=False,
        highlight=False,
        emoji=False,
        # Not the process's environment: NO_COLOR, COLUMNS and TERM are in `view` already.
        _environ={},
    )
    with console.capture() as captured:
        # Text to copy may be wider than the terminal, which then wraps it itself.
        console.print(renderable, crop=False)
    lines = (line.rstrip() for line in captured.get().splitlines())
    text = "\n".join(lines) + "\n"
    if view.unicode:
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def in_ascii(value: Any) -> Any:
    """Return a record with all texts in ASCII, before the layout, so that it still fits."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value.encode("ascii", "backslashreplace").decode("ascii")
    if is_record(type(value)):
        return _record_in_ascii(value)
    if isinstance(value, Mapping):
        return {key: in_ascii(item) for key, item in value.items()}
    return tuple(in_ascii(item) for item in value) if isinstance(value, tuple) else value


def _record_in_ascii(record: Any) -> Any:
    if hasattr(record, "_replace"):
        return type(record)(*(in_ascii(item) for item in record))
    from dataclasses import fields, replace

    texts = {item.name: in_ascii(getattr(record, item.name)) for item in fields(record)}
    return replace(record, **texts)
