"""Plan of a memory limit: the bytes on each visible GPU, and the settings that enforce them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.host.driver_files import read_mps
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.live import ROOT_VARIABLE
from gpucheck.drivers.python.frameworks import Software, read_frameworks, software_of
from gpucheck.drivers.python.interpreters import Interpreter, command_interpreter, user_interpreter
from gpucheck.inventory.inventory import take_inventory
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.memlimit.environment import hook_state, warn_of_ineffective
from gpucheck.memlimit.mechanisms import MECHANISMS, write_code
from gpucheck.memlimit.mechanisms.hard import cgroup_mechanism
from gpucheck.memlimit.mechanisms.setting import MIB, NO_COMMAND, PlanInput, Presence
from gpucheck.memlimit.model import (
    GpuMemoryLimit,
    MemoryLimit,
    MemoryRequest,
    Overhead,
    estimate_overhead,
)
from gpucheck.place.device_strings import DeviceSpec, parse_device
from gpucheck.place.placement import CudaDevice, prohibited, resolve, visible_devices
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.options import flag, made_of_options, option, words
from gpucheck.report.text import binary_bytes, group_by, name_gpus
from gpucheck.report.units import Amount

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
@made_of_options
class LimitOptions:
    """Options of `gpucheck memlimit`; `environment` is None for a recording."""

    amount: Amount = option(
        "AMOUNT", "30%, 0.3 (the same), 8GiB, 8GB or 512M.", ..., group="The limit"
    )
    gpus: tuple[str, ...] = words(
        "--gpu SPEC", "Only this GPU (/gpu:0, cuda:1, 2, a UUID).", commas=False
    )
    include_overhead: bool = flag(
        "--include-overhead",
        "Count the CUDA context too, so that nvidia-smi's number stays below the limit.",
        not_with="--hard",
    )
    hook: bool = option(
        "--hook/--no-hook",
        "Limit frameworks that need code when the program imports them.",
        default=True,
        group="The command that runs under it",
        not_with="--hard",
    )
    python: str | None = option(
        "--python FILE", "The Python to plan for [default: the command's].", not_with="--hard"
    )
    code: str | None = option(
        "--code FRAMEWORK",
        "Print code for a program: tensorflow, pytorch, jax, cupy, onnxruntime.",
        group="Code and proof",
        not_with="--hard",
    )
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] | None = None
    proofs: tuple[str, ...] = ()


def find_limit(options: LimitOptions, probes: Probes) -> Answer:
    """Plan the limit, and prove it if requested.

    Raises:
        GpucheckError: the amount, a GPU or a framework cannot be used.
    """
    answer, gpus = _take_gpus(options, probes, uses_cuda=bool(options.proofs))
    if gpus is None:
        return answer
    plan = _plan_from_options(options, probes, answer, gpus)
    if options.code is not None:
        plan = dataclasses.replace(plan, code=write_code(options.code, plan))
    inherited = options.environment if options.environment is not None else probes.environment()
    warnings = (
        *answer.warnings,
        *_warn_of_cards(plan, gpus),
        *warn_of_ineffective(inherited),
    )
    answer = answer._replace(result=plan, warnings=warnings)
    if not options.proofs:
        return answer
    from gpucheck.memlimit.verify import prove, shared_memory

    root = Path(inherited.get(ROOT_VARIABLE) or "/")
    cuda = probes.cuda()
    shared = shared_memory(cuda, LinuxCpu(root).facts().memory_available_bytes)
    return prove(
        *(answer, plan, options.proofs, inherited), hook=options.hook, shared=shared, cuda=cuda
    )


def find_hard_limit(options: LimitOptions, probes: Probes) -> Answer:
    """Plan the limit that the driver shall enforce on a cgroup: no framework has to know it.

    Raises:
        GpucheckError: the amount or a GPU cannot be used, or its limit cannot be told.
    """
    answer, gpus = _take_gpus(options, probes)
    if gpus is None:
        return answer
    selected = select_gpus(options.gpus, gpus)
    plan = plan_limit(options.amount, gpus, selected=selected)
    if any(gpu.limit_bytes is None or not gpu.uuid for gpu in plan.gpus):
        message = "The limit of a GPU is unknown: NVML reports neither its memory nor its UUID."
        remedy = ("Give an amount in bytes, such as 8GiB, or another GPU (--gpu).",)
        raise InconclusiveError(code="limit-unknown", message=message, remedy=remedy)
    # Whole MiB, as NVIDIA's own tools set them: the driver then has nothing to round up.
    whole = [
        dataclasses.replace(gpu, limit_bytes=(gpu.limit_bytes or 0) // MIB * MIB)
        for gpu in plan.gpus
    ]
    if any(not gpu.limit_bytes for gpu in whole):
        message = f"{options.amount.text} is less than 1 MiB, the smallest limit by the driver."
        raise WrongUseError(code="bad-amount", message=message)
    visible = (_VISIBLE, "CUDA_DEVICE_ORDER")
    plan = dataclasses.replace(
        plan,
        gpus=tuple(whole),
        mechanisms=(cgroup_mechanism(),),
        environment={name: text for name, text in plan.environment.items() if name in visible},
        overhead=None,
    )
    warnings = (*answer.warnings, *_warn_of_cards(plan, gpus))
    return answer._replace(result=plan, warnings=warnings)


def _take_gpus(
    options: LimitOptions, probes: Probes, *, uses_cuda: bool = False
) -> tuple[Answer, Sequence[Gpu] | None]:
    """Return the GPUs, None where they cannot be listed, and the answer that is so far."""
    for spec in options.gpus:
        _parse(spec)  # wrong use on any machine
    if uses_cuda:
        probes.start_cuda()
    answer = take_inventory(probes, names_devices=True)
    if answer.error is None and isinstance(answer.result, Inventory):
        return answer, answer.result.gpus
    return answer._replace(result=None), None


def _warn_of_cards(plan: MemoryLimit, gpus: Sequence[Gpu]) -> Iterator[Notice]:
    """Yield warnings about the limited GPUs."""
    limited = {limit.index for limit in plan.gpus}
    for limit in plan.gpus:
        if limit.memory_source == "system":
            message = (
                f"GPU {limit.index} shares its memory with the processor: the limit is a part of"
                " the system's memory, which every other program uses too."
            )
            yield Notice(code="memory-shared", message=message)
    yield from _warn_of_less_free(plan)
    yield from prohibited(gpu for gpu in gpus if gpu.index in limited)


def _warn_of_less_free(plan: MemoryLimit) -> Iterator[Notice]:
    """Yield a warning if less memory is free now than the limit promises."""
    short = {
        limit.number: binary_bytes(limit.memory_free_bytes)
        for limit in plan.gpus
        if limit.number is not None
        and limit.memory_free_bytes is not None
        and limit.memory_free_bytes < (limit.limit_bytes or 0)
    }
    words = [
        f"{name_gpus(alike)} {'has' if len(alike) == 1 else 'have'} only {free} free now"
        for free, alike in group_by(short, short.__getitem__).items()
    ]
    if words:
        message = f"{'; '.join(words)}: less than the limit."
        yield Notice(code="less-free", message=message)


def _plan_from_options(
    options: LimitOptions, probes: Probes, answer: Answer, gpus: Sequence[Gpu]
) -> MemoryLimit:
    selected = select_gpus(options.gpus, gpus)
    if selected is None and options.code is not None and _VISIBLE in probes.environment():
        # The printed code may run where the variable has another value.
        uuids = [device.uuid or "" for device in visible_devices(gpus)]
        selected = tuple(uuids) if uuids and all(uuids) else None
    inherited = options.environment
    mps, hook = None, NO_COMMAND if options.hook else hook_state(None, wanted=False)
    if inherited is None:
        software = software_of(probes.builds(None))
    else:
        interpreter = _interpreter(options, inherited)
        software = read_frameworks(interpreter, inherited)
        if options.python is not None and software.frameworks is None:
            named = f"{options.python[:200]!r}: {software.reason}"
            raise WrongUseError(
                code="not-a-python",
                message=f"--python does not name a working Python: {named}.",
                remedy=("Name an interpreter: --python .venv/bin/python",),
            )
        mps = read_mps(inherited, Path(inherited.get(ROOT_VARIABLE) or "/"))
        if options.command is not None or options.proofs:
            hook = hook_state(interpreter, wanted=options.hook)
    return plan_limit(
        options.amount,
        gpus,
        environment=probes.environment() if inherited is None else inherited,
        include_overhead=options.include_overhead,
        selected=selected,
        cuda_version=answer.host.cuda_driver_version,
        software=software,
        mps=mps,
        hook=hook,
    )


def _interpreter(options: LimitOptions, environment: Mapping[str, str]) -> Interpreter | None:
    if options.command is not None and options.python is None:
        return command_interpreter(_innermost(options.command), environment)
    return user_interpreter(environment, options.python)


def _innermost(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that an inner `gpucheck … -- COMMAND` runs."""
    while Path(command[0]).name == "gpucheck" and "--" in command[:-1]:
        command = command[command.index("--") + 1 :]
    return command


