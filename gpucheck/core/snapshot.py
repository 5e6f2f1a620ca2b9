"""Record a machine, and make a recording fit to be shown to strangers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpucheck.core.inventory import complete_host, nvml_failure
from gpucheck.models.errors import ExitCode
from gpucheck.models.report import Answer, Notice
from gpucheck.models.snapshot import (
    CudaReading,
    GpuReading,
    MigReading,
    NvmlReading,
    ProcessIdentity,
    Snapshot,
)
from gpucheck.probes.interface import NvmlQuestion, Probes


def record(probes: Probes) -> Snapshot:
    """Take every reading once; a probe that fails is recorded as it failed."""
    kernel = probes.kernel()
    nvml = probes.nvml(NvmlQuestion(topology=True, process_utilization=True))
    # A driver that hangs NVML hangs libcuda too: one deadline is enough.
    hung = nvml.failure is not None and nvml.failure.code == "driver-not-answering"
    cuda = None if hung else probes.cuda()
    pids = {process.pid for gpu in nvml.gpus for process in gpu.processes}
    return Snapshot(
        time=probes.time(),
        host=complete_host(probes.host(), nvml),
        environment=dict(probes.environment()),
        kernel=kernel,
        nvml=nvml,
        cuda=cuda,
        processes=tuple(probes.identify(pids).values()),
    )


def take_snapshot(probes: Probes, *, redacted: bool) -> Answer:
    """Answer with the recording; a machine without GPUs is recorded just as well (exit code 0)."""
    snapshot = record(probes)
    if redacted:
        snapshot = redact(snapshot)
    failure = snapshot.nvml.failure if snapshot.nvml else None
    notices: tuple[Notice, ...] = ()
    if failure is not None:
        message = f"The snapshot has no full GPU readings. {nvml_failure(failure).message}"
        notices = (Notice(code="no-gpu-readings", message=message),)
    return Answer(
        result=snapshot, exit_code=ExitCode.OK, host=snapshot.host, warnings=notices
    )


class _Aliases:
    """Stand-ins for names: the same name gets the same stand-in everywhere."""

    def __init__(self, make: Callable[[int], str]) -> None:
        self._make = make
        self._known: dict[str, str] = {}

    def of(self, name: str | None) -> str | None:
        """Return the stand-in of a name; nothing stays nothing."""
        if name is None:
            return None
        return self._known.setdefault(name, self._make(len(self._known) + 1))

    def known(self) -> Iterable[tuple[str, str]]:
        """Return every name with its stand-in."""
        return self._known.items()


def _uuid_number(number: int) -> str:
    """Return 36 characters of a UUID whose beginning tells it from the others."""
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def redact(snapshot: Snapshot) -> Snapshot:
    """Replace serials, UUIDs, and host, user and process names, each consistently.

    Indices, bus ids, models, sizes and loads stay. CUDA_VISIBLE_DEVICES keeps its meaning: UUIDs
    in it, and unique beginnings of UUIDs, become the stand-in of the same device.
    """
    gpus = _Aliases(lambda number: f"GPU-{_uuid_number(number)}")
    migs = _Aliases(lambda number: f"MIG-{_uuid_number(number)}")
    serials = _Aliases(lambda number: f"serial-{number}")
    users = _Aliases(lambda number: f"user-{number}")
    names = _Aliases(lambda number: f"process-{number}")
    nvml = _redact_nvml(snapshot.nvml, gpus, migs, serials) if snapshot.nvml else None
    uuids = {**dict(gpus.known()), **dict(migs.known())}
    return snapshot._replace(host=snapshot.host._replace(name="host"),
        environment={
            name: _redact_variable(name, value, uuids)
            for name, value in snapshot.environment.items()
        },
        nvml=nvml,
        cuda=_redact_cuda(snapshot.cuda, gpus, uuids) if snapshot.cuda else None,
        processes=tuple(_redact_process(p, users, names) for p in snapshot.processes),
        redacted=True,
    )


def _redact_nvml(
    nvml: NvmlReading, gpus: _Aliases, migs: _Aliases, serials: _Aliases
) -> NvmlReading:
    def mig(instance: MigReading) -> MigReading:
        # The instance's name is the card's model and the profile: nothing personal.
        return instance._replace(uuid=migs.of(instance.uuid))

    def gpu(reading: GpuReading) -> GpuReading:
        return reading._replace(uuid=gpus.of(reading.uuid),
            serial=serials.of(reading.serial),
            mig_instances=tuple(mig(instance) for instance in reading.mig_instances),
        )

    return nvml._replace(gpus=tuple(gpu(reading) for reading in nvml.gpus))


def _redact_cuda(cuda: CudaReading, gpus: _Aliases, uuids: dict[str, str]) -> CudaReading:
    def digits(uuid: str) -> str:
        return uuid.partition("-")[2].replace("-", "").lower()

    known = {digits(name): digits(alias) for name, alias in uuids.items()}

    def alias(uuid_hex: str | None) -> str | None:
        if uuid_hex is None:
            return None
        # A device that NVML could not name (a lost GPU) gets a stand-in of its own.
        return known.get(uuid_hex) or digits(gpus.of(uuid_hex) or "")

    devices = (device._replace(uuid_hex=alias(device.uuid_hex)) for device in cuda.devices)
    return cuda._replace(devices=tuple(devices))


def _redact_process(
    process: ProcessIdentity, users: _Aliases, names: _Aliases
) -> ProcessIdentity:
    name = names.of(process.name)
    return process._replace(name=name,
        user=users.of(process.user),
        # A command line names files, projects and passwords: only its process stays.
        command=name if process.command is not None else None,
    )


#: Variables whose values name devices, or are numbers, sizes and fixed words. All others can
#: hold paths and names of people.
_DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_PLAIN = (
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUPY_GPU_MEMORY_LIMIT",
    "JAX_PLATFORMS",
    "NVIDIA_DRIVER_CAPABILITIES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "SLURM_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
)


def _redact_variable(name: str, value: str, uuids: dict[str, str]) -> str:
    if name in _DEVICE_LISTS:
        return ",".join(_redact_entry(entry, uuids) for entry in value.split(","))
    return value if name in _PLAIN or name.startswith("XLA_") else "redacted"


def _redact_entry(entry: str, uuids: dict[str, str]) -> str:
    """Replace a UUID or the beginning of one; ordinals and words of the grammar stay."""
    text = entry.strip()
    kind = text[:4]
    if kind not in ("GPU-", "MIG-"):
        harmless = len(text) <= 10 and text.isascii()
        return entry if harmless else "redacted"
    matches = [alias for uuid, alias in sorted(uuids.items()) if uuid.startswith(text)]
    legacy = text.removeprefix("MIG-").partition("/")
    if legacy[1] and legacy[0] in uuids:
        return entry.replace(legacy[0], uuids[legacy[0]])
    return entry.replace(text, _same_meaning(kind, text, matches, uuids))


def _same_meaning(kind: str, text: str, matches: Sequence[str], uuids: dict[str, str]) -> str:
    if len(matches) == 1:
        # A whole UUID stays whole; a unique beginning stays unique as a whole UUID.
        return matches[0]
    # Ambiguous stays ambiguous, unknown stays unknown.
    return kind if matches else f"{kind}ffffffff"
