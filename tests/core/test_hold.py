"""`gpucheck.place()`: GPUs for a Python program, held as long as its block lasts."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import gpucheck
from gpucheck.core.claims import list_claims
from gpucheck.core.hold import hold_devices, request_of
from gpucheck.core.picking import Wish
from gpucheck.models.errors import BadAnswerError, InconclusiveError, WrongUseError
from gpucheck.models.placement import ChoiceRequest
from gpucheck.models.snapshot import NvmlReading, ProbeFailure
from gpucheck.probes.claim_files import DIRECTORY_VARIABLE
from gpucheck.probes.claims import LockDirectory
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

HOLD = Wish(hold=True)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockDirectory:
    for name in ("SLURM_JOB_ID", "GPUCHECK_CLAIM_IDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "claims"))
    return LockDirectory(tmp_path / "claims")


def machine() -> FakeProbes:
    return FakeProbes(readings=reading_of(gpu_reading(0), gpu_reading(1)))


def test_chosen_ones_are_held_until_the_block_ends(store: LockDirectory) -> None:
    with hold_devices((), ChoiceRequest(count=2), HOLD, soft=False, probes=machine()) as devices:
        held = list_claims(store).claims
        assert {claim.uuid for claim in held} == {device.uuid for device in devices}
        assert held[0].command

        with (
            pytest.raises(BadAnswerError, match="1 GPU is asked for and 0 fit"),
            hold_devices((), ChoiceRequest(), HOLD, soft=False, probes=machine()),
        ):
            pass

    assert list_claims(store).claims == ()


def test_an_error_in_the_block_frees_them(store: LockDirectory) -> None:
    def work() -> None:
        with hold_devices(("/gpu:1",), None, HOLD, soft=False, probes=machine()) as (device,):
            assert device.cuda_index == 1
            raise KeyError(device.uuid)

    with pytest.raises(KeyError):
        work()

    assert list_claims(store).claims == ()


def test_the_cpu_is_never_held(store: LockDirectory) -> None:
    failure = ProbeFailure(code="library-not-found", message="none")
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    with hold_devices(("/gpu:0",), None, HOLD, soft=True, probes=probes) as (device,):
        assert device.kind == "CPU"
    assert not store.exists()


def test_a_hung_driver_is_said(store: LockDirectory) -> None:
    failure = ProbeFailure(code="driver-not-answering", message="none")
    probes = FakeProbes(readings=NvmlReading(failure=failure))

    with (
        pytest.raises(InconclusiveError),
        hold_devices(("/gpu:0",), None, HOLD, soft=True, probes=probes),
    ):
        pass
    assert "close" in probes.asked


@pytest.mark.parametrize(
    ("specs", "options"),
    [
        (("/gpu:0",), {"count": 1}),
        ((), {"count": 0}),
        ((), {"count": None, "prefer": "best"}),
        ((), {"count": None, "min_free": "much"}),
        ((), {"count": None, "share": 0}),
    ],
)
def test_wrong_use(specs: tuple[str, ...], options: dict[str, object]) -> None:
    with pytest.raises(WrongUseError):
        request_of(specs, **options)  # type: ignore[arg-type]


def test_without_anything_one_gpu_is_chosen() -> None:
    request = request_of((), count=None)

    assert request is not None
    assert request.count == 1
    assert request_of(("/gpu:0",), count=None) is None


def test_the_public_function_has_the_options_of_the_command() -> None:
    options = set(inspect.signature(gpucheck.place).parameters)

    assert options >= {"specs", "count", "min_free", "prefer", "share", "wait", "timeout_s"}
