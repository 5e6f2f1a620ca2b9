"""Snapshot of a machine, to be looked at elsewhere, and its redaction for strangers.

In a redacted snapshot names become stand-ins, and the meaning stays. The same name gets the same
stand-in everywhere. A UUID, and the unique, ambiguous or unknown beginning of one, stays just that,
so the recorded CUDA_VISIBLE_DEVICES selects the same devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gpucheck.data import read_table
from gpucheck.drivers.evidence import HolderReading, HoldersReading, LaunchReading, SystemReading
from gpucheck.drivers.host.environment import is_setting
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import (
    HUNG,
    CudaReading,
    GpuReading,
    NvmlReading,
    NvmlRequest,
    ProcessIdentity,
)
from gpucheck.drivers.recorded import RecordedProbes, Snapshot
from gpucheck.inventory.gpu_row import rows_of
from gpucheck.inventory.inventory import NO_LIBRARY, complete_host, nvml_failure
from gpucheck.inventory.visibility import apply_rules, digits_of, gpu_uuid, looks_like_uuid
from gpucheck.report.blocks import counted
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from gpucheck.report.text import count_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
Value = TypeVar("Value")


def record(probes: Probes) -> Snapshot:
    """Take every reading once; a failed probe is recorded with its failure."""
    # What the kernel shows comes first: NVML may load modules and create device nodes.
    kernel = probes.kernel()
    system = probes.system()
    probes.start_cuda()
    nvml = probes.nvml(NvmlRequest(topology=True, process_utilization=True))
    # A driver that hangs NVML hangs libcuda too: one deadline is enough.
    hung = nvml.failure is not None and nvml.failure.code == HUNG
    cuda = None if hung else probes.cuda()
    environment = dict(probes.environment())
    # Where there is no NVML, CUDA alone knows what the variable hides.
    alone = nvml.failure is not None and nvml.failure.code == NO_LIBRARY
    seen = cuda is not None and bool(cuda.device_count)
    hidden = cuda is not None and VISIBLE in environment and (alone or not seen)
    pids = {process.pid for gpu in nvml.gpus for process in gpu.processes}
    return Snapshot(
        time=probes.time(),
        # The file is a recording by its schema; who reads it marks the answers.
        host=complete_host(probes.host(), nvml)._replace(recorded=False),
        environment=environment,
        kernel=kernel,
        nvml=nvml,
        cuda=cuda,
        processes=tuple(probes.identify(pids).values()),
        system=system,
        cuda_unrestricted=probes.cuda(unrestricted=True) if hidden else None,
        health=probes.health() if nvml.failure is None else None,
        builds=probes.builds(None),
    )


def take_snapshot(probes: Probes, *, redacted: bool) -> Answer:
    """Return the recording; that of a machine without GPUs is complete too (exit code 0)."""
    snapshot = record(probes)
    if redacted:
        snapshot = redact(snapshot)
    return as_answer(snapshot, recorded=probes.host().recorded)


def see_through(snapshot: Snapshot, variables: Mapping[str, str]) -> Snapshot:
    """Return a recording as CUDA would show it under other variables, by the documented rules.

    Where the rules leave open what CUDA shows, its answer counts as not recorded.
    """
    environment = {**snapshot.environment, **variables}
    unrestricted = snapshot.cuda_unrestricted or snapshot.cuda
    nvml = snapshot.nvml or NvmlReading()
    visible = apply_rules(
        environment.get(VISIBLE),
        environment.get("CUDA_DEVICE_ORDER"),
        rows_of(nvml),
        driver_version=nvml.driver_version,
    ).visible
    cuda = unrestricted
    if unrestricted is not None and unrestricted.failure is None:
        known = {device.uuid_hex: device for device in unrestricted.devices}
        devices = [known.get(digits_of(uuid)) for uuid in visible or ()]
        shown = tuple(
            device._replace(ordinal=ordinal) for ordinal, device in enumerate(devices) if device
        )
        decided = visible is not None and len(shown) == len(devices)
        cuda = unrestricted._replace(device_count=len(shown), devices=shown) if decided else None
    return snapshot._replace(environment=environment, cuda=cuda, cuda_unrestricted=unrestricted)


def as_answer(snapshot: Snapshot, *, recorded: bool) -> Answer:
    """Return a recording as the answer of `snapshot`; `recorded` if it was taken from another."""
    nvml = snapshot.nvml
    notices: tuple[Notice, ...] = ()
    if nvml is not None and nvml.failure is not None:
        from gpucheck.inventory.without_nvml import explain_failure  # only where it fails

        failure = nvml_failure(nvml.failure, nvml.gpus)
        failure, _ = explain_failure(failure, nvml, RecordedProbes(snapshot))
        message = f"The snapshot has no full GPU readings. {failure.message}"
        notices = (Notice(code="no-gpu-readings", message=message),)
    host = snapshot.host._replace(recorded=recorded)
    return Answer(result=snapshot, exit_code=ExitCode.OK, host=host, warnings=notices)


def contents(snapshot: Snapshot) -> str:
    """Return a recording in words: "driver 580.95.05, Tesla T4, no processes on it"."""
    nvml = snapshot.nvml
    driver = nvml and nvml.driver_version
    pids = {process.pid for gpu in (nvml.gpus if nvml else ()) for process in gpu.processes}
    number = count_of(len(pids), "process") if pids else "no processes"
    gpus = counted(gpu.name for gpu in nvml.gpus) if nvml else None
    where = "it" if nvml and len(nvml.gpus) == 1 else "them"
    facts = (driver and f"driver {driver}", gpus or "no GPU", gpus and f"{number} on {where}")
    return ", ".join(fact for fact in facts if fact)


# -------------------------------------------------------------------------------- redaction

#: Variables whose values name devices.
_DEVICE_LISTS = (VISIBLE, "NVIDIA_VISIBLE_DEVICES")
#: Parts of the values of settings: numbers, sizes, ranges, and the words of data/redaction.toml.
_VALUE_PARTS = re.compile(r"[\s,:;=<>\[\]]+")
_VALUE_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:e[+-]?[0-9]{1,3})?(?:[kmgt]i?b?|b|%)?"
    r"|[0-9]{1,4}-[0-9]{1,4}",
    re.ASCII | re.I,
)
REDACTED = "redacted"
_TOOLKIT = re.compile(
    r"/usr/local/cuda(?:-[0-9]{1,3}(?:\.[0-9]{1,3})?)?"
    r"(?:/(?:bin|lib|lib64|compat|include|nvvm|extras/CUPTI/lib64))?/?",
    re.ASCII,
)
#: Fields of the drivers' readings in which names and paths can stand.
_SENTENCES = frozenset({"message", "unavailable", "pci_unavailable"})
#: Words that mean something in lists of devices.
_LIST_WORDS = frozenset({"", "all", "none", "void", "NoDevFiles"})
_NUMBER = re.compile(r"(?P<number>[+-]?(?:0[xX][0-9a-fA-F]*|[0-9]+))(?P<rest>.*)", re.ASCII | re.S)
_HARMLESS_REST = re.compile(r"[-:.0-9]*", re.ASCII)
_LEGACY_MIG = re.compile(r"MIG-(?P<gpu>GPU-[^/]*)(?P<place>/[0-9]{1,4}/[0-9]{1,4})", re.ASCII)
#: A path in a message, up to where the message goes on. Paths of the system and of devices reveal
#: nothing, but users name shared memory, volumes and discs below /dev.
_PATH = re.compile(
    r"(?<![\w./-])/(?!(?:dev(?!/(?:shm|mqueue|disk|mapper)\b)|etc|lib|lib64"
    r"|proc(?!/[^/\s]+/(?:root|cwd)\b)|sys(?!/fs/cgroup\b)"
    r"|usr(?!/(?:home|users|local/(?!(?:bin|lib|lib64|cuda[-.0-9]*)\b)))"
    r"|var/log/(?:kern\.log|messages))\b)"
    r"[^:'\"\n]+"
    r"|~[\w.-]*/[^:'\"\n]*|\b[A-Za-z]:\\[^'\"\n]*|\\\\[\w.$-]+\\[^'\"\n]*"
)
#: Names in lines of the kernel log: processes that have ended, GPUs and boards.
#: A process's name may hold spaces and commas: of what follows it only a known end stays.
_LOGGED_PROCESS = re.compile(
    r"\bname=.*?(?P<end>, (?:GPU has fallen off the bus|Ch(?:annel)? [0-9a-fA-Fx]{1,10})\.?)?$",
    re.S,
)
_LOGGED_SERIAL = re.compile(r"(?i)(\bserial(?: number)?\b[:=\s]*|\bS/?N[:=]? ?)[^\s,;]+")
#: The host before "kernel:" or a program's name, where a logger wrote the line.
_LOGGED_HOST = re.compile(
    r"^((?:[A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S+) )\S+(?= \S)"
)
#: Processes and users where other parts of the kernel name them: an oops, a segfault, an audit.
_LOGGED_NAME = re.compile(
    r"""(\b(?i:comm|exe|acct|auid|user|profile)(?:=|: ?)|\bclient (?=')|\bprocess [0-9]+ (?=\())"""
    r"""(?:"[^"]*"|'[^']*'|\([^)]*\)|\S+)"""
    r"|\S+?(?=\[[0-9]+\]:? (?:segfault|trap|general protection))"
)
#: Process ids; stand-ins are above the largest one of Linux, so that none is taken for another's.
_LOGGED_PID = re.compile(
    r"(?P<before>\b(?i:pid)(?:=|: ?| )'?|\bprocess |\bredacted\[)(?P<pid>[0-9]{1,10})\b"
)
_MOST_PID = 1 << 22
#: UUIDs of other things than GPUs: discs, pods, machines.
_OTHER_UUID = re.compile(r"(?<![\w-])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")
#: Addresses of a network card, of the network and of people; a bus id has fewer colons.
_LOGGED_ADDRESS = re.compile(
    r"\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b"
    r"|(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.])"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}(?::?[0-9a-fA-F]{1,4})(?![\w:.])"
    r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){1,6}:(?:[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){0,6})?(?![\w:])"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
)
_LOGGED_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
#: Shorter names occur in our own sentences.
_SHORTEST_NAME = 3
#: A UUID's beginning of this length tells the stand-ins apart.
_BEGINNING = len("GPU-00000001")


