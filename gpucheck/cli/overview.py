"""`gpucheck` alone: the verdict of detect, a row for each GPU, and what to run next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import typer

from gpucheck.cli.app import execute, with_shared_options
from gpucheck.cli.help import HelpfulCommand
from gpucheck.cli.options import Context, Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.detect.checks.pci_device import NO_GPU
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Detection
from gpucheck.detect.run import detect, detect_on, open_machine
from gpucheck.detect.view import answer as verdict
from gpucheck.drivers.evidence import HealthReading
from gpucheck.drivers.interface import Probes
from gpucheck.inventory import view as inventory_view
from gpucheck.inventory.condition import with_troubles
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.memory import capped_sentences, find_unowned
from gpucheck.inventory.model import Inventory
from gpucheck.report.blocks import Block, Command, Gap, Line, counted, opening
from gpucheck.report.envelope import Answer, CheckStatus, Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import View, step_on_recording

FORMATS = ("table", "json")
MOST_COMMANDS = 3


#: What detect found, and the GPUs with their condition (None where NVML lists none).
Overview = tuple[Detection, Inventory | None]


def run(own: list[str], context: Context) -> int:
    """Parse the options of the short answer, and give it; the document is detect's."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    function = with_shared_options(_answer, "detect", FORMATS)
    app.command("gpucheck", cls=HelpfulCommand)(function)
    return execute(typer.main.get_command(app), own, context)


def _answer(*, shared: Shared) -> int:
    """Say in short whether the GPUs can be used, who uses them, and what to run next."""
    with machine("detect", shared, FORMATS) as probes:
        # What is written while the line changes would not know the terminal's encoding.
        with status_line(shown=shared.verbosity >= 0) as tell:
            shows_gpus = shared.format == "table"
            answer = look(probes, tell) if shows_gpus else detect(probes, DetectRequest(), tell)
        command = "overview" if shows_gpus and answer.result is not None else "detect"
        return deliver(command, shared, answer, probes.time())


def look(probes: Probes, tell: Callable[[str], None]) -> Answer:
    """Return detect's answer with the GPUs."""
    looked_at = open_machine(probes, DetectRequest(), tell)
    answer = detect_on(looked_at)
    if not isinstance(answer.result, Detection):
        return answer
    inventory = _inventory(probes, looked_at) if answer.result.gpus else None
    return answer._replace(result=(answer.result, inventory))


def _inventory(probes: Probes, looked_at: Machine) -> Inventory | None:
    """Return the GPUs as detect has read them: the driver is not asked again."""
    inventory = take_inventory(probes, reading=looked_at.nvml).result
    if not isinstance(inventory, Inventory) or not inventory.gpus:
        return None
    health = HealthReading() if looked_at.is_hung else looked_at.health
    return with_troubles(find_unowned(inventory, probes), health)


# ------------------------------------------------------------------------------------ the view


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the verdict with its first steps, a row for each GPU, and the next commands."""
    overview: Overview = report.result_as(tuple)
    detection, inventory = overview
    yield from opening(report, view, counted(gpu.name for gpu in detection.gpus))
    yield from (Line(s, CheckStatus.WARN) for s in capped_sentences(detection.memory_limits))
    yield from verdict(report, detection, view._replace(verbosity=min(view.verbosity, 0)))
    if view.verbosity < 0:
        return
    if inventory is not None:
        yield Gap()
        yield inventory_view.brief(inventory.gpus, view)
        if detection.cause_check is None:
            yield from inventory_view.list_troubles(inventory.gpus, view)
        yield from inventory_view.unowned(inventory.gpus)
    yield Gap()
    yield Line("next:", style="dim")
    for line in next_commands(report, overview, view):
        yield Command(line, indent=2)


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows: every warning."""
    return {notice.code for notice in report.warnings}


def next_commands(report: Report, overview: Overview, view: View) -> list[str]:
    """Return two or three commands that fit the answer."""
    recorded = report.host.recorded
    well = report.exit_code is ExitCode.OK
    detection, inventory = overview
    gpus = () if inventory is None else inventory.gpus
    used = any(gpu.processes for gpu in gpus)
    # There is nothing to repair or record: an example, and the processor's speed.
    absent = detection.cause == NO_GPU and not recorded
    fitting = {
        "gpucheck detect -v": not absent and (not well or detection.cause_check is not None),
        f"gpucheck list{' --processes' if used else ''}": bool(gpus),
        "gpucheck place --count 1": well and len(gpus) > 1,
        "gpucheck list --from example:h100x8": absent,
        "gpucheck bench --quick": (well or absent) and not recorded,
        "gpucheck report ticket.tar.gz": not well and not recorded and not absent,
        "gpucheck memlimit 30%": well and bool(recorded),
    }
    lines = [line for line, fits in fitting.items() if fits][:MOST_COMMANDS]
    return [step_on_recording(line, view.source) for line in lines]
