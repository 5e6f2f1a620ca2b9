"""Remedies for a framework: a build that serves the GPUs, in the checked Python."""

from __future__ import annotations

import json
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
from tests.fakes.probes import IN_DOCKER, FakeProbes, gpu_reading, reading_of

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


def test_what_was_not_looked_at_is_not_well() -> None:
    build = BuildReading(name="cupy", version="14.2.0", gpu_build=True, unchecked="no loader")

    finding = told(machine("9.0"), build)

    assert finding.status is CheckStatus.UNKNOWN
    assert "its libraries were not checked" in finding.summary


# ------------------------------------------------------------------------------ which build


@pytest.mark.parametrize(
    ("capabilities", "driver", "steps"),
    [
        (("7.0",), "580.95.05", ("Install a build for GPUs: ", "cu126")),
        (
            ("6.1", "12.0"),
            "580.95.05",
            (
                "Install a build for GPUs (this build has no code for compute capability 6.1;"
                " PyTorch 2.14 for CUDA 12.6 has it, but none for 12.0, and no build serves"
                " both): ",
                "cu130",
            ),
        ),
    ],
)
def test_the_step_installs_the_build_that_the_table_gives(
    capabilities: tuple[str, ...], driver: str | None, steps: tuple[str, str]
) -> None:
    note, index = steps

    (step, *_) = told(machine(*capabilities, driver=driver), FOR_CPUS[0]).remedy

    command = f"pip uninstall -y torch; pip install torch --index-url https://download.pytorch.org/whl/{index}"
    assert step == f"{note}{command}"


def test_cards_that_are_known_without_a_driver() -> None:
    bus = KernelReading(pci_devices=(PciDeviceReading("0000:01:00.0", "0x10de", "0x1db1"),))
    where = Machine(FakeProbes(kernel_reading=bus))

    (step, *_) = told(where, FOR_CPUS[0]).remedy

    assert step.startswith("Install a build for GPUs (it needs driver 525.60.13 or newer): ")
    assert step.endswith("whl/cu126")


def test_a_driver_that_is_too_old_for_every_build_is_upgraded() -> None:
    build = BuildReading(name="pytorch", version="2.15.0", cuda_build="13.2", gpu_build=True)

    assert told(machine("9.0", driver="450.80.02"), build).remedy == (
        "Upgrade the driver: PyTorch 2.14 for CUDA 12.6 (cu126) needs driver 525.60.13 or newer.",
    )
    either = (
        "Either upgrade the driver, or install a build that runs with this one: pip uninstall -y"
        " torch; pip install torch --index-url https://download.pytorch.org/whl/cu126"
    )
    assert told(machine("9.0", driver="570.26"), build).remedy == (either,)
    build = build._replace(distributions=("torch 2.15.0",))
    broken = build._replace(path="/t", broken=("x.so is not there",))
    assert told(machine("9.0", driver="570.26"), broken).remedy == (
        either,
        "If you keep this build: reinstall the packages of the damaged files:"
        " pip install --force-reinstall --no-deps torch==2.15.0",
    )


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


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_say_which_gpu_is_left_out(name: str) -> None:
    build = BuildReading(name=name, version="1.0", gpu_build=False)
    where = machine("5.0", "12.0")

    steps = " ".join(told(where, build).remedy)

    # For Maxwell and Blackwell together these have a build: TensorFlow an old one, with PTX.
    assert ("5.0" in steps) is (name not in ("cupy", "numba", "tensorflow"))


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


