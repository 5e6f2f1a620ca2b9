"""Lines to copy or to evaluate: UUIDs, indices, code, exports for any shell, one for monitors."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.detect.model import Detection, Verdict
from gpucheck.memlimit.model import MemoryLimit, MemoryRequest
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.report.envelope import Answer, Failure, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import open_format
from gpucheck.report.text import View
from tests.fakes.reports import wrap


def lines(name: str, command: str, result: object) -> str:
    """Return what a command prints in this format."""
    return open_format(name)(wrap(command, Answer(result=result)), View(width=1))


def placement(*uuids: str, **environment: str) -> Placement:
    devices = tuple(PlacedDevice(spec="", resolved="", kind="GPU", uuid=uuid) for uuid in uuids)
    return Placement(devices=devices, environment=environment)


def limit(environment: dict[str, str], *, code: str | None = None) -> MemoryLimit:
    return MemoryLimit(
        request=MemoryRequest(text="30%"),
        gpus=(),
        mechanisms=(),
        environment=environment,
        code=code,
    )


def test_uuids_with_commas() -> None:
    two = placement("GPU-1", "GPU-2", CUDA_VISIBLE_DEVICES="GPU-1,GPU-2")

    assert lines("uuid", "place", two) == "GPU-1,GPU-2\n"


def test_indices_never_without_their_order() -> None:
    one = placement("GPU-1", CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="3")

    assert lines("env", "place", one) == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=3\n"


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
def test_any_value_survives_the_shell(value: str) -> None:
    text = lines("shell", "memlimit", limit({"GPUCHECK_TEST": value}))
    assert lines("shell", "place", placement("GPU-1", GPUCHECK_TEST=value)) == text

    shown = subprocess.run(
        ["sh", "-c", 'eval "$1"; printf %s "$GPUCHECK_TEST"', "sh", text.encode()],
        capture_output=True,
        check=True,
        env={"PATH": "/bin:/usr/bin"},
    )
    assert shown.stdout.decode("utf-8") == value


def test_lines_of_code_are_shown_as_they_are() -> None:
    assert lines("code", "memlimit", limit({}, code="a = 1\n  b\n")) == "a = 1\n  b\n"


@pytest.mark.parametrize(
    ("name", "command", "result"),
    [
        *((name, "place", placement()) for name in ("uuid", "index", "env", "shell")),
        *((name, "place", None) for name in ("uuid", "index", "env", "shell")),
        *((name, "memlimit", limit({})) for name in ("code", "shell")),
        *((name, "memlimit", None) for name in ("code", "shell")),
    ],
)
def test_nothing_to_show_is_no_text(name: str, command: str, result: object) -> None:
    assert lines(name, command, result) == ""


def one_line(conclusion: str, **changes: object) -> str:
    detection = Detection(
        usable=True,
        verdict=Verdict.USABLE,
        conclusion=conclusion,
        first_failure=None,
        checks=(),
    )
    report = wrap("detect", Answer(result=detection))._replace(**changes)  # type: ignore[arg-type]
    return open_format("line")(report, View())


def test_one_line_for_monitors() -> None:
    assert one_line("GPU usable") == "OK GPU usable\n"
    assert one_line("GPU usable: …\n", status=Status.WARN) == "WARN GPU usable: ~\\n\n"


def test_one_line_of_a_failure() -> None:
    failure = Failure(code="x", message="The snapshot cannot be read.")

    found = one_line("", error=failure, result=None, status=Status.UNKNOWN)

    assert found == "UNKNOWN The snapshot cannot be read.\n"


def test_one_line_of_an_interrupt_has_what_was_found_before_it() -> None:
    stop = Failure(code="interrupted", message="Interrupted after 3 lines of the log.")
    kept = one_line("run.log:2: the GPU's memory ran out", error=stop,
                    exit_code=ExitCode.INTERRUPTED, status=Status.UNKNOWN)  # fmt: skip
    nothing = one_line(
        "", error=stop, exit_code=ExitCode.INTERRUPTED, status=Status.UNKNOWN, result=None
    )

    assert kept == "UNKNOWN interrupted; run.log:2: the GPU's memory ran out\n"
    assert nothing == "UNKNOWN Interrupted after 3 lines of the log.\n"


@given(st.text(max_size=200))
def test_one_line_is_short_ascii(conclusion: str) -> None:
    line = one_line(conclusion)

    assert line.isascii()
    assert len(line) <= 81
    assert line.count("\n") == 1
    assert line.endswith("\n")
