"""Pages of every simulated machine, kept as the text that they show: whole, inert, in order."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.machine import machine_names
from tests.report.formats.pages import Page

KEPT = Path(__file__).parent / "pages"
#: What differs from run to run: times, versions of Python and gpucheck, the host, its container,
#: and where the simulated libraries are.
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"), "TIME"),
    (re.compile(r"^(Host|Python|Container)\n.*\n", re.M), r"\1\n...\n"),
    (re.compile(r"gpucheck \d+\.\S+"), "gpucheck VERSION"),
    (re.compile(r"/\S*/libraries/lib/"), "LIBRARIES/"),
)


#: The pages of a machine: the end of their names, and the command.
_PAGES = {"": ("list", "--processes"), "-detect": ("detect", "--quick")}


@pytest.mark.parametrize("kind", _PAGES, ids=lambda kind: kind or "-list")
@pytest.mark.parametrize("name", machine_names())
def test_the_page_of_a_machine(name: str, kind: str, pretend: Pretend, program: Program) -> None:
    # What hangs is waited out, and the other GPUs need their time; elsewhere all may take longer.
    deadline = {"hung": "1", "hung-gpu": "4"}.get(name, "240")
    line = (*_PAGES[kind], "--deadline", deadline, "--format", "html")

    page = Page(program(*line, env=pretend(name)).stdout.decode())

    page.assert_inert()
    _assert_kept(f"{name}{kind}.txt", _lasting(page))


def _assert_kept(name: str, text: str) -> None:
    path = KEPT / name
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        KEPT.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_page_is_left_over() -> None:
    names = {f"{name}{kind}" for name in machine_names() for kind in _PAGES}
    assert {path.stem for path in KEPT.iterdir()} == names


def _lasting(page: Page) -> str:
    title, command, host, *rest = page.texts
    assert host in title
    text = "\n".join((command, *rest)) + "\n"
    for varying, word in _VARYING:
        text = varying.sub(word, text)
    return text
