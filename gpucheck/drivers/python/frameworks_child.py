"""GPU frameworks of an interpreter, found without importing any of them.

Run by path in that interpreter (Python 3.8 or newer, standard library only), which need not have
gpucheck. `installed` lists the frameworks by their metadata. `builds` also reads version files and
the headers of shared libraries, and names the libraries that these need and that cannot be found.
Writes one JSON object.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import re
import sys
from importlib import metadata

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from . import distributions_child, shared_objects_child

#: Removed from sys.path: the user's packages are not here.
OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def _beside(name: str) -> Any:
    """Load a file from this folder, which is not on sys.path."""
    path = os.path.join(OWN_FOLDER, name + ".py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not TYPE_CHECKING:
    # `installed` needs neither of them, nor what they import.
    distributions_child = shared_objects_child = None

#: Framework -> its module, and the distributions that provide it, the likeliest first.
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
#: What torch.cuda.get_arch_list() gives is compiled into libtorch_python.so as one string.
#: Seen in the wheel of PyTorch 2.15 for CUDA 13.2.
COMPILED_FOR = re.compile(rb"\0((?:(?:sm|compute)_[0-9]+[af]? ?)+)\0")
#: In 2.8 and 2.9 it follows another string directly. Seen in their wheels; a search takes half a
#: second.
COMPILED_BEHIND = re.compile(rb"((?:(?:sm|compute)_[0-9]+[af]? )+(?:sm|compute)_[0-9]+[af]?)\0")
NVRTC = {"11": "libnvrtc.so.11.2", "12": "libnvrtc.so.12", "13": "libnvrtc.so.13"}
CUFFT = {"11": "libcufft.so.10", "12": "libcufft.so.11", "13": "libcufft.so.12"}
#: The first CuPy that looks for libraries by cuda-pathfinder.
PATHFINDER_SINCE = 14
CUDART_VERSION = re.compile(rb"#define\s+CUDART_VERSION\s+(\d+)")
#: Further packages whose files are checked.
PARTS = {"jax": JAX_PARTS}


# ------------------------------------------------------------------------------ installed


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return name -> version of the distributions that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name) or ""
        except metadata.PackageNotFoundError:
            continue
        except Exception:  # damaged metadata
            versions[name] = ""
    return versions


def folder_of(module: str) -> str | None:
    """Return a package's folder without importing it, None if there is no such package.

    A folder without `__init__.py`, which uninstalling may leave behind, does not count.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), None)


def find_frameworks() -> dict[str, str]:
    """Return the version by module, empty where only the version is unknown."""
    return {
        module: next(iter(installed(distributions).values()), "")
        for module, distributions in FRAMEWORKS.values()
        if module in sys.modules or folder_of(module) is not None
    }


def find_for_cpus() -> list[str]:
    """Return the modules whose packages are CPU-only by name."""
    modules = []
    if (installed(("torch",)).get("torch") or "").endswith("+cpu"):
        modules.append("torch")
    tensorflows = list(installed(FRAMEWORKS["tensorflow"][1]))
    if tensorflows and all(name.endswith("-cpu") for name in tensorflows):
        modules.append("tensorflow")
    return modules


# ----------------------------------------------------------------------- facts from files


def assignments(path: str) -> dict[str, Any]:
    """Return a module's simple assignments of constants, read as text."""
    import ast

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return {}
    values: dict[str, Any] = {}
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
            values[name] = ast.literal_eval(value)
        except (ValueError, TypeError):
            continue
    return values


def major(version: str | None) -> str:
    """Return the part before the first point."""
    return (version or "").partition(".")[0]


# ------------------------------------------------------------------------------ libraries


