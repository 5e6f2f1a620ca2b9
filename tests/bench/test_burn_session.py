"""A burn on this machine: refusals, claims, and the orders to the devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench import burn_session
from gpucheck.bench.burn_model import BurnRequest, BurnResult
from gpucheck.bench.burn_session import burn_here, check_burn
from gpucheck.bench.claiming import Claims
from gpucheck.bench.model import BenchRequest
from gpucheck.drivers.nvml.telemetry import NoTelemeter
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, ProcessReading
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import ExitCode, InconclusiveError, MissingError, WrongUseError
from tests.bench.test_burn import FakeBurners, healthy
from tests.fakes.bench import FakeClock
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

UUIDS = [str(gpu_reading(at).uuid) for at in range(2)]


def asked(*devices: str, **more: Any) -> BurnRequest:
    product = BenchRequest(devices=devices, size=more.pop("size", None))
    return BurnRequest(product=product, **{"seconds": 5.0, **more})


def two_gpus() -> FakeProbes:
    """Return two GPUs, the second one with a program on it."""
    own = ProcessReading(pid=77, type="C", memory_used_bytes=2**33)
    readings = reading_of(gpu_reading(0, processes=()), gpu_reading(1, processes=(own,)))
    devices = tuple(
        CudaDeviceReading(ordinal=at, uuid_hex=uuid.partition("-")[2].replace("-", ""))
        for at, uuid in enumerate(UUIDS)
    )
    return FakeProbes(readings=readings, cuda_reading=CudaReading(device_count=2, devices=devices))


@pytest.fixture(name="burn")
def _burn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    clock = FakeClock()
    burners = FakeBurners(clock, healthy)
    monkeypatch.setattr(burn_session, "MonotonicClock", lambda: clock)
    monkeypatch.setattr(burn_session, "NvmlTelemeter", lambda: NoTelemeter("none in this test"))

    def run(request: BurnRequest, probes: FakeProbes, **environment: str) -> tuple[Answer, Any]:
        found = {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"), **environment}
        return burn_here(request, probes, burners, found, lambda moment: None), burners

    return run


def test_every_gpu_is_loaded_and_told_who_shares_it(burn: Any) -> None:
    answer, burners = burn(asked("all"), two_gpus(), NVIDIA_TF32_OVERRIDE="0")

    result = answer.result
    assert isinstance(result, BurnResult)
    assert answer.exit_code is ExitCode.OK
    assert [one.device for one in result.devices] == ["gpu:0", "gpu:1"]
    assert burners.told["gpu:0"]["held"] is None
    assert "process 77" in burners.told["gpu:1"]["held"]
    assert result.notes == ("gpu:1 was shared: process 77 holds 8.0 GiB",)
    assert result.variables == {"NVIDIA_TF32_OVERRIDE": "0"}


def test_without_a_gpu_the_processor_stands_in_unless_a_gpu_is_required(burn: Any) -> None:
    answer, _ = burn(asked("all"), FakeProbes())

    assert [one.device for one in answer.result.devices] == ["cpu"]
    with pytest.raises(MissingError) as caught:
        burn(asked("all", require_gpu=True), FakeProbes())
    assert caught.value.remedy == ("Run: gpucheck detect",)


def test_the_processor_alone_wakes_no_driver(burn: Any) -> None:
    probes = two_gpus()

    burn(asked("cpu"), probes)

    assert "cuda" not in probes.asked


def test_a_claimed_gpu_is_not_burned(burn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def held_by_another(*_: object) -> Iterator[Claims]:
        yield Claims(others={UUIDS[1]: "held by process 9"})

    monkeypatch.setattr(burn_session, "hold_gpus", held_by_another)

    with pytest.raises(InconclusiveError, match="held by process 9"):
        burn(asked("gpu"), two_gpus())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"seconds": 0.0}, "bad-burn"),
        ({"seconds": float("nan")}, "bad-burn"),
        ({"seconds": float("inf")}, "bad-burn"),
        ({"limit_c": 20.0}, "bad-burn-limit"),
        ({"limit_c": float("nan")}, "bad-burn-limit"),
        ({"size": 0}, "bad-size"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        check_burn(asked("cpu", **changes))

    assert caught.value.code == code