# ------------------------------------------------------------------------------- the selected GPUs


def select_gpus(specs: Sequence[str], gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    """Return the UUIDs of device strings, read as in `gpucheck place`, and of UUID prefixes.

    Raises:
        WrongUseError: one names the CPU, or matches no device grammar.
        BadAnswerError: no visible GPU matches.
    """
    if not specs or not gpus:
        return None  # the plan reports that there is none
    return tuple(dict.fromkeys(_uuid_of(spec, gpus) for spec in specs))


def _parse(spec: str) -> DeviceSpec:
    """Return the device string of one GPU.

    Raises:
        WrongUseError: it names the CPU or no single GPU, or matches no device grammar.
    """
    parsed = parse_device(spec)
    if parsed.uuid is not None:
        return parsed
    if parsed.kind == "CPU":
        message = f"{spec!r} is the CPU, and memlimit limits only GPU memory."
        raise WrongUseError(code="not-a-gpu", message=message)
    if parsed.kind is None or parsed.index is None:
        # A script's empty variable would otherwise silently mean GPU 0.
        message = f"--gpu takes one GPU, such as /gpu:0, 2 or a UUID; {spec!r} names none."
        raise WrongUseError(code="not-a-gpu", message=message)
    return parsed


def _uuid_of(spec: str, gpus: Sequence[Gpu]) -> str:
    parsed = _parse(spec)
    if parsed.uuid is not None:
        return _find_by_prefix(spec, gpus)
    try:
        device = resolve(parsed, gpus, soft=False)
    except BadAnswerError as error:
        if error.code != "no-such-device":
            raise
        raise _no_such_gpu(fact=f"No visible GPU is {spec!r}.") from None
    if device.uuid is None:
        message = f"GPU {spec!r} has no readable UUID, so it cannot be selected."
        raise BadAnswerError(code="no-uuid", message=message)
    return device.uuid


def _find_by_prefix(spec: str, gpus: Sequence[Gpu]) -> str:
    matching = [
        device.uuid
        for device in visible_devices(gpus)
        if device.uuid and device.uuid.lower().startswith(spec.lower())
    ]
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise _no_such_gpu(fact=f"No visible GPU has a UUID that starts with {spec!r}.")
    raise _no_such_gpu(fact=f"{len(matching)} visible GPUs have a UUID that starts with {spec!r}.")


def _no_such_gpu(*, fact: str) -> BadAnswerError:
    remedy = ("List the GPUs, and see why others are hidden: gpucheck list",)
    return BadAnswerError(code="no-such-gpu", message=fact, remedy=remedy)


# ---------------------------------------------------------------------------------------- the plan


def plan_limit(
    amount: Amount,
    gpus: Sequence[Gpu],
    *,
    environment: Mapping[str, str] | None = None,
    include_overhead: bool = False,
    selected: tuple[str, ...] | None = None,
    cuda_version: str | None = None,
    software: Software | None = None,
    mps: Presence | None = None,
    hook: Presence = NO_COMMAND,
) -> MemoryLimit:
    """Compute the limit for each visible GPU and the setting for each framework.

    `environment` is what the limited program would inherit; a tighter limit in it is kept.
    `selected` are the UUIDs of the GPUs that it will see, in order.

    Raises:
        WrongUseError: the amount is more than a card has, or less than a byte of it.
        MissingError: no GPU is visible.
        InconclusiveError: it is unknown which GPUs are visible.
    """
    overhead = estimate_overhead(cuda_version, included=include_overhead)
    limits = _limits(amount, gpus, selected, overhead)
    inputs = PlanInput(
        amount=amount,
        limits=limits,
        environment={} if environment is None else environment,
        overhead_included=include_overhead,
        software=software or Software(),
        hook=_usable_hook(hook, limits),
        mps=mps,
        oldest_capability=_oldest_capability(gpus),
    )
    settings = [setting for module in MECHANISMS for setting in module.plan(inputs)]
    variables = {key: value for _, added in settings for key, value in added.items()}
    if selected is not None:
        variables |= {
            _VISIBLE: ",".join(selected),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }
    return MemoryLimit(
        request=MemoryRequest(
            text=amount.text,
            fraction=None if amount.share is None else float(amount.share),
            bytes=amount.size_bytes,
        ),
        gpus=limits,
        mechanisms=tuple(mechanism for mechanism, _ in settings),
        environment=variables,
        overhead=overhead,
        software=software,
    )


def _usable_hook(hook: Presence, limits: Sequence[GpuMemoryLimit]) -> Presence:
    """Return the hook's state; without the limit of every GPU it cannot run."""
    if hook[0] is False or all(gpu.allocator_limit_bytes is not None for gpu in limits):
        return hook
    return False, "the import hook needs the limit of every GPU, and one is unknown"


def _limits(
    amount: Amount, gpus: Sequence[Gpu], selected: tuple[str, ...] | None, overhead: Overhead
) -> tuple[GpuMemoryLimit, ...]:
    devices = visible_devices(gpus)
    if selected is not None:
        by_uuid = {device.uuid: device for device in devices}
        devices = tuple(by_uuid[uuid] for uuid in selected)
    if not devices:
        raise _nothing_visible(gpus)
    return tuple(_limit(amount, device, overhead) for device in devices)


def _limit(amount: Amount, device: CudaDevice, overhead: Overhead) -> GpuMemoryLimit:
    total, free = device.memory_total_bytes, device.memory_free_bytes
    unavailable = {} if free is not None else {"memory_free_bytes": "NVML does not report it"}
    cap = None if device.instance else device.gpu.memory_limit_bytes
    whole = min((size for size in (total, cap) if size is not None), default=None)
    if total is None:
        unavailable["memory_total_bytes"] = (
            "NVML does not report its total"
            if cap is None
            else device.gpu.unavailable.get("memory_total_bytes", "it is not known")
        )
    if whole is None:
        limit = amount.size_bytes
        if limit is None:
            reason = f"{amount.text} of an unknown total"
            unavailable |= {"limit_bytes": reason, "allocator_limit_bytes": reason}
    else:
        limit = _limit_bytes(amount, device, whole, capped=whole == cap)
    return GpuMemoryLimit(
        uuid=device.uuid,
        memory_total_bytes=total,
        limit_bytes=limit,
        allocator_limit_bytes=_allocator_limit(amount, device, limit, overhead),
        context_estimate_bytes=overhead.context_bytes,
        library_estimate_bytes=overhead.library_bytes,
        memory_free_bytes=free,
        cuda_index=device.cuda_index,
        index=device.gpu.index,
        name=device.name,
        mig_instance=device.instance is not None,
        memory_source="driver" if device.instance else device.gpu.memory_source,
        memory_limit_bytes=cap,
        memory_limit_source=None if cap is None else device.gpu.memory_limit_source,
        unavailable=unavailable,
    )


def _allocator_limit(
    amount: Amount, device: CudaDevice, limit: int | None, overhead: Overhead
) -> int | None:
    """Subtract what is allocated outside the allocators, if that was requested."""
    if limit is None or not overhead.included:
        return limit
    left = limit - overhead.total_bytes
    if left > 0:
        return left
    raise WrongUseError(
        code="less-than-the-overhead",
        message=f"{amount.text} of {_describe(device)} leaves nothing: a CUDA program needs about"
        f" {binary_bytes(overhead.total_bytes, digits=0)} outside its allocator.",
        remedy=("Give a larger amount, or omit --include-overhead.",),
    )


def _limit_bytes(amount: Amount, device: CudaDevice, total: int, *, capped: bool) -> int:
    """Return the limit in bytes; refuse one that does not fit the device, or our cgroup's limit."""
    limit = amount.bytes_of(total)
    if limit > total:
        size, whole = amount.text, binary_bytes(total)
        if binary_bytes(limit) == whole:  # the difference is in the digits
            size, whole = f"{size} ({limit} bytes)", f"{total} bytes"
        of = "that your cgroup may use of" if capped else "of"
        raise WrongUseError(
            code="more-than-the-card",
            message=f"{size} is more than the {whole} {of} {_describe(device)}.",
            remedy=("Give a smaller amount, or a share such as 90%.",),
        )
    if limit == 0:
        raise WrongUseError(
            code="bad-amount",
            message=f"{amount.text} of {_describe(device)} is less than one byte.",
            remedy=("Give a larger share, or bytes such as 8GiB.",),
        )
    return limit


def _describe(device: CudaDevice) -> str:
    kind, number = "GPU", device.gpu.index
    if device.instance is not None and device.cuda_index is not None:
        kind, number = "MIG instance", device.cuda_index
    return f"{kind} {number} ({ascii(device.name)[1:-1]})" if device.name else f"{kind} {number}"


def _oldest_capability(gpus: Sequence[Gpu]) -> tuple[int, int] | None:
    versions = [
        (int(major), int(minor))
        for gpu in gpus
        if gpu.compute_capability and gpu.visible
        for major, _, minor in [gpu.compute_capability.partition(".")]
    ]
    return min(versions, default=None)


def _nothing_visible(gpus: Sequence[Gpu]) -> MissingError:
    if not gpus:
        fact = "There is no GPU to limit."
    else:
        reasons = sorted({gpu.hidden_reason for gpu in gpus if gpu.hidden_reason})
        why = f": {reasons[0]}" if reasons else ""
        fact = f"None of the {len(gpus)} GPUs is visible to CUDA{why}."
    return MissingError(code="no-visible-gpu", message=fact, remedy=("Run: gpucheck detect",))
