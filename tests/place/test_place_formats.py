"""The forms of a choice that go into a variable, a command line or a shell."""

from __future__ import annotations

import subprocess

import pytest

from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.report.envelope import Host, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats import open_format
from gpucheck.report.text import View


def report(*uuids: str, **environment: str) -> Report:
    devices = tuple(PlacedDevice(spec="", resolved="", kind="GPU", uuid=uuid) for uuid in uuids)
    return Report(
        command="place",
        schema="gpucheck/place/1",
        time="2026-01-01T00:00:00Z",
        host=Host(),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=Placement(devices=devices, environment=environment),
    )


def shown(name: str, made: Report) -> str:
    return open_format(name)(made, View())


def test_uuids_with_commas() -> None:
    made = report("GPU-1", "GPU-2", CUDA_VISIBLE_DEVICES="GPU-1,GPU-2")

    assert shown("uuid", made) == "GPU-1,GPU-2\n"


def test_indices_never_without_their_order() -> None:
    made = report("GPU-1", CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="3")

    assert shown("index", made) == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=3\n"


def test_a_shell_takes_it_word_for_word() -> None:
    nasty = "a'b $(echo x)\n"
    text = shown("shell", report("GPU-1", CUDA_VISIBLE_DEVICES=nasty))
    script = text + 'printf %s "$CUDA_VISIBLE_DEVICES"'
    finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert finished.stdout == nasty


@pytest.mark.parametrize("name", ["uuid", "index", "shell"])
def test_nothing_chosen_is_nothing_said(name: str) -> None:
    assert shown(name, report()) == ""
    assert shown(name, report()._replace(result=None)) == ""
