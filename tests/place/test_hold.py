"""`gpucheck.place()`: GPUs for a Python program, held as long as its block lasts."""

from __future__ import annotations

import inspect
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import gpucheck
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.place.claim_files import DIRECTORY_VARIABLE
from gpucheck.place.claim_list import list_claims
from gpucheck.place.claim_store import LockDirectory
from gpucheck.place.hold import hold_devices, request_of
from gpucheck.place.model import ChoiceRequest
from gpucheck.place.picking import Wish
from gpucheck.report.errors import BadAnswerError, InconclusiveError, WrongUseError
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
            pytest.raises(BadAnswerError, match="1 GPU was requested, but none fits"),
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


def test_a_block_inside_a_block_gets_other_gpus(store: LockDirectory) -> None:
    with (
        hold_devices((), ChoiceRequest(), HOLD, soft=False, probes=machine()) as (outer,),
        hold_devices((), ChoiceRequest(), HOLD, soft=False, probes=machine()) as (inner,),
    ):
        assert outer.uuid != inner.uuid

    assert list_claims(store).claims == ()


def test_threads_get_different_gpus(store: LockDirectory) -> None:
    wait = replace(HOLD, wait=True)
    present: list[str | None] = []
    most: list[int] = []

    def work() -> None:
        with hold_devices((), ChoiceRequest(), wait, soft=False, probes=machine()) as (device,):
            present.append(device.uuid)
            most.append(present.count(device.uuid))
            present.remove(device.uuid)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most == [1] * 6
    assert list_claims(store).claims == ()


@pytest.mark.parametrize("wait", [False, True])
def test_no_descriptor_is_left_open(store: LockDirectory, wait: bool) -> None:
    wish = replace(HOLD, wait=wait, timeout_s=0.0 if wait else None)

    def work() -> None:
        with hold_devices((), ChoiceRequest(), wish, soft=False, probes=machine()):
            with (
                pytest.raises(BadAnswerError),
                hold_devices((), ChoiceRequest(count=2), wish, soft=False, probes=machine()),
            ):
                pass
            with (
                pytest.raises(KeyError),
                hold_devices(("/gpu:1",), None, wish, soft=False, probes=machine()),
            ):
                raise KeyError

    work()
    before = len(list(Path("/proc/self/fd").iterdir()))
    work()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_was_started_in_the_block_does_not_hold_on(store: LockDirectory) -> None:
    with hold_devices((), ChoiceRequest(), HOLD, soft=False, probes=machine()):
        child = subprocess.Popen(["sleep", "60"])
    try:
        assert list_claims(store).claims == ()
    finally:
        child.kill()
        child.wait()


def test_a_function_can_be_decorated(store: LockDirectory) -> None:
    @hold_devices((), ChoiceRequest(count=2), HOLD, soft=False, probes=machine())
    def work() -> int:
        return len(list_claims(store).claims)

    assert [work(), work()] == [2, 2]
    assert list_claims(store).claims == ()


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        (Wish(share=0), "share takes 1 to 256"),
        (Wish(timeout_s=1), "needs wait=True"),
        (Wish(wait=True, timeout_s=-1), "takes seconds, not -1"),
        (Wish(wait=True, timeout_s=float("nan")), "takes seconds, not nan"),
    ],
)
def test_a_wish_that_makes_no_sense(store: LockDirectory, wish: Wish, problem: str) -> None:
    with (
        pytest.raises(WrongUseError, match=problem),
        hold_devices(("/gpu:0",), None, wish, soft=False, probes=machine()),
    ):
        pass
    assert not store.exists()


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