class _Aliases:
    """Stand-ins for names, numbered by first appearance."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self._make = make
        self.known: dict[str, str] = {}

    def of(self, name: str | None) -> str | None:
        """Return the stand-in of a name; None stays None."""
        return None if name is None else self.name(name)

    def name(self, name: str) -> str:
        """Return the stand-in of a name."""
        return self.known.setdefault(name, self._make(len(self.known) + 1))


def _uuid(number: int, version: int) -> str:
    """Return a UUID's digits; GPUs and instances differ in them, as CUDA drops the kind."""
    return f"{number:08x}-0000-{version}000-8000-{number:012x}"


class Redactor:
    """All stand-ins of one recording."""

    def __init__(self) -> None:
        self.gpus = _Aliases(lambda number: f"GPU-{_uuid(number, 4)}")
        self.migs = _Aliases(lambda number: f"MIG-{_uuid(number, 5)}")
        self.serials = _Aliases(lambda number: f"serial-{number}")
        self.users = _Aliases(lambda number: f"user-{number}")
        self.processes = _Aliases(lambda number: f"process-{number}")
        self.hosts = _Aliases(lambda number: "host")
        self._logged_pids = _Aliases(lambda number: str(_MOST_PID + number))
        self._unknown = _Aliases(lambda number: f"ffffffff-{number:04x}")
        # The stand-ins begin with zeros, so these begin more than one of them.
        self._ambiguous = _Aliases(lambda number: "0" * ((number - 1) % 8))
        self._listed: set[str] = set()

    # ------------------------------------------------------------------------------ readings

    def nvml(self, reading: NvmlReading) -> NvmlReading:
        """Return the reading with a stand-in for each UUID and serial number."""
        gpus = tuple(self._gpu(gpu) for gpu in reading.gpus)
        self._listed = {*self.gpus.known, *self.migs.known}
        return reading._replace(gpus=gpus)

    def _gpu(self, gpu: GpuReading) -> GpuReading:
        return gpu._replace(
            uuid=self.gpus.of(gpu.uuid),
            serial=self.serials.of(gpu.serial),
            # An instance's name is the card's model and the profile: nothing personal.
            mig_instances=tuple(
                instance._replace(uuid=self.migs.of(instance.uuid))
                for instance in gpu.mig_instances
            ),
        )

    def cuda(self, reading: CudaReading) -> CudaReading:
        """Return the reading with the same stand-ins for the same GPUs."""
        known = {digits_of(name): alias for name, alias in self._uuids().items()}

        def alias(digits: str | None) -> str | None:
            if digits is None:
                return None
            # A device that NVML could not name (a lost GPU) gets a stand-in of its own.
            return digits_of(known.get(digits) or self.gpus.name(gpu_uuid(digits)))

        devices = (device._replace(uuid_hex=alias(device.uuid_hex)) for device in reading.devices)
        return reading._replace(devices=tuple(devices))

    def process(self, process: ProcessIdentity) -> ProcessIdentity:
        """Return the process with stand-ins for its user, its name and its command line."""
        name = self.processes.of(process.name)
        # A command line names files, projects and passwords: only its process stays.
        command = process.command and (name or self.processes.name(process.command))
        user = self.users.of(process.user)
        return process._replace(name=name, user=user, command=command)

    # ----------------------------------------------------------------------------- variables

    def variable(self, name: str, value: str) -> str:
        """Return the value of a variable if it is a setting, else that it was redacted.

        Where a CUDA toolkit is usually installed stays: it shows which one programs are led to.
        """
        if name in _DEVICE_LISTS:
            return ",".join(self._entry(entry) for entry in value.split(","))
        known = is_setting(name) and all(map(_is_setting, _VALUE_PARTS.split(value)))
        if known and self.text(value) == value:
            return value
        entries: list[str] = []
        for entry in value.split(":"):
            kept = entry if _TOOLKIT.fullmatch(entry) else REDACTED
            if kept != REDACTED or entries[-1:] != [REDACTED]:
                entries.append(kept)
        return ":".join(entries)

    def _entry(self, entry: str) -> str:
        """Replace a UUID or the beginning of one; ordinals and words of the grammar stay."""
        text = entry.strip()
        before, _, after = entry.partition(text) if text else (entry, "", "")
        return f"{before}{self._device(text)}{after}"

    def _device(self, text: str) -> str:
        if looks_like_uuid(text):
            return self._uuid(text)
        number = _NUMBER.fullmatch(text)
        if number is None:
            return text if text in _LIST_WORDS else REDACTED
        return text if _HARMLESS_REST.fullmatch(number["rest"]) else f"{number['number']}?"

    def _uuid(self, text: str) -> str:
        exact = self._strict(text)
        if exact is not None:
            return exact
        loose = self._strict(text[:4].upper() + text[4:].lower())
        if loose is None:
            return text[:4] + self._unknown.name(text)
        # Right but for the case of its letters; the stand-in's only letters are these three.
        return loose[:4].lower() + loose[4:]

    def _strict(self, text: str) -> str | None:
        """Return the stand-in of what these very letters name, or None if they name nothing."""
        uuids = self._uuids()
        if text in uuids:
            return uuids[text]
        legacy = _LEGACY_MIG.fullmatch(text)
        if legacy is not None:
            parent = self._strict(legacy["gpu"])
            return None if parent is None else f"MIG-{parent}{legacy['place']}"
        # The beginning of what CUDA alone names is unknown to the rules, and stays so.
        matches = [uuid for uuid in self._listed if uuid.startswith(text)]
        if len(matches) > 1:
            return text[:4] + self._ambiguous.name(text)
        return uuids[matches[0]][:_BEGINNING] if matches else None

    def _uuids(self) -> dict[str, str]:
        return {**self.gpus.known, **self.migs.known}

    # ----------------------------------------------------------------------------- sentences

    def text(self, text: str) -> str:
        """Return a sentence without the names known so far, and without paths."""
        tables = (self.users, self.hosts, self.serials, self.processes, self.gpus, self.migs)
        names = {name: alias for table in tables for name, alias in table.known.items()}
        for host in tuple(self.hosts.known):
            # "node17.example.org" is also "node17", and its neighbours have its domain.
            short, _, domain = host.partition(".")
            names.setdefault(short, names[host])
            if domain:
                of_it = rf"(?<![\w.-])(?:[\w-]+\.)+{re.escape(domain)}(?![\w-])"
                text = re.sub(of_it, names[host], text)
                names |= {domain: "domain"} if "." in domain else {}
        long = sorted((name for name in names if len(name) >= _SHORTEST_NAME), key=len)
        if long:
            pattern = "|".join(re.escape(name) for name in reversed(long))
            text = re.sub(rf"(?<!\w)(?:{pattern})(?!\w)", lambda match: names[match[0]], text)
        return _PATH.sub("(path)", text)

    def sentence(self, text: str) -> str:
        """Return a sentence of ours without paths; what it has of readings is redacted already."""
        return _PATH.sub("(path)", text)

    def system(self, reading: SystemReading) -> SystemReading:
        """Return the system's reading; kernel log lines can hold text of any driver or program."""
        # Before the paths: one ends at a colon, in the middle of an address behind it.
        reading = _with_lines(reading, lambda line: _LOGGED_ADDRESS.sub("(address)", line))
        return _with_lines(self.everything(reading), self._line)

    def _line(self, line: str) -> str:
        """Return a line of the kernel log without hosts, processes, serial numbers and UUIDs."""
        line = _LOGGED_HOST.sub(r"\1host", line)
        line = _LOGGED_PROCESS.sub(lambda match: f"name={REDACTED}{match['end'] or ''}", line)
        for names in (_LOGGED_NAME, _LOGGED_SERIAL):
            line = names.sub(rf"\1{REDACTED}", line)
        line = _LOGGED_PID.sub(
            lambda match: match["before"] + self._logged_pids.name(match["pid"]), line
        )
        return _OTHER_UUID.sub("(uuid)", line)

    def is_of_a_gpu(self, text: str) -> bool:
        """Return whether a text is the UUID of a GPU or an instance, and no stand-in of one."""
        mine = {*self.gpus.known.values(), *self.migs.known.values(), *self._unknown.known.values()}
        return _LOGGED_UUID.fullmatch(text) is not None and text not in mine

    def stand_ins(self) -> Mapping[str, int]:
        """Return how many names of each kind have a stand-in."""
        tables = {
            "hosts": self.hosts,
            "users": self.users,
            "processes": self.processes,
            "serials": self.serials,
            "gpu_uuids": self.gpus,
            "mig_uuids": self.migs,
        }
        return {kind: len(table.known) for kind, table in tables.items() if table.known}

    def everything(self, value: Value) -> Value:
        """Return a record of evidence with every text in it redacted."""
        redacted: Value = _walk(value, lambda text, _field: self._with_uuids(text))
        return redacted

    def sentences(self, value: Value) -> Value:
        """Return a driver's reading with its sentences and paths redacted; all else stays."""

        def redacted(text: str, field: str) -> str:
            if field == "library_path":  # evidence, which can name a GPU that nothing else names
                return self._with_uuids(text)
            return self.text(text) if field in _SENTENCES else text

        walked: Value = _walk(value, redacted)
        return walked

    def _with_uuids(self, text: str) -> str:
        """Return a text without names and paths, and with a stand-in for each UUID in it."""
        return self.text(_LOGGED_UUID.sub(lambda match: self._uuid(match[0]), text))


