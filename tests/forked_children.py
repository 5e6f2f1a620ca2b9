"""Children of the command without their start: its forks (command_server.py) fork them as well.

gpucheck starts its workers in new interpreters, and most of their time goes into starting and
importing what the server has imported. So `os.posix_spawn` forks here for the commands that
`Children.work` knows, and makes of the fork what a new process is: its arguments and variables, its
descriptors, its signals, the driver's libraries. It forks for nothing else, and not where the start
itself makes a difference. The tests that start the program itself (`real=True`, `program.start`,
those of tests/drivers) start its children as well; with GPUCHECK_TEST_STARTS=real all tests do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import _bootstrap  # type: ignore[attr-defined]
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from gpucheck.drivers import start_child
from gpucheck.drivers.child import START, START_WORKER, open_descriptors
from gpucheck.drivers.host.blas import load_numpy

Spawn = Callable[..., int]
Work = Callable[[], object]

#: Our workers.
WORKERS = {
    "gpucheck.drivers.command_lines",
    "gpucheck.drivers.cuda.worker",
    "gpucheck.drivers.host.driver_files",
    "gpucheck.drivers.host.process_files",
    "gpucheck.drivers.nvml.sensor_worker",
    "gpucheck.drivers.nvml.worker",
}
#: What runs in a Python of the user's, if that is the tests' own.
SCRIPTS = ("frameworks_child.py",)
LIBRARY_PATH = "LD_LIBRARY_PATH"
#: Signals that Python ignores from its start on.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Children:
    """What the server has imported and found out for the children of all its forks."""

    def __init__(self) -> None:
        self._spawn: Spawn = os.posix_spawn
        self._pynvml = self._import_pynvml()
        importlib.import_module("importlib.metadata")
        say = "import sys; print(*sys.path, sep='\\0', end='')"
        said = subprocess.run(
            [sys.executable, "-c", say], cwd="/", env={}, capture_output=True, check=True
        ).stdout.decode()
        #: Of our Python, without and with what is installed.
        self._whole_path = [entry for entry in said.split("\0") if entry]
        self._bare_path = [entry for entry in self._whole_path if Path(entry, "os.py").exists()]
        self._bare_path += [f"{entry}/lib-dynload" for entry in self._bare_path]

    @staticmethod
    def _import_pynvml() -> ModuleType | None:
        """Import the binding of NVML, and leave it to the workers that look for it there."""
        with contextlib.suppress(ImportError):
            importlib.import_module("pynvml")
        return sys.modules.pop("pynvml", None)

    def install(self) -> None:
        """Fork from now on, in this process."""
        os.posix_spawn = self.spawn  # type: ignore[assignment]

    def spawn(
        self,
        path: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        file_actions: Sequence[tuple[Any, ...]] = (),
        setsigmask: Sequence[int] | None = None,
        setsigdef: Sequence[int] = (),
        **options: Any,
    ) -> int:
        """Start a process as os.posix_spawn does; in a fork if that is the same."""
        work = None if options or _is_importing() else self.work(path, argv, env)
        if work is None:
            return self._spawn(
                path, argv, env, file_actions=file_actions, setsigdef=setsigdef,
                **({} if setsigmask is None else {"setsigmask": setsigmask}), **options,
            )  # fmt: skip
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            _become(env, file_actions, setsigmask)
            code = _run(work)
        finally:
            os._exit(code)

    def work(self, path: str, argv: Sequence[str], env: Mapping[str, str]) -> Work | None:
        """Return what the fork does, None if only a new process does the same.

        A command of `bench` that measures: not in a fork of what has opened a GPU.
        """
        usual = env.get("LANG") == "C.UTF-8" and not any(name.startswith("LC_") for name in env)
        if path != sys.executable or not usual:
            return None
        if argv[1:5] == ["-I", "-S", "-c", START_WORKER]:
            return self._worker(argv[5:]) if argv[7] in WORKERS else None
        strange = [name for name in env if name.startswith("PYTHON") and name != "PYTHONPATH"]
        folders = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        if strange or any(Path(entry, "sitecustomize.py").exists() for entry in folders):
            return None
        if argv[1:2] == [START] and argv[3].endswith(SCRIPTS) and not folders:
            return self._script(argv[1:])
        if argv[1:3] == ["-P", START] and argv[4:6] == ["-m", "gpucheck"]:
            return self._command(argv[3:], folders) if "cupy" not in sys.modules else None
        return None

    def _worker(self, words: Sequence[str]) -> Work:
        def work() -> None:
            folder, *arguments = words
            sys.argv[:] = ["-c", *arguments]
            sys.path[:] = self._bare_path
            # As START_WORKER does, which has the package's folder on its path for the import only.
            if self._pynvml is not None and str(Path(str(self._pynvml.__file__)).parent) in words:
                sys.modules["pynvml"] = self._pynvml
            assert Path(start_child.__file__).parents[2] == Path(folder)
            start_child.run_worker()

        return work

    def _script(self, words: Sequence[str]) -> Work:
        def work() -> None:
            sys.argv[:] = list(words)
            sys.path[:] = [str(Path(START).parent), *self._whole_path]
            importlib.invalidate_caches()
            start_child.end_with_parent(int(words[1]))
            start_child.run_script(words[2])

        return work

    def _command(self, words: Sequence[str], folders: Sequence[str]) -> Work:
        def work() -> None:
            start_child.end_with_parent(int(words[0]))
            main = str(Path(START).parents[1] / "__main__.py")
            sys.argv[:] = [main, *words[3:]]
            sys.orig_argv[:] = [sys.executable, "-P", "-m", "gpucheck", *words[3:]]
            sys.path[:] = [*folders, *self._whole_path]
            importlib.invalidate_caches()
            from gpucheck.__main__ import main as run
            from gpucheck.drivers.nvml import start

            start._started.clear()  # the parent's
            run()

        return work


class ImportedNumpy:
    """NumPy, imported ahead: whoever imports it finds it done, if the module path leads to it."""

    def __init__(self) -> None:
        load_numpy()
        for name in ("numpy.linalg", "numpy.random"):
            importlib.import_module(name)
        names = [name for name in sys.modules if name.partition(".")[0] == "numpy"]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules["numpy"].__spec__

    def install(self) -> None:
        """Be found before the module path, from now on."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return what gives the modules back if the path leads to the same file."""
        if name != "numpy":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and self._spec is not None and spec.origin == self._spec.origin:
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, _: ModuleSpec) -> ModuleType:
        """Return the package, and give back the modules in it."""
        sys.modules.update(self._modules)
        return self._modules["numpy"]

    def exec_module(self, module: ModuleType) -> None:
        """Give back what the import has changed of the package."""
        module.__spec__ = self._spec


