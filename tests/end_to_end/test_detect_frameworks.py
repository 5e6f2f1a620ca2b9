"""Frameworks: what detect says of builds that are really installed, and of pretended ones.

Name interpreters that have frameworks in GPUCHECK_FRAMEWORK_PYTHONS, separated by colons; what none
of them has is skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Finished
from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.machine import load_machine

MODULES = {
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
    "cupy": "cupy",
    "numba": "numba",
    "onnxruntime": "onnxruntime",
}


def python_with(name: str) -> str:
    """Return an interpreter that has a framework, or skip."""
    program = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({name!r}))"
    for python in (*os.environ.get("GPUCHECK_FRAMEWORK_PYTHONS", "").split(":"), sys.executable):
        if python and subprocess.run([python, "-I", "-c", program], check=False).returncode == 0:
            return python
    pytest.skip(f"{name} is not installed")


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def framework(document: Any, name: str) -> tuple[Any, Any]:
    """Return one framework's entry and its finding."""
    (entry,) = [f for f in document["result"]["frameworks"] if f["name"] == name]
    (finding,) = [c for c in document["result"]["checks"] if c["id"] == name]
    return entry, finding


@pytest.mark.parametrize("name", MODULES)
def test_an_installed_framework_is_described_truly(
    name: str, gpucheck_command: Callable[..., Finished]
) -> None:
    python = python_with(MODULES[name])
    version = "import importlib.metadata as m, sys; sys.stdout.write(m.version(sys.argv[1]))"

    ended = gpucheck_command("detect", "--json", "--only", name, "--python", python)

    entry, finding = framework(ended.document, name)
    assert ended.code == 0
    assert finding["status"] in ("ok", "warn")
    if name in ("pytorch", "jax", "numba"):
        true = subprocess.run(
            [python, "-I", "-c", version, MODULES[name]], capture_output=True, text=True, check=True
        )
        # PyPI's wheel of 2.15.0 calls itself 2.15.0+cu132 in its own file.
        assert entry["version"].partition("+")[0] == true.stdout.partition("+")[0]
    assert entry["sees_gpu"] in (None, False)
    assert (entry["reason"] is None) == (finding["status"] == "ok")


@pytest.mark.skipif(has_gpu(), reason="this is about a machine without a GPU")
@pytest.mark.parametrize("name", MODULES)
def test_without_a_gpu_each_says_so_itself(
    name: str, gpucheck_command: Callable[..., Finished]
) -> None:
    python = python_with(MODULES[name])

    ended = gpucheck_command("detect", "--json", "--framework", name, "--python", python)

    entry, finding = framework(ended.document, name)
    assert ended.code == 1
    assert ended.document["result"]["first_failure"] not in (None, name)
    assert (finding["status"], entry["sees_gpu"]) == ("fail", False)
    assert finding["remedy"]
    assert any(name in item["source"] for item in finding["evidence"])


# ------------------------------------------------------------------------------ pretended builds


