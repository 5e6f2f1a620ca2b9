"""Runs the proof of a memory limit in the interpreter that the limit is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpucheck.probes.interface import NvmlQuestion
from gpucheck.probes.live import DEADLINE_BASE_S
from gpucheck.probes.nvml import NvmlSession
from gpucheck.probes.other_python import Interpreter, run_script

#: The first use of a GPU loads gigabytes of libraries, and JAX compiles.
DEADLINE_S = 300.0
#: Long enough for NVML to be started and asked while the memory is held.
HOLD_S = 2.0


def run_proof(
    interpreter: Interpreter,
    framework: str,
    limit_bytes: int,
    environment: Mapping[str, str],
    *,
    hold_s: float = 0.0,
    deadline_s: float = DEADLINE_S,
) -> Iterator[dict[str, Any]]:
    """Yield the steps of the proof as they come; it holds its memory for `hold_s` when refused.

    Raises:
        OtherPythonError: it cannot be started, or takes longer than `deadline_s`.
    """
    documents = run_script(
        interpreter,
        "limit_proof_child.py",
        framework,
        str(limit_bytes),
        str(hold_s),
        environment=environment,
        deadline_s=deadline_s,
    )
    yield from (document for document in documents if "step" in document)


def memory_of(pid: int) -> int | None:
    """Return the bytes of a process on the GPUs by NVML, null where it does not tell."""
    session = NvmlSession()
    try:
        reading = session.read(NvmlQuestion(), deadline_s=DEADLINE_BASE_S)
    finally:
        session.close()
    used = [
        process.memory_used_bytes
        for gpu in reading.gpus
        for process in gpu.processes
        if process.pid == pid and process.type == "compute"
    ]
    known = [size for size in used if size is not None]
    return sum(known) if known else None
