"""Files of one running process: what it has loaded and opened, and where it came from.

Everything is read from /proc and the process's own folders; nothing is attached to, signalled or
written. What this user may not read is null, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpucheck.drivers.child import Child, ChildError, explain
from gpucheck.drivers.evidence import (
    AncestorReading,
    CgroupReading,
    MappedFrameworkReading,
    MappedReading,
    ProcessFilesReading,
)
from gpucheck.drivers.host.cgroups import MOUNT, group_paths
from gpucheck.drivers.host.device_holders import MOST_LINKS, MOST_THREADS
from gpucheck.drivers.host.environment import gpu_variables
from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.drivers.host.process_tree import ProcessTree, Stat, read_stat
from gpucheck.drivers.host.processes import identify, is_in_initial_namespace
from gpucheck.drivers.host.sysfs import read_text, value_of
from gpucheck.drivers.readings import HUNG
from gpucheck.report.codec import from_plain, to_plain

#: A process may have 65,530 mappings (vm.max_map_count), each a line with a path.
MOST_MAPS_BYTES = 32 * MIB
MOST_ENVIRON_BYTES = 8 * MIB
#: A chain of parents is rarely longer than twenty.
MOST_ANCESTORS = 64
#: Of the processes below it so many are looked at.
MOST_BELOW = 256
#: So many different files of a process are kept.
MOST_MAPPED = 400

#: Address, permissions, offset, device, inode, path (man 5 proc).
_MAP_LINE = re.compile(r"\S+ \S{4} [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) ([0-9]+) +(/.*)")
_DELETED = " (deleted)"
#: NVIDIA's libraries that a program may have in two versions, and the files of frameworks.
_LIBRARY = re.compile(
    # Wheels may put a part of the file's hash into its name.
    r"lib(?:cuda|cudart|cudnn\w*|cublas|cublasLt|cufft|curand|cusolver|cusparse|nccl|nvrtc"
    r"|nvidia-ml|nvJitLink|cupti|cudadebugger)(?:-[0-9a-f]{8})?\.so(?:\.[0-9.]+)?"
    r"|lib(?:torch_cpu|tensorflow_cc|tensorflow_framework|ggml[-\w]*)\.so(?:\.[0-9.]+)?"
)
_FRAMEWORK_FILE = re.compile(
    r"/(?:jaxlib|jax_plugins|onnxruntime/capi|cupy|cupy_backends)/.*\.so(?:\.[0-9.]+)?"
)
#: Files of the driver: NVIDIA's on Linux, its bridge on WSL2, and those of Jetson.
_DEVICE = re.compile(r"/dev/(?:nvidia[^/]*|nvidia-caps/[^/]+|dxg|nvmap|nvgpu/.+|nvhost[^/]*)")
_NVIDIA_MAJOR = 195
_UNLIMITED = 1 << 60
#: Why the files of another user's process cannot be read.
NOT_ALLOWED = "only its user or root may read it"
KERNEL_THREAD = "a thread of the kernel has none"
ENDED = "it has ended"
#: What the files of a process tell.
_FROM_FILES = (
    *("environment", "libraries", "frameworks"),
    *("device_files", "devices_present", "cgroup"),
)
_WORDS = (
    (HUNG, "no answer within {}, as from a process that is stuck in the kernel"),
    ("child-died", "the process that reads them {}"),
)
_WORD = r"[\w.+-]{1,60}"

Value = TypeVar("Value")


def read_process_in_time(pid: int, root: Path, *, deadline_s: float) -> ProcessFilesReading:
    """Read one process in a child; what it does not answer in time is missing, with the reason."""
    try:
        with Child(__name__, str(root), str(pid)) as child:
            return from_plain(ProcessFilesReading, next(child.documents(deadline_s)))
    except ChildError as error:
        why = explain(error, _WORDS).message
    # Reading these waits for nothing.
    folder = root / "proc" / str(pid)
    stat = read_stat(folder)
    return ProcessFilesReading(
        pid=pid,
        exists=stat is not None,
        state=stat and stat.state,
        parent=stat and stat.parent,
        name=read_text(folder / "comm"),
        initial_namespace=is_in_initial_namespace(root),
        unavailable=dict.fromkeys(_FROM_FILES, why),
    )


def main(root: str, pid: str) -> None:
    """Write what is read of a process in one line: the child does this.

    The kernel lets nobody read the mappings of a process that is stuck in a driver with its memory
    locked, nor files below a dead network file system: not even SIGKILL ends such a read.
    """
    sys.stdout.write(json.dumps(to_plain(read_process(int(pid), Path(root)))) + "\n")


def read_process(pid: int, root: Path) -> ProcessFilesReading:
    """Read one process; `exists` is false if there is none, or it has ended meanwhile.

    The id of a thread stands for the process that it belongs to.
    """
    leader = _status_number(root / "proc" / str(pid), "tgid") or pid
    folder = root / "proc" / str(leader)
    before = read_stat(folder)
    if before is None:
        return ProcessFilesReading(pid=pid, exists=False)
    place = _place(folder, before)
    gaps: dict[str, str] = {}
    if place is None:
        gaps = dict.fromkeys(_FROM_FILES, KERNEL_THREAD if before.kernel_thread else ENDED)
    # This runs in a child already.
    who = identify([leader], root, {leader: read_text((place or folder) / "cmdline") or ""})[leader]
    below = sorted(set(ProcessTree(leader, root).refresh()) - {leader})
    reading = ProcessFilesReading(
        pid=leader,
        exists=True,
        state=before.state,
        parent=before.parent,
        name=read_text(folder / "comm"),
        user=who.user,
        command=who.command,
        kernel_thread=before.kernel_thread,
        thread_count=_status_number(folder, "threads"),
        threads=_thread_states(folder),
        ancestors=tuple(_ancestors(before.parent, root)),
        descendants=tuple(below),
        holders=tuple(
            child_pid for child_pid in below[:MOST_BELOW] if _holds(root / "proc" / str(child_pid))
        ),
        initial_namespace=is_in_initial_namespace(root),
        own_namespaces=tuple(_own_namespaces(folder, root)),
        unavailable=gaps,
    )
    if place is not None:
        reading = _with_files(reading, place, root)
    after = read_stat(folder)
    # Its id may belong to another process by now; a zombie keeps its id and its start.
    if after is None or after.started != before.started or after.zombie > before.zombie:
        return ProcessFilesReading(pid=pid, exists=False, ended=True)
    return reading


def _own_namespaces(folder: Path, root: Path) -> Iterator[str]:
    """Yield the kinds of namespaces that a process has and we have not: `pid`, `mnt`."""
    for kind in ("pid", "mnt"):
        try:
            if (folder / "ns" / kind).readlink() != (root / "proc/self/ns" / kind).readlink():
                yield kind
        except OSError:  # what may not be read has its reason elsewhere
            continue


def _place(folder: Path, stat: Stat) -> Path | None:
    """Return where the files of a process are: its first thread may have ended before others.

    None: a thread of the kernel has none, and a process that has ended has none any more.
    """
    if stat.kernel_thread:
        return None
    if not stat.zombie:
        return folder
    threads = ((folder / "task" / name) for name in _thread_names(folder))
    living = ((thread, read_stat(thread)) for thread in threads)
    return next((thread for thread, facts in living if facts and not facts.zombie), None)


def _with_files(reading: ProcessFilesReading, place: Path, root: Path) -> ProcessFilesReading:
    """Add what the files of a process tell; what may not be read is null, with the reason."""
    gaps: dict[str, str] = {}
    mapped = _note(gaps, "libraries", lambda: tuple(_mapped(place)))
    if mapped is None:
        gaps["frameworks"] = gaps["libraries"]
    cgroup = _cgroup(place, root)
    if cgroup is None:
        gaps["cgroup"] = "the kernel names none"
    return reading._replace(
        environment=_note(gaps, "environment", lambda: _environment(place)),
        mapped=mapped,
        frameworks=() if mapped is None else tuple(_frameworks(mapped, place / "root")),
        device_files=_note(gaps, "device_files", lambda: _device_files(place)),
        devices_present=_note(gaps, "devices_present", lambda: _devices_present(place / "root")),
        cgroup=cgroup,
        unavailable=gaps,
    )


def _note(gaps: dict[str, str], name: str, read: Callable[[], Value]) -> Value | None:
    """Return the value that `read` gives, or None with the reason noted."""
    try:
        return read()
    except PermissionError:
        gaps[name] = NOT_ALLOWED if os.geteuid() else "not even root may read it here"
    except ProcessLookupError:
        gaps[name] = ENDED
    except OSError as error:
        gaps[name] = error.strerror or type(error).__name__
    return None


# ---------------------------------------------------------------------------- what it is


def _status_number(folder: Path, key: str) -> int | None:
    """Return a number of /proc/PID/status: Tgid is the process that a thread belongs to."""
    value = value_of(read_text(folder / "status"), key) or ""
    return int(value) if value.isdecimal() else None


def _thread_states(folder: Path) -> Mapping[str, int]:
    """Return how many threads are in each state, of the first of many."""
    stats = (read_stat(folder / "task" / name) for name in _thread_names(folder))
    return dict(sorted(Counter(stat.state for stat in stats if stat is not None).items()))


def _thread_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder / "task"))[:MOST_THREADS]  # noqa: PTH208
    except OSError:
        return []


def _environment(folder: Path) -> Mapping[str, str]:
    """Return the GPU-related variables with which it was started; others may hold secrets."""
    words = read_file(folder / "environ", MOST_ENVIRON_BYTES).decode("utf-8", "replace")
    pairs = (word.partition("=") for word in words.split("\0"))
    # Of a name given twice getenv() finds the first.
    variables: dict[str, str] = {}
    for name, equals, value in pairs:
        if equals:
            variables.setdefault(name, value)
    return gpu_variables(variables)


def _ancestors(pid: int, root: Path) -> Iterator[AncestorReading]:
    """Yield its parent, the parent of that, and so on, up to one that is hidden from this user."""
    seen: set[int] = set()
    while pid > 0 and pid not in seen and len(seen) < MOST_ANCESTORS:
        seen.add(pid)
        folder = root / "proc" / str(pid)
        stat = read_stat(folder)
        if stat is None:
            yield AncestorReading(pid=pid)
            return
        try:
            environment = _environment(folder)
        except OSError:
            environment = None
        yield AncestorReading(pid=pid, name=read_text(folder / "comm"), environment=environment)
        pid = stat.parent


# ---------------------------------------------------------------------------- what it has loaded


def _mapped(folder: Path) -> Iterator[MappedReading]:
    """Yield the mapped files that matter, each once, in the order of their addresses."""
    text = read_file(folder / "maps", MOST_MAPS_BYTES).decode("utf-8", "replace")
    seen: set[tuple[str, str, str]] = set()
    for line in text.split("\n"):
        match = _MAP_LINE.fullmatch(line)
        if match is None or match.groups() in seen or len(seen) >= MOST_MAPPED:
            continue
        device, inode, path = match.groups()
        deleted = path.endswith(_DELETED)
        path = path.removesuffix(_DELETED)
        name = path.rpartition("/")[2]
        if not (_LIBRARY.fullmatch(name) or _FRAMEWORK_FILE.search(path)):
            continue
        seen.add((device, inode, match[3]))
        yield MappedReading(path=path, file=f"{device} {inode}", deleted=deleted)


def _device_files(folder: Path) -> tuple[str, ...]:
    """Return the driver's files that it holds open."""
    links = os.listdir(folder / "fd")[:MOST_LINKS]  # noqa: PTH208 - many links
    paths = set()
    for link in links:
        try:
            paths.add(os.readlink(f"{folder}/fd/{link}"))  # noqa: PTH115
        except FileNotFoundError:
            continue
    return tuple(sorted(path for path in paths if _DEVICE.fullmatch(path)))


