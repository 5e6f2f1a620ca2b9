"""Options of `gpucheck place` that go together, and its messages on stderr."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import main
from gpucheck.cli.options import Context, Shared
from gpucheck.cli.place import WaitReporter, check, explain, report_devices
from gpucheck.drivers.evidence import SystemReading
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.place.claims import ClaimOptions, Waiting
from gpucheck.place.lease import lease_named
from gpucheck.place.lock_files import DIRECTORY_VARIABLE
from gpucheck.place.model import Candidate, PlacedDevice, Placement
from gpucheck.place.selection import SelectionRequest
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import Option, options_of
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

ALONE = Context(command="place")
WITH_COMMAND = ALONE._replace(child=("true",))


def refusal(context: Context, explicit: str = "", **options: object) -> str:
    with pytest.raises(WrongUseError) as caught:
        accepted(context, explicit, **options)
    return caught.value.message


def accepted(context: Context, explicit: str = "", **options: object) -> None:
    declared = {**options_of(SelectionRequest), **options_of(ClaimOptions)}
    typed = {name: declared.get(name, Option("--min-free", "")) for name in explicit.split()}
    run = bool(options.pop("run", False))
    names = {"specs": "a device", "count": "--count", "claims": "--claims"}
    asked = [names[name] for name in names if options.pop(name, None)]
    holding = ClaimOptions(**options)  # type: ignore[arg-type]
    check(asked, holding, Shared(context=context, typed=typed), run=run)


def test_nothing_asked_says_what_to_ask() -> None:
    assert refusal(ALONE).startswith("Name a device such as /gpu:0")


def test_two_questions() -> None:
    assert refusal(ALONE, specs=("0",), count=1) == "Give only one of these: a device, --count."


@pytest.mark.parametrize("name", ["min_free", "prefer", "name", "exclude"])
def test_what_chooses_needs_a_count(name: str) -> None:
    option = name.replace("_", "-")
    assert refusal(ALONE, name, specs=("0",)).startswith(f"--{option} is for choosing")
    accepted(ALONE, name, count=1)


@pytest.mark.parametrize(("name", "value"), [("claim", True), ("wait", True), ("share", 2)])
def test_what_holds_needs_a_command(name: str, value: object) -> None:
    assert refusal(ALONE, name, specs=("0",), **{name: value}).startswith(
        f"--{name} is for holding"
    )
    accepted(WITH_COMMAND, name, specs=("0",), **{name: value})
    # A default out of a file is for those questions that it fits.
    accepted(ALONE, "", specs=("0",), **{name: value})


def test_a_choice_may_wait_and_share_without_a_command_but_not_claim() -> None:
    accepted(ALONE, "wait share", count=1, wait=True, share=2)
    accepted(ALONE, "claim", count=1, claim=False)
    assert refusal(ALONE, "claim", count=1, claim=True).startswith("--claim is for holding")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), 1e10, float("inf")])
def test_a_timeout_is_a_time(seconds: float) -> None:
    assert "takes seconds" in refusal(WITH_COMMAND, count=1, wait=True, timeout_s=seconds)
    assert "needs --wait" in refusal(WITH_COMMAND, count=1, timeout_s=1.0)


@pytest.mark.parametrize("question", [{"claims": True}, {"specs": ("0",), "run": True}])
def test_what_takes_no_command(question: dict[str, object]) -> None:
    assert "takes no command" in refusal(WITH_COMMAND, **question)


# ---------------------------------------------------------------------------------- messages

REASON = "1 GPU was requested, but none fits."


def said(capsys: pytest.CaptureFixture[str], *waits: tuple[int, float], verbosity: int = 0) -> str:
    report = WaitReporter(Shared(verbosity=verbosity))
    for ahead, waited_s in waits:
        report(Waiting(ahead=ahead, waited_s=waited_s, reason=REASON))
    return capsys.readouterr().err


def test_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, (2, 0), (2, 0.1), (1, 5), (1, 59), (0, 59.5), (0, 60)) == (
        f"gpucheck: waiting, 2 are ahead of us: {REASON}\n"
        f"gpucheck: waiting, 1 is ahead of us: {REASON}\n"
        f"gpucheck: waiting, next in line: {REASON}\n"
    )


def test_else_a_line_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, *((0, float(waited_s)) for waited_s in range(180))).splitlines()

    assert lines == [
        f"gpucheck: waiting, next in line: {REASON}",
        f"gpucheck: waiting for 1 min, next in line: {REASON}",
        f"gpucheck: waiting for 2 min, next in line: {REASON}",
    ]


def test_nothing_where_quiet_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, (2, 0), (1, 5), verbosity=-1) == ""


def test_details_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    report = WaitReporter(Shared())
    for waited_s, details in ((0.0, ("GPU 0: a",)), (1.0, ("GPU 0: b",)), (61.0, ("GPU 0: b",))):
        report(Waiting(ahead=0, waited_s=waited_s, reason=REASON, details=details))

    assert capsys.readouterr().err.splitlines() == [
        f"gpucheck: waiting, next in line: {REASON}",
        "  GPU 0: a",
        f"gpucheck: waiting for 1 min, next in line: {REASON}",
        "  GPU 0: b",
    ]


def candidate(index: int | None, reason: str, *, uuid: str = "", fits: bool = False) -> Candidate:
    return Candidate(
        uuid=uuid or f"GPU-{index}", index=index, name="Card", eligible=fits, reason=reason
    )


CHOICE = Placement(
    devices=(PlacedDevice(spec="--count 1", resolved="r", kind="GPU", uuid="GPU-3"),),
    candidates=(
        candidate(0, "hidden"),
        candidate(1, "free", fits=True),
        candidate(3, "free", fits=True),
        candidate(4, "hidden"),
        candidate(5, "hidden"),
        candidate(6, "hidden", uuid="MIG-6"),
        candidate(None, "lost", uuid="GPU-x"),
    ),
    advice=("Ask nicely.",),
)


def explained(capsys: pytest.CaptureFixture[str], verbosity: int) -> list[str]:
    explain(Answer(result=CHOICE), Shared(verbosity=verbosity))
    return capsys.readouterr().err.splitlines()


def test_beside_names_for_a_variable_stands_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, 0) == [
        "gpucheck: GPU 3; not held (add -- CMD to hold while CMD runs)",
    ]


def test_each_alone_where_more_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(capsys, 1)

    assert lines[:3] == [
        "gpucheck: GPU 3 Card GPU-3: chosen: free",
        "gpucheck: GPU 1 Card GPU-1: fits: free",
        "gpucheck: GPU 0 Card GPU-0: no: hidden",
    ]
    assert len(lines) == 8
    assert explained(capsys, -1) == []


@pytest.mark.parametrize(("name", "shown"), [("Card", " (Card)"), ("Other", "")])
def test_the_commands_gpus_are_a_line(
    capsys: pytest.CaptureFixture[str], name: str, shown: str
) -> None:
    one = replace(CHOICE.devices[0], name="Card")
    two = replace(one, uuid="GPU-1", name=name)
    report_devices(replace(CHOICE, devices=(two, one)), more=False)

    assert capsys.readouterr().err == f"gpucheck: the command gets GPUs 1,3{shown}\n"


# ---------------------------------------------------------------------------------- claims


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeProbes:
    """Return a machine of two GPUs, with a directory of claims of its own."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "claims"))
    found = FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)))
    monkeypatch.setattr("gpucheck.drivers.open_probes", lambda **_: found)
    return found