def look(
    build: dict[str, Any],
    objects: list[str],
    opened: tuple[str, ...] = (),
    folders: tuple[str, ...] = (),
) -> shared_objects_child.Loading | None:
    """Note which libraries the loader cannot find for those of these objects that exist.

    `opened` are libraries that the framework opens by name, `folders` the folders that it searches
    itself.
    """
    loader = shared_objects_child.Loader()
    if build["unchecked"]:
        return None
    if loader.path is None:
        build["unchecked"] = "no loader of the GNU C library runs this Python"
        return None
    there = [path for path in objects if os.path.exists(path)]  # noqa: PTH110
    loading = loader.look(there, opened, folders)
    build["missing_libraries"] += loading.missing
    build["broken"] += loading.broken
    return loading


def note_toolkits(build: dict[str, Any]) -> None:
    """Note a toolkit folder that has missing libraries but that the loader does not search."""
    for folder in shared_objects_child.toolkit_folders():
        try:
            names = set(os.listdir(folder)).intersection(build["missing_libraries"])  # noqa: PTH208
        except OSError:
            continue
        if names:
            build["not_searched"].append(folder)
            return


def ask_pathfinder(build: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the paths from this Python's cuda-pathfinder; note if it is absent or silent."""
    import subprocess

    start = os.path.join(OWN_FOLDER, os.pardir, "start_child.py")  # noqa: PTH118
    # A process of its own: finding a library loads it.
    command = [sys.executable, start, str(os.getpid()), __file__, "libraries", *names]
    try:
        _, written, _ = shared_objects_child.run(command, os.environ)
        answer = json.loads(written.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        build["unchecked"] = "cuda-pathfinder did not answer"
        return {}
    if not answer:
        build["notes"].append("cuda-pathfinder, which it uses to find libraries, is not installed")
    return dict(answer)


def find_libraries(names: Sequence[str]) -> dict[str, Any]:
    """Return where cuda-pathfinder finds libraries and CUDA's headers; nothing without it."""
    try:
        from cuda import pathfinder
    except ImportError:
        return {}
    libraries = {}
    for name in names:
        try:
            libraries[name] = pathfinder.load_nvidia_dynamic_lib(name).abs_path
        except Exception:  # not found, or not to be loaded
            libraries[name] = None
    try:
        headers = pathfinder.find_nvidia_header_directory("cudart")
    except Exception:
        headers = None
    return {"found": libraries, "headers": headers}


# ------------------------------------------------------------------------------ builds


def note_rivals(build: dict[str, Any]) -> list[str]:
    """Return the packages that provide a framework; of two, the files of the later one remain."""
    packages = [name.partition(" ")[0] for name in build["distributions"]]
    if len(packages) > 1:
        build["notes"].append(
            f"{' and '.join(packages)} are both installed and overwrite each other"
        )
    return packages


def describe_pytorch(build: dict[str, Any], folder: str) -> None:
    """Read torch/version.py, and list what its libraries would load."""
    constants = assignments(os.path.join(folder, "version.py"))  # noqa: PTH118
    build["version"] = constants.get("__version__") or build["version"]
    build["cuda_build"] = constants.get("cuda")
    if "cuda" in constants:
        build["gpu_build"] = constants["cuda"] is not None
    if constants.get("hip"):
        build["notes"].append(f"it is built for AMD GPUs (ROCm {constants['hip']})")
    if build["gpu_build"]:
        # `import torch` loads the first; the others are opened on demand.
        objects = glob.glob(os.path.join(glob.escape(folder), "_C.*.so"))  # noqa: PTH118, PTH207
        names = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so")
        objects += [os.path.join(folder, "lib", name) for name in (*names, "libcaffe2_nvrtc.so")]  # noqa: PTH118
        look(build, objects, folders=tuple(shared_objects_child.wheel_folders()))
        library = os.path.join(folder, "lib", "libtorch_python.so")  # noqa: PTH118
        build["architectures"] = compiled_architectures(library)


def compiled_architectures(library: str) -> list[str]:
    """Return the architectures for which a PyTorch library holds code."""
    import mmap

    try:
        with open(library, "rb") as file:  # noqa: PTH123, SIM117 - Python 3.8 has no parenthesized form
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                match = COMPILED_FOR.search(content) or COMPILED_BEHIND.search(content)
                return match.group(1).decode("ascii").split() if match else []
    except (OSError, ValueError):  # ValueError: it is empty
        return []


def describe_tensorflow(build: dict[str, Any], folder: str) -> None:
    """Read tensorflow/python/platform/build_info.py, and look for what it opens by name."""
    note_rivals(build)
    path = os.path.join(folder, "python", "platform", "build_info.py")  # noqa: PTH118
    build_info = dict(assignments(path).get("build_info", ()))
    if "is_cuda_build" in build_info:
        build["gpu_build"] = bool(build_info["is_cuda_build"])
    build["cuda_build"] = build_info.get("cuda_version")
    build["architectures"] = [str(name) for name in build_info.get("cuda_compute_capabilities", ())]
    if not build["gpu_build"]:
        return
    names = names_of_cuda(build)
    cudnn = major(str(build_info.get("cudnn_version", "")))
    libraries = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
    look(
        build,
        [os.path.join(folder, name) for name in libraries],  # noqa: PTH118
        (*names, f"libcudnn.so.{cudnn}") if cudnn else names,
    )


def describe_jax(build: dict[str, Any], folder: str) -> None:
    """Find the CUDA plugin, its version and its libraries."""
    parts = installed(JAX_PARTS)
    build["distributions"] += [f"{name} {version}" for name, version in parts.items()]
    plugins = [name for name in parts if name.endswith("-plugin") and "cuda" in name]
    build["gpu_build"] = bool(plugins)
    if not plugins:
        describe_conda_s_jax(build)
        return
    plugin = plugins[-1]
    cuda = re.sub(r"\D", "", plugin)
    pjrt = f"jax-cuda{cuda}-pjrt"
    build["cuda_build"] = cuda
    if pjrt not in parts:
        build["notes"].append(f"{pjrt} is not installed")
    for name in ("jaxlib", pjrt):
        # JAX compares the numbers: 0.10.2.dev1 and 0.10.2+local fit 0.10.2.
        if name in parts and numbers(parts[name]) != numbers(parts[plugin]):
            build["notes"].append(f"{plugin} {parts[plugin]} does not fit {name} {parts[name]}")
    names = (*names_of_cuda(build), f"libcupti.so.{cuda}", "libcudnn.so.9")
    site = os.path.dirname(folder)  # noqa: PTH120
    objects = glob.glob(os.path.join(glob.escape(site), f"jax_plugins/xla_cuda{cuda}/*.so"))  # noqa: PTH118, PTH207
    objects += glob.glob(os.path.join(glob.escape(site), f"jax_cuda{cuda}_plugin/_versions*.so"))  # noqa: PTH118, PTH207
    # It loads them from NVIDIA's wheels, wherever these are, before anything else.
    look(build, objects, names, tuple(shared_objects_child.wheel_folders()))


def names_of_cuda(build: dict[str, Any]) -> tuple[str, ...]:
    """Return the CUDA libraries that TensorFlow and JAX open by name; note if that is unknown."""
    cuda = major(build["cuda_build"])
    if cuda and cuda not in OPENED_BY_NAME:
        build["unchecked"] = f"it is not known which libraries of CUDA {cuda} it opens"
    return OPENED_BY_NAME.get(cuda, ())


def describe_conda_s_jax(build: dict[str, Any]) -> None:
    """Detect a jaxlib for CUDA from conda, which needs no plugin.

    Source: the names of conda-forge's builds of jaxlib, such as jaxlib-0.4.34-cuda126py312_0.
    """
    records = os.path.join(glob.escape(sys.prefix), "conda-meta", "jaxlib-*cuda*.json")  # noqa: PTH118
    for path in glob.glob(records):  # noqa: PTH207
        match = re.search(r"cuda_?(\d\d)", path)
        build["gpu_build"] = True
        build["cuda_build"] = match.group(1) if match else None
        build["unchecked"] = "it is not known which files of conda's jaxlib need them"


def numbers(version: str) -> str:
    """Return the numeric beginning of a version."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return match.group(0) if match else version


def describe_cupy(build: dict[str, Any], folder: str) -> None:
    """Check for a second CuPy, the compiler, cuBLAS and the headers that kernels need."""
    packages = note_rivals(build)
    try:
        with open(os.path.join(folder, ".data", "_wheel.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            cuda = major(str(json.load(file).get("cuda", "")))
    except (OSError, ValueError, AttributeError):
        cuda = next(
            (files[1] for files in map(re.compile(r"cupy-cuda(1\d)").match, packages) if files), ""
        )
    rocm = any("rocm" in name for name in packages)
    build["gpu_build"] = not rocm
    build["cuda_build"] = cuda or None
    if rocm:
        build["notes"].append("it is built for AMD GPUs (ROCm)")
        return
    home = os.environ.get("CUDA_PATH") or os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    headers = [os.path.join(home, "include")]  # noqa: PTH118
    if cuda not in NVRTC:
        build["unchecked"] = "it is not known for which CUDA it is built"
        return
    wanted = {"nvrtc": NVRTC[cuda], "cublas": f"libcublas.so.{cuda}"}
    # From 14 on it asks cuda-pathfinder; before that, only the loader.
    numbered = major(build["version"])
    if numbered.isdigit() and int(numbered) >= PATHFINDER_SINCE:
        answer = ask_pathfinder(build, *wanted)
        if not answer:
            return
        files = {name: os.path.basename(path or "") for name, path in answer["found"].items()}  # noqa: PTH119
        build["missing_libraries"] += [
            library
            for name, library in wanted.items()
            if not files.get(name, "").startswith(library.rpartition(".so")[0] + f".so.{cuda}")
        ]
        headers.append(answer["headers"] or "")
    else:
        look(build, [], tuple(wanted.values()))
    for site in sys.path:
        headers += glob.glob(os.path.join(glob.escape(site), "nvidia/*/include"))  # noqa: PTH118, PTH207
    if not any(headers_cuda(place) == cuda for place in headers):
        # A header, but its compiler needs it just as much.
        build["missing_libraries"].append("vector_types.h")


def headers_cuda(folder: str) -> str:
    """Return the CUDA major version of the headers in a folder, empty if there are none."""
    if not os.path.exists(os.path.join(folder, "vector_types.h")):  # noqa: PTH110, PTH118
        return ""
    try:
        with open(os.path.join(folder, "cuda_runtime_api.h"), "rb") as file:  # noqa: PTH118, PTH123
            match = CUDART_VERSION.search(file.read(1 << 20))
    except OSError:
        return ""
    return str(int(match.group(1)) // 1000) if match else ""


def describe_numba(build: dict[str, Any], folder: str) -> None:
    """Find NVVM, with which Numba compiles for GPUs; numba-cuda needs NVRTC as well."""
    build["gpu_build"] = True
    if any(name.startswith("numba-cuda ") for name in build["distributions"]):
        answer = ask_pathfinder(build, "nvvm", "nvrtc")
        if not answer:
            return
        folders = answer["found"]
        for name, library in (("nvvm", "libnvvm.so"), ("nvrtc", "libnvrtc.so")):
            if not folders.get(name):
                build["missing_libraries"].append(library)
        numbered = re.search(r"libnvrtc\.so\.(\d+)", folders["nvrtc"] or "")
        build["cuda_build"] = numbered.group(1) if numbered else None
        return
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = [os.path.join(home, "nvvm/lib64"), os.path.join(sys.prefix, "lib")]  # noqa: PTH118
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # noqa: PTH112, PTH118
        places.append(os.path.join(sys.prefix, "nvvm/lib64"))  # noqa: PTH118
    # Where these have none, it leaves the search to the loader. Source: numba 0.68, cuda_paths.py.
    if not any(glob.glob(os.path.join(glob.escape(place), "libnvvm.so*")) for place in places):  # noqa: PTH118, PTH207
        look(build, [], ("libnvvm.so",))


def describe_onnxruntime(build: dict[str, Any], folder: str) -> None:
    """Find the CUDA provider, and the libraries that it loads."""
    note_rivals(build)
    capi = os.path.join(folder, "capi")  # noqa: PTH118
    provider = os.path.join(capi, "libonnxruntime_providers_cuda.so")  # noqa: PTH118
    constants = assignments(os.path.join(capi, "build_and_package_info.py"))  # noqa: PTH118
    build["gpu_build"] = os.path.exists(provider)  # noqa: PTH110
    build["cuda_build"] = constants.get("cuda_version") or None
    if not build["gpu_build"]:
        if any(name.startswith("onnxruntime-gpu ") for name in build["distributions"]):
            build["gpu_build"] = True
            build["broken"].append("capi/libonnxruntime_providers_cuda.so is not there")
        return
    cuda = major(build["cuda_build"])
    opened = ("libcudnn.so.9", CUFFT[cuda]) if cuda in CUFFT else ("libcudnn.so.9",)
    alone = look(build, [provider], opened)
    if alone is None or not alone.missing:
        return
    # Its preload_dlls() searches NVIDIA's wheels; without that call only the loader counts.
    build["missing_libraries"] = []
    helped = look(build, [provider], opened, tuple(shared_objects_child.wheel_folders()))
    if helped is not None and not helped.missing:
        build["remarks"].append(
            "its libraries are in NVIDIA's wheels: call onnxruntime.preload_dlls() before a session"
        )


DESCRIBE = {
    "pytorch": describe_pytorch,
    "tensorflow": describe_tensorflow,
    "jax": describe_jax,
    "cupy": describe_cupy,
    "numba": describe_numba,
    "onnxruntime": describe_onnxruntime,
}


def find_builds() -> list[dict[str, Any]]:
    """Return the installed frameworks, each with the facts from its files."""
    builds = []
    for name, (module, distributions) in FRAMEWORKS.items():
        folder = folder_of(module)
        versions = installed(distributions)
        if folder is None and not set(versions) - {"numba-cuda"}:
            continue
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
            "broken": [],
            "remarks": [],
            "not_searched": [],
            "unchecked": None,
            "owners": [],
            "conda_owners": [],
            "rivals": [],
            "from_conda": distributions_child.is_from_conda(versions),
        }
        if folder is None:
            build["broken"].append(f"the package {module} of {build['distributions'][0]} is gone")
        else:
            # Malformed files leave their fields unknown.
            with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError, OSError):
                DESCRIBE[name](build, folder)
            parts = [*versions, *PARTS.get(name, ())]
            distributions_child.note_harm(build, parts)
            if build["gpu_build"]:
                distributions_child.note_rival_requirements(
                    build, parts, major(build["cuda_build"])
                )
        note_toolkits(build)
        for key in ("missing_libraries", "broken", "owners", "conda_owners", "rivals"):
            build[key] = list(dict.fromkeys(build[key]))
        builds.append(build)
    return builds


def main(question: str, *names: str) -> None:
    """Write the installed frameworks, all facts about them (`builds`), or where `libraries` are."""
    # Nothing is imported from our own folder or the current one.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", OWN_FOLDER)]
    python = ".".join(map(str, sys.version_info[:3]))
    document: dict[str, Any]
    if question == "builds":
        global distributions_child, shared_objects_child
        distributions_child = _beside("distributions_child")
        shared_objects_child = _beside("shared_objects_child")
        document = {
            "python": sys.executable,
            "python_version": python,
            "installers": distributions_child.find_installers(),
            "builds": find_builds(),
        }
    elif question == "libraries":
        document = find_libraries(names)
        sys.stdout.write("\n")  # behind what a library may have written
    else:
        document = {"python": python, "frameworks": find_frameworks(), "for_cpus": find_for_cpus()}
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