@pytest.mark.parametrize(
    ("name", "packages", "step"),
    [
        (
            "onnxruntime",
            ("onnxruntime-gpu 1.31.1", "onnxruntime 1.31.1"),
            "pip uninstall -y onnxruntime-gpu onnxruntime;"
            " pip install 'onnxruntime-gpu[cuda,cudnn]'",
        ),
        (
            "tensorflow",
            ("tensorflow 2.21.0", "tensorflow-cpu 2.21.0"),
            "pip uninstall -y tensorflow tensorflow-cpu; pip install 'tensorflow[and-cuda]'",
        ),
        (
            "cupy",
            ("cupy-cuda13x 14.2.0", "cupy-cuda12x 14.2.0"),
            "pip uninstall -y cupy-cuda13x cupy-cuda12x; pip install 'cupy-cuda13x[ctk]'",
        ),
    ],
)
def test_of_two_packages_with_the_same_files_both_are_removed_first(
    name: str, packages: tuple[str, ...], step: str
) -> None:
    note = "both are installed and overwrite each other"
    build = BuildReading(
        name=name,
        version="1",
        gpu_build=True,
        distributions=packages,
        notes=(note,),
        missing_libraries=("libx.so",),
        broken=("its provider is not there",),
    )

    finding = told(machine("9.0"), build)

    assert finding.cause == "twice-installed"
    assert finding.remedy == (f"Remove both, and install one: {step}",)


def test_a_problem_names_the_python_that_has_it() -> None:
    finding = told(machine("9.0"), FOR_CPUS[0], named_by="CONDA_PREFIX")

    (where,) = [each.value for each in finding.evidence if each.source == "checked in"]
    assert where == "/some where/python, by CONDA_PREFIX"


def lacking(name: str, **facts: Any) -> BuildReading:
    (build,) = [each for each in LACKING if each.name == name]
    return build._replace(**facts)


@pytest.mark.parametrize(
    ("build", "step"),
    [
        (
            lacking("pytorch", distributions=("torch 2.13.0+cu126",)),
            "Install what it requires: pip install torch",
        ),
        (
            lacking("pytorch", owners=("nvidia-cudnn-cu13 9.26.0.51",)),
            "Reinstall the packages that have lost them: pip install --force-reinstall --no-deps"
            " nvidia-cudnn-cu13==9.26.0.51",
        ),
        (
            lacking("jax", version="0.10.2"),
            "Install them with the plugin: pip install 'jax[cuda12]==0.10.2'",
        ),
        # The same build as `detect --wheel numba` names: 580.95.05 runs CUDA 13.
        (
            lacking("numba", cuda_build=None, not_searched=("/usr/local/cuda/lib64",)),
            "Either let the loader search it (export LD_LIBRARY_PATH=/usr/local/cuda/lib64), or set"
            " CUDA_HOME to a CUDA toolkit, or install Numba's CUDA target:"
            " pip install 'numba-cuda[cu13]'",
        ),
    ],
    ids=["none", "owned", "jax", "numba"],
)
def test_missing_libraries_are_installed_for_the_build_that_is_there(
    build: BuildReading, step: str
) -> None:
    assert told(machine("9.0"), build).remedy == (step,)


def test_a_broken_build_of_an_index_of_its_own_is_reinstalled_from_there() -> None:
    build = BuildReading(
        name="pytorch", distributions=("torch 2.13.0+cu126",), broken=("x.so is not there",)
    )

    assert told(machine("9.0"), build).remedy == (
        "Reinstall the packages of the damaged files: pip install --force-reinstall --no-deps"
        " torch==2.13.0+cu126 --index-url https://download.pytorch.org/whl/cu126",
    )


def test_damaged_and_deleted_files_are_reinstalled_together() -> None:
    owners = ("torch 2.13.0", "nvidia-cudnn-cu12 9.10")
    build = lacking("pytorch", path="/t", broken=("x.so is not there",), owners=owners)

    finding = told(machine("9.0"), build)

    assert "libx.so" in finding.summary
    assert finding.remedy == (
        "Reinstall the packages of the damaged files: pip install --force-reinstall --no-deps"
        " torch==2.13.0 nvidia-cudnn-cu12==9.10",
    )


