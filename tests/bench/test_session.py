"""One benchmark in this process: what is asked and opened, and that mistakes cost no measuring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench import session
from gpucheck.bench.model import BenchMode, BenchRequest
from gpucheck.bench.sampler import Runner
from gpucheck.bench.session import open_session
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading, MigReading, NvmlReading
from gpucheck.report.errors import MissingError, WrongUseError
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

CPU = BenchRequest(devices=("cpu",), kernels=("copy",), mode=BenchMode.QUICK, size=64, budget_s=0.1)


class Opening:
    """Notes what was to be opened, and opens nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[int] | None, Mapping[int, str]]] = []

    def __call__(
        self, asked: Sequence[int] | None = None, *, uuids: Mapping[int, str] | None = None
    ) -> OpenedGpus:
        self.asked.append((asked, uuids or {}))
        return OpenedGpus(unavailable="it is only noted")


@pytest.fixture(name="opening")
def _opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    opening = Opening()
    monkeypatch.setattr(session, "open_gpus", opening)
    return opening


def machine(*uuids: str, **changes: Any) -> FakeProbes:
    """Return GPUs that CUDA and NVML both see."""
    devices = [
        CudaDeviceReading(ordinal=at, uuid_hex=uuid.partition("-")[2].replace("-", ""))
        for at, uuid in enumerate(uuids)
    ]
    return FakeProbes(
        readings=reading_of(*(gpu_reading(at, **changes) for at in range(len(uuids)))),
        cuda_reading=CudaReading(device_count=len(devices), devices=tuple(devices)),
    )


FIRST, SECOND = (str(gpu_reading(at).uuid) for at in range(2))


def asked_of(devices: tuple[str, ...], probes: FakeProbes, opening: Opening) -> Any:
    with open_session(BenchRequest(devices=devices), probes, {}):
        pass
    (found,) = opening.asked
    return found


def test_the_processor_alone_wakes_no_driver(opening: Opening) -> None:
    probes = machine(FIRST)

    with open_session(CPU, probes, {}) as opened:
        result = opened.measure()

    assert opening.asked == []
    assert "cuda" not in probes.asked
    assert all(row.median_s for row in result.measurements)


def test_what_is_no_device_asks_nobody(opening: Opening) -> None:
    probes = machine(FIRST)

    with (
        pytest.raises(WrongUseError, match="tpu"),
        open_session(BenchRequest(devices=("gpu:0", "tpu")), probes, {}),
    ):
        pass

    assert (opening.asked, probes.asked) == ([], [])


@pytest.mark.parametrize(
    ("devices", "indices"),
    [
        (("gpu:1",), [1]),
        (("cpu", "gpu:0", "gpu:1"), [0, 1]),
        (("gpu",), None),
        (("all",), None),
        (("gpu:1", "gpu"), None),
    ],
)
def test_only_the_gpus_that_are_asked_for_are_opened(
    opening: Opening, devices: tuple[str, ...], indices: list[int] | None
) -> None:
    asked, uuids = asked_of(devices, machine(FIRST, SECOND), opening)

    assert asked == indices
    assert uuids == {0: FIRST, 1: SECOND}


def test_a_mig_device_keeps_its_kind_of_uuid(opening: Opening) -> None:
    mig = "MIG-11111111-2222-3333-4444-555555555555"
    probes = machine(mig, mig_instances=(MigReading(uuid=mig),))

    _, uuids = asked_of(("gpu",), probes, opening)

    assert uuids == {0: mig}


def test_a_driver_that_fails_is_not_touched_in_this_process(opening: Opening) -> None:
    with (
        open_session(BenchRequest(devices=("gpu",)), FakeProbes(), {}) as opened,
        pytest.raises(MissingError, match="no libcuda in this fake"),
    ):
        opened.measure()

    assert opening.asked == []


def test_the_host_has_the_drivers_version() -> None:
    probes = FakeProbes(readings=NvmlReading(driver_version="580.95.05", cuda_driver_version=13000))

    with open_session(CPU, probes, {}) as opened:
        assert (opened.host.driver_version, opened.host.cuda_driver_version) == (
            "580.95.05",
            "13.0",
        )


def test_repeated_products_come_after_the_measuring() -> None:
    with open_session(CPU, FakeProbes(), {}) as opened:
        result = opened.measure(corruption_s=0.01)

    (check,) = result.corruption
    assert (check.device, check.mismatches, check.shape) == ("cpu", 0, (64, 64, 64))
    assert check.products > 0


def test_a_mistake_in_what_is_repeated_costs_no_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "run_bench", lambda *_, **__: pytest.fail("it was measured"))
    request = BenchRequest(devices=("cpu",), kernels=("launch",), size=10**7)

    with open_session(request, FakeProbes(), {}) as opened, pytest.raises(WrongUseError) as caught:
        opened.measure(corruption_s=1.0)

    assert caught.value.code == "size-does-not-fit"


def test_an_interrupted_run_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runner, "take_turn", interrupted)

    with open_session(CPU, FakeProbes(), {}) as opened:
        result = opened.measure(corruption_s=10.0)

    assert result.interrupted
    assert result.corruption == ()


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with open_session(CPU, FakeProbes(), {}) as opened, pytest.raises(WrongUseError):
        opened.measure(corruption_s=seconds)


def test_variables_come_from_the_environment_that_is_given(tmp_path: Path) -> None:
    environment = {"NVIDIA_TF32_OVERRIDE": "0", "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}

    with open_session(CPU, FakeProbes(), environment) as opened:
        result = opened.measure()

    assert result.environment.variables == {"NVIDIA_TF32_OVERRIDE": "0"}
