"""Frameworks as the benchmark runs them: a child for each, in the Python that has it.

The child (framework_bench_child.py) imports its framework, reports facts, and then does one step
for each request. Arrays go both ways as raw bytes in memory files without a name, which the child
opens through /proc among our descriptors: only the same user can.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.child import Child, ChildDiedError, ChildSilentError
from gpucheck.drivers.host.process_tree import ProcessTree, read_stat
from gpucheck.drivers.python.interpreters import Interpreter, user_environment, why_silent
from gpucheck.report.errors import BadAnswerError
from gpucheck.report.text import framework_module

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

SCRIPT = str(Path(__file__).with_name("framework_bench_child.py"))
#: A cold import of a large framework takes tens of seconds, on a crowded machine over a minute.
IMPORT_S = 240.0
#: Putting inputs in place is a copy; the first use of a GPU also loads its libraries.
PREPARE_S = 120.0
#: A first run compiles, for minutes on a busy machine; later runs take what was asked for.
FIRST_RUN_S, RUN_S = 600.0, 120.0
#: Freeing memory waits for nothing.
RELEASE_S = 30.0
#: Error codes of rows.
MISSING, BROKEN, LACKS = "framework-missing", "framework-broken", "framework-lacks"
SILENT, DIED, FAILED = "framework-silent", "framework-died", "framework-error"
OUT_OF_MEMORY = "out-of-memory"
#: What a process that was ended by a signal may mean.
_SIGNALS = {
    "SIGKILL": "Look for the kernel's out-of-memory killer: gpucheck detect --log",
    "SIGBUS": "A file of it may be cut short (a full disk, a broken download): install it again.",
    "SIGILL": "This build may need instructions that the processor lacks: install another build.",
}
_KINDS = {"lacks": LACKS, "missing": LACKS, "out-of-memory": OUT_OF_MEMORY}
#: Folder of what a framework compiles, and its prefix: it disappears with the run.
_FOLDER_PREFIX = "gpucheck-compiled-"
#: The id of no process: a tree without a root.
_NO_PROCESS = -1


class SharedBytes:
    """Memory that we and a child both see; it has no name, and ends with its last user."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._descriptor = os.memfd_create("gpucheck-array")
        try:
            os.truncate(self._descriptor, size_bytes)
            self._memory = mmap.mmap(self._descriptor, size_bytes)
        except OSError as error:
            os.close(self._descriptor)
            raise MemoryError from error

    @property
    def place(self) -> dict[str, Any]:
        """Return where a child of ours finds it."""
        path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        return {"path": path, "bytes": self.size_bytes}

    def write(self, array: HostArray) -> None:
        """Copy an array into it."""
        import numpy as np

        np.copyto(self.array(str(array.dtype), array.shape), array)

    def array(self, storage: str, shape: tuple[int, ...]) -> HostArray:
        """Return the memory as an array of this NumPy type and shape."""
        import numpy as np

        return np.frombuffer(self._memory, dtype=storage).reshape(shape)

    def close(self) -> None:
        """Release it; an array that still refers to it keeps the memory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        try:
            self._memory.close()
        except BufferError:
            return


@dataclass(slots=True, kw_only=True)
class FrameworkProcess:
    """One framework's child: started, asked, started again if it dies, and ended.

    `name` is the framework's as in `detect`. `facts` are those that its child reports. `gpu` lets
    it use GPUs: those of `gpu_uuids`, in this order, or all if there are no UUIDs. `same_math`
    turns off every arithmetic of reduced precision. `folder` receives what it compiles.
    """

    name: str
    interpreter: Interpreter
    environment: Mapping[str, str]
    threads: int
    gpu: bool = False
    gpu_uuids: tuple[str, ...] = ()
    same_math: bool = False
    folder: str | None = None
    import_s: float = IMPORT_S
    facts: dict[str, Any] = field(default_factory=dict)
    _child: Child | None = None
    _asked: int = 0
    _failed: BadAnswerError | None = None

    @property
    def pid(self) -> int | None:
        """Return the child's process id while it runs."""
        return None if self._child is None else self._child.pid

    @property
    def trial(self) -> str:
        """Return the command that tells more about its import, in the same Python."""
        python = shlex.quote(self.interpreter.path)
        if self.name == "numpy":  # `detect` is about GPUs
            return f"{python} -c 'import numpy'"
        named = f" --python {python}" if self.interpreter.named_by == "--framework" else ""
        return f"gpucheck detect --framework {self.name} --deep{named}"

    @property
    def running(self) -> bool:
        """Return whether the child has not ended as far as is known."""
        return self._child is not None

    def start(self) -> None:
        """Start the child, which begins to import; `wait` waits for it."""
        settings = {"threads": self.threads, "gpu": self.gpu, "same_math": self.same_math}
        self._asked = 0
        try:
            self._child = Child(
                SCRIPT,
                self.name,
                json.dumps(settings),
                interpreter=self.interpreter.command,
                environment=framework_environment(self),
                own_group=True,
            )
        except ChildDiedError as error:
            message = f"the process for it {error.how}"
            raise self._error(BROKEN, message, of_it=False) from None

    def wait(self) -> None:
        """Wait for the import, and keep the facts; a failure stays one for later requests.

        Raises:
            BadAnswerError: it is missing or broken, it died, or missed the deadline.
        """
        try:
            self._import()
        except BadAnswerError as error:
            self._failed = error
            raise

    def _import(self) -> None:
        if self._child is None:
            self.start()
        try:
            document = self._answer(self.import_s)
        except ChildSilentError:
            self.close()
            message = f"was still being imported after {self.import_s:g} s"
            raise self._error(SILENT, message) from None
        except ChildDiedError as error:
            self.close()
            message, remedy = (
                f"the process that imports it {error.how}",
                _steps_after_signal(error.how),
            )
            if "was ended by" not in error.how:  # perhaps it is no Python, or too old
                how = f"{error.how} while importing it"
                message = why_silent(self.interpreter, self.environment, how)
                remedy = () if message.endswith(how) else (self._name_it(),)
            remedy = remedy or (f"Run: {self.trial}",)
            raise self._error(BROKEN, message, remedy, of_it=False) from None
        if "facts" not in document:
            self.close()
            raise self._not_imported(document.get("error"))
        self.facts = document["facts"]

    def ask(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Return the answer to a request, starting the child again if it has died before.

        A child that is interrupted or misses the deadline is ended: it would answer too late.

        Raises:
            BadAnswerError: the request failed.
        """
        if self._failed is not None:
            raise self._failed
        if self._child is None:
            self.wait()
        assert self._child is not None
        self._asked += 1
        try:
            self._child.ask({**request, "id": self._asked})
            document = self._answer(deadline_s)
        except ChildSilentError:
            self.close()
            message = f"did not {request['ask']} within {deadline_s:g} s"
            raise self._error(SILENT, message) from None
        except ChildDiedError as error:
            self.close()
            message = f"the process that runs it {error.how} ({request['ask']})"
            raise self._error(DIED, message, _steps_after_signal(error.how), of_it=False) from None
        except BaseException:
            self.close()
            raise
        said = document.get("error")
        if isinstance(said, dict):
            code = _KINDS.get(str(said.get("kind")), FAILED)
            raise self._error(code, str(said.get("message")), of_it=False)
        return document

    def _answer(self, deadline_s: float) -> dict[str, Any]:
        """Return the answer to the last request; those to earlier ones are dropped."""
        assert self._child is not None
        end = time.monotonic() + deadline_s
        while True:
            document = next(self._child.documents(max(0.0, end - time.monotonic())))
            if document.get("id") == self._asked:
                return document

    def _not_imported(self, error: object) -> BadAnswerError:
        said = error if isinstance(error, dict) else {}
        module = framework_module(self.name)
        if said.get("kind") == "missing" and said.get("module") == module:
            return self._error(
                MISSING, f"is not installed in {self.interpreter.path}", (self._name_it(),)
            )
        because = " | ".join(str(said[key]) for key in ("message", "log") if said.get(key))
        if "version" in said:  # its calls are others than ours: too old, or too new
            cannot = f"{said['version']} cannot be measured".strip()
            remedy = ("Try another version of it in that Python.",)
            return self._error(BROKEN, f"{cannot}: {because}", remedy)
        remedy = (f"Run: {self.trial}",)
        return self._error(BROKEN, f"cannot be imported: {because}", remedy)

    def _name_it(self) -> str:
        """Return the step that helps where another Python was meant."""
        return f"Name the Python that has it: --framework {self.name}=PATH/bin/python"

    def _error(
        self, code: str, message: str, remedy: tuple[str, ...] = (), *, of_it: bool = True
    ) -> BadAnswerError:
        """Return an error that names the framework, once."""
        sentence = f"{self.name} {message}" if of_it else f"{self.name}: {message}"
        return BadAnswerError(code=code, message=sentence, remedy=remedy)

    def close(self) -> None:
        """End the child and what it has started: a compiler would disturb the other rows."""
        if self._child is not None:
            if self._child.pid is not None:
                with suppress(OSError):
                    ProcessTree(self._child.pid).send(signal.SIGKILL)
            self._child.close()
            self._child = None


def _steps_after_signal(how: str) -> tuple[str, ...]:
    """Return the steps for a process that ended so, none if they are not known."""
    return tuple(remedy for name, remedy in _SIGNALS.items() if name in how)


def framework_environment(process: FrameworkProcess) -> dict[str, str]:
    """Return the child's environment: the user's, with threads and the use of the card set.

    Without these settings TensorFlow and JAX take the whole card, so that the next framework finds
    none of it free. A GPU that is not asked for stays hidden.
    """
    threads = str(process.threads)
    variables = user_environment(process.environment)
    counts = ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR")
    variables |= {f"{name}_NUM_THREADS": threads for name in counts}
    variables |= {
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # 64-bit numbers are off by default; the kernels name the type of every array.
        "JAX_ENABLE_X64": "true",
        # A cache on disk would hide how long compiling takes.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Compile in the process itself: no pool of compilers stays behind.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if process.folder is not None:
        # PyTorch keeps compiled headers in the folder for temporary files, whatever its cache is.
        variables["TMPDIR"] = variables["TORCHINDUCTOR_CACHE_DIR"] = process.folder
        variables["TRITON_CACHE_DIR"] = process.folder + "/triton"
    # It would choose one of both for every array.
    variables.pop("JAX_PLATFORM_NAME", None)
    if process.gpu:
        # "cuda" alone would leave out the processor, "cpu" alone the GPU.
        variables.pop("JAX_PLATFORMS", None)
        if process.gpu_uuids:
            # TensorFlow and JAX start on every GPU that they see, even to use one.
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(process.gpu_uuids)
    else:
        variables |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    return variables


class CompiledFolder:
    """Private folder for what frameworks compile, deleted at the end.

    A lock on it tells that its owner lives: what a killed run left is deleted by the next. Code
    that a program executes must not lie where others can write, as PyTorch's own default does.
    Processes that a framework started have the folder in their environment, and end with it.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        base = Path(tempfile.gettempdir())
        for left in base.glob(_FOLDER_PREFIX + "*"):
            _delete_if_left(left)
        self.path = tempfile.mkdtemp(prefix=_FOLDER_PREFIX)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Delete the folder."""
        if self._descriptor >= 0:
            _end_users(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _delete_if_left(folder: Path) -> None:
    """Delete a folder of ours whose owner has gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _end_users(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its owner holds the lock
        return
    finally:
        os.close(descriptor)


def _end_users(folder: str) -> None:
    """Kill the processes whose folder for temporary files this is: they would write into it."""
    tree = ProcessTree(_NO_PROCESS, mark=f"TMPDIR={folder}\0")
    with suppress(OSError):
        tree.refresh(_own_processes())
        tree.send(signal.SIGKILL)


def _own_processes(proc: Path = Path("/proc")) -> Iterator[int]:
    """Yield the user's processes; not those asleep in a driver, whose files may block a reader."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = read_stat(entry)
                if entry.stat().st_uid == os.getuid() and stat and stat.state not in "DZX":
                    yield int(entry.name)
