"""Decisions of `gpucheck detect --pid`: which GPU a running process uses, or why it uses none.

NVML's list decides whether it uses one. Why not is read from its own files, in the order in which
a program meets the obstacles: it has ended, there is no driver, its environment hides the GPUs, it
is shut out of their files, its framework has no CUDA, it has not asked. What may not be read is
said, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpucheck.data import read_table
from gpucheck.detect.checks.variables import jax_without_gpu
from gpucheck.detect.machine import VISIBLE, Machine
from gpucheck.detect.model import LoadedLibrary, Obstacle, ProcessAnswer, UsedGpu
from gpucheck.drivers.evidence import (
    AncestorReading,
    MappedFrameworkReading,
    MappedReading,
    ProcessFilesReading,
)
from gpucheck.drivers.host.process_files import NOT_ALLOWED
from gpucheck.drivers.host.processes import program_of
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.python.frameworks_child import OPENED_BY_NAME
from gpucheck.drivers.readings import (
    GpuReading,
    ProcessReading,
)
from gpucheck.inventory.inventory import UNDECIDED, complete_host
from gpucheck.inventory.visibility import apply_rules
from gpucheck.report.envelope import Answer, Evidence, Failure
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.text import binary_bytes, framework_module, framework_title

#: Frameworks that `detect --wheel` knows, by the names of their modules.
_WHEELS = ("pytorch", "tensorflow", "jax", "onnxruntime")
#: The kernel's letters (man 5 proc).
_STATES: Mapping[str, str] = {
    "R": "running", "S": "sleeping", "I": "sleeping", "D": "waiting", "T": "stopped",
    "t": "stopped", "Z": "ended", "X": "ended",
}  # fmt: skip
#: "libcudnn.so.9.10.2" -> "libcudnn", "9.10.2"; wheels put a hash into names.
_FILE = re.compile(r"(?P<name>lib.+?)(?:-[0-9a-f]{8})?\.so(?:\.(?P<version>[0-9]+(?:\.[0-9]+)*))?")
#: The driver's version in the name of its library; libcuda.so.1 is every version's.
_DRIVER_VERSION = re.compile(r"[0-9]{3,}\..+")
#: Libraries of which one process should hold one copy.
_ONCE = re.compile(
    r"lib(?:cuda|cudart|cudnn\w*|cublas|cublasLt|cufft|curand|cusolver|cusparse|nccl|nvrtc)"
)
_NVIDIA = re.compile(_ONCE.pattern + r"|lib(?:nvidia-ml|nvJitLink|cupti|cudadebugger)")
_OF_THE_DRIVER = ("libcuda", "libnvidia-ml", "libcudadebugger")
_UVM = "/dev/nvidia-uvm"
#: So many GPUs and files stand in a sentence.
MOST_NAMED = 4
#: In the names that container engines give to control groups.
_CONTAINER_GROUPS = ("docker", "kubepods", "libpod", "containerd", "lxc")
#: Values of NVIDIA_VISIBLE_DEVICES with which a container gets no GPU. Source: the NVIDIA Container
#: Toolkit's documentation, "Environment variables".
_NO_DEVICES = ("void", "none", "")


def explain_process(probes: Probes, pid: int) -> Answer:
    """Say which GPU a process uses, or why it uses none.

    Raises:
        WrongUseError: there is no such process, or it ended while it was read.
    """
    process = probes.process(pid)
    if process.exists is False:
        raise _gone(process)
    machine = Machine(probes)
    host = complete_host(machine.host, machine.nvml)
    result = judge(process, machine)
    code = {True: ExitCode.OK, False: ExitCode.BAD, None: ExitCode.INCONCLUSIVE}[result.uses_gpu]
    if result.uses_gpu is False and result.cause is None:
        code = ExitCode.INCONCLUSIVE
    error = None
    if process.exists is None and not result.gpus:
        error = Failure(code="not-recorded", message=result.conclusion)
    return Answer(result=result, exit_code=code, host=host, error=error)


def _gone(process: ProcessFilesReading) -> WrongUseError:
    if process.ended:
        message = f"Process {process.pid} ended while it was read."
        return WrongUseError(code="process-ended", message=message)
    return WrongUseError(
        code="no-such-process",
        message=f"There is no process {process.pid} here, or it is hidden from this user.",
        remedy=("Processes of another container or of the host have their ids there.",),
    )


def judge(process: ProcessFilesReading, machine: Machine) -> ProcessAnswer:
    """Return the answer about one process."""
    gpus = tuple(_used(process, machine))
    # What it uses is not kept from it.
    met = _obstacles(process, machine)
    obstacles = tuple(obstacle for obstacle in met if not (gpus and obstacle.hinders))
    uses = True if gpus else _may_use(process, machine)
    first = next((obstacle for obstacle in obstacles if obstacle.hinders), None)
    cause = None if uses is not False else first
    libraries = None if process.mapped is None else tuple(_libraries(process.mapped))
    return ProcessAnswer(
        pid=process.pid,
        uses_gpu=uses,
        conclusion=_conclusion(process, machine, gpus, uses, cause),
        cause=None if cause is None else cause.id,
        remedy=_remedy(process, uses, cause),
        name=process.name,
        user=process.user,
        command=process.command,
        state=_state(process),
        threads=process.thread_count,
        gpus=gpus,
        obstacles=obstacles,
        libraries=libraries,
        frameworks=None if process.mapped is None else process.frameworks,
        device_files=process.device_files,
        devices_present=process.devices_present,
        environment=process.environment,
        cgroup=process.cgroup,
        own_namespaces=process.own_namespaces,
        unavailable=process.unavailable,
    )


def _state(process: ProcessFilesReading) -> str | None:
    """Return a process' state in a word; its other threads may outlive the first."""
    state = _STATES.get(process.state or "")
    if state == "ended" and any(_STATES.get(letter) != "ended" for letter in process.threads):
        return "running"
    return state


