"""Builds of an interpreter's frameworks, and the messages where it gives none."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers.evidence import BuildReading
from gpucheck.drivers.python import frameworks_child, shared_objects_child
from gpucheck.drivers.python.frameworks import read_builds

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def site_with(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Write files of pretended packages, and return the variables that lead to them."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {**ENVIRONMENT, "PYTHONPATH": str(folder)}


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/nobody\n")
    script.chmod(0o755)

    found = read_builds(str(script), {})

    assert found.builds is None
    assert "could not be started" in (found.unavailable or "")


def test_a_program_that_is_no_python() -> None:
    found = read_builds("/bin/true", {})

    assert found.builds is None
    said = "/bin/true gave no answer and ended with code 0: is it a Python?"
    assert found.unavailable == said


@pytest.mark.parametrize(
    ("does", "said"),
    [
        # An old Python's answer to our file, and to a line that every Python understands.
        (
            'test "$1" = -c && echo \'{"major": 2, "minor": 7}\'',
            " is Python 2.7, but gpucheck needs Python 3.8 or newer there",
        ),
        ('test "$1" = -c && echo \'{"major": 3, "minor": 9}\'', ", Python 3.9, gave no answer"),
        (
            "echo 'python: command not found' >&2; exit 127",
            " gave no answer and ended with code 127: is it a Python?",
        ),
    ],
)
def test_why_a_python_is_silent(tmp_path: Path, does: str, said: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)

    assert read_builds(str(script), ENVIRONMENT).unavailable == f"{script}{said}"


def test_the_active_environment_is_looked_at_and_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)

    found = read_builds(None, {**ENVIRONMENT, "VIRTUAL_ENV": str(tmp_path)})

    assert found.python == str(tmp_path / "bin" / "python")
    assert found.named_by == "VIRTUAL_ENV"
    assert found.builds is not None


def test_one_that_hangs_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)

    found = read_builds(str(script), ENVIRONMENT, deadline_s=0.2)

    assert found.builds is None
    assert "no answer within 0.2 s" in (found.unavailable or "")


def test_site_hooks_may_talk(tmp_path: Path) -> None:
    environment = site_with(
        tmp_path,
        {
            "sitecustomize.py": "print('welcome')\n",
            "torch/__init__.py": "",
            "torch/version.py": "__version__ = '2.13.0'\ncuda = '12.6'\n",
        },
    )

    found = read_builds(sys.executable, environment)

    (build,) = [each for each in found.builds or () if each.name == "pytorch"]
    assert (build.version, build.cuda_build, build.gpu_build) == ("2.13.0", "12.6", True)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (
            "\0at::cuda\0sm_75 sm_90 sm_120 compute_120\0\0",
            ("sm_75", "sm_90", "sm_120", "compute_120"),
        ),
        ("\0sm_90a\0", ("sm_90a",)),
        # 2.8 and 2.9: the string before it is not ended.
        ("\0std::string ipc_hsm_70 sm_75 sm_120\0", ("sm_70", "sm_75", "sm_120")),
        ("\0kernel_sm_90\0sm_ \0", ()),
        ("", ()),
        (None, ()),
    ],
)
def test_pytorch_says_what_it_is_compiled_for(
    tmp_path: Path, content: str | None, found: tuple[str, ...]
) -> None:
    files = {
        "torch/__init__.py": "",
        "torch/version.py": "__version__ = '2.15.0'\ncuda = '13.2'\n",
    }
    if content is not None:
        files["torch/lib/libtorch_python.so"] = content

    reading = read_builds(sys.executable, site_with(tmp_path, files))

    (build,) = [each for each in reading.builds or () if each.name == "pytorch"]
    assert build.architectures == found


def test_what_an_uninstalled_package_left_behind_is_none(tmp_path: Path) -> None:
    environment = site_with(tmp_path, {"torch/lib/libc10.so": "", "jax/__init__.py": ""})

    found = read_builds(sys.executable, environment)

    assert found.builds is not None
    assert "pytorch" not in {build.name for build in found.builds}
    assert "jax" in {build.name for build in found.builds}


def test_files_that_make_no_sense_hide_only_their_own_package(tmp_path: Path) -> None:
    environment = site_with(
        tmp_path,
        {
            "tensorflow/__init__.py": "",
            "tensorflow/python/platform/build_info.py": "build_info = [1, 2]\n",
            "jax/__init__.py": "",
        },
    )

    found = read_builds(sys.executable, environment)

    known = {build.name: build for build in found.builds or ()}
    assert known["tensorflow"].gpu_build is None
    assert known["jax"].gpu_build is False


# ------------------------------------------------------------------- what the loader would load


Linker = Callable[..., Path]


@pytest.fixture(scope="module")
def linked(c_compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Linker:
    """Return a function that makes an empty library once: `linked(name, *needs, rpath="")`."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "empty.c").write_text("")
    compile_it = [c_compiler, "-fPIC", "-c", folder / "empty.c", "-o", folder / "empty.o"]
    subprocess.run(compile_it, check=True)

    @functools.cache
    def link(name: str, *needs: str, rpath: str = "") -> Path:
        target = Path(tempfile.mkdtemp(dir=folder)) / name
        said = [f"-Wl,-soname,{name}", *([f"-Wl,-rpath,{rpath}"] if rpath else [])]
        shared = [c_compiler, "-shared", "-Wl,--no-as-needed", *said, folder / "empty.o"]
        subprocess.run([*shared, *map(link, needs), "-o", target], check=True)
        return target

    return link


