"""The first broken layer in one call, for the error of another program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpucheck
from gpucheck.detect.model import Layer
from gpucheck.drivers.evidence import BuildReading, BuildsReading
from gpucheck.drivers.readings import CudaReading, ProbeFailure
from gpucheck.integrations import diagnose as module
from gpucheck.integrations.diagnose import Diagnosis, HurriedProbes, diagnosis_of, look
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import MissingError, WrongUseError
from tests.architecture.house import ROOT
from tests.conftest import scrubbed_environment
from tests.detect.test_run import HUNG, TORCH, machine
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.probes import FakeProbes
from tests.fakes.tree import write_tree

PYTHON = "/usr/bin/python3"
FOR_CPUS = BuildReading(name="pytorch", version="2.13.0", gpu_build=False)


def found_on(probes: FakeProbes, framework: str | None = None) -> Diagnosis | None:
    return diagnosis_of(look(probes, framework, python=PYTHON))


def with_builds(*builds: BuildReading) -> FakeProbes:
    return machine(builds_reading=BuildsReading(python=PYTHON, builds=builds))


def test_nothing_where_a_gpu_can_be_used() -> None:
    probes = machine()

    assert found_on(probes) is None
    # The caller may hold all of the memory.
    assert not {"launch", "builds"} & set(probes.asked)


def test_the_first_broken_layer_with_its_remedies() -> None:
    failure = ProbeFailure(code="no-device", message="no device", library_code=100)

    found = found_on(machine(cuda_reading=CudaReading(failure=failure)))

    assert found is not None
    assert (found.status, found.layer, found.check) == (
        CheckStatus.FAIL,
        Layer.CUDA_DRIVER,
        "cuda-driver",
    )
    assert found.message.startswith("GPU not usable: ")
    assert found.message.endswith(".")
    assert found.remedy
    assert str(found).splitlines() == [
        found.message,
        *(f"  {step}" for step in found.remedy),
        "  Details: gpucheck detect",
    ]


def test_a_driver_that_does_not_answer_is_unknown_and_not_well() -> None:
    found = found_on(machine(cuda_reading=CudaReading(failure=HUNG)))

    assert found is not None
    assert (found.status, found.layer) == (CheckStatus.UNKNOWN, Layer.CUDA_DRIVER)


def test_a_framework_is_judged_where_it_is_asked_for() -> None:
    found = found_on(with_builds(FOR_CPUS), "pytorch")

    assert found is not None
    assert (found.status, found.layer, found.check, found.cause) == (
        CheckStatus.FAIL,
        Layer.FRAMEWORK,
        "pytorch",
        "built-for-cpus",
    )
    assert "built for CPUs only" in found.message
    assert found_on(with_builds(FOR_CPUS)) is None
    assert found_on(with_builds(FOR_CPUS), "cupy") is None


def test_a_good_build_and_one_that_is_not_there_are_no_problem() -> None:
    assert found_on(with_builds(TORCH), "pytorch") is None
    assert found_on(with_builds(), "pytorch") is None


def test_a_build_that_cannot_be_read_is_unknown() -> None:
    silent = BuildsReading(python=PYTHON, unavailable="it did not answer")

    found = found_on(machine(builds_reading=silent), "cupy")

    assert found is not None
    assert (found.status, found.check) == (CheckStatus.UNKNOWN, "cupy")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (MissingError(code="x", message="Only Linux is known.", remedy=("Go.",)), "Only Linux"),
    ],
)
def test_what_goes_wrong_here_does_not_hide_the_caller_s_error(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, "look", fail)

    found = gpucheck.diagnose()

    assert found is not None
    assert (found.status, found.layer) == (CheckStatus.UNKNOWN, None)
    assert message in found.message
    assert found.remedy == getattr(error, "remedy", ())


def test_a_framework_is_a_name() -> None:
    with pytest.raises(WrongUseError, match="framework takes a name such as 'pytorch', not 3"):
        gpucheck.diagnose(framework=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_is_above_zero_and_finite(deadline_s: float) -> None:
    with pytest.raises(WrongUseError):
        gpucheck.diagnose(deadline_s=deadline_s)


def test_an_unknown_framework_is_wrong_use() -> None:
    with pytest.raises(WrongUseError, match="'tensorflo'"):
        gpucheck.diagnose("tensorflo")


@pytest.mark.parametrize(
    ("module_of_error", "framework"),
    [("torch.cuda", "pytorch"), ("cupy_backends.x", None), ("tensorflow.python", "tensorflow")],
)
def test_an_exception_stands_for_the_framework_that_raised_it(
    module_of_error: str, framework: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str | None] = []
    monkeypatch.setattr(module, "look", lambda _, name, **__: looked_at.append(name))
    monkeypatch.setattr(module, "diagnosis_of", lambda _: None)
    error = type("OutOfMemoryError", (RuntimeError,), {"__module__": module_of_error})()

    gpucheck.diagnose(error)

    assert looked_at == [framework]


def test_all_waits_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    probes = HurriedProbes(20.0)
    asked = [probes.deadline_s()]
    now_s = 112.34
    asked.append(probes.deadline_s())
    read: list[float] = []
    monkeypatch.setattr(
        "gpucheck.drivers.python.frameworks.read_builds",
        lambda *_, deadline_s: read.append(deadline_s),
    )
    probes.builds(PYTHON)
    now_s = 119.5
    asked.append(probes.deadline_s())

    assert (asked, read) == ([20.0, 7.7, 1.0], [7.7])


PROGRAM = """
import sys, threading
import gpucheck
loaded = sorted(name for name in sys.modules if name.startswith("gpucheck."))
from tests import hang_clock
hang_clock.install()
found = []
other = threading.Thread(target=lambda: found.append(gpucheck.diagnose(deadline_s=0.5)))
other.start(); other.join()
print(loaded, found[0].check, found[0].status.value)
"""


@pytest.mark.slow
def test_a_hanging_driver_is_a_diagnosis_in_any_thread(c_compiler: str, tmp_path: Path) -> None:
    hung = load_machine("hung")
    environment = scrubbed_environment(
        {
            "PYTHONPATH": str(ROOT),
            "GPUCHECK_ROOT": str(write_tree(hung, tmp_path / "root")),
            **build_libraries(hung, tmp_path / "libraries"),
        }
    )

    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (finished.stdout.strip(), finished.stderr) == ("[] nvml unknown", "")
