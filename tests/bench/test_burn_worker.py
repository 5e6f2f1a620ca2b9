"""Burn worker: what it sends, when it stops, and why it may not begin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench import burn_worker
from gpucheck.bench.model import Corruption
from gpucheck.bench.workers import worker_environment
from gpucheck.drivers.cupy import device as cupy_device
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError
from tests.fakes.bench import FakeClock, FakeGpu


class CountingProduct:
    """A product that counts its slices, and fails in one of them."""

    notes = ("a smaller edge",)

    def __init__(self, fails_in: int | None = None) -> None:
        self.check = Corruption(device="gpu:0", gpu_uuid=None, dtype="float32")
        self.steps: list[object] = []
        self._fails_in = fails_in

    def begin(self) -> None:
        self.steps.append("begin")

    def run_for(self, seconds: float) -> None:
        self.steps.append(seconds)
        self.check = replace(self.check, products=self.check.products + 1)
        if self.check.products == self._fails_in:
            failure = Failure(code="lost", message="it is lost")
            self.check = replace(self.check, failure=failure)

    def end(self) -> Corruption:
        self.steps.append("end")
        return self.check


@pytest.mark.parametrize(
    ("fails_in", "looks", "slices"), [(None, 2, 2), (None, 0, 0), (1, 5, 1), (3, 3, 3)]
)
def test_each_slice_is_reported_until_it_is_asked_to_stop_or_fails(
    monkeypatch: pytest.MonkeyPatch, fails_in: int | None, looks: int, slices: int
) -> None:
    stops = iter([False] * looks + [True])
    monkeypatch.setattr(burn_worker, "_must_stop", lambda: next(stops))
    product, sent = CountingProduct(fails_in), list[dict[str, Any]]()

    burn_worker._load(product, "NVIDIA H100", sent.append)  # type: ignore[arg-type]

    assert product.steps == ["begin", *[0.5] * slices, "end"]
    assert [one["part"] for one in sent] == ["ready", *["progress"] * slices, "end"]
    assert (sent[0]["name"], sent[0]["notes"]) == ("NVIDIA H100", ("a smaller edge",))
    counts = [one["check"]["products"] for one in sent]
    assert counts == [0, *range(1, slices + 1), slices]


WITH_SHORT_SLICES = """
import sys
from gpucheck.bench import burn_worker
burn_worker._SLICE_S = 0.02
sys.exit(burn_worker.main())
"""


def start(device: str) -> subprocess.Popen[str]:
    order = {"device": device, "size": 64, "seed": 1, "fill": "normal", "held": None}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", WITH_SHORT_SLICES, json.dumps(order)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=worker_environment(os.environ),
    )  # fmt: skip


def test_the_processor_is_loaded_until_its_parent_has_gone() -> None:
    with start("cpu") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready, progress = (json.loads(process.stdout.readline()) for _ in range(2))
        process.stdin.close()
        rest = [json.loads(line) for line in process.stdout]

    assert process.returncode == 0
    assert (ready["part"], progress["part"], rest[-1]["part"]) == ("ready", "progress", "end")
    assert ready["name"]
    assert (ready["check"]["device"], ready["check"]["failure"]) == ("cpu", None)
    assert progress["check"]["products"] >= 1
    assert (rest[-1]["check"]["mismatches"], rest[-1]["check"]["failure"]) == (0, None)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list: what it is given next is opened, and which GPUs were asked for."""
    found: list[Any] = []

    def open_gpus(indices: list[int]) -> OpenedGpus:
        found.append(indices)
        given: OpenedGpus = found[0]
        return given

    monkeypatch.setattr(cupy_device, "open_gpus", open_gpus)
    return found


@pytest.mark.parametrize(
    ("found", "error", "code", "message", "remedy"),
    [
        (OpenedGpus(), MissingError, "no-gpu", "there is no gpu:12", ("Run: gpucheck detect",)),
        (
            OpenedGpus(unavailable="no driver", remedy=("do it",)),
            MissingError, "no-gpu", "no driver", ("do it",),
        ),
        (
            OpenedGpus(unavailable="held", busy=True),
            InconclusiveError, "gpu-busy", "held", ("Run: gpucheck detect",),
        ),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_opened_has_its_reason(
    opened: list[Any],
    found: OpenedGpus,
    error: type[GpucheckError],
    code: str,
    message: str,
    remedy: tuple[str, ...],
) -> None:
    opened.append(found)

    with pytest.raises(error) as caught:
        burn_worker._gpu("gpu:12")

    assert (caught.value.code, caught.value.message, caught.value.remedy) == (code, message, remedy)
    assert opened[1:] == [[12]]


def test_the_named_gpu_is_loaded(opened: list[Any]) -> None:
    gpu = FakeGpu(FakeClock())
    opened.append(OpenedGpus(devices=(gpu,)))
    order = {"device": "gpu:0", "size": 64, "seed": 1, "fill": "normal", "held": None}

    product, name = burn_worker._open(order)

    assert (name, product.check.device) == (gpu.facts.name, "gpu:0")


def test_an_error_is_the_last_document(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(order: object) -> None:
        raise MissingError(code="no-gpu", message="none", remedy=("a", "b"))

    monkeypatch.setattr(burn_worker, "_open", refuse)
    monkeypatch.setattr(sys, "argv", ["x", "{}"])
    kept = os.dup(1)
    try:
        code = burn_worker.main()
    finally:
        os.dup2(kept, 1)
        os.close(kept)

    assert code == 0
    assert json.loads(capfd.readouterr().out) == {
        "part": "failure", "exit_code": 4, "code": "no-gpu", "message": "none", "remedy": ["a", "b"]
    }  # fmt: skip
