"""libcuda in a child: the facts by ctypes, every way to fail, and the deadline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.drivers.cuda import client
from gpucheck.drivers.cuda.client import read_cuda, run_kernel
from gpucheck.drivers.evidence import LaunchReading
from gpucheck.drivers.live import LiveProbes
from gpucheck.drivers.python import frameworks
from gpucheck.drivers.readings import CudaReading
from tests.conftest import scrubbed_environment
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine

Ask = Callable[..., CudaReading]


@pytest.fixture
def ask(c_compiler: str, tmp_path: Path) -> Ask:
    """Read libcuda on a machine, with more variables."""

    def read(machine: Machine | str, *, deadline_s: float = 600, **variables: str) -> CudaReading:
        found = load_machine(machine) if isinstance(machine, str) else machine
        environment = scrubbed_environment({**build_libraries(found, tmp_path), **variables})
        return read_cuda(deadline_s=deadline_s, environment=environment)

    return read


def hex_of(uuid: str) -> str:
    return uuid[4:].replace("-", "")


def test_devices_as_libcuda_names_them(ask: Ask) -> None:
    machine = load_machine("h100x8")

    reading = ask(machine)

    assert reading.failure is None
    assert reading.driver_version == machine.driver.cuda_version
    assert reading.device_count == 8
    for device, gpu in zip(reading.devices, machine.gpus, strict=True):
        assert device.uuid_hex == hex_of(gpu.uuid)
        assert device.name == gpu.name
        assert device.pci_bus_id == gpu.pci_bus_id
        assert device.compute_capability == gpu.compute_capability
        assert device.memory_total_bytes == gpu.cuda_memory_total_bytes
        assert device.unavailable == {}


def test_the_fastest_comes_first_unless_told_otherwise(ask: Ask) -> None:
    t4, a100 = load_machine("mixed-order").gpus

    by_speed = ask("mixed-order")
    by_bus = ask("mixed-order", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    second = ask("mixed-order", CUDA_VISIBLE_DEVICES="1")

    assert [device.name for device in by_speed.devices] == [a100.name, t4.name]
    assert [device.name for device in by_bus.devices] == [t4.name, a100.name]
    assert [device.name for device in second.devices] == [t4.name]


def test_a_mig_instance_has_its_own_uuid(ask: Ask) -> None:
    machine = load_machine("a100-mig")
    instance = machine.gpus[0].mig[1]

    (device,) = ask(machine, CUDA_VISIBLE_DEVICES=instance.uuid).devices

    assert device.uuid_hex == hex_of(instance.uuid)


def test_an_old_libcuda_has_only_the_first_form_of_the_uuid(ask: Ask) -> None:
    machine = load_machine("old-driver")
    assert "cuDeviceGetUuid_v2" in machine.driver.missing

    reading = ask(machine)

    assert [device.uuid_hex for device in reading.devices] == [
        hex_of(gpu.uuid) for gpu in machine.gpus
    ]


def test_no_device_keeps_the_version(ask: Ask) -> None:
    reading = ask("t4", CUDA_VISIBLE_DEVICES="")

    assert reading.driver_version == load_machine("t4").driver.cuda_version
    assert reading.failure is not None
    assert (reading.failure.code, reading.failure.library_code) == ("no-device", 100)
    assert reading.failure.function == "cuInit"
    assert "CUDA_ERROR_NO_DEVICE, CUDA 100" in reading.failure.message
    assert reading.devices == ()


def test_no_libcuda(ask: Ask) -> None:
    reading = ask("no-driver")

    assert reading.failure is not None
    assert reading.failure.code == "library-not-found"
    assert reading.failure.library_code is None


@pytest.mark.parametrize(
    ("code", "slug"),
    [(3, "not-initialized"), (802, "system-not-ready"), (999, "unknown"), (12345, "error")],
)
def test_a_failing_initialisation(ask: Ask, code: int, slug: str) -> None:
    reading = ask(load_machine("t4").broken(fail=[f"cuInit {code}"]))

    assert reading.failure is not None
    assert (reading.failure.code, reading.failure.library_code) == (slug, code)
    assert f"CUDA {code})" in reading.failure.message


def test_a_device_that_refuses_one_question_answers_the_others(ask: Ask) -> None:
    machine = load_machine("t4").with_gpus(2).broken(fail=["cuDeviceGetName gpu=1 999"])

    first, second = ask(machine).devices

    assert first.name == machine.gpus[0].name
    assert second.name is None
    assert "CUDA 999)" in second.unavailable["name"]
    assert second.uuid_hex == hex_of(machine.gpus[1].uuid)


def test_a_hang_is_given_up(ask: Ask) -> None:
    reading = ask(load_machine("t4").broken(hang=["cuInit"]), deadline_s=0.2)

    assert reading.failure is not None
    assert reading.failure.code == "driver-not-answering"
    assert reading.failure.message == "the CUDA driver did not answer within 0.2 s"


def test_a_crash_is_told(c_compiler: str, tmp_path: Path) -> None:
    source = tmp_path / "crash.c"
    source.write_text("int cuDriverGetVersion(int *v) { return *(volatile int *)0 + *v; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([c_compiler, "-shared", "-fPIC", "-o", library, source], check=True)

    environment = scrubbed_environment({"LD_LIBRARY_PATH": str(tmp_path)})
    reading = read_cuda(deadline_s=600, environment=environment)

    assert reading.failure is not None
    assert reading.failure.code == "cuda-child-died"
    assert "was ended by SIGSEGV" in reading.failure.message


# -------------------------------------------------------------------------------- kernel self-test


NUMPY_LIKE = """
import types

