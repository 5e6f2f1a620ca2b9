"""Framework benchmark: runs kernels with one framework and times them. Run by path.

It runs in the interpreter that has the framework (Python 3.8 or newer, otherwise standard library
only). A line from the parent asks for one step: prepare a case, run it, fetch its result, release
it. Arrays travel as raw bytes in the parent's memory files. The framework's own file beside this
one (`pytorch_bench_child.py` and others) has its calls; this one has the protocol, the clock
and the memory.

A framework's `Backend` has a function for each way of using a kernel: `computing` on data that is
in place, `end_to_end` between transfers, `transfer` alone, and `training`, softmax regression by
gradient descent over batches. Each returns the sets of inputs to walk through, the work on one of
them, and what begins anew (None where nothing is kept): outputs become NaN, weights zero.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - no pathlib in the child
#: The file of each framework.
FILES = {
    "pytorch": "pytorch_bench_child.py",
    "tensorflow": "tensorflow_bench_child.py",
    "jax": "jax_bench_child.py",
    "cupy": "arrays_bench_child.py",
    "numpy": "arrays_bench_child.py",
}
#: The kernel ends a process with more of this first when memory runs out: this one, not its parent.
OOM_SCORE = "800"
#: A first line of this length tells enough; more than so many characters help nobody.
TELLING_CHARACTERS, MOST_CHARACTERS = 20, 500
#: Words in an exception's name or message that tell what it means.
OUT_OF_MEMORY = ("outofmemory", "resource_exhausted", "resourceexhausted", "memoryerror")
LACKS = (
    "not implemented for", "notimplementederror", "unimplementederror", "invalidcxxcompiler",
    "no c++ compiler", "could not find device for node", "unsupported operations",
    "no opkernel was registered", "tritonmissing",
)  # fmt: skip


def sibling(file: str) -> ModuleType:
    """Return a file beside this one as a module, without putting the folder into sys.path."""
    name = file[: -len(".py")]
    module = type(sys)(name)
    module.__file__ = HERE + "/" + file
    sys.modules[name] = module
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


class Memory:
    """One of the parent's memory files, mapped for as long as an array is copied."""

    def __init__(self, path: str, size_bytes: int) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            self.bytes = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Unmap it; an array that still refers to it keeps it."""
        try:
            self.bytes.close()
        except BufferError:
            return


class Job:
    """One prepared case: its sets of inputs, its work, and its last result.

    The sets are walked through in turn, so that no input stays in a GPU's cache. `train` has one
    set for each batch, and its work also changes weights.
    """

    def __init__(self, backend: Any, request: dict[str, Any]) -> None:
        self._backend = backend
        self._request = request
        self._result: Any = None
        self._turn = 0
        inputs = []
        for part in request["inputs"]:
            memory = Memory(part["path"], part["bytes"])
            try:
                inputs.append(backend.load(memory.bytes, part["shape"], part["dtype"]))
            finally:
                memory.close()
        kinds = {"train": backend.training, "transfer": backend.transfer}
        kind = kinds.get(request["kernel"], backend.computing)
        if request["end_to_end"]:
            kind = backend.end_to_end
        if request["kernel"] == "train":
            images, labels = inputs
            size = request["parameters"]["batch"]
            starts = range(0, len(images), size)
            inputs = [(images[low : low + size], labels[low : low + size]) for low in starts]
        self._device = backend.use(request)
        self._sets, self._work, self._renew = kind(request, inputs, self._device)

    def poison(self) -> None:
        """Forget the last result and fill a preallocated output with NaN; training begins anew."""
        self._result = None
        self._turn = 0
        if self._renew is not None:
            self._renew()

    def run(self, loops: int) -> dict[str, float]:
        """Run so many operations; return their seconds, and the seconds of handing them over."""
        work, sets, count = self._work, self._sets, len(self._sets)
        turn, synchronize, device = self._turn, self._backend.synchronize, self._device
        result = None
        synchronize(device, self._result)
        start_s = time.perf_counter()
        for turn in range(self._turn, self._turn + loops):
            result = work(sets[turn % count])
        handed_s = time.perf_counter()
        synchronize(device, result)
        end_s = time.perf_counter()
        self._turn += loops
        self._result = result
        return {"seconds": end_s - start_s, "handed_s": handed_s - start_s}

    def clear(self) -> None:
        """Drop every array; looking for cycles among a framework's objects would take a second."""
        vars(self).clear()

    def fetch(self) -> None:
        """Write the last result into the parent's memory."""
        if self._result is None:
            raise RuntimeError("no operation has run since the outputs were cleared")
        output = self._request["output"]
        memory = Memory(output["path"], output["bytes"])
        try:
            self._backend.store(self._result, memory.bytes)
        finally:
            memory.close()