# ------------------------------------------------------------------------------ does it use one


def _used(process: ProcessFilesReading, machine: Machine) -> Iterator[UsedGpu]:
    """Yield the GPUs for which NVML lists the process, or one below it."""
    if process.initial_namespace is False and not process.device_files:
        return  # NVML's ids are the host's, and this process holds no GPU open
    members = {process.pid, *process.descendants}
    if process.initial_namespace is False:
        members = {process.pid}
    for gpu in machine.nvml.gpus:
        processes: dict[tuple[int, int | None, int | None], ProcessReading] = {}
        for process_reading in gpu.processes:
            if process_reading.pid in members:
                place = (
                    process_reading.pid,
                    process_reading.gpu_instance_id,
                    process_reading.compute_instance_id,
                )
                known = processes.get(place)
                if known is None or known.memory_used_bytes is None:
                    processes[place] = process_reading
        yield from (_describe_use(gpu, process_reading) for process_reading in processes.values())


def _describe_use(gpu: GpuReading, process: ProcessReading) -> UsedGpu:
    instance = gpu.instance_of(process)
    return UsedGpu(
        index=gpu.index,
        pid=process.pid,
        uuid=(instance or gpu).uuid,
        name=gpu.name,
        memory_used_bytes=process.memory_used_bytes,
        mig=instance is not None,
    )


def _may_use(process: ProcessFilesReading, machine: Machine) -> bool | None:
    """Return False where it certainly uses no GPU, None where that cannot be told."""
    if process.exists is None:
        return None
    if _runs_nothing(process) or _lists_everything(process, machine):
        return False
    # Without one of the driver's files nothing can be done on a GPU.
    return False if process.device_files == () and not process.holders else None


def _lists_everything(process: ProcessFilesReading, machine: Machine) -> bool:
    """Return whether a process that NVML does not list has nothing on any GPU."""
    nvml = machine.nvml
    if nvml.failure is not None:
        return nvml.failure.code not in UNDECIDED and machine.kernel.module_loaded is False
    complete = all(gpu.failure is None and "processes" not in gpu.unavailable for gpu in nvml.gpus)
    # NVML lists no process on WSL2 and on Jetson, and ids of the host in a container.
    strange = any(not path.startswith("/dev/nvidia") for path in process.device_files or ())
    return complete and not strange and process.initial_namespace is not False


# ------------------------------------------------------------------------------ why not


