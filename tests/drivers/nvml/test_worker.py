"""NVML child process: its requests, and its start where NVML cannot start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.child import START_WORKER
from gpucheck.drivers.nvml import start
from gpucheck.drivers.nvml.binding import Binding, NvmlError
from gpucheck.drivers.nvml.worker import Session
from tests.conftest import scrubbed_environment
from tests.fakes.pynvml_double import FakeNvml, error

ROOT = Path(__file__).parents[3]


def child_session(nvml: FakeNvml) -> Session:
    return Session(Binding(nvml))


def test_system_versions_may_be_missing_but_the_count_may_not() -> None:
    nvml = FakeNvml(
        nvmlSystemGetDriverVersion=error(999),
        nvmlSystemGetConfComputeState=SimpleNamespace(ccFeature=1),
        nvmlDeviceGetCount=3,
    )

    system = child_session(nvml).read_system()
    with pytest.raises(NvmlError):
        child_session(FakeNvml(nvmlDeviceGetCount=error(15))).read_system()

    assert (system["gpu_count"], system["confidential_computing"]) == (3, True)
    assert "(NVML error 999)" in system["unavailable"]["driver_version"]


def test_the_child_skips_what_is_given_up_and_what_was_read() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetCount=3,
        nvmlDeviceGetHandleByIndex=lambda index: f"handle{index}",
        nvmlDeviceGetTopologyCommonAncestor=50,
        nvmlDeviceGetNvLinkState=error(2),
    )
    request = {"topology": True, "first": 2, "silent": [1]}

    documents = list(child_session(nvml).answer(request))

    assert [part.get("index") for part in documents if part["part"] == "gpu"] == [2]
    (topology,) = [part for part in documents if part["part"] == "topology"]
    levels = {(pair["from"], pair["to"]): pair["level"] for pair in topology["pairs"]}
    assert levels == {(0, 1): None, (0, 2): 50, (1, 2): None}
    assert nvml.calls.count("nvmlDeviceGetHandleByIndex") == 2


def ask_script(directory: str, cwd: Path, **environment: str) -> dict[str, Any]:
    """Run the child as the parent does, where NVML cannot start; return the failure."""
    finished = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            START_WORKER,
            str(ROOT),
            str(os.getpid()),
            start.WORKER,
            directory,
        ],
        input="{}\n",
        capture_output=True,
        encoding="ascii",
        cwd=cwd,
        env=scrubbed_environment(environment),
        check=True,
    )
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    assert found["part"] == "failure"
    return found


PLANTED = "open('taken', 'w')\nclass NVMLError(Exception): pass\n"


def test_nothing_is_taken_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(PLANTED, encoding="ascii")

    said = ask_script("", tmp_path)

    assert said["code"] == "binding-missing"
    assert not (tmp_path / "taken").exists()


# Beside the package lie other folders of the checkout: the child imports nothing from there.
@pytest.mark.parametrize(
    "content", ["raise ImportError", "print 'python 2'", "1 / 0", "import benchmarks"]
)
def test_a_binding_that_cannot_be_imported(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "pynvml.py").write_text(content, encoding="ascii")

    said = ask_script(str(folder), tmp_path)

    assert said["code"] == "binding-missing"
    assert "cannot be imported" in said["message"]


def test_a_driver_that_writes_to_stdout_does_not_spoil_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    noisy = "import os\nclass NVMLError(Exception): value = 9\n"
    noisy += "def nvmlInit():\n    print('hello', flush=True)\n    os.write(1, b'noise')\n"
    noisy += "    raise NVMLError\n"
    (folder / "pynvml.py").write_text(noisy, encoding="ascii")

    said = ask_script(str(folder), tmp_path)

    assert (said["code"], said["library_code"]) == ("driver-not-loaded", 9)