def _walk(value: Any, change: Callable[[str, str], str], field: str = "") -> Any:
    """Return a reading with each text changed; `change` gets the text and the name of its field."""
    if isinstance(value, str):
        return change(value, field)
    if isinstance(value, Mapping):
        return {key: _walk(item, change, field) for key, item in value.items()}
    if not isinstance(value, tuple):
        return value
    if not hasattr(value, "_fields"):
        return tuple(_walk(item, change, field) for item in value)
    pairs = zip(value, value._fields, strict=True)
    return type(value)(*(_walk(item, change, name) for item, name in pairs))


def _with_lines(reading: SystemReading, change: Callable[[str], str]) -> SystemReading:
    """Return the reading with each line of the kernel log changed."""
    log, earlier = reading.log, reading.log.earlier
    if log.lines is not None:
        log = log._replace(lines=tuple(map(change, log.lines)))
    if earlier.lines is not None:
        earlier = earlier._replace(lines=tuple(map(change, earlier.lines)))
    return reading._replace(log=log._replace(earlier=earlier))


def _is_setting(part: str) -> bool:
    """Return whether a part of a value is a number or a word that settings know."""
    words = read_table("redaction")["settings"]["words"]
    return not part or part.lower() in words or _VALUE_NUMBER.fullmatch(part) is not None


