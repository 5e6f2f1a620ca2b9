"""Runner of the memory-limit proof, in the interpreter that the limit is for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpucheck.drivers.cupy.errors import cache_variables
from gpucheck.drivers.host.processes import memory_by_process
from gpucheck.drivers.interface import NvmlRequest
from gpucheck.drivers.live import DEADLINE_BASE_S
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.python.interpreters import Interpreter, run_script

#: The first use of a GPU loads gigabytes of libraries, and JAX compiles.
DEADLINE_S = 300.0
#: Each further GPU needs a context, and memory to be taken and held.
DEADLINE_PER_GPU_S = 60.0
#: Long enough to ask NVML while the memory is held.
HOLD_S = 1.0
#: An NVML that has been started answers in milliseconds.
READING_DEADLINE_S = 2.0

#: process id, UUID and index of a GPU -> its bytes there, by NVML.
Measure = Callable[[int, str | None, int | None], int | None]


def run_proof(
    interpreter: Interpreter,
    framework: str,
    limits: Sequence[tuple[int, int]],
    environment: Mapping[str, str],
    *,
    hold_s: float = 0.0,
    deadline_s: float = DEADLINE_S,
) -> Iterator[dict[str, Any]]:
    """Yield the steps of the proof as they come, one GPU after the other.

    `limits` are in CUDA's order: the bytes of a GPU's limit (0: not tried) and the most that may
    be taken there. At the refusal, memory is held for `hold_s`.

    Raises:
        OtherPythonError: it cannot be started, or takes longer than `deadline_s`.
    """
    cache = cache_variables(environment) if framework == "cupy" else {}
    documents = run_script(
        interpreter,
        "limit_proof_child.py",
        framework,
        ",".join(f"{limit}:{most}" for limit, most in limits),
        str(hold_s),
        environment={**environment, **cache},
        deadline_s=deadline_s,
    )
    yield from (document for document in documents if "step" in document)


@contextlib.contextmanager
def open_memory_reader() -> Iterator[Measure]:
    """Start NVML, which can take seconds, and yield a function for a process's bytes on a device.

    It returns None where the driver does not report them.
    """
    session = NvmlSession()

    def measure(pid: int, uuid: str | None, index: int | None) -> int | None:
        question = NvmlRequest(processes_of=None if index is None else (index,))
        reading = session.read(question, deadline_s=READING_DEADLINE_S)
        return memory_by_process(reading.gpus).get(uuid, {}).get(pid)

    try:
        session.read(NvmlRequest(processes_of=()), deadline_s=DEADLINE_BASE_S)
        yield measure
    finally:
        session.close()
