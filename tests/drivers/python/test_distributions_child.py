"""Distributions of an interpreter: whose files are harmed, and what installs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpucheck.drivers.evidence import BuildReading, BuildsReading
from gpucheck.drivers.python.frameworks import read_builds
from tests.drivers.python.test_frameworks_child import ENVIRONMENT

CUDNN = "nvidia/cudnn/lib/libcudnn.so.9"
GRAPH = "nvidia/cudnn/lib/libcudnn_graph.so.9"


class Environment:
    """A virtual environment of pretended packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(sys.executable)
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = folder / "lib" / version / "site-packages"
        self.config = (
            f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = false\n"
        )
        self.file(folder / "pyvenv.cfg", self.config)

    def file(self, path: str | Path, text: str = "") -> None:
        target = self.site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def package(
        self, name: str, version: str, *files: str, requires: str = "", size: int = 4, by: str = ""
    ) -> None:
        """Install a package, whose files are this large."""
        folder = f"{name.replace('-', '_')}-{version}.dist-info"
        needs = f"Requires-Dist: {requires}\n" if requires else ""
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        self.file(f"{folder}/METADATA", metadata)
        self.file(f"{folder}/RECORD", "".join(f"{path},sha256=x,{size}\n" for path in files))
        if by:
            self.file(f"{folder}/INSTALLER", f"{by}\n")
        for path in files:
            self.file(path, "x" * size)

    def read(self) -> BuildsReading:
        found = read_builds(str(self.python), ENVIRONMENT)
        assert found.builds is not None, found.unavailable
        return found

    def pytorch(self) -> BuildReading:
        (build,) = [each for each in self.read().builds or () if each.name == "pytorch"]
        return build


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Return an environment with PyTorch for CUDA 13, which requires cuDNN by way of a third."""
    found = Environment(tmp_path / "env")
    found.file("torch/version.py", "__version__ = '2.15.0'\ncuda = '13.2'\n")
    found.file("torch/__init__.py")
    found.package("torch", "2.15.0", requires='cuda-toolkit[dnn]==13.2; platform_system == "Linux"')
    found.package("cuda-toolkit", "13.2", requires='nvidia-cudnn-cu13>=9; extra == "dnn"')
    found.package("nvidia-cudnn-cu13", "9.26.0.51", CUDNN, GRAPH)
    return found


@pytest.mark.parametrize("name", [CUDNN, GRAPH])
def test_a_deleted_library_is_missing_and_has_an_owner(environment: Environment, name: str) -> None:
    assert environment.pytorch().missing_libraries == ()

    (environment.site / name).unlink()

    build = environment.pytorch()
    assert build.missing_libraries == (name.rpartition("/")[2],)
    assert build.owners == ("nvidia-cudnn-cu13 9.26.0.51",)
    assert build.broken == ()


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (10, "torch/_C.cpython-311.so is cut: 4 bytes of 10"),
        (4, "_C.cpython-311.so is damaged: file too short"),
    ],
)
def test_what_the_loader_cannot_read_has_an_owner(
    environment: Environment, size: int, said: str
) -> None:
    environment.package("torch", "2.15.0", "torch/_C.cpython-311.so", size=size)
    environment.file("torch/_C.cpython-311.so", "ELF?")

    build = environment.pytorch()

    assert build.broken == (said,)
    assert build.owners == ("torch 2.15.0",)


def test_what_the_framework_does_not_need_is_not_its_own(
    environment: Environment,
) -> None:
    environment.package("nvidia-nccl-cu12", "2.30", "nvidia/nccl/lib/libnccl.so.2")
    (environment.site / "nvidia/nccl/lib/libnccl.so.2").unlink()

    assert environment.pytorch().missing_libraries == ()


def test_conda_s_packages_have_conda_s_names(environment: Environment) -> None:
    (environment.site / CUDNN).unlink()
    lib = str((environment.site / CUDNN).relative_to(environment.folder))
    record = {"name": "cudnn", "version": "9.26", "files": [lib]}
    environment.file(environment.folder / "conda-meta/cudnn-9.26.json", json.dumps(record))

    build = environment.pytorch()

    assert (build.owners, build.conda_owners) == ((), ("cudnn 9.26",))


@pytest.mark.parametrize("last", ["cu12", "cu13"])
def test_wheels_for_two_cudas_overwrite_each_other(environment: Environment, last: str) -> None:
    environment.package("nvidia-cudnn-cu12", "9.10", CUDNN, size=3)
    if last == "cu13":
        environment.file(CUDNN, "x" * 4)

    build = environment.pytorch()

    rivals = ("nvidia-cudnn-cu12 9.10", "nvidia-cudnn-cu13 9.26.0.51")
    assert build.rivals == (rivals if last == "cu12" else ())
    assert bool(build.remarks) is (last == "cu13")
    assert build.missing_libraries == ()


@pytest.mark.parametrize(
    ("files", "installers"),
    [
        ({"pip/__init__.py": ""}, ("pip",)),
        ({}, ("uv",)),
        ({"pip/__init__.py": "", "pyvenv.cfg": "{config}uv = 0.13.9\n"}, ("uv",)),
        ({"pip/__init__.py": "", "conda-meta/history": ""}, ("conda", "pip")),
    ],
)
def test_the_environment_s_own_installer(
    tmp_path: Path, files: dict[str, str], installers: tuple[str, ...]
) -> None:
    environment = Environment(tmp_path / "env")
    for name, text in files.items():
        folder = environment.site if name.startswith("pip") else environment.folder
        environment.file(folder / name, text.format(config=environment.config))

    assert environment.read().installers == installers


def test_pixi_s_environment(tmp_path: Path) -> None:
    environment = Environment(tmp_path / ".pixi/envs/default")
    environment.file(environment.folder / "conda-meta/history")
    environment.file("torch/__init__.py")
    environment.package("torch", "2.15.0", by="conda")

    assert environment.read().installers == ("pixi", "uv")
    assert environment.pytorch().from_conda is True