def _holds(folder: Path) -> bool:
    """Return whether a process is seen to hold one of the driver's files open."""
    stat = read_stat(folder)
    place = None if stat is None else _place(folder, stat)
    try:
        return place is not None and bool(_device_files(place))
    except OSError:
        return False


def _devices_present(root: Path) -> bool:
    """Return whether the driver's files stand in the /dev that it sees."""
    return any(_DEVICE.fullmatch(f"/dev/{name}") for name in os.listdir(root / "dev"))  # noqa: PTH208


# ---------------------------------------------------------------------------- frameworks


def _frameworks(mapped: Iterable[MappedReading], root: Path) -> Iterator[MappedFrameworkReading]:
    """Yield the frameworks whose libraries it has loaded, described by the files beside these."""
    done: set[tuple[str, str]] = set()
    for file in mapped:
        for name, marker, describe in _DESCRIBED:
            match = marker.search(file.path)
            if match is None:
                continue
            folder = file.path[: match.end("folder")]
            if (name, folder) not in done:
                done.add((name, folder))
                yield describe(name, folder, root)


def _inside(root: Path, path: str) -> Path:
    """Return a path of the process as we reach it, through its own root folder."""
    return root / path.lstrip("/")


def _match(path: Path, pattern: str) -> str | None:
    match = re.search(pattern, read_text(path) or "", re.MULTILINE)
    return None if match is None else match[1]