class Child:
    """The backend, the job of the moment, and the requests."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._job: Job | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request; every exception becomes an error."""
        try:
            return getattr(self, "_" + request["ask"])(request) or {}
        except BaseException as error:
            return {"error": failure(error)}

    def _prepare(self, request: dict[str, Any]) -> None:
        if self._job is not None:
            self._release(request)
        self._job = Job(self._backend, request)

    def _poison(self, request: dict[str, Any]) -> None:
        self._ready().poison()

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._ready().run(request["loops"])

    def _fetch(self, request: dict[str, Any]) -> None:
        self._ready().fetch()

    def _release(self, request: dict[str, Any]) -> None:
        """Free the arrays, and give memory that the framework's allocators keep to the system."""
        if self._job is not None:
            self._job.clear()
            self._job = None
        self._backend.release()
        trim_heap()

    def _ready(self) -> Job:
        if self._job is None:
            raise RuntimeError("nothing is prepared")
        return self._job


def trim_heap() -> None:
    """Let the C library give freed memory back (malloc_trim(3)); others than glibc have no such."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def failure(error: BaseException) -> dict[str, str]:
    """Return an exception as a kind and a sentence; the parent chooses the words around it."""
    said = sibling("framework_test_child.py").explain(error)
    first = (str(error).strip().splitlines() or [""])[0].strip()
    if len(first) >= TELLING_CHARACTERS:  # further lines are places in code, ours too
        said = (type(error).__name__ + ": " + first)[:MOST_CHARACTERS]
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    text = (names + " " + said).lower()
    kind = "error"
    if any(word in text for word in OUT_OF_MEMORY):
        kind = "out-of-memory"
    elif any(word in text for word in LACKS):
        kind = "lacks"
    elif isinstance(error, ModuleNotFoundError):
        kind = "missing"
    return {"kind": kind, "message": said, "module": getattr(error, "name", None) or ""}


def offer_to_the_kernel() -> None:
    """Let the kernel end this process rather than its parent when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write(OOM_SCORE)
    except OSError:
        return


def main() -> None:
    """Import the framework, report its facts, then answer requests until the parent is gone."""
    sys.path[:] = [entry for entry in sys.path if entry not in ("", HERE)]
    os.chdir("/")
    # Not the standard ones: a framework may read, write or close those.
    requests = os.fdopen(os.dup(0), encoding="ascii")
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = sibling("framework_test_child.py").Log()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def write_answer(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    name, settings = sys.argv[1], json.loads(sys.argv[2])
    offer_to_the_kernel()
    cpus = sorted(os.sched_getaffinity(0))
    if settings["threads"] < len(cpus):
        # Some frameworks start a thread for each processor that they may use.
        os.sched_setaffinity(0, cpus[: settings["threads"]])
    started_s = time.perf_counter()
    try:
        module = sibling(FILES[name])
        backend = module.Backend(name, settings)
        facts = backend.facts()
    except BaseException as error:
        said = failure(error)
        said["log"] = " | ".join(log.telling()[-3:])
        imported = sys.modules.get({"pytorch": "torch"}.get(name, name))
        if imported is not None:  # a failed import leaves none
            said["version"] = str(getattr(imported, "__version__", ""))
        write_answer({"id": 0, "error": said})
        return
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":  # CUDA's libraries heed it before settings
        facts["float32_math"] = "fp32"
    facts["python"] = "%d.%d.%d" % sys.version_info[:3]  # noqa: UP031 - Python 3.8 reads it too
    facts["import_s"] = time.perf_counter() - started_s
    write_answer({"id": 0, "facts": facts})
    child = Child(backend)
    for line in iter(requests.readline, ""):
        request = json.loads(line)
        write_answer({"id": request["id"], **child.answer(request)})


if __name__ == "__main__":
    main()