class Site:
    """A folder of pretended packages with real shared libraries, which are linked when needed."""

    def __init__(self, folder: Path, linked: Linker) -> None:
        self.folder = folder
        self._linked = linked

    def file(self, path: str, text: str = "") -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def distribution(self, name: str, version: str, record: dict[str, str] | None = None) -> None:
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        self.file(
            f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        lines = (f"{path},sha256=x,{size}\n" for path, size in (record or {}).items())
        self.file(f"{folder}/RECORD", "".join(lines))

    def library(self, path: str, *needs: str, rpath: str = "$ORIGIN") -> Path:
        """Write a library that needs others, which do not exist."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(self._linked(target.name, *needs, rpath=rpath), target))

    def look(self, name: str, python: str = sys.executable, **variables: str) -> BuildReading:
        """Return the reading of a framework."""
        environment = {**ENVIRONMENT, "PYTHONPATH": str(self.folder), **variables}
        found = read_builds(python, environment)
        assert found.builds is not None, found.unavailable
        (build,) = [each for each in found.builds if each.name == name]
        return build


@pytest.fixture
def site(tmp_path: Path, linked: Linker) -> Site:
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site", linked)


def pytorch(site: Site, **record: str) -> None:
    site.file("torch/__init__.py")
    site.file("torch/version.py", "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n")
    site.distribution("torch", "2.15.0", record)


def test_what_a_library_s_own_libraries_need_is_missing(site: Site) -> None:
    pytorch(site)
    site.library("torch/_C.cpython-311.so", "libtorch_nvshmem.so", rpath="$ORIGIN/lib")
    site.library("torch/lib/libtorch_nvshmem.so", "libnvshmem_host.so.3", "libcuda.so.1")

    build = site.look("pytorch")

    assert build.missing_libraries == ("libnvshmem_host.so.3",)  # libcuda is the driver's
    assert build.broken == ()


def test_a_library_of_its_own_that_was_deleted(site: Site) -> None:
    pytorch(site, **{"torch/lib/libtorch_cuda.so": "1", "torch/version.py": "1"})

    assert site.look("pytorch").broken == ("torch/lib/libtorch_cuda.so is not there",)


def test_a_build_for_cpus_that_lacks_a_library(site: Site) -> None:
    pytorch(site, **{"torch/lib/libtorch_cpu.so": "1"})
    site.file("torch/version.py", "__version__ = '2.15.0+cpu'\ncuda = None\n")

    build = site.look("pytorch")

    assert (build.gpu_build, len(build.broken)) == (False, 1)


@pytest.mark.parametrize("size", [0, 4096])
def test_a_library_of_its_own_that_is_cut(site: Site, size: int) -> None:
    path = site.library("torch/lib/libtorch_cuda.so")
    with path.open("ab") as file:
        file.write(bytes(1 << 20))
    true = path.stat().st_size
    pytorch(site, **{"torch/lib/libtorch_cuda.so": str(true)})
    assert site.look("pytorch").broken == ()

    with path.open("ab") as file:
        file.truncate(size)

    (said,) = site.look("pytorch").broken
    assert "libtorch_cuda.so is" in said


def test_a_stripped_library_is_not_broken(site: Site) -> None:
    path = site.library("torch/lib/libtorch_cuda.so")
    pytorch(site, **{"torch/lib/libtorch_cuda.so": str(path.stat().st_size + 1000)})

    assert site.look("pytorch").broken == ()


@pytest.mark.parametrize("left", [[], ["torch/lib/libtorch.so"]])
def test_a_distribution_without_its_package_is_broken_not_absent(
    site: Site, left: list[str]
) -> None:
    site.distribution("torch", "2.15.0")
    for path in left:
        site.file(path)

    build = site.look("pytorch")

    assert build.broken == ("the package torch of torch 2.15.0 is gone",)
    assert build.path is None


ORT = "onnxruntime/capi/libonnxruntime_providers_cuda.so"


def onnxruntime(site: Site) -> None:
    site.file("onnxruntime/__init__.py")
    site.file("onnxruntime/capi/build_and_package_info.py", "cuda_version = '11.8'\n")
    site.distribution("onnxruntime-gpu", "1.31.1")


def test_onnxruntime_opens_more_than_it_is_linked_to(site: Site) -> None:
    onnxruntime(site)
    site.library(ORT, "libcublas.so.11")

    build = site.look("onnxruntime")
    assert build.missing_libraries == ("libcublas.so.11", "libcudnn.so.9", "libcufft.so.10")
    assert build.remarks == ()

    for name in build.missing_libraries:
        site.library(f"nvidia/{name.partition('.')[0]}/lib/{name}")
    build = site.look("onnxruntime")
    assert build.missing_libraries == ()
    # The wheel has no RPATH: only its own call searches there.
    assert "preload_dlls()" in build.remarks[0]

    folders = ":".join(map(str, (site.folder / "nvidia").glob("*/lib")))
    build = site.look("onnxruntime", LD_LIBRARY_PATH=folders)
    assert (build.missing_libraries, build.remarks) == ((), ())


def test_onnxruntime_without_its_provider(site: Site) -> None:
    onnxruntime(site)

    assert site.look("onnxruntime").broken == (
        "capi/libonnxruntime_providers_cuda.so is not there",
    )


def test_a_toolkit_where_the_loader_does_not_look_is_named(site: Site) -> None:
    onnxruntime(site)
    site.library(ORT, "libcublas.so.11")
    home = site.folder.parent / "toolkit"
    site.library(f"{home}/lib64/libcublas.so.11")

    build = site.look("onnxruntime", CUDA_HOME=str(home))
    assert "libcublas.so.11" in build.missing_libraries
    assert build.not_searched == (f"{home}/lib64",)

    build = site.look("onnxruntime", LD_LIBRARY_PATH=f"{home}/lib64")
    assert "libcublas.so.11" not in build.missing_libraries


def test_conda_s_python_finds_what_is_in_its_prefix(site: Site) -> None:
    onnxruntime(site)
    site.library(ORT, "libcublas.so.11")
    prefix = site.folder.parent / "prefix"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python").symlink_to(sys.executable)
    (prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    site.library(f"{prefix}/lib/libcublas.so.11")
    python = str(prefix / "bin/python")
    assert "libcublas.so.11" in site.look("onnxruntime", python).missing_libraries

    (prefix / "conda-meta").mkdir()

    assert "libcublas.so.11" not in site.look("onnxruntime", python).missing_libraries


def test_jax_wants_cupti_and_parts_of_one_version(site: Site) -> None:
    site.file("jax/__init__.py")
    for name, version in (
        ("jax", "0.10.2"),
        ("jaxlib", "0.10.2+local"),
        ("jax-cuda12-plugin", "0.10.2"),
        ("jax-cuda12-pjrt", "0.12.0.1"),
    ):
        site.distribution(name, version)

    build = site.look("jax")

    assert "libcupti.so.12" in build.missing_libraries
    assert build.notes == ("jax-cuda12-plugin 0.10.2 does not fit jax-cuda12-pjrt 0.12.0.1",)


PATHFINDER = """
class Found:
    def __init__(self, path): self.abs_path = path

def load_nvidia_dynamic_lib(name):
    return Found({paths!r}[name])

def find_nvidia_header_directory(name):
    return {headers!r}
"""


def pathfinder(site: Site, headers: str | None = None, **paths: str) -> None:
    site.file("cuda/pathfinder/__init__.py", PATHFINDER.format(paths=paths, headers=headers))


@pytest.mark.parametrize(
    ("paths", "missing", "cuda"),
    [
        ({}, ("libnvvm.so", "libnvrtc.so"), None),
        ({"nvvm": "/x/libnvvm.so.4"}, ("libnvrtc.so",), None),
        ({"nvvm": "/x/libnvvm.so.4", "nvrtc": "/x/libnvrtc.so.13"}, (), "13"),
    ],
)
def test_numba_cuda_wants_nvvm_and_nvrtc(
    site: Site, paths: dict[str, str], missing: tuple[str, ...], cuda: str | None
) -> None:
    site.file("numba/__init__.py")
    site.distribution("numba", "0.68.1")
    site.distribution("numba-cuda", "0.30.4")
    pathfinder(site, **paths)

    build = site.look("numba")

    assert (build.missing_libraries, build.cuda_build) == (missing, cuda)
    assert build.distributions == ("numba 0.68.1", "numba-cuda 0.30.4")


def test_numba_s_own_target_leaves_the_search_to_the_loader(site: Site) -> None:
    site.file("numba/__init__.py")
    site.distribution("numba", "0.68.1")
    folder = site.library("lib64/libnvvm.so").parent

    build = site.look("numba", LD_LIBRARY_PATH=str(folder), CUDA_HOME="/nobody")

    assert (build.missing_libraries, build.unchecked) == ((), None)


@pytest.mark.parametrize(
    ("pathfinder", "said"),
    [
        ("raise ImportError\n", "is not installed"),
        ("import os; os._exit(1)\n", "did not answer"),
    ],
)
def test_without_cuda_pathfinder_nothing_is_called_well(
    tmp_path: Path, pathfinder: str, said: str
) -> None:
    files = {
        "numba/__init__.py": "",
        "numba_cuda-0.30.4.dist-info/METADATA": "Name: numba-cuda\nVersion: 0.30.4\n",
        "cuda/pathfinder/__init__.py": pathfinder,
    }

    found = read_builds(sys.executable, site_with(tmp_path, files))

    (build,) = [each for each in found.builds or () if each.name == "numba"]
    assert said in f"{build.notes} {build.unchecked}"


@pytest.mark.parametrize(
    ("paths", "version", "missing"),
    [
        ({}, 12090, {"libnvrtc.so.12", "libcublas.so.12"}),
        ({"nvrtc": "/x/libnvrtc.so.12"}, 12090, {"libcublas.so.12"}),
        ({"nvrtc": "/x/libnvrtc.so.12", "cublas": "/x/libcublas.so.12"}, 12000, set()),
        (
            {"nvrtc": "/x/libnvrtc.so.13", "cublas": "/x/libcublas.so.12.9"},
            13000,
            {"libnvrtc.so.12", "vector_types.h"},
        ),
    ],
)
def test_cupy_wants_a_compiler_cublas_and_headers_of_its_cuda(
    site: Site, paths: dict[str, str], version: int, missing: set[str]
) -> None:
    site.file("cupy/__init__.py")
    site.file("cupy/.data/_wheel.json", '{"cuda": "12.x"}')
    site.distribution("cupy-cuda12x", "14.2.0")
    site.file("include/vector_types.h")
    site.file("include/cuda_runtime_api.h", f"#define CUDART_VERSION  {version}\n")
    pathfinder(site, headers=str(site.folder / "include"), **paths)

    # Without the wheels of the Python that runs the tests.
    bare = site.folder.parent / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    build = site.look("cupy", str(bare), CUDA_PATH="/nobody")

    assert set(build.missing_libraries) == missing


@pytest.mark.parametrize("name", ["tensorflow", "jax", "cupy"])
def test_what_is_not_known_is_not_looked_at(tmp_path: Path, name: str) -> None:
    files = {
        f"{name}/__init__.py": "",
        "tensorflow/python/platform/build_info.py":
            "build_info = {'is_cuda_build': True, 'cuda_version': '99.1'}\n",
    }  # fmt: skip
    if name == "jax":
        prefix = tmp_path / "prefix"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin/python").symlink_to(sys.executable)
        (prefix / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
        (prefix / "conda-meta").mkdir()
        (prefix / "conda-meta/jaxlib-0.4.34-cuda126py312_0.json").touch()
    python = str(tmp_path / "prefix/bin/python") if name == "jax" else sys.executable

    found = read_builds(python, site_with(tmp_path / "site", files))

    (build,) = [each for each in found.builds or () if each.name == name]
    assert build.gpu_build is True
    assert "not known" in (build.unchecked or "")
    assert build.missing_libraries == ()


def test_without_the_gnu_loader_the_libraries_were_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_objects_child.Loader, "_own", staticmethod(lambda: None))
    monkeypatch.setattr(frameworks_child, "shared_objects_child", shared_objects_child)
    build: dict[str, Any] = {"missing_libraries": [], "broken": [], "unchecked": None}

    frameworks_child.look(build, [shutil.which("sh") or ""])

    assert "GNU C library" in build["unchecked"]