def test_wheels_for_two_cudas_are_named_and_those_of_its_own_kept() -> None:
    rivals = ("nvidia-cudnn-cu12 9.10", "nvidia-cudnn-cu13 9.26")
    build = BuildReading(
        name="pytorch", version="2.15.0", cuda_build="13.2", gpu_build=True, rivals=rivals
    )

    found = told(machine("9.0", driver="595.45.04"), build)

    assert found.cause == "twice-installed"
    assert "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 are installed together" in found.summary
    assert found.remedy[0].endswith(
        ": pip uninstall -y nvidia-cudnn-cu12 nvidia-cudnn-cu13;"
        " pip install --no-deps nvidia-cudnn-cu13==9.26"
    )


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("0.10.2", "pip install 'jax[cuda13]==0.10.2'"),
        ("0.10.2+local", "pip install -U 'jax[cuda13]'"),
        ("0.6.2", "pip install -U 'jax[cuda13]'"),  # it has no cuda13
    ],
)
def test_jax_keeps_its_version(version: str, command: str) -> None:
    build = BuildReading(
        name="jax", version=version, gpu_build=False, distributions=(f"jax {version}",)
    )

    assert told(machine("9.0"), build).remedy == (f"Install the plugin: {command}",)


def test_the_package_that_ended_is_named() -> None:
    packages = ("tensorflow-gpu 2.12.0",)
    build = BuildReading(name="tensorflow", version="2.12.0", distributions=packages, broken=("x",))

    found = told(machine("9.0"), build)

    assert found.cause == "package-ended"
    assert "tensorflow-gpu, a package that ended with version 2.12" in found.summary
    assert found.remedy == (
        "Install TensorFlow's own package: pip uninstall -y tensorflow-gpu;"
        " pip install 'tensorflow[and-cuda]'",
    )


def test_a_build_that_this_python_cannot_have_is_said() -> None:
    where = machine("9.0")
    where.builds = BuildsReading(
        python="/p", python_version="3.10.13", builds=(FOR_CPUS[2]._replace(version="0.6.2"),)
    )

    assert CHECKS["jax"].check(where).remedy == (  # type: ignore[union-attr]
        "Install the plugin (it needs Python 3.12 to 3.14): pip install -U 'jax[cuda13]'",
    )


def test_conda_s_build_is_replaced_by_conda() -> None:
    where = machine("9.0")
    build = BuildReading(name="cupy", version="14", gpu_build=False, from_conda=True)
    where.builds = BuildsReading(python="/p", builds=(build,), installers=("conda", "pip"))

    (step,) = CHECKS["cupy"].check(where).remedy  # type: ignore[union-attr]

    assert step.endswith(": conda install -c conda-forge cupy cuda-version=13")


@pytest.mark.parametrize(
    ("cuda", "architectures", "mismatch"),
    [
        ("11.4", (), "CUDA 11.4 is older than this architecture"),
        ("13.0", (), None),
        ("11.4", ("sm_90",), None),
        ("11.4", ("sm_80",), "this build has code only for sm_80"),
    ],
)
def test_a_cuda_older_than_the_card_is_judged_where_the_build_does_not_say_what_it_has(
    cuda: str, architectures: tuple[str, ...], mismatch: str | None
) -> None:
    build = BuildReading(
        name="cupy", version="1", gpu_build=True, cuda_build=cuda, architectures=architectures
    )

    found = told(machine("9.0"), build)

    assert found.cause == (mismatch and "no-code-for-the-gpu")
    assert mismatch is None or mismatch in found.summary


def test_kernels_that_are_compiled_at_their_first_use_are_said() -> None:
    build = BuildReading(
        name="cupy", version="1", gpu_build=True, architectures=("sm_80", "compute_80")
    )

    assert "without native code for compute capability 9.0" in told(machine("9.0"), build).summary
    assert "without native code" not in told(machine("8.0"), build).summary


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