def _exists(path: Path) -> bool | None:
    """Return whether a file is there; None if that may not be looked at."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return True


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Return whether one is true; None if none is, but some are not known."""
    known = list(answers)
    return True if True in known else None if None in known else False


def _describe_build(
    name: str, folder: str, root: Path, *, build_file: str, cuda: str, gpu_library: str
) -> MappedFrameworkReading:
    """Describe one whose build wrote down its versions; `cuda` is what stands before CUDA's."""
    text = _inside(root, f"{folder}/{build_file}")
    return MappedFrameworkReading(
        name=name,
        version=_match(text, rf"^__version__ = ['\"]({_WORD})['\"]"),
        cuda_build=_match(text, rf"^{cuda} = ['\"]({_WORD})['\"]"),
        gpu_build=_exists(_inside(root, f"{folder}/{gpu_library}")),
        path=folder,
    )


#: Source: torch/version.py, which is written when a build is made.
_torch = partial(
    _describe_build,
    build_file="version.py",
    cuda=r"cuda(?:: [\w\[\]. |]+)?",
    gpu_library="lib/libtorch_cuda.so",
)
#: Source: the files of the wheels onnxruntime and onnxruntime-gpu.
_onnxruntime = partial(
    _describe_build,
    build_file="capi/build_and_package_info.py",
    cuda="cuda_version",
    gpu_library="capi/libonnxruntime_providers_cuda.so",
)


