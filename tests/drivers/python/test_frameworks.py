"""Installed frameworks of an interpreter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.drivers.evidence import TrialReading
from gpucheck.drivers.python import frameworks
from gpucheck.drivers.python.framework_test_child import CUDNN_KERNELS, CUDNN_PARTS
from gpucheck.drivers.python.frameworks import read_frameworks, run_framework_tests
from gpucheck.drivers.python.interpreters import Interpreter
from gpucheck.drivers.readings import ProbeFailure

STAND_INS = Path(__file__).parents[2] / "data" / "frameworks"


def test_versions_are_read_without_an_import(tmp_path: Path) -> None:
    log = tmp_path / "events"
    environment = {"PYTHONPATH": str(STAND_INS), "STUB_LOG": str(log)}

    found = read_frameworks(Interpreter(path=sys.executable), environment)

    assert found.frameworks is not None
    assert found.frameworks["torch"] == "2.13.0"
    assert found.frameworks["cupy"] == "14.2.0"
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert not log.exists()


def test_an_isolated_python_is_asked_isolated() -> None:
    environment = {"PYTHONPATH": str(STAND_INS)}

    found = read_frameworks(Interpreter(path=sys.executable, isolated=True, bare=True), environment)

    assert found.frameworks == {}


def test_a_module_without_metadata_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()

    found = read_frameworks(
        Interpreter(path=sys.executable, bare=True), {"PYTHONPATH": str(tmp_path)}
    )

    assert found.frameworks == {"torch": ""}


@pytest.mark.parametrize("path", ["/bin/true", "/bin/cat", "/nonexistent/python", "/"])
def test_a_program_that_is_no_python_is_a_reason(path: str) -> None:
    found = read_frameworks(Interpreter(path=path), {})

    assert found.frameworks is None
    assert found.reason.startswith("it is not known which frameworks it has: ")
    assert path in found.reason


def test_a_python_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o700)

    found = read_frameworks(
        Interpreter(path=str(script)), {"PATH": "/bin:/usr/bin"}, deadline_s=0.2
    )

    assert found.frameworks is None
    assert "within 0.2 s" in found.reason


def test_no_command_line_is_a_reason() -> None:
    assert "not known which Python" in read_frameworks(None, {}).reason


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        ({}, ()),
        ({"torch": "2.13.0+cpu"}, ("torch",)),
        ({"torch": "2.13.0", "tensorflow-cpu": "2.21.0"}, ("tensorflow",)),
        ({"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}, ()),
    ],
)
def test_builds_for_cpus_are_told_by_their_packages(
    tmp_path: Path, packages: dict[str, str], found: tuple[str, ...]
) -> None:
    for name, version in packages.items():
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    bare = Interpreter(path=sys.executable, bare=True)

    assert read_frameworks(bare, {"PYTHONPATH": str(tmp_path)}).for_cpus == found


# ------------------------------------------------------------------------------------- smoke tests


def fake(folder: Path, module: str, text: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(text)
    return {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}


def attempt(
    environment: dict[str, str],
    *names: str,
    deadline_s: float = 600,
    report: Callable[[str], None] = lambda said: None,
) -> dict[str, TrialReading]:
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        report(text)

    found = run_framework_tests(
        names, sys.executable, environment, deadline_s=deadline_s, report_progress=note
    )
    assert all(any(name in line for line in said) for name in names)
    return {trial.name: trial for trial in found}


def test_an_import_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    environment = fake(tmp_path, "torch", "raise OSError('libcudart.so.12: cannot open')\n")

    found = attempt(environment, "pytorch")["pytorch"]

    assert (found.sees_gpu, found.error) == (False, "OSError: libcudart.so.12: cannot open")


def test_nothing_is_imported_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = fake(tmp_path, "torch", "raise ImportError('taken from here')\n")
    monkeypatch.chdir(tmp_path)

    found = attempt(environment | {"PYTHONPATH": ":"}, "pytorch")["pytorch"]

    assert "taken from here" not in str(found)


def test_a_crash_is_a_failure_of_that_one_alone(tmp_path: Path) -> None:
    environment = fake(tmp_path, "torch", "import os; os.abort()\n")
    fake(tmp_path, "jax", "raise ImportError('none')\n")

    found = attempt(environment, "pytorch", "jax")

    assert found["pytorch"].failure == ProbeFailure(
        code="crashes", message="its process was ended by SIGABRT while it was being imported"
    )
    assert found["jax"].error == "ImportError: none"


def test_a_process_that_another_one_kills_is_no_answer(tmp_path: Path) -> None:
    environment = fake(tmp_path, "torch", "import os; os.kill(os.getpid(), 9)\n")

    found = attempt(environment, "pytorch")["pytorch"]

    assert found.failure is not None
    assert found.failure.code == "trial-died"


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (None, None),
        ("libcudnn_graph.so.9", "cuDNN cannot open a part of itself: "),
        ("libcudnn_ops.so.9", "cuDNN cannot open a part of itself: "),
    ],
)
def test_a_part_of_cudnn_that_is_gone_is_noticed(
    tmp_path: Path, c_compiler: str, gone: str | None, said: str | None
) -> None:
    library = tmp_path / "libcudnn.so.9"
    (tmp_path / "empty.c").touch()
    subprocess.run([c_compiler, "-shared", tmp_path / "empty.c", "-o", library], check=True)
    for part in (*CUDNN_PARTS, *CUDNN_KERNELS):
        if f"libcudnn_{part}.so.9" != gone:
            shutil.copy(library, tmp_path / f"libcudnn_{part}.so.9")
    loaded = f"import ctypes\nctypes.CDLL({str(library)!r})\n"
    environment = fake(tmp_path / "site", "jax", loaded + COMPUTES)

    found = attempt(environment, "jax")["jax"]

    assert found.computed is (said is None)
    assert (found.error or "").startswith(said or "")
    assert (gone or "") in (found.error or "")


#: JAX with a device and the right result.
COMPUTES = """
__version__ = "1"
class device: platform, device_kind = "gpu", "H100"
def devices(): return [device]
def device_put(values, where): return values
def jit(function): return lambda values: 3 * 2016 + 64 * 7
class numpy:
    class arange:
        def __init__(self, end): pass
        def reshape(self, *shape): return self
