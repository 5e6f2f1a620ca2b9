"""Remedies for a framework: a build that serves the GPUs, in the checked Python."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpucheck.detect.checks.frameworks import FRAMEWORKS, NAMES
from gpucheck.detect.machine import DetectRequest, Machine
from gpucheck.detect.model import Detection, Finding
from gpucheck.detect.run import detect
from gpucheck.drivers.evidence import BuildReading, BuildsReading, TrialReading
from gpucheck.drivers.readings import (
    CudaReading,
    KernelReading,
    PciDeviceReading,
    ProbeFailure,
)
from gpucheck.report.codec import from_plain
from gpucheck.report.envelope import CheckStatus
from gpucheck.report.errors import ExitCode
from tests.detect.checks.situations import show_findings
from tests.fakes.probes import IN_DOCKER, FakeProbes, gpu_reading, reading_of
from tests.report.formats.recorded import in_sections, recorded

DATA = Path(__file__).parents[1] / "data"
#: A GPU of which neither NVML nor the table of boards tells the compute capability.
UNKNOWN: dict[str, Any] = {"compute_capability": None, "pci_device_id": None}
CHECKS = {each.ID: each for each in FRAMEWORKS}
#: For CPUs only, and lacking a library: what every framework can be told to install.
FOR_CPUS = [BuildReading(name=name, version="1.0", gpu_build=False) for name in NAMES]
LACKING = [
    BuildReading(
        name=name, version="1.0", cuda_build="12", gpu_build=True, missing_libraries=("libx.so",)
    )
    for name in NAMES
]


def machine(*capabilities: str | None, driver: str | None = "580.95.05") -> Machine:
    gpus = (
        gpu_reading(number, compute_capability=capability)
        for number, capability in enumerate(capabilities)
    )
    return Machine(FakeProbes(readings=reading_of(*gpus, driver_version=driver)))


def told(where: Machine, build: BuildReading, *, named_by: str | None = None) -> Finding:
    where.builds = BuildsReading(python="/some where/python", builds=(build,), named_by=named_by)
    found = CHECKS[build.name].check(where)
    assert isinstance(found, Finding)
    return found


def finding_of(written: dict[str, Any]) -> Finding:
    """Return what is said of a row of the table."""
    row = {name: None if value == "null" else value for name, value in written.items()}
    name = row["name"]
    where = machine(*row.pop("gpus", ["9.0"]), driver=row.pop("driver", "580.95.05"))
    where.request = DetectRequest(framework=name if row.pop("asked_for", False) else None)
    if "cuda_devices" in row:
        where.cuda = CudaReading(device_count=row.pop("cuda_devices"))
    if "cuda_fails" in row:
        where.cuda = CudaReading(failure=ProbeFailure(row.pop("cuda_fails"), "none"))
    if "no_gpu" in row:
        where.absence = row.pop("no_gpu")
    if "trial" in row:
        where.smoke_tests = {name: from_plain(TrialReading, {"name": name} | row.pop("trial"))}
    where.builds = BuildsReading(
        python="/some where/python",
        python_version=row.pop("python_version", None),
        named_by=row.pop("named_by", None),
        installers=tuple(row.pop("installers", BuildsReading().installers)),
        builds=(from_plain(BuildReading, row),),
    )
    found = CHECKS[name].check(where)
    assert isinstance(found, Finding)
    return found


def test_what_is_said_of_each_build_is_as_recorded() -> None:
    table = tomllib.loads((DATA / "framework_builds.toml").read_text(encoding="utf-8"))
    findings = {name: finding_of(row) for name, row in table.items()}
    text = in_sections({name: show_findings([found]) for name, found in findings.items()})

    assert text == recorded("framework-builds", text)
    for found in findings.values():
        bad = found.status in (CheckStatus.WARN, CheckStatus.FAIL)
        assert not bad or (found.cause and found.remedy)


# ------------------------------------------------------------------------------ real ones

#: The answers of frameworks_child.py about these packages, installed from PyPI on a machine without
#: a GPU and with the CUDA 13.0 toolkit's cudart, cuPTI and NVVM. Of those without a fault it was
#: seen that they import (PyTorch), compile (CuPy, numba-cuda) or load (the others) after that.
INSTALLATIONS = {
    each.pop("installation"): from_plain(BuildReading, each)
    for each in map(
        json.loads, (DATA / "frameworks" / "installations.jsonl").read_text().splitlines()
    )
}
SAID = {
    "torch without its requirements": ("libraries-missing", "libnvshmem_host.so.3"),
    "torch": (None, "is a GPU build for CUDA 13.2"),
    "torch, libtorch_cuda.so deleted": ("installation-broken", "libtorch_cuda.so is not there"),
    "torch, libtorch_cuda.so cut": ("installation-broken", "is cut: 5000000 bytes of 520025889"),
    "torch, its package deleted": ("installation-broken", "package torch of torch 2.15.0 is gone"),
    "tensorflow[and-cuda]": (None, "is a GPU build for CUDA 12.5.1"),
    "tensorflow[and-cuda], cuDNN and nvJitLink deleted": (
        "libraries-missing",
        "libraries are missing: libnvJitLink.so.12, libcudnn.so.9",
    ),
    "jax and its plugin alone": ("libraries-missing", "libcupti.so.12"),
    "jax[cuda12]": (None, "JAX 0.10.2 is a GPU build for CUDA 12"),
    "cupy-cuda12x": ("libraries-missing", "libnvrtc.so.12, libcublas.so.12, vector_types.h"),
    "cupy-cuda12x[ctk]": (None, "is a GPU build for CUDA 12"),
    "onnxruntime-gpu": ("libraries-missing", "libcudnn.so.9, libcufft.so.12"),
    "onnxruntime-gpu[cuda,cudnn]": (None, "preload_dlls()"),
    "onnxruntime over onnxruntime-gpu": ("twice-installed", "overwrite each other"),
    "numba-cuda": ("libraries-missing", "with numba-cuda 0.30.4 cannot use a GPU"),
    "numba-cuda[cu12]": (None, "is a GPU build for CUDA 12"),
}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_a_real_installation_is_judged_as_it_turned_out(name: str) -> None:
    cause, words = SAID[name]

    finding = told(machine("9.0", driver="595.45.04"), INSTALLATIONS[name])

    assert (finding.cause, words in finding.summary) == (cause, True), finding.summary
    assert finding.status is (CheckStatus.OK if cause is None else CheckStatus.WARN)
    assert bool(finding.remedy) is (cause is not None)


# ------------------------------------------------------------------------------ which build


def test_cards_that_are_known_without_a_driver() -> None:
    bus = KernelReading(pci_devices=(PciDeviceReading("0000:01:00.0", "0x10de", "0x1db1"),))
    where = Machine(FakeProbes(kernel_reading=bus))

    (step, *_) = told(where, FOR_CPUS[0]).remedy

    assert step.startswith("Install a build for GPUs (it needs driver 525.60.13 or newer): ")
    assert step.endswith("whl/cu126")


@pytest.mark.parametrize(
    "where",
    [machine(), Machine(FakeProbes(readings=reading_of(gpu_reading(0, **UNKNOWN))))],
    ids=["gpu", "cc"],
)
@pytest.mark.parametrize("build", FOR_CPUS, ids=lambda build: build.name)
def test_nothing_is_guessed_of_what_could_not_be_read(where: Machine, build: BuildReading) -> None:
    steps = " ".join(told(where, build).remedy)

    assert "no GPU here to choose a build for" in steps or "nor which build fits" in steps
    assert "whl/" not in steps


# ------------------------------------------------------------------------------ where and how


@pytest.mark.parametrize("build", [*FOR_CPUS, *LACKING], ids=lambda build: build.name)
def test_a_container_s_python_is_in_the_container(build: BuildReading) -> None:
    probes = FakeProbes(
        machine=IN_DOCKER,
        readings=reading_of(gpu_reading(0), driver_version="580.95.05"),
        builds_reading=BuildsReading(python="/usr/bin/python3", builds=(build,)),
    )

    answer = detect(probes, DetectRequest(only=(build.name,)))

    assert isinstance(answer.result, Detection)
    (finding,) = answer.result.checks
    assert any("pip install" in step for step in finding.remedy)
    assert not any(step.startswith("On the host") for step in finding.remedy)


@pytest.mark.parametrize(
    ("named_by", "own"), [("--python", True), ("gpucheck", True), ("PATH", False), (None, False)]
)
def test_the_pip_is_that_of_the_python(named_by: str | None, own: bool) -> None:
    for build in (*FOR_CPUS, *LACKING):
        (first, *_) = told(machine("9.0"), build, named_by=named_by).remedy

        assert ("'/some where/python' -m pip install" in first) is own, build.name
        assert "pip install" in first


@pytest.mark.parametrize("gpu_build", [True, False])
def test_a_framework_has_a_reason_only_where_it_is_not_well(*, gpu_build: bool) -> None:
    build = BuildReading(name="cupy", version="1", gpu_build=gpu_build)
    probes = FakeProbes(readings=reading_of(gpu_reading(0, compute_capability="9.0")))
    probes.builds_reading = BuildsReading(python="/v/bin/python", builds=(build,))

    result = detect(probes, DetectRequest(only=("framework",))).result

    assert isinstance(result, Detection)
    (framework,) = result.frameworks
    (finding,) = [each for each in result.checks if each.id == "cupy"]
    assert framework.reason == (None if gpu_build else finding.summary)


def test_a_silent_interpreter_is_said_once() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0)),
        builds_reading=BuildsReading(python="/x", unavailable="/x gave no answer"),
    )

    answer = detect(probes, DetectRequest(only=("framework",), python="/x"))

    assert isinstance(answer.result, Detection)
    (layer,) = answer.result.layers
    assert layer.summary == "not checked: /x gave no answer"
    assert {finding.summary for finding in answer.result.checks} == {layer.summary}
    assert answer.result.interpreter == "/x"


@pytest.mark.parametrize(
    ("request_", "silent"),
    [
        (DetectRequest(only=("framework",), python="/x"), len(NAMES)),
        (DetectRequest(only=("framework",), framework="pytorch"), 1),
        (DetectRequest(only=("framework",)), 0),
    ],
)
def test_a_silent_interpreter_is_unknown_to_who_named_it(
    request_: DetectRequest, silent: int
) -> None:
    builds = BuildsReading(python="/x", unavailable="/x gave no answer")
    probes = FakeProbes(readings=reading_of(gpu_reading(0)), builds_reading=builds)

    found = detect(probes, request_).result

    assert isinstance(found, Detection)
    told = [(check.status, check.cause) for check in found.checks if check.id in NAMES]
    unknown = [(CheckStatus.UNKNOWN, "interpreter-silent")] * silent
    assert told == unknown + [(CheckStatus.SKIP, None)] * (len(NAMES) - silent)


def test_the_layer_names_the_python() -> None:
    build = BuildReading(name="pytorch", version="2.13.0", cuda_build="13.0", gpu_build=True)
    reading = BuildsReading(python="/v/bin/python", builds=(build,), named_by="VIRTUAL_ENV")
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0), driver_version="580.95.05"), builds_reading=reading
    )

    for builds, said in (
        (reading, "(in /v/bin/python, by VIRTUAL_ENV)"),
        (reading._replace(named_by="gpucheck"), "(in /v/bin/python, gpucheck's own)"),
        (reading._replace(builds=()), "none in /v/bin/python (by VIRTUAL_ENV; --python PATH"),
    ):
        probes.builds_reading = builds
        answer = detect(probes, DetectRequest(only=("framework",)))
        assert isinstance(answer.result, Detection)
        assert said in answer.result.layers[0].summary
        assert answer.result.interpreter_named_by == builds.named_by


# ------------------------------------------------------------------------------ smoke tests


CUT = BuildReading(
    name="pytorch",
    version="2.15.0",
    cuda_build="13.2",
    gpu_build=True,
    broken=("libcublas.so.13 is cut: 1 bytes of 2",),
    owners=("nvidia-cublas 13.1",),
)


def test_a_crash_is_the_headline_of_who_asked_for_the_framework() -> None:
    probes = FakeProbes(
        readings=reading_of(gpu_reading(0), driver_version="595.45.04"),
        cuda_reading=CudaReading(device_count=1),
    )
    build = CUT._replace(broken=(), owners=())
    probes.builds_reading = BuildsReading(python="/p", builds=(build,))
    failure = ProbeFailure(code="crashes", message="its process was ended by SIGBUS")
    probes.trials = {"pytorch": TrialReading(name="pytorch", failure=failure)}

    answer = detect(probes, DetectRequest(framework="torch"))

    assert isinstance(answer.result, Detection)
    assert answer.exit_code == ExitCode.BAD
    assert "PyTorch 2.15.0 cannot use a GPU: its process was ended by" in answer.result.conclusion
    assert (answer.result.cause, answer.result.cause_check) == ("crashes", "pytorch")