def listed(capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["place", "--claims", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_claim_has_the_number_of_its_gpu(
    probes: FakeProbes, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = lease_named(["/gpu:1"], ClaimOptions(), probes, os.environ, soft=False)
    assert [claim.index for claim in lease.answer.result.claims] == [1]
    probes.asked.clear()

    document = listed(capsys)
    assert probes.asked == ["nvml", "close"]
    assert [(one["index"], one["uuid"]) for one in document["result"]["claims"]] == [
        (1, gpu_reading(1).uuid)
    ]

    silent = ProbeFailure(code="driver-not-answering", message="NVML does not answer")
    probes.readings = NvmlReading(failure=silent)
    document = listed(capsys)
    assert [one["index"] for one in document["result"]["claims"]] == [None]
    assert document["warnings"] == [
        {
            "code": "driver-not-answering",
            "message": "NVML does not answer: not every number of a GPU is known.",
        }
    ]
    lease.close()


def test_claims_where_there_is_no_gpu_say_that_and_the_librarys_words_with_v(
    probes: FakeProbes, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = lease_named(["/gpu:1"], ClaimOptions(), probes, os.environ, soft=False)
    unloaded = ProbeFailure(code="driver-not-loaded", message="NVML is not loaded", library_code=9)
    probes.readings = NvmlReading(failure=unloaded)
    probes.system_reading = SystemReading()

    assert main(["place", "--claims"]) == 0
    ended = capsys.readouterr()
    assert "1 GPU is held." in ended.out
    assert ended.err == "gpucheck: warning: There is no NVIDIA GPU in this machine.\n"
    assert main(["place", "--claims", "-v"]) == 0
    assert "NVML is not loaded (NVML error 9)." in capsys.readouterr().err
    lease.close()


def test_where_nothing_is_held_the_driver_is_not_asked(
    probes: FakeProbes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys)["result"]["claims"] == []
    assert probes.asked == ["close"]