"""


def test_an_import_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "IMPORT_S", 0.2)
    environment = fake(tmp_path, "torch", "import time; time.sleep(600)\n")

    found = attempt(environment, "pytorch", deadline_s=0.2)["pytorch"]

    assert found.failure is not None
    assert found.failure.code == "import-not-finished"


LOUD = """
import os, sys
RED = "\\x1b[1;31m"
for number in range(40):
    os.write(2, f"{RED}cuda line {number} of forty, in colour\\x1b[m\\n".encode())
class cuda:
    @staticmethod
    def is_available(): return False
    @staticmethod
    def init(): raise RuntimeError(RED + "no driver")
    @staticmethod
    def get_arch_list(): return []
class version: cuda = None
__version__ = "1"
"""


def test_what_it_says_is_plain_and_cut_between_lines(tmp_path: Path) -> None:
    found = attempt(fake(tmp_path, "torch", LOUD), "pytorch")["pytorch"]

    assert found.error is not None
    first, *lines = found.error.split(" | ")
    assert first == "RuntimeError: no driver"
    assert lines[-1] == "cuda line 39 of forty, in colour"
    assert len(lines) > 20
    assert {line.partition("line ")[0] for line in lines} == {"cuda "}
    assert len(found.error) <= 1000


ONNX_RUNTIME = """
told = []
def preload_dlls(): told.append("preloaded")
def get_available_providers(): return told or ["CPUExecutionProvider"]
__version__ = "1"
"""


def test_onnxruntime_is_told_to_look_into_nvidia_s_wheels(tmp_path: Path) -> None:
    fake(tmp_path, "numpy", "")
    environment = fake(tmp_path, "onnxruntime", ONNX_RUNTIME)

    found = attempt(environment, "onnxruntime")["onnxruntime"]

    assert found.error == "this build offers only preloaded"


STUCK = """
import time
__version__ = "1"
def devices(): time.sleep(600)
class cuda:
    class runtime:
        runtimeGetVersion = staticmethod(devices)
"""


def test_work_that_never_ends_leaves_less_time_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(text: str) -> None:
        if text == "importing cupy":  # the imports have had their time
            monkeypatch.setattr(frameworks, "IMPORT_S", 0.4)

    environment = fake(tmp_path, "jax", STUCK)
    fake(tmp_path, "cupy", STUCK)

    found = attempt(environment, "jax", "cupy", deadline_s=0, report=report)

    assert {name: trial.failure for name, trial in found.items()} == {
        "jax": ProbeFailure(
            code="driver-not-answering",
            message="jax did not finish its work on the GPU within 0.2 s",
        ),
        "cupy": ProbeFailure(
            code="driver-not-answering",
            message="cupy did not finish its work on the GPU within 0.05 s",
        ),
    }


def test_what_a_framework_logs_about_gpus_is_kept(tmp_path: Path) -> None:
    text = """
import os
os.write(2, b"plain chatter\\nCannot dlopen some GPU libraries: libcudnn.so.9\\n")
os.write(1, b"noise on standard output\\n")
__version__ = "1"
def devices(): raise RuntimeError("no gpu")
"""
    found = attempt(fake(tmp_path, "jax", text), "jax")["jax"]

    assert found.error is not None
    assert "libcudnn.so.9" in found.error
    assert "chatter" not in found.error


def test_memory_is_not_taken_in_advance(tmp_path: Path) -> None:
    text = "import os\nraise SystemExit(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])\n"

    assert attempt(fake(tmp_path, "jax", text), "jax")["jax"].error == "SystemExit: false"