def redact(snapshot: Snapshot, redactor: Redactor | None = None) -> Snapshot:
    """Replace serials, UUIDs, and host, user and process names, each consistently.

    Indices, bus ids, models, sizes, loads and process ids stay. Variables that can hold anything
    keep their name alone, and the usual folder of a CUDA toolkit. `redactor` is one that goes on
    with the same stand-ins.
    """
    redactor = redactor or Redactor()
    nvml = redactor.nvml(snapshot.nvml) if snapshot.nvml else None
    cuda = redactor.cuda(snapshot.cuda) if snapshot.cuda else None
    unrestricted = snapshot.cuda_unrestricted and redactor.cuda(snapshot.cuda_unrestricted)
    host = snapshot.host._replace(name=redactor.hosts.of(snapshot.host.name))
    processes = tuple(redactor.process(process) for process in snapshot.processes)
    return snapshot._replace(
        host=host,
        environment={
            name: redactor.variable(name, value) for name, value in snapshot.environment.items()
        },
        kernel=redactor.sentences(snapshot.kernel),
        nvml=redactor.sentences(nvml),
        cuda=redactor.sentences(cuda),
        processes=processes,
        redacted=True,
        system=snapshot.system and redactor.system(snapshot.system),
        cuda_unrestricted=redactor.sentences(unrestricted),
        health=redactor.everything(snapshot.health),
        builds=redactor.everything(snapshot.builds),
    )