@pytest.mark.parametrize(
    ("build", "cause", "summary"),
    [
        ({"gpu_build": None}, "build-not-known", "whether CuPy 1 is a GPU build is unknown"),
        ({"gpu_build": True}, None, "CuPy 1 is a GPU build"),
        ({"gpu_build": True, "cuda_build": "12"}, None, "CuPy 1 is a GPU build for CUDA 12"),
    ],
)
def test_what_the_files_show(build: dict[str, Any], cause: str | None, summary: str) -> None:
    found = told(machine("9.0"), BuildReading(name="cupy", version="1", **build))

    assert (found.cause, found.summary) == (cause, f"{summary} (--deep tries it)")


# ------------------------------------------------------------------------------ smoke tests


@pytest.mark.parametrize(
    ("test", "evidence", "cause"),
    [
        ({"sees_gpu": False}, ("devices that pytorch lists", "none"), "lists-no-gpu"),
        (
            {"sees_gpu": True, "devices": ("cuda:0", "cuda:1")},
            ("devices that pytorch lists", "cuda:0, cuda:1"),
            "fails-on-the-gpu",
        ),
        (
            {"sees_gpu": True, "devices": ("cuda:0",), "error": "no kernel image"},
            ("pytorch itself", "no kernel image"),
            "fails-on-the-gpu",
        ),
    ],
)
def test_a_failed_smoke_test_shows_what_the_framework_said(
    test: dict[str, Any], evidence: tuple[str, str], cause: str
) -> None:
    where = machine("9.0")
    where.cuda = CudaReading(device_count=1)
    trial = TrialReading(name="pytorch", version="2.10.0", computed=False, **test)
    where.smoke_tests = {"pytorch": trial}
    build = BuildReading(
        name="pytorch",
        version="2.10.0",
        cuda_build="13.0",
        gpu_build=True,
        architectures=("sm_90",),
    )

    finding = told(where, build)

    assert (finding.status, finding.cause) == (CheckStatus.WARN, cause)
    assert evidence in finding.evidence


CUT = BuildReading(
    name="pytorch",
    version="2.15.0",
    cuda_build="13.2",
    gpu_build=True,
    broken=("libcublas.so.13 is cut: 1 bytes of 2",),
    owners=("nvidia-cublas 13.1",),
)


def tried(code: str, driver: str | None = "595.45.04", framework: str | None = None) -> Machine:
    where = machine("9.0", driver=driver)
    where.request = DetectRequest(framework=framework)
    failure = ProbeFailure(code=code, message="its process was ended by SIGBUS")
    where.smoke_tests = {"pytorch": TrialReading(name="pytorch", failure=failure)}
    return where


def test_a_framework_that_crashes_is_an_answer() -> None:
    finding = told(tried("crashes", framework="pytorch"), CUT)

    assert (finding.status, finding.cause) == (CheckStatus.FAIL, "installation-broken")
    assert "libcublas.so.13 is cut" in finding.summary
    assert finding.summary.endswith("its process was ended by SIGBUS")
    assert len(finding.remedy) == 1
    assert finding.remedy[0].endswith("nvidia-cublas==13.1")


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


def test_a_trial_that_took_too_long_leaves_it_open_and_keeps_what_the_files_show() -> None:
    finding = told(tried("import-not-finished", framework="pytorch"), CUT)

    assert (finding.status, finding.cause) == (CheckStatus.UNKNOWN, "import-not-finished")
    assert "libcublas.so.13 is cut" in finding.summary


def test_the_driver_is_fixed_first() -> None:
    where = machine("9.0")
    where.cuda = CudaReading(failure=ProbeFailure(code="library-not-found", message="none"))
    where.smoke_tests = {"pytorch": TrialReading(name="pytorch", sees_gpu=False)}

    finding = told(where, FOR_CPUS[0])

    assert finding.cause == "built-for-cpus"
    assert finding.remedy[0] == "Fix the driver first: gpucheck detect"
