"""Tells what each GPU framework of an interpreter was built for, without importing any of them.

A single file run by path in that interpreter (Python 3.8 or newer, standard library only), which
need not have gpucheck. It reads metadata, version files and the headers of shared libraries, and
names the libraries that those need and that are nowhere to be found. Writes one JSON object.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import json
import os
import re
import struct
import sys
from importlib import metadata

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any, BinaryIO

#: Framework -> its module, and the distributions that bring it.
FRAMEWORKS = {
    "pytorch": ("torch", ("torch",)),
    "tensorflow": (
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tf-nightly-cpu",
         "tensorflow-rocm", "intel-tensorflow"),
    ),
    "jax": ("jax", ("jax",)),
    "cupy": (
        "cupy",
        ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-cuda118", "cupy-cuda117",
         "cupy-cuda116", "cupy-cuda115", "cupy-cuda114", "cupy-cuda113", "cupy-cuda112",
         "cupy-cuda111", "cupy-cuda110", "cupy-rocm-5-0", "cupy-rocm-7-0"),
    ),
    "numba": ("numba", ("numba", "numba-cuda")),
    "onnxruntime": ("onnxruntime", ("onnxruntime-gpu", "onnxruntime")),
}  # fmt: skip
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
NVRTC = {"11": "libnvrtc.so.11.2", "12": "libnvrtc.so.12", "13": "libnvrtc.so.13"}

#: They come with the driver, whose absence is another matter.
_DRIVERS_OWN = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid|nvidia-encode)\.so")
_NVIDIAS = re.compile(
    r"lib(?:cu(?:da|dart|blas|fft|fftw|rand|solver|sparse|dnn|pti|tensor|dss|file|obj)"
    r"|nv|nccl|cudss)"
)
SYSTEM_FOLDERS = (
    "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
    "/lib/x86_64-linux-gnu", "/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip

DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_RPATH, DT_RUNPATH = 1, 5, 10, 15, 29
PT_LOAD, PT_DYNAMIC = 1, 2


# ------------------------------------------------------------------------------ shared libraries


def read_dynamic(path: str) -> tuple[list[str], list[str]]:
    """Return the libraries that an ELF file needs, and the folders that it names for them.

    Source: the System V ABI, "Dynamic Section". A file that is no 64-bit little-endian ELF gives
    nothing.
    """
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return _dynamic(file)
    except (OSError, struct.error, ValueError, IndexError):
        return [], []


def _dynamic(file: BinaryIO) -> tuple[list[str], list[str]]:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        return [], []
    offset, size, count = (
        struct.unpack_from("<Q", header, 32)[0],
        *struct.unpack_from("<HH", header, 54),
    )
    file.seek(offset)
    table = file.read(size * count)
    segments = [struct.unpack_from("<IIQQQQQQ", table, size * at) for at in range(count)]
    loads = [s for s in segments if s[0] == PT_LOAD]
    dynamic = next(s for s in [*segments, (PT_DYNAMIC, 0, 0, 0, 0, 0, 0, 0)] if s[0] == PT_DYNAMIC)
    file.seek(dynamic[2])
    raw = file.read(dynamic[5])
    entries = [struct.unpack_from("<qQ", raw, at) for at in range(0, len(raw) - 15, 16)]
    values = dict(entries)
    if DT_STRTAB not in values:
        return [], []
    file.seek(_offset_of(values[DT_STRTAB], loads))
    strings = file.read(values.get(DT_STRSZ, 0))
    needed = [_string(strings, value) for tag, value in entries if tag == DT_NEEDED]
    paths = [_string(strings, value) for tag, value in entries if tag in (DT_RPATH, DT_RUNPATH)]
    return needed, [folder for path in paths for folder in path.split(":") if folder]


def _offset_of(address: int, loads: list[tuple[int, ...]]) -> int:
    for _, _, offset, start, _, size, _, _ in loads:
        if start <= address < start + size:
            return offset + address - start
    return address


def _string(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")


class Shelves:
    """The folders in which this interpreter's programs find libraries."""

    def __init__(self) -> None:
        told = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        self._folders = [folder for folder in told if folder.startswith("/")]
        for site in sys.path:
            # Wheels of CUDA 12 have a folder for each part, those of CUDA 13 one for all.
            self._folders += sorted(glob.glob(os.path.join(glob.escape(site), "nvidia/*/lib")))  # noqa: PTH118, PTH207
        self._folders += self._configured()
        self._folders += SYSTEM_FOLDERS
        self._listed: dict[str, frozenset[str]] = {}

    @staticmethod
    def _configured() -> list[str]:
        folders = []
        for path in sorted(glob.glob("/etc/ld.so.conf.d/*.conf")):  # noqa: PTH207
            try:
                with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    folders += [line.strip() for line in file if line.startswith("/")]
            except OSError:
                continue
        return folders

    def has(self, name: str, *first: str) -> bool:
        """Return whether a library of this name is in one of the folders."""
        return any(name in self._list(folder) for folder in (*first, *self._folders))

    def has_like(self, pattern: str, *first: str) -> bool:
        """Return whether there is a library whose name fits the pattern."""
        wanted = re.compile(pattern)
        folders = (*first, *self._folders)
        return any(wanted.fullmatch(name) for folder in folders for name in self._list(folder))

    def _list(self, folder: str) -> frozenset[str]:
        if folder not in self._listed:
            try:
                self._listed[folder] = frozenset(os.listdir(folder))  # noqa: PTH208
            except OSError:
                self._listed[folder] = frozenset()
        return self._listed[folder]

    def missing_of(self, path: str) -> list[str]:
        """Return which of NVIDIA's libraries a shared library needs and nobody has."""
        needed, own = read_dynamic(path)
        origin = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        first = [origin, *(folder.replace("$ORIGIN", origin) for folder in own)]
        return [
            name
            for name in needed
            if _NVIDIAS.match(name) and not _DRIVERS_OWN.match(name) and not self.has(name, *first)
        ]

    def missing_among(self, names: tuple[str, ...]) -> list[str]:
        """Return which of these names nobody has."""
        return [name for name in names if not self.has(name)]