# ---------------------------------------------------------------------- a machine that is read once


class ReadOnce(RecordedProbes):
    """Probes over a recording of this machine; `redactor` is None where names may stay.

    What a snapshot holds is answered from it, so several answers agree. What no snapshot holds,
    because something runs for it or is opened, is asked of the machine itself, and redacted by the
    same stand-ins: what is derived from these readings has no name that a redacted snapshot lacks.
    """

    def __init__(self, probes: Probes, redactor: Redactor | None) -> None:
        self.real = record(probes)
        self.snapshot = self.real if redactor is None else redact(self.real, redactor)
        super().__init__(self.snapshot)
        self._probes = probes
        self._redactor = redactor

    def host(self) -> Host:
        """Return the host, recorded only if the machine itself is a recording."""
        return self.snapshot.host._replace(recorded=self._probes.host().recorded)

    def nvml(self, request: NvmlRequest) -> NvmlReading:
        """Return the recorded reading; the processes after a launch are asked for anew."""
        if request.processes_of is None:
            return super().nvml(request)
        reading = self._probes.nvml(request)
        redactor = self._redactor
        return reading if redactor is None else redactor.sentences(redactor.nvml(reading))

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Return libcuda's answer; the one without the variable need not be recorded."""
        if not unrestricted or self.snapshot.cuda_unrestricted is not None:
            return super().cuda(unrestricted=unrestricted)
        reading = self._probes.cuda(unrestricted=True)
        redactor = self._redactor
        return reading if redactor is None else redactor.sentences(redactor.cuda(reading))

    def open_nodes(self, paths: Sequence[str]) -> Mapping[str, str | None]:
        """Open the device files behind these paths."""
        real, shown = self.real.system, self.snapshot.system
        if real is None or shown is None:
            return {}
        nodes = zip(real.nodes.nodes, shown.nodes.nodes, strict=True)
        behind = {node.path: original.path for original, node in nodes}
        wanted = {path: behind[path] for path in paths if path in behind}
        opened = self._probes.open_nodes(list(wanted.values()))
        return {
            path: self._redacted(opened[node]) for path, node in wanted.items() if node in opened
        }

    def launch(self, python: str | None, **options: Any) -> LaunchReading:
        """Run a kernel with the interpreter whose path may be redacted."""
        interpreter = None if self.real.builds is None else self.real.builds.python
        return self._redacted(self._probes.launch(interpreter, **options))

    def device_holders(self) -> HoldersReading:
        """Search for the processes that hold a device file open."""
        reading = self._probes.device_holders()
        return reading._replace(
            holders=tuple(map(self._holder, reading.holders)),
            unavailable=self._redacted(reading.unavailable),
        )

    def _holder(self, holder: HolderReading) -> HolderReading:
        if self._redactor is None:
            return holder
        names = ("name", "user", "command")
        known = {name: getattr(holder, name) for name in names}
        who = self._redactor.process(ProcessIdentity(pid=holder.pid, **known))
        return holder._replace(**{name: getattr(who, name) for name in names})

    def _redacted(self, value: Value) -> Value:
        """Return a text or a reading without names."""
        return value if self._redactor is None else self._redactor.everything(value)
