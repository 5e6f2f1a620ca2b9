"""Blocks: the head line, steps with their commands, and how many notes stand in a report."""

from __future__ import annotations

import pytest

from gpucheck.report.blocks import (
    Command,
    Head,
    Line,
    Span,
    head,
    limited,
    plain,
    remedies,
    with_command,
)
from gpucheck.report.envelope import TOOL, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from gpucheck.report.text import View


def report(host: Host) -> Report:
    return Report(
        command="list",
        schema="gpucheck/list/1",
        tool=TOOL,
        time="2026-01-01T00:00:00Z",
        host=host,
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=None,
    )


def test_the_head_names_machine_and_driver_and_leaves_out_what_is_not_known() -> None:
    known = report(Host(name="node7", driver_version="580.95.05"))

    assert head(known, "8 GPUs", None, "") == Head(("node7", "driver 580.95.05", "8 GPUs"))
    assert head(report(Host()), "8 GPUs") == Head(("8 GPUs",))


def test_one_step_is_not_numbered() -> None:
    assert list(remedies(["Reboot."])) == [Line("Reboot.", lead="→", indent=4)]


def test_commands_of_a_step_stand_on_lines_of_their_own_below_its_sentence() -> None:
    assert list(remedies(["Load it: sudo modprobe nvidia", "Reboot."], indent=2)) == [
        Line("Load it:", lead="1.", indent=2),
        Command("sudo modprobe nvidia", 5),
        Line("Reboot.", lead="2.", indent=2),
    ]


def test_a_note_on_a_command_stands_before_it_and_a_reboot_after_it() -> None:
    step = "Install it: sudo dnf install nvidia-open (from a repository); then reboot."

    assert list(remedies([step], indent=2)) == [
        Line("Install it (from a repository):", lead="→", indent=2),
        Command("sudo dnf install nvidia-open", 4),
        Line("Then reboot.", indent=4),
    ]


@pytest.mark.parametrize(
    ("step", "command"),
    [
        (
            "Check it: CUDA_VISIBLE_DEVICES=GPU-1 gpucheck detect",
            "CUDA_VISIBLE_DEVICES=GPU-1 gpucheck detect",
        ),
        (
            "Install it: /opt/v/bin/pip install 'cupy-cuda12x[ctk]==13.4.0'",
            "/opt/v/bin/pip install 'cupy-cuda12x[ctk]==13.4.0'",
        ),
        (
            "Try it: python3.12 -c 'import cupy; print(cupy.arange(3) * 2)'",
            "python3.12 -c 'import cupy; print(cupy.arange(3) * 2)'",
        ),
        ("Reset it: sudo nvidia-smi --gpu-reset. Then reboot.", None),
        ("Then: reboot.", None),
        ("Docker: docker run --gpus all.", None),
        ("See the GPUs with gpucheck list", None),
    ],
)
def test_what_is_a_command(step: str, command: str | None) -> None:
    _, *commands = remedies([step])

    assert commands == ([] if command is None else [Command(command, 6)])


def test_only_the_first_notes_are_shown_without_verbose() -> None:
    notes = [Line(str(number), indent=2) for number in range(5)]
    more = Line("2 more: add -v", indent=2, style="dim")

    assert list(limited(notes, View())) == [*notes[:3], more]
    assert list(limited(notes, View(verbosity=1))) == notes
    assert list(limited(notes[:3], View())) == notes[:3]


def test_plain_text_of_spans() -> None:
    assert plain("a") == plain((Span("a", "red"),)) == "a"
    assert plain((Span("a", "red"), Span("b"))) == "ab"


def test_a_command_at_the_end_of_a_sentence_stands_on_a_line_of_its_own() -> None:
    assert list(with_command("It is faster: uv pip install '.[cpu]'", indent=2)) == [
        Line("It is faster:", indent=2),
        Command("uv pip install '.[cpu]'", 4),
    ]
    assert list(with_command("It is fast.", indent=2)) == [Line("It is fast.", indent=2)]
