"""The check under RAPIDS' entry-point group, called as `rapids doctor` calls it."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Any

import pytest
from rich.text import Text

from gpucheck.detect.model import Detection
from gpucheck.drivers.evidence import BuildReading, BuildsReading
from gpucheck.drivers.readings import CudaReading
from gpucheck.integrations import diagnose
from gpucheck.integrations.rapids import FRAMEWORKS
from tests.detect.test_run import HUNG, machine
from tests.fakes.probes import FakeProbes, gpu_reading, healthy, reading_of


def doctor(probes: FakeProbes, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Load the check by its entry point and call it with a keyword of a later version."""

    def look_at_these(names: tuple[str, ...], *, deadline_s: float) -> Detection:
        assert names == FRAMEWORKS
        return diagnose.look(probes, names)

    monkeypatch.setattr(diagnose, "look_here", look_at_these)
    [entry] = [e for e in entry_points(group="rapids_doctor_check") if e.name == "gpucheck"]
    check = entry.load()
    assert check.__doc__.strip()
    return check(gpu_info=object(), **options)


def test_a_good_machine_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert doctor(machine(), monkeypatch) is None
        said = doctor(machine(), monkeypatch, verbose=True)

    assert said.startswith("GPU usable")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            machine(
                builds_reading=BuildsReading(
                    python="/usr/bin/python3",
                    builds=(
                        BuildReading(
                            name="cupy", gpu_build=True, missing_libraries=("libnvrtc.so.12",)
                        ),
                    ),
                )
            ),
            "libnvrtc.so.12",
        ),
        (machine(cuda_reading=CudaReading(failure=HUNG)), "no answer within 10 s"),
    ],
)
def test_what_is_broken_or_unknown_is_raised_with_the_remedy(
    broken: FakeProbes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=message) as caught:
        doctor(broken, monkeypatch)

    assert "\n  Details: gpucheck detect" in str(caught.value)


def test_a_command_to_copy_survives_the_markup_of_the_tool_that_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cupy = BuildReading(
        name="cupy",
        distributions=("cupy-cuda12x 14.2.0",),
        version="14.2.0",
        gpu_build=True,
        missing_libraries=("libnvrtc.so.12",),
    )
    probes = machine(builds_reading=BuildsReading(python="/usr/bin/python3", builds=(cupy,)))

    with pytest.raises(RuntimeError) as caught:
        doctor(probes, monkeypatch)

    assert "pip install 'cupy-cuda12x[ctk]'" in Text.from_markup(str(caught.value)).plain


def test_a_warning_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    hot = healthy(0)._replace(fan_count=1)
    still = gpu_reading(0, fan_percent=0, temperature_c=80)
    probes = machine(readings=reading_of(still))
    probes.health_reading = probes.health()._replace(gpus=(hot,))

    with pytest.warns(UserWarning, match="^fan: GPU 0: its fans are stopped at 80 C.\n  "):
        doctor(probes, monkeypatch)