def _tensorflow(name: str, folder: str, root: Path) -> MappedFrameworkReading:
    """Source: tensorflow/python/platform/build_info.py, written when a build is made."""
    text = _inside(root, f"{folder}/python/platform/build_info.py")
    built = _match(text, r"['\"]is_cuda_build['\"]\s*[,:]\s*(True|False)\b")
    return MappedFrameworkReading(
        name=name,
        cuda_build=_match(text, rf"['\"]cuda_version['\"]\s*[,:]\s*['\"]({_WORD})['\"]"),
        gpu_build=None if built is None else built == "True",
        path=folder,
    )


def _jax(name: str, folder: str, root: Path) -> MappedFrameworkReading:
    """JAX has its CUDA part in a plug-in beside it; conda's jaxlib has it inside."""
    site = folder.rpartition("/")[0]
    plugins = {cuda: f"{site}/jax_plugins/xla_cuda{cuda}" for cuda in ("13", "12")}
    there = {cuda: _exists(_inside(root, path)) for cuda, path in plugins.items()}
    built = _any(there.values())
    if built is False:
        prefix = "/".join(site.split("/")[:-3])  # of lib/python3.12/site-packages
        built = any(_inside(root, f"{prefix}/conda-meta").glob("jaxlib-*cuda*.json"))
    text = _inside(root, f"{folder}/version.py")
    return MappedFrameworkReading(
        name=name,
        version=_match(text, rf"version(?:__)? = ['\"]({_WORD})['\"]"),
        cuda_build=next((cuda for cuda, present in there.items() if present), None),
        gpu_build=built,
        path=folder,
    )


def _cupy(name: str, folder: str, root: Path) -> MappedFrameworkReading:
    return MappedFrameworkReading(
        name=name,
        version=_match(_inside(root, f"{folder}/_version.py"), rf"^__version__ = ['\"]({_WORD})"),
        gpu_build=True,
        path=folder,
    )