def _obstacles(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Yield the obstacles between the process and a GPU, in the order in which it meets them."""
    if _runs_nothing(process):
        yield _without_program(process)
        return
    obstacles = [obstacle for find in _FINDERS for obstacle in find(process, machine)]
    if not any(obstacle.hinders for obstacle in obstacles):
        yield from _no_obstacle(process)
    yield from obstacles


def _runs_nothing(process: ProcessFilesReading) -> bool:
    """Return whether no program runs in it: it has ended, or is the kernel's own."""
    return process.kernel_thread or _state(process) == "ended"


def _make(
    obstacle_id: str, *evidence: Evidence, hinders: bool = True, **values: object
) -> Obstacle:
    """Return an obstacle with the sentence and the steps that the table has for it."""
    texts = read_table("obstacles")[obstacle_id]
    steps = tuple(step.format(**values) for step in texts.get("remedy", ()))
    return Obstacle(obstacle_id, texts["sentence"].format(**values), hinders, evidence, steps)


def _without_program(process: ProcessFilesReading) -> Obstacle:
    if process.kernel_thread:
        return _make("kernel-thread", Evidence(f"/proc/{process.pid}/stat", "flag PF_KTHREAD"))
    return _make("ended", *(Evidence("parent", _named(parent)) for parent in process.ancestors[:1]))


def _no_driver(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    failure = machine.nvml.failure
    if failure is not None and failure.code not in UNDECIDED:
        reason = machine.absence or f"the driver does not work here: {failure.message}"
        evidence = Evidence(failure.function or "NVML", failure.message)
        yield _make("no-driver", evidence, reason=reason)
    elif failure is None and not machine.nvml.gpus:
        yield _make("no-gpu", Evidence("NVML", "0 GPUs"))


def _hidden(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Judge CUDA_VISIBLE_DEVICES as it was when the process was started."""
    environment = process.environment or {}
    value = environment.get(VISIBLE)
    # These hide everything, and any other value depends on the GPUs.
    if value is None or (not machine.nvml.gpus and value not in ("", "-1")):
        return
    seen = apply_rules(
        value,
        environment.get("CUDA_DEVICE_ORDER"),
        machine.nvml.gpus,
        driver_version=machine.nvml.driver_version,
    )
    if seen.visible is None or seen.visible:
        return
    why = "" if value == "" else f" ({next(entry.reason for entry in seen.entries)})"
    origin, detail = _origin(process, VISIBLE)
    evidence = Evidence(VISIBLE, detail)
    yield _make("hidden-devices", evidence, variable=VISIBLE, value=value, why=why, origin=origin)


def _origin(process: ProcessFilesReading, variable: str) -> tuple[str, str]:
    """Return who brought a variable, the highest ancestor started with this value, and how seen."""
    value = (process.environment or {}).get(variable)
    first: AncestorReading | None = None
    end = "no parent of it was started without it"
    for ancestor in process.ancestors:
        if ancestor.environment is None:
            end = f"the variables of {_named(ancestor)}, above it, could not be read"
            break
        other = ancestor.environment.get(variable)
        if other != value:
            how = "without it" if other is None else f'with "{other}"'
            end = f"its parent, {_named(ancestor)}, was started {how}"
            break
        first = ancestor
    if first is not None:
        return f", and came from {_named(first)}", f"{_named(first)} was started with it; {end}"
    return "", f"it was started with it; {end}"


def _told_to_use_cpu(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look for variables with which a framework leaves GPUs alone."""
    environment = process.environment or {}
    loaded = {framework.name for framework in process.frameworks}
    for name in jax_without_gpu(environment) if "jax" in loaded else ():
        origin, detail = _origin(process, name)
        yield _make(
            "told-to-use-cpu",
            Evidence(name, detail),
            hinders=loaded == {"jax"},
            variable=name,
            value=environment[name],
            origin=origin,
        )


def _shut_out(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look whether its container was given GPUs: the files in its /dev, and the rules on them."""
    environment = process.environment or {}
    given = environment.get("NVIDIA_VISIBLE_DEVICES")
    evidence = [] if given is None else [Evidence("NVIDIA_VISIBLE_DEVICES", given)]
    if process.devices_present is False and machine.nvml.gpus:
        why = f" (NVIDIA_VISIBLE_DEVICES={given or 'empty'})" if given in _NO_DEVICES else ""
        evidence.insert(0, Evidence("/dev as it sees it", "no nvidia*"))
        yield _make("no-device-files", *evidence, why=why)
    elif process.cgroup is not None and process.cgroup.allows_gpus is False:
        denied = Evidence("devices.list", f"{process.cgroup.path}: no character device 195")
        yield _make("devices-denied", denied)


def _find_cpu_builds(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look for frameworks that were built without CUDA."""
    frameworks = process.frameworks
    built = [framework for framework in frameworks if framework.gpu_build is False]
    # What has loaded the driver's library has CUDA, from another framework or of its own.
    alone = len(built) == len(frameworks) and not _driver_libraries(process)
    for framework in built:
        evidence = Evidence(framework.path, "no library for CUDA")
        named = {"framework": _title(framework), "wheel": framework_module(framework.name)}
        obstacle = _make("built-for-cpus", evidence, hinders=alone, **named)
        yield obstacle if framework.name in _WHEELS else obstacle._replace(remedy=())


def _bad_libcuda(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look at libcuda itself: a stub, a version that is not the module's, a replaced file."""
    running = machine.kernel.module_version
    for library in _driver_libraries(process):
        loaded = Evidence("libcuda", library.path)
        if "/stubs/" in library.path:
            yield _make("stub-library", loaded, path=library.path)
        elif (
            library.version is not None
            and running is not None
            and library.version != running
            and "/compat/" not in library.path
        ):
            yield _make(
                "driver-mismatch",
                *(loaded, Evidence("kernel module", running)),
                version=library.version,
                running=running,
                replaced=" (the file was replaced since it started)" if library.deleted else "",
            )


def _libraries_missing(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look for what TensorFlow and JAX open by name once they have found a driver.

    They go on with the CPU if one is missing, and only their log says so.
    """
    loaded = {
        (library.name, _major(library.version)) for library in _libraries(process.mapped or ())
    }
    for framework in process.frameworks:
        if framework.name not in ("tensorflow", "jax") or not _driver_libraries(process):
            continue
        opened = OPENED_BY_NAME.get(_major(framework.cuda_build), ())
        wanted = {name: _FILE.fullmatch(name) for name in opened}
        missing = [
            name
            for name, parts in wanted.items()
            if parts is not None and (parts["name"], _major(parts["version"])) not in loaded
        ]
        if missing and framework.gpu_build:
            yield _make(
                "libraries-not-loaded",
                Evidence(f"/proc/{process.pid}/maps", f"no {missing[0]}"),
                framework=_title(framework),
                names=", ".join(missing),
                them="it" if len(missing) == 1 else "them",
                name=framework.name,
            )


def _major(version: str | None) -> str:
    return (version or "").partition(".")[0]


def _stopped(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    if _state(process) == "stopped":
        evidence = Evidence(f"/proc/{process.pid}/stat", f"state {process.state}")
        yield _make("stopped", evidence, pid=process.pid)


def _no_obstacle(process: ProcessFilesReading) -> Iterator[Obstacle]:
    """Say how far a process has come that nothing keeps from a GPU."""
    if process.mapped is None:
        return
    loaded = _driver_libraries(process)
    if not loaded:
        able = [framework for framework in process.frameworks if framework.gpu_build]
        could = f"; {_title(able[0])} is loaded and could" if able else ""
        evidence = Evidence(f"/proc/{process.pid}/maps", "no libcuda")
        yield _make("driver-not-loaded", evidence, could=could)
    elif process.device_files is not None:
        opened = ", ".join(process.device_files) or "none"
        signs = Evidence("libcuda", loaded[0].path), Evidence("open files of the driver", opened)
        obstacle = _make("no-context", *signs)
        first, *_, last = obstacle.remedy
        yield obstacle if _is_contained(process) else obstacle._replace(remedy=(first, last))


def _is_contained(process: ProcessFilesReading) -> bool:
    """Return whether a container's control group has it, as the host sees that."""
    if process.cgroup is None or process.initial_namespace is False:
        return False
    return any(word in process.cgroup.path for word in _CONTAINER_GROUPS)


def _loaded_twice(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look for libraries of which it holds two copies; which of them answers cannot be seen."""
    files: dict[str, dict[str, MappedReading]] = {}
    for file in process.mapped or ():
        parts = _FILE.fullmatch(file.path.rpartition("/")[2])
        if parts is None or not _ONCE.fullmatch(parts["name"]):
            continue
        name = parts["name"]
        if name != "libcuda":
            name += f".so.{_major(parts['version'])}"
        files.setdefault(name, {}).setdefault(file.file, file)
    for name, copies in files.items():
        paths = list(dict.fromkeys(file.path for file in copies.values()))
        if len(paths) > 1:
            copies_seen = (Evidence(name, path) for path in paths)
            yield _make("loaded-twice", *copies_seen, hinders=False, name=name, count=len(paths))


def _replaced(process: ProcessFilesReading, machine: Machine) -> Iterator[Obstacle]:
    """Look for libraries whose file was deleted or replaced while it ran."""
    gone = [library for library in _libraries(process.mapped or ()) if library.deleted]
    if gone:
        names = ", ".join(dict.fromkeys(library.name for library in gone))
        evidence = (Evidence(library.name, f"{library.path} (deleted)") for library in gone)
        yield _make("library-replaced", *evidence, hinders=False, names=names)


_FINDERS: tuple[Callable[[ProcessFilesReading, Machine], Iterator[Obstacle]], ...] = (
    _no_driver, _hidden, _told_to_use_cpu, _shut_out, _find_cpu_builds, _bad_libcuda,
    _libraries_missing, _stopped, _loaded_twice, _replaced,
)  # fmt: skip


# ------------------------------------------------------------------------------ the sentence


def _conclusion(
    process: ProcessFilesReading,
    machine: Machine,
    gpus: tuple[UsedGpu, ...],
    uses: bool | None,
    cause: Obstacle | None,
) -> str:
    name = program_of(process.command) or process.name
    who = f"PID {process.pid} ({name})" if name else f"PID {process.pid}"
    if gpus:
        return f"{who} {_use(process.pid, gpus)}."
    if uses is None:
        return f"Whether {who} uses a GPU cannot be told: {_doubt(process, machine)}."
    if cause is not None:
        return f"{who} does not use a GPU: {cause.summary}."
    return f"{who} does not use a GPU; the files that say why could not be read."


def _use(pid: int, gpus: tuple[UsedGpu, ...]) -> str:
    own = [gpu for gpu in gpus if gpu.pid == pid]
    shown = own or list(gpus)
    parts = [_one_use(gpu) for gpu in shown[:MOST_NAMED]]
    if len(shown) > MOST_NAMED:
        parts.append(f"{len(shown) - MOST_NAMED} more")
    uses = ", ".join(parts)
    if own:
        return f"uses {uses}"
    below = ", ".join(
        str(number) for number in dict.fromkeys(gpu.pid for gpu in shown[:MOST_NAMED])
    )
    return f"uses no GPU itself, but a process below it does (PID {below}): {uses}"


def _one_use(gpu: UsedGpu) -> str:
    where = f"a MIG instance of GPU {gpu.index}" if gpu.mig else f"GPU {gpu.index}"
    facts = [gpu.name or ""]
    if gpu.memory_used_bytes is not None:
        facts.append(binary_bytes(gpu.memory_used_bytes))
    inside = ", ".join(fact for fact in facts if fact)
    return f"{where} ({inside})" if inside else where


def _doubt(process: ProcessFilesReading, machine: Machine) -> str:
    failure = machine.nvml.failure
    if process.exists is None:
        return "the snapshot recorded no processes but those on the GPUs"
    if failure is not None:
        return f"NVML does not answer ({failure.message})"
    opened = process.device_files or ()
    listed = "NVML lists no ids of this PID namespace"
    if process.initial_namespace is not False:
        listed = "NVML does not list every process"
    if process.holders and not opened:
        below = ", ".join(map(str, process.holders[:MOST_NAMED]))
        return f"{listed}; below it PID {below} holds the driver's files open"
    if opened:
        started = ", as a program that has started CUDA does" if _UVM in opened else ""
        return f"{listed}; it holds {', '.join(opened[:MOST_NAMED])} open{started}"
    return f"{listed}, and its open files could not be read"


def _remedy(
    process: ProcessFilesReading, uses: bool | None, cause: Obstacle | None
) -> tuple[str, ...]:
    if cause is not None:
        return cause.remedy
    if uses is not True and NOT_ALLOWED in process.unavailable.values():
        return (f"Ask as its user, or as root: sudo gpucheck detect --pid {process.pid}",)
    if uses is None and process.initial_namespace is False:
        return (f"Ask on the host, with its id there: gpucheck detect --pid {process.pid}",)
    return ()


def _named(ancestor: AncestorReading) -> str:
    return f"PID {ancestor.pid} ({ancestor.name})" if ancestor.name else f"PID {ancestor.pid}"


def _title(framework: MappedFrameworkReading) -> str:
    title = framework_title(framework.name)
    return f"{title} {framework.version}" if framework.version else title


# ------------------------------------------------------------------------------ what it has loaded


def _libraries(mapped: Iterable[MappedReading]) -> Iterator[LoadedLibrary]:
    """Yield NVIDIA's libraries among the mapped files, each path once."""
    seen = set()
    for file in mapped:
        parts = _FILE.fullmatch(file.path.rpartition("/")[2])
        key = (file.path, file.deleted)
        if parts is None or key in seen or not _NVIDIA.fullmatch(parts["name"]):
            continue
        seen.add(key)
        name, version = parts["name"], parts["version"]
        if name in _OF_THE_DRIVER and not _DRIVER_VERSION.fullmatch(version or ""):
            version = None
        yield LoadedLibrary(name=name, path=file.path, version=version, deleted=file.deleted)


def _driver_libraries(process: ProcessFilesReading) -> list[LoadedLibrary]:
    """Return the files of libcuda that it has loaded."""
    return [library for library in _libraries(process.mapped or ()) if library.name == "libcuda"]
