"""Tells what each GPU framework of an interpreter was built for, without importing any of them.

Run by path in that interpreter (Python 3.8 or newer, standard library only), which need not have
gpucheck. It reads metadata, version files and the headers of shared libraries, and names the
libraries that those need and that are nowhere to be found. Writes one JSON object.
"""

from __future__ import annotations

import ast
import contextlib
import glob
import importlib.util
import json
import mmap
import os
import re
import sys

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from . import frameworks_child, shared_objects_child

#: Neither our own folder nor the current one is where a user's packages are.
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def _beside(name: str) -> Any:
    """Load a file beside this one: that folder is on nobody's path."""
    path = os.path.join(OWN_FOLDER, name + ".py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    frameworks_child = _beside("frameworks_child")
    shared_objects_child = _beside("shared_objects_child")

JAX_PARTS = (
    "jaxlib",
    "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt",
    "jax-rocm-plugin",
)  # fmt: skip

#: What TensorFlow and JAX open by name when they look for GPUs, by CUDA's major version.
#: Source: the file names in NVIDIA's wheels of these versions.
OPENED_BY_NAME = {
    "11": ("libcudart.so.11.0", "libcublas.so.11", "libcublasLt.so.11", "libcufft.so.10",
           "libcusolver.so.11", "libcusparse.so.11"),
    "12": ("libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12", "libcufft.so.11",
           "libcusolver.so.11", "libcusparse.so.12"),
    "13": ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcufft.so.12",
           "libcusolver.so.12", "libcusparse.so.12"),
}  # fmt: skip
#: What torch.cuda.get_arch_list() gives is compiled into libtorch_python.so as one string.
#: Seen in the wheel of PyTorch 2.15 for CUDA 13.2.
COMPILED_FOR = re.compile(rb"\0((?:(?:sm|compute)_[0-9]+[af]? ?)+)\0")
NVRTC = {"11": "libnvrtc.so.11.2", "12": "libnvrtc.so.12", "13": "libnvrtc.so.13"}