def look_for_libraries_in(path: str) -> None:
    """Find libraries by their names as in a process that started with this LD_LIBRARY_PATH.

    The dynamic loader reads it once, at the start.
    """
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]

    def dlopen(name: str | None, mode: int = ctypes.DEFAULT_MODE) -> int:
        if isinstance(name, str) and name and "/" not in name:
            name = next((str(one / name) for one in folders if (one / name).exists()), name)
        return _dlopen(name, mode)

    ctypes._dlopen = dlopen  # type: ignore[attr-defined]


_dlopen: Callable[..., int] = ctypes._dlopen  # type: ignore[attr-defined]


def _is_importing() -> bool:
    """Return whether a thread is importing: nobody would finish it in a fork."""
    return threading.active_count() > 1 and any(
        lock() is not None for lock in [*_bootstrap._module_locks.values()]
    )


def _become(
    env: Mapping[str, str],
    file_actions: Sequence[tuple[Any, ...]],
    setsigmask: Sequence[int] | None,
) -> None:
    """Leave of the parent in this fork what an exec would leave."""
    atexit._clear()
    sys.unraisablehook, sys.excepthook = sys.__unraisablehook__, sys.__excepthook__
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN)
    if setsigmask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, setsigmask)
    for action, *values in file_actions:
        _act(action, values)
    for number in open_descriptors():
        with contextlib.suppress(OSError):  # that of the list itself
            if number > 2 and not os.get_inheritable(number):
                os.close(number)
    os.environ.clear()
    os.environ.update(env)
    look_for_libraries_in(env.get(LIBRARY_PATH, ""))
    # The parent's hold what it has not written yet, and must not write it here.
    old = (sys.stdin, sys.stdout, sys.stderr)
    _kept.extend(old)
    modes = ("r", "w", "w")
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", errors=stream.errors, closefd=False)
        for number, (mode, stream) in enumerate(zip(modes, old, strict=True))
    )
    gc.enable()


_kept: list[object] = []


def _act(action: int, values: list[Any]) -> None:
    if action == os.POSIX_SPAWN_DUP2:
        os.dup2(*values)
    elif action == os.POSIX_SPAWN_CLOSE:
        with contextlib.suppress(OSError):
            os.close(*values)
    else:
        number, path, flags, mode = values
        opened = os.open(path, flags, mode)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


def _run(work: Work) -> int:
    """Return the exit code that an interpreter would end with after this."""
    code: object = 0
    try:
        work()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code or 0