# ------------------------------------------------------------------------------ metadata


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return name -> version of the distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name) or ""
        except metadata.PackageNotFoundError:
            continue
        except Exception:  # a damaged folder of metadata says nothing
            found[name] = ""
    return found


def folder_of(module: str) -> str | None:
    """Return a package's folder without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return places[0] if places else None


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


def describe_pytorch(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
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


def describe_tensorflow(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
    """Read tensorflow/python/platform/build_info.py, and look for what it opens by name."""
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


def describe_jax(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
    """Look for the CUDA plugin, its version and its libraries."""
    parts = installed(JAX_PARTS)
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


def describe_cupy(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
    """Look for a second CuPy, for the compiler, and for the headers that kernels include."""
    packages = [name.partition(" ")[0] for name in build["distributions"]]
    if len(packages) > 1:
        build["notes"].append(
            f"{' and '.join(packages)} are both installed and overwrite each other"
        )
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
        build["notes"].append("the CUDA headers (vector_types.h) that kernels include are missing")


def _has_headers(home: str) -> bool:
    places = [os.path.join(home, "include")]  # noqa: PTH118
    for site in sys.path:
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/include"))  # noqa: PTH118, PTH207
    return any(os.path.exists(os.path.join(place, "vector_types.h")) for place in places)  # noqa: PTH110, PTH118


def describe_numba(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
    """Look for NVVM, with which Numba compiles for GPUs."""
    build["gpu_build"] = True
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = [os.path.join(home, "nvvm/lib64"), os.path.join(home, "nvvm/lib")]  # noqa: PTH118
    for site in sys.path:
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/nvvm/lib64"))  # noqa: PTH118, PTH207
        places += glob.glob(os.path.join(glob.escape(site), "nvidia/*/nvvm/lib"))  # noqa: PTH118, PTH207
    if not shelves.has_like(r"libnvvm\.so(\.\d+)*", *places):
        build["missing_libraries"].append("libnvvm.so")


def describe_onnxruntime(build: dict[str, Any], folder: str, shelves: Shelves) -> None:
    """Look for the CUDA provider beside the core, and for a second package over the first."""
    packages = [name.partition(" ")[0] for name in build["distributions"]]
    if len(packages) > 1:
        build["notes"].append(
            f"{' and '.join(packages)} are both installed and overwrite each other"
        )
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
    shelves = Shelves()
    builds = []
    for name, (module, distributions) in FRAMEWORKS.items():
        folder = folder_of(module)
        if folder is None:
            continue
        versions = installed(distributions)
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
        DESCRIBE[name](build, folder, shelves)
        build["missing_libraries"] = list(dict.fromkeys(build["missing_libraries"]))
        builds.append(build)
    return builds


def main() -> None:
    """Write what there is."""
    # Neither our own folder nor the current one: nothing is taken from there.
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    document = {
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "builds": find_builds(),
    }
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