def assignments(path: str) -> dict[str, Any]:
    """Return a module's simple assignments of constants, read as text."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            name, value = node.target.id, node.value
        else:
            continue
        if isinstance(value, ast.Call) and len(value.args) == 1:
            value = value.args[0]  # collections.OrderedDict([...])
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            continue
    return found


def major(version: str | None) -> str:
    """Return the part before the first point."""
    return (version or "").partition(".")[0]


# ------------------------------------------------------------------------------ frameworks


def note_rivals(build: dict[str, Any]) -> list[str]:
    """Return the packages that bring a framework; of two, the last one installed has its files."""
    packages = [name.partition(" ")[0] for name in build["distributions"]]
    if len(packages) > 1:
        build["notes"].append(
            f"{' and '.join(packages)} are both installed and overwrite each other"
        )
    return packages


def describe_pytorch(
    build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves
) -> None:
    """Read torch/version.py and what its CUDA library needs."""
    said = assignments(os.path.join(folder, "version.py"))  # noqa: PTH118
    build["version"] = said.get("__version__") or build["version"]
    build["cuda_build"] = said.get("cuda")
    if "cuda" in said:
        build["gpu_build"] = said["cuda"] is not None
    if said.get("hip"):
        build["notes"].append(f"it is built for AMD GPUs (ROCm {said['hip']})")
    if build["gpu_build"]:
        for name in ("libc10_cuda.so", "libtorch_cuda.so"):
            build["missing_libraries"] += shelves.missing_of(os.path.join(folder, "lib", name))  # noqa: PTH118
        library = os.path.join(folder, "lib", "libtorch_python.so")  # noqa: PTH118
        build["architectures"] = compiled_architectures(library)


def compiled_architectures(library: str) -> list[str]:
    """Return the architectures that a library of PyTorch says it holds code for."""
    try:
        with open(library, "rb") as file:  # noqa: PTH123, SIM117 - Python 3.8 has no longer form
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                found = COMPILED_FOR.search(content)
                return found.group(1).decode("ascii").split() if found else []
    except (OSError, ValueError):  # ValueError: it is empty
        return []


def describe_tensorflow(
    build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves
) -> None:
    """Read tensorflow/python/platform/build_info.py, and look for what it opens by name."""
    note_rivals(build)
    path = os.path.join(folder, "python", "platform", "build_info.py")  # noqa: PTH118
    said = dict(assignments(path).get("build_info", ()))
    if "is_cuda_build" in said:
        build["gpu_build"] = bool(said["is_cuda_build"])
    build["cuda_build"] = said.get("cuda_version")
    build["architectures"] = [str(name) for name in said.get("cuda_compute_capabilities", ())]
    if not build["gpu_build"]:
        return
    names = OPENED_BY_NAME.get(major(said.get("cuda_version")), ())
    cudnn = major(str(said.get("cudnn_version", "")))
    build["missing_libraries"] += shelves.missing_among(
        (*names, f"libcudnn.so.{cudnn}") if cudnn else names
    )


def describe_jax(build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves) -> None:
    """Look for the CUDA plugin, its version and its libraries."""
    parts = frameworks_child.installed(JAX_PARTS)
    build["distributions"] += [f"{name} {version}" for name, version in parts.items()]
    plugins = [name for name in parts if name.endswith("-plugin") and "cuda" in name]
    build["gpu_build"] = bool(plugins)
    if not plugins:
        return
    cuda = re.sub(r"\D", "", plugins[-1])
    build["cuda_build"] = cuda
    if parts[plugins[-1]] != parts.get("jaxlib", parts[plugins[-1]]):
        build["notes"].append(
            f"{plugins[-1]} {parts[plugins[-1]]} does not fit jaxlib {parts['jaxlib']}"
        )
    if f"jax-cuda{cuda}-pjrt" not in parts:
        build["notes"].append(f"jax-cuda{cuda}-pjrt is not installed")
    names = OPENED_BY_NAME.get(cuda, ())
    build["missing_libraries"] += shelves.missing_among((*names, "libcudnn.so.9"))


def describe_cupy(
    build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves
) -> None:
    """Look for a second CuPy, for the compiler, and for the headers that kernels include."""
    packages = note_rivals(build)
    try:
        with open(os.path.join(folder, ".data", "_wheel.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            cuda = major(str(json.load(file).get("cuda", "")))
    except (OSError, ValueError, AttributeError):
        cuda = next(
            (found[1] for found in map(re.compile(r"cupy-cuda(1\d)").match, packages) if found), ""
        )
    rocm = any("rocm" in name for name in packages)
    build["gpu_build"] = not rocm
    build["cuda_build"] = cuda or None
    if rocm:
        build["notes"].append("it is built for AMD GPUs (ROCm)")
        return
    home = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    libraries = os.path.join(home, "lib64")  # noqa: PTH118
    if cuda in NVRTC and not shelves.has(NVRTC[cuda], libraries):
        build["missing_libraries"].append(NVRTC[cuda])
    if not _has_headers(home):
        # A header, without which its compiler gets nowhere either.
        build["missing_libraries"].append("vector_types.h")


def _has_headers(home: str) -> bool:
    places = [os.path.join(home, "include")]  # noqa: PTH118
    for site in sys.path:
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/include"))  # noqa: PTH118, PTH207
    return any(os.path.exists(os.path.join(place, "vector_types.h")) for place in places)  # noqa: PTH110, PTH118


def describe_numba(
    build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves
) -> None:
    """Look for NVVM, with which Numba compiles for GPUs."""
    build["gpu_build"] = True
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = [os.path.join(home, "nvvm/lib64"), os.path.join(home, "nvvm/lib")]  # noqa: PTH118
    for site in sys.path:
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/nvvm/lib64"))  # noqa: PTH118, PTH207
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/nvvm/lib"))  # noqa: PTH118, PTH207
    if not shelves.has_like(r"libnvvm\.so(\.\d+)*", *places):
        build["missing_libraries"].append("libnvvm.so")


def describe_onnxruntime(
    build: dict[str, Any], folder: str, shelves: shared_objects_child.Shelves
) -> None:
    """Look for the CUDA provider beside the core, and for a second package over the first."""
    note_rivals(build)
    capi = os.path.join(folder, "capi")  # noqa: PTH118
    provider = os.path.join(capi, "libonnxruntime_providers_cuda.so")  # noqa: PTH118
    said = assignments(os.path.join(capi, "build_and_package_info.py"))  # noqa: PTH118
    build["gpu_build"] = os.path.exists(provider)  # noqa: PTH110
    build["cuda_build"] = said.get("cuda_version") or None
    if build["gpu_build"]:
        build["missing_libraries"] += shelves.missing_of(provider)


DESCRIBE = {
    "pytorch": describe_pytorch,
    "tensorflow": describe_tensorflow,
    "jax": describe_jax,
    "cupy": describe_cupy,
    "numba": describe_numba,
    "onnxruntime": describe_onnxruntime,
}


def find_builds() -> list[dict[str, Any]]:
    """Return the frameworks that are installed, each with what its files tell."""
    shelves = shared_objects_child.Shelves()
    builds = []
    for name, (module, distributions) in frameworks_child.FRAMEWORKS.items():
        folder = frameworks_child.folder_of(module)
        if folder is None:
            continue
        versions = frameworks_child.installed(distributions)
        build: dict[str, Any] = {
            "name": name,
            "distributions": [f"{key} {value}".strip() for key, value in versions.items()],
            "version": next(iter(versions.values()), None),
            "cuda_build": None,
            "gpu_build": None,
            "architectures": [],
            "missing_libraries": [],
            "notes": [],
            "path": folder,
        }
        # Files that make no sense leave open what they would have told.
        with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError, OSError):
            DESCRIBE[name](build, folder, shelves)
        build["missing_libraries"] = list(dict.fromkeys(build["missing_libraries"]))
        builds.append(build)
    return builds


def main() -> None:
    """Write what there is."""
    # Neither our own folder nor the current one: nothing is taken from there.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", OWN_FOLDER)]
    document = {
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "builds": find_builds(),
    }
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
