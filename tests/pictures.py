"""Pictures of the documents: SVG of what a terminal shows, in docs/pictures.

`python -m tests.pictures` draws them anew; a test holds their text to the program's:
tests/end_to_end/test_pictures.py. What answers from an example runs on a terminal of its own. The
runs of `bench` are documents of real runs in docs, and are drawn by their view.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gpucheck.bench.ci.processes import read_document
from gpucheck.report.envelope import TOOL, Notice, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import table
from gpucheck.report.text import View
from tests.conftest import scrubbed_environment

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH = 96
#: Picture -> the command that it shows.
COMMANDS: Mapping[str, str] = {
    "short": "gpucheck --from example:h100x8",
    "detect-broken": "gpucheck detect --from example:version-mismatch",
    "list": "gpucheck list --from example:h100x8",
    "place": "gpucheck place --count 2 --from example:h100x8",
    "memlimit": "gpucheck memlimit 30% --from example:h100x8",
}
#: Picture -> the command of a real run, and its document.
RUNS: Mapping[str, tuple[str, Path]] = {
    "bench": (
        "gpucheck bench matmul softmax --device cpu --dtype float32 --size 4096 --budget 90",
        FOLDER / "bench.json",
    ),
    "frameworks": (
        "gpucheck bench matmul softmax train --framework pytorch --framework tensorflow ...",
        FOLDER.parent / "measurements" / "frameworks.json",
    ),
}
#: As rich's own, without fonts from the network and without its frame's shadow.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_TEXT = re.compile(r"<text[^>]*>(.*?)</text>")


def on_a_terminal(words: list[str]) -> str:
    """Return what a command writes on a terminal, with its colours."""
    ours, theirs = pty.openpty()
    environment = scrubbed_environment(
        {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}
    )
    command = [sys.executable, "-m", "gpucheck", *words]
    parts = []
    # Messages follow the report, and a pipe for them keeps the progress away.
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environment) as run:
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: the command has ended
            while part := os.read(ours, 65536):
                parts.append(part)
        assert run.stderr is not None
        parts.append(run.stderr.read())
    os.close(ours)
    return b"".join(parts).decode("utf-8").replace("\r\n", "\n")


def saved_run(path: Path) -> str:
    """Return the table of a committed run of bench, with its colours."""
    document = json.loads(path.read_text("utf-8"))
    result, host, _ = read_document(document)
    report = Report(
        command="bench",
        schema=document["schema"],
        tool=TOOL,
        time=document["time"],
        host=host,
        exit_code=ExitCode(document["exit_code"]),
        status=Status(document["status"]),
        error=None,
        warnings=tuple(Notice(**warning) for warning in document["warnings"]),
        result=result,
    )
    return table.render(report, View(width=WIDTH, color=True))


def screens() -> dict[str, tuple[str, str]]:
    """Return the command and the text of every picture."""
    found = {
        name: (command, on_a_terminal(shlex.split(command)[1:]))
        for name, command in COMMANDS.items()
    }
    runs = {name: (command, saved_run(path)) for name, (command, path) in RUNS.items()}
    return {**found, **runs}


def picture(name: str, command: str, text: str) -> str:
    """Return the SVG of a screen."""
    console = Console(width=WIDTH, file=StringIO(), record=True, _environ={})
    console.print(Text.from_ansi(f"$ {command}\n{text}"), soft_wrap=True)
    drawn = console.export_svg(title="", code_format=TEMPLATE, unique_id=name)
    return "".join(f"{line.rstrip()}\n" for line in drawn.splitlines() if line.strip())


def words_of(svg: str) -> list[str]:
    """Return the texts of a picture, in order."""
    return [html.unescape(text) for text in _TEXT.findall(svg)]


def main() -> None:
    """Draw every picture anew."""
    for name, screen in screens().items():
        (FOLDER / f"{name}.svg").write_text(picture(name, *screen), encoding="utf-8")


if __name__ == "__main__":
    main()