class _Array(list):
    def __mul__(self, by): return _Array(x * by for x in self)
    def __add__(self, by): return _Array(x + by + WRONG for x in self)
    def get(self): return self

class _Device:
    def __init__(self, ordinal): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass

WRONG = 0
uint32 = int
def arange(count, dtype): return _Array(range(count))
_null = types.SimpleNamespace(synchronize=lambda: None)
cuda = types.SimpleNamespace(
    runtime=types.SimpleNamespace(getDeviceCount=lambda: 2),
    Device=_Device,
    Stream=types.SimpleNamespace(null=_null),
)
"""


SLEEP = "import time; time.sleep(600)\n"


def say_nothing(text: str) -> None:
    """Ignore progress."""


@pytest.fixture
def machine(c_compiler: str) -> Machine:
    return load_machine("h100x8").with_gpus(2)


def run(
    folder: Path,
    machine: Machine,
    text: str | None,
    *,
    every_gpu: bool = False,
    python: str = sys.executable,
    deadline_s: float = 600,
    **variables: str,
) -> LaunchReading:
    """Run the kernel on a pretended machine beside a CuPy of this text."""
    if text is not None:
        (folder / "cupy.py").write_text(text)
    libraries = build_libraries(machine, folder / "libraries")
    environment = {"PATH": "/usr/bin:/bin", **libraries, "PYTHONPATH": str(folder), **variables}
    return run_kernel(
        python,
        environment,
        through_cupy=text is not None,
        every_gpu=every_gpu,
        deadline_s=deadline_s,
        report_progress=say_nothing,
    )


@pytest.mark.parametrize(("every_gpu", "count"), [(False, 1), (True, 2)])
def test_through_libcuda_and_cupy(
    tmp_path: Path, machine: Machine, *, every_gpu: bool, count: int
) -> None:
    found = run(tmp_path, machine, NUMPY_LIKE, every_gpu=every_gpu)

    assert (found.through, found.cupy_failure, found.failure) == ("cupy", None, None)
    assert [each.right for each in found.launches] == [True] * count
    assert found.launches[0].first_launch_s is not None


def test_without_cupy_it_is_libcuda_even_where_no_ptx_may_be_compiled(
    tmp_path: Path, machine: Machine
) -> None:
    found = run(tmp_path, machine, None, CUDA_DISABLE_PTX_JIT="1")

    assert (found.through, found.failure) == ("libcuda", None)
    assert [each.right for each in found.launches] == [True]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise RuntimeError('no nvrtc')\n", "fails-on-the-gpu", "RuntimeError: no nvrtc"),
        ("import os; os.abort()\n", "trial-died", "was ended by SIGABRT"),
        ("import missing_library\n", "fails-on-the-gpu", "No module named 'missing_library'"),
        (NUMPY_LIKE.replace("WRONG = 0", "WRONG = 1"), "fails-on-the-gpu", "is wrong"),
        (SLEEP, "import-not-finished", "still being imported after 0.2 s"),
        (
            NUMPY_LIKE.replace("def arange", "import time\ndef arange").replace(
                "return _Array(range(count))", "time.sleep(600)"
            ),
            "compile-not-finished",
            "had not compiled and run a kernel after",
        ),
    ],
    ids=["error", "crash", "import", "wrong", "slow import", "slow compiler"],
)
def test_a_cupy_that_is_late_or_wrong_leaves_the_drivers_word(
    tmp_path: Path,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    code: str,
    said: str,
) -> None:
    # Only the part that must be late has little time.
    if text == SLEEP:
        monkeypatch.setattr(frameworks, "IMPORT_S", 0.2)
    elif code == "compile-not-finished":
        monkeypatch.setattr(client, "COMPILE_S", 0.2)

    found = run(tmp_path, machine, text)

    assert (found.through, found.failure) == ("libcuda", None)
    assert [each.right for each in found.launches] == [True]
    assert found.cupy_failure is not None
    assert found.cupy_failure.code == code
    assert said in found.cupy_failure.message


def test_an_interpreter_that_starts_late_is_no_hung_driver(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(frameworks, "IMPORT_S", 0.2)
    libraries = build_libraries(machine, tmp_path / "libraries")
    for name, value in libraries.items():
        monkeypatch.setenv(name, value)
    probes = LiveProbes(deadline_s=600)
    whole_s = probes.patience_s()

    found = probes.launch(
        str(slow), through_cupy=True, every_gpu=False, report_progress=say_nothing
    )

    assert found.failure is None
    assert found.cupy_failure is not None
    assert found.cupy_failure.code == "import-not-finished"
    # Later readings do not get less time.
    assert probes.patience_s() == whole_s


def test_a_driver_that_hangs_is_not_asked_again_through_cupy(
    tmp_path: Path, machine: Machine
) -> None:
    (tmp_path / "cupy.py").write_text(f"open({str(tmp_path / 'asked')!r}, 'w')\n")
    hung = machine.broken(hang=["cuLaunchKernel"])

    found = run(tmp_path, hung, (tmp_path / "cupy.py").read_text(), deadline_s=0.2)

    assert found.failure is not None
    assert found.failure.code == "driver-not-answering"
    assert not (tmp_path / "asked").exists()


def test_a_cupy_that_can_where_libcuda_cannot_proves_the_gpu(
    tmp_path: Path, machine: Machine
) -> None:
    found = run(tmp_path, machine.broken(fail=["cuModuleLoadData 221"]), NUMPY_LIKE)

    assert (found.through, found.failure) == ("cupy", None)
    assert [each.right for each in found.launches] == [True]
    assert found.libcuda_failure is not None
    assert found.libcuda_failure.code == "jit-compiler-missing"