class Site:
    """A folder of pretended packages that PYTHONPATH leads to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, path: str, content: str = "") -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        return target

    def distribution(self, name: str, version: str) -> None:
        stem = name.replace("-", "_")
        self.file(
            f"{stem}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        )

    def package(self, module: str) -> None:
        self.file(f"{module}/__init__.py", "raise RuntimeError('imported')\n")

    def library(self, path: str, needs: str) -> None:
        """Compile a shared library that needs another one."""
        empty = self.file("empty.c")
        needed = self.folder / "build" / needs
        needed.parent.mkdir(exist_ok=True)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shared = ["cc", "-shared", "-fPIC", "-Wl,--no-as-needed"]
        subprocess.run([*shared, f"-Wl,-soname,{needs}", empty, "-o", needed], check=True)
        subprocess.run([*shared, empty, "-o", target, needed], check=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


Look = Callable[..., tuple[Any, Any]]


@pytest.fixture
def look(pretend: Pretend, program: Program, site: Site) -> Look:
    """Return what detect says of a framework on a T4: `look("pytorch", variables)`."""

    def found(name: str, machine: str = "t4", **changes: Any) -> tuple[Any, Any]:
        pretended = load_machine(machine)
        pretended = pretended.with_gpu(0, **changes) if changes else pretended
        env = pretend(pretended) | {"PYTHONPATH": str(site.folder)}
        ended = program("detect", "--json", "--only", name, env=env)
        return framework(ended.document("detect"), name)

    return found


def pytorch(site: Site, version: str, cuda: str | None) -> None:
    site.package("torch")
    site.file("torch/version.py", f"__version__ = {version!r}\ncuda = {cuda!r}\nhip = None\n")
    site.distribution("torch", version)


def test_a_build_for_cpus(site: Site, look: Look) -> None:
    pytorch(site, "2.13.0+cpu", None)

    entry, finding = look("pytorch")

    assert entry["sees_gpu"] is False
    assert finding["status"] == "warn"
    assert "built for CPUs only" in entry["reason"]
    # The driver of the pretended T4 takes CUDA 12.
    assert "whl/cu126" in finding["remedy"][0]


def test_a_build_for_gpus_is_not_said_to_work(site: Site, look: Look) -> None:
    pytorch(site, "2.13.0+cu126", "12.6")

    entry, finding = look("pytorch")

    assert (finding["status"], entry["cuda_build"], entry["sees_gpu"]) == ("ok", "12.6", None)
    assert "--deep" in finding["summary"]


def test_a_build_that_the_driver_is_too_old_for(site: Site, look: Look) -> None:
    pytorch(site, "2.15.0+cu130", "13.0")

    entry, finding = look("pytorch")

    assert finding["status"] == "warn"
    assert "needs driver 580 or newer, but this is 550.163.01" in entry["reason"]


@pytest.mark.parametrize(
    ("cuda", "capability", "says"),
    [
        ("13.0", "7.0", "no code for GPUs this old"),
        ("12.4", "12.0", "older than this architecture"),
    ],
)
def test_a_build_for_other_architectures(
    site: Site, look: Look, cuda: str, capability: str, says: str
) -> None:
    pytorch(site, "2.9.0", cuda)

    entry, _ = look("pytorch", "h100x8", compute_capability=capability)

    assert says in entry["reason"]
    assert capability in entry["reason"]


def test_a_missing_library_is_named(site: Site, look: Look, c_compiler: str) -> None:
    pytorch(site, "2.13.0+cu126", "12.6")
    site.library("torch/lib/libtorch_cuda.so", "libcudart.so.12")
    site.library("torch/lib/libc10_cuda.so", "libnobody.so.1")

    entry, finding = look("pytorch")

    assert "libraries are missing: libcudart.so.12" in entry["reason"]
    # It is none of NVIDIA's.
    assert "its installation is broken: libnobody.so.1 is not there" in entry["reason"]
    assert {"source": "libcudart.so.12", "value": "not found"} in finding["evidence"]


def test_a_library_in_a_wheel_beside_it_is_not_missing(
    site: Site, look: Look, c_compiler: str
) -> None:
    pytorch(site, "2.13.0+cu126", "12.6")
    site.library("torch/lib/libtorch_cuda.so", "libcudart.so.12")
    (site.folder / "nvidia/cuda_runtime/lib").mkdir(parents=True)
    (site.folder / "build/libcudart.so.12").rename(
        site.folder / "nvidia/cuda_runtime/lib/libcudart.so.12"
    )

    _, finding = look("pytorch")

    assert finding["status"] == "ok"


def test_tensorflow_s_libraries_are_named(site: Site, look: Look) -> None:
    site.package("tensorflow")
    site.distribution("tensorflow", "2.21.0")
    site.file(
        "tensorflow/python/platform/build_info.py",
        "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', True),"
        " ('cuda_version', '12.5.1'), ('cudnn_version', '9'),"
        " ('cuda_compute_capabilities', ['sm_60', 'sm_70', 'compute_90'])])\n",
    )

    entry, finding = look("tensorflow")

    missing = {item["source"] for item in finding["evidence"] if item["value"] == "not found"}
    assert {"libcudnn.so.9", "libcufft.so.11"} <= missing
    assert entry["cuda_build"] == "12.5.1"
    assert "tensorflow[and-cuda]" in finding["remedy"][0]
    assert "compute capability 7.5" not in entry["reason"]


def test_a_list_of_architectures_without_the_gpu_s(site: Site, look: Look) -> None:
    site.package("tensorflow")
    site.distribution("tensorflow", "2.21.0")
    site.file(
        "tensorflow/python/platform/build_info.py",
        "build_info = dict([('is_cuda_build', True), ('cuda_compute_capabilities', ['sm_80'])])\n",
    )

    entry, _ = look("tensorflow")

    assert "compute capability 7.5, but this build has code only for sm_80" in entry["reason"]


def test_jax_without_a_plugin_and_with_one_of_another_version(site: Site, look: Look) -> None:
    site.package("jax")
    site.distribution("jax", "0.10.2")
    site.distribution("jaxlib", "0.10.2")
    assert "built for CPUs only" in look("jax")[0]["reason"]

    site.distribution("jax-cuda12-plugin", "0.10.1")
    entry, finding = look("jax")

    assert entry["cuda_build"] == "12"
    assert "jax-cuda12-plugin 0.10.1 does not fit jaxlib 0.10.2" in finding["summary"]
    assert "libcudnn.so.9" in finding["summary"]


def test_two_cupys(site: Site, look: Look) -> None:
    site.package("cupy")
    site.distribution("cupy-cuda12x", "14.2.0")
    site.distribution("cupy-cuda13x", "14.2.0")

    entry, finding = look("cupy")

    assert "are both installed and overwrite each other" in entry["reason"]
    assert finding["cause"] == "twice-installed"
    removes, installs = finding["remedy"][0].split("; ")
    assert "pip uninstall" in removes  # or uv's, where uv made this environment
    assert removes.endswith(" cupy-cuda13x cupy-cuda12x")
    assert "pip install" in installs


def test_cupy_without_its_compiler(site: Site, look: Look) -> None:
    site.package("cupy")
    # CUDA 11: the tests themselves bring the compiler of CUDA 12.
    site.distribution("cupy-cuda11x", "13.6.0")
    site.file("cupy/.data/_wheel.json", '{"cuda": "11.x"}')

    entry, finding = look("cupy")

    assert "libnvrtc.so.11.2" in entry["reason"]
    assert finding["remedy"] == [
        "Either set CUDA_PATH to a CUDA 11 toolkit, or install a build for a newer CUDA, which can"
        " bring its libraries: gpucheck detect --wheel cupy"
    ]


def test_two_tensorflows_of_which_the_last_is_for_cpus(site: Site, look: Look) -> None:
    site.package("tensorflow")
    site.distribution("tensorflow", "2.21.0")
    site.distribution("tensorflow-cpu", "2.21.0")
    site.file("tensorflow/python/platform/build_info.py", "build_info = {'is_cuda_build': False}\n")

    entry, finding = look("tensorflow")

    assert finding["cause"] == "twice-installed"
    assert "built for CPUs only" in entry["reason"]
    (step,) = finding["remedy"]
    removes, installs = step.split("; ")
    assert "pip uninstall" in removes
    assert removes.endswith(" tensorflow tensorflow-cpu")
    assert "pip install" in installs


def test_a_build_for_amd(site: Site, look: Look) -> None:
    site.package("torch")
    site.file("torch/version.py", "__version__ = '2.13.0'\ncuda = None\nhip = '7.0'\n")

    entry, finding = look("pytorch")

    assert finding["cause"] == "built-for-amd"
    assert "ROCm 7.0" in entry["reason"]


def test_a_build_that_tells_nothing_is_not_ok(site: Site, look: Look) -> None:
    site.package("torch")

    _, finding = look("pytorch")

    assert (finding["status"], finding["cause"]) == ("unknown", "build-not-known")


def test_a_gpu_for_which_every_kernel_is_compiled_first(site: Site, look: Look) -> None:
    site.package("tensorflow")
    site.file(
        "tensorflow/python/platform/build_info.py",
        "build_info = {'is_cuda_build': True,"
        " 'cuda_compute_capabilities': ['sm_60', 'compute_70']}\n",
    )

    _, finding = look("tensorflow")

    assert finding["status"] == "ok"
    assert "compiled at their first use" in finding["summary"]


def test_onnxruntime_twice(site: Site, look: Look) -> None:
    site.package("onnxruntime")
    site.distribution("onnxruntime", "1.31.1")
    site.distribution("onnxruntime-gpu", "1.31.1")

    assert "both installed" in look("onnxruntime")[0]["reason"]


def test_nothing_is_imported_to_look(site: Site, look: Look) -> None:
    for module in MODULES.values():
        site.package(module)

    for name in MODULES:
        _, finding = look(name)
        assert "imported" not in str(finding)


def test_what_an_import_raises_is_its_own_word(
    site: Site, pretend: Pretend, program: Program
) -> None:
    site.package("torch")
    site.file("torch/version.py", "__version__ = '2.13.0'\ncuda = '12.6'\n")
    env = pretend("geforce") | {"PYTHONPATH": str(site.folder)}

    ended = program("detect", "--json", "--framework", "torch", env=env)

    document = ended.document("detect")
    entry, finding = framework(document, "pytorch")
    assert ended.code == 1
    assert (document["result"]["usable"], document["result"]["verdict"]) == (True, "degraded")
    assert document["result"]["first_failure"] == "pytorch"
    assert entry["sees_gpu"] is False
    assert {"source": "pytorch itself", "value": "RuntimeError: imported"} in finding["evidence"]


def test_observed_success_overrides_the_tables(
    site: Site, pretend: Pretend, program: Program
) -> None:
    site.file(
        "torch/__init__.py",
        """