def _ggml(name: str, folder: str, root: Path) -> MappedFrameworkReading:
    """The library of llama.cpp and ollama, which has its CUDA part in a file of its own."""
    places = ("", "cuda_v11/", "cuda_v12/", "cuda_v13/")
    files = (f"{folder}/{place}libggml-cuda.so" for place in places)
    return MappedFrameworkReading(
        name=name, gpu_build=_any(_exists(_inside(root, file)) for file in files), path=folder
    )


_Describe = Callable[[str, str, Path], MappedFrameworkReading]
#: Framework, the mapped file that shows that it is loaded, and how to describe its folder.
_DESCRIBED: tuple[tuple[str, re.Pattern[str], _Describe], ...] = (
    ("pytorch", re.compile(r"(?P<folder>.*/torch)/lib/libtorch_cpu\.so$"), _torch),
    (
        "tensorflow",
        re.compile(r"(?P<folder>.*/tensorflow)/libtensorflow_(?:framework|cc)\.so[.0-9]*$"),
        _tensorflow,
    ),
    ("jax", re.compile(r"(?P<folder>.*/jaxlib)/.*\.so$"), _jax),
    ("onnxruntime", re.compile(r"(?P<folder>.*/onnxruntime)/capi/.*\.so$"), _onnxruntime),
    ("cupy", re.compile(r"(?P<folder>.*/cupy)/.*\.so$"), _cupy),
    ("ggml", re.compile(r"(?P<folder>.*)/libggml(?:-base)?\.so[.0-9]*$"), _ggml),
)


# ---------------------------------------------------------------------------- its control group


def _cgroup(folder: Path, root: Path) -> CgroupReading | None:
    """Return the limits of its control group, version 2 or 1; None if it cannot be read."""
    paths = group_paths(folder / "cgroup")
    base = root / MOUNT
    if "memory" in paths:
        return _version_1(base, paths)
    return _version_2(base, paths[""]) if "" in paths else None


def _version_2(base: Path, path: str) -> CgroupReading:
    group = _group(base, path)
    if group is None:
        return CgroupReading(path=path)
    limits = [_number(read_text(parent / "memory.max")) for parent in _up_to(group, base)]
    events = (read_text(group / "memory.events") or "").splitlines()
    kills = next((line.split()[-1] for line in events if line.startswith("oom_kill ")), None)
    return CgroupReading(
        path=path,
        memory_limit_bytes=min((limit for limit in limits if limit is not None), default=None),
        memory_used_bytes=_number(read_text(group / "memory.current")),
        oom_kills=_number(kills),
    )


def _version_1(base: Path, paths: Mapping[str, str]) -> CgroupReading:
    memory = _group(base / "memory", paths["memory"])
    limit = used = None
    if memory is not None:
        limit = _number(read_text(memory / "memory.limit_in_bytes"))
        used = _number(read_text(memory / "memory.usage_in_bytes"))
    devices = _group(base / "devices", paths["devices"]) if "devices" in paths else None
    return CgroupReading(
        path=paths["memory"],
        memory_limit_bytes=None if limit is None or limit >= _UNLIMITED else limit,
        memory_used_bytes=used,
        allows_gpus=None if devices is None else _allows(read_text(devices / "devices.list")),
    )


def _allows(rules: str | None) -> bool | None:
    """Return whether the rules of version 1 let NVIDIA's files be opened; None: not readable."""
    if not rules:
        return None
    for line in rules.splitlines():
        kind, numbers, access = ([*line.split(), "", "", ""])[:3]
        major = numbers.partition(":")[0]
        if kind in ("a", "c") and major in ("*", str(_NVIDIA_MAJOR)) and "r" in access:
            return True
    return False


def _group(base: Path, path: str) -> Path | None:
    """Return the folder of a group; None if it lies outside what we see of the tree."""
    if ".." in path.split("/"):
        return None
    folder = base / path.lstrip("/")
    return folder if folder.is_dir() else None


def _up_to(folder: Path, base: Path) -> Iterator[Path]:
    """Yield a group and those around it: the smallest limit counts."""
    while folder != base:
        yield folder
        folder = folder.parent
    yield base


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,19}", text) else None
