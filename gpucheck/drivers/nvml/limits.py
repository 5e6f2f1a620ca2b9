"""Memory limits of a cgroup through NVML, one GPU at a time: set, read, and cleared.

Source: nvml.h of R615 (nvmlDeviceSetMemoryLimits_v1, nvmlDeviceGetMemoryLimits_v1). Only root may
set a limit; anybody may read it. GPUs in MIG mode have none.
"""

from __future__ import annotations

from gpucheck.drivers.native import BINDING_TOO_OLD
from gpucheck.drivers.nvml.binding import NvmlError

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding

#: Source: nvml.h (NVML_DEVICE_MEMORY_LIMIT_MAX): no limit.
UNLIMITED = 0xFFFFFFFFFFFFFFFF


def _structure(binding: Binding, kind: str, group: str) -> Any:
    """Return pynvml's structure of this kind for a group's folder.

    Raises:
        NvmlError: this nvidia-ml-py is older than the functions.
    """
    name = f"c_nvml{kind}MemoryLimits_v1_t"
    make = getattr(binding.nvml, name, None)
    if make is None:
        text = BINDING_TOO_OLD
        raise NvmlError(name, None, "binding-too-old", text)
    limits = make()
    limits.nameSpace = group.encode("utf-8", "surrogateescape")
    return limits


def get_limits(binding: Binding, handle: Any, group: str) -> tuple[int | None, int | None, int]:
    """Return a group's soft and hard limit on one GPU (None: no limit), and its use, in bytes.

    Raises:
        NvmlError: NVML gave no answer; "not found" and "not supported" may mean that none is set.
    """
    limits = _structure(binding, "Get", group)
    binding.ask("nvmlDeviceGetMemoryLimits_v1", handle, limits)
    hard = None if limits.hardLimit == UNLIMITED else int(limits.hardLimit)
    return int(limits.softLimit) or None, hard, int(limits.currentUsed)


def set_limits(
    binding: Binding, handle: Any, group: str, soft: int | None, hard: int | None
) -> None:
    """Set a group's limits on one GPU in bytes; None clears a limit.

    Raises:
        NvmlError: NVML refuses them.
    """
    limits = _structure(binding, "Set", group)
    limits.softLimit = soft or 0
    limits.hardLimit = UNLIMITED if hard is None else hard
    binding.ask("nvmlDeviceSetMemoryLimits_v1", handle, limits)


def answer(binding: Binding, request: dict[str, Any], handles: dict[str, Any]) -> list[Any]:
    """Return one document for each GPU (by UUID) whose limits a request sets or reads.

    `handles` keeps NVML's handles between requests, which come every second.
    """
    documents = []
    for uuid, wanted in request["gpus"].items():
        document: dict[str, Any] = {"part": "limit", "uuid": uuid}
        try:
            if uuid not in handles:
                handles[uuid] = binding.ask("nvmlDeviceGetHandleByUUID", uuid)
            if request["set"]:
                set_limits(binding, handles[uuid], request["group"], *wanted)
            else:
                soft, hard, used = get_limits(binding, handles[uuid], request["group"])
                document |= {"soft_bytes": soft, "hard_bytes": hard, "used_bytes": used}
        except NvmlError as error:
            document["failure"] = error.document()
        documents.append(document)
    return documents