class _Array:
    def reshape(self, *sizes): return self
    def __matmul__(self, other): return self
    def cpu(self): return self

def arange(*arguments, **options): return _Array()
def equal(left, right): return True

class version: cuda = "13.0"
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda number: "Pretended")
    get_arch_list = staticmethod(lambda: ["sm_90"])
__version__ = "9.9"
""",
    )
    site.file("torch/version.py", "__version__ = '9.9'\ncuda = '13.0'\n")
    env = pretend("t4") | {"PYTHONPATH": str(site.folder)}

    ended = program("detect", "--json", "--framework", "torch", env=env)

    entry, finding = framework(ended.document("detect"), "pytorch")
    assert (ended.code, finding["status"], entry["sees_gpu"]) == (0, "ok", True)
    assert "sees 1 GPU and computes on it" in finding["summary"]


def test_nothing_comes_from_the_current_directory(
    tmp_path: Path, pretend: Pretend, program: Program
) -> None:
    trap = Site(tmp_path / "here")
    for module in MODULES.values():
        trap.file(f"{module}.py", "import os; os.abort()\n")
    env = pretend("t4") | {"PYTHONPATH": ":."}

    ended = program("detect", "--json", "--deep", env=env, cwd=trap.folder)

    document = ended.document("detect")
    assert ended.code == 0
    # A module in the folder has no version; those of this environment do.
    assert all(framework["version"] for framework in document["result"]["frameworks"])
    planted = trap.folder / "json.py"
    planted.write_text("import os; os.abort()\n")
    limited = program(
        "memlimit", "30%", "--json", "--python", sys.executable, env=env, cwd=trap.folder
    ).document("memlimit")
    assert limited["result"]["software"]["frameworks"] is not None


def test_a_python_that_does_not_answer(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    script = tmp_path / "python3"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)

    ended = program("detect", "--json", "--python", script, env=pretend("geforce"))

    document = ended.document("detect")
    statuses = {c["id"]: c["status"] for c in document["result"]["checks"]}
    assert {statuses[name] for name in MODULES} == {"unknown"}
    assert ended.code == 0
