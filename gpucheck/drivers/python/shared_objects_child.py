"""Dynamic loader in list mode: the libraries that a shared object would load, or fail to find.

A single file that frameworks_child.py loads, in any interpreter (Python 3.8 or newer, standard
library only). The loader that runs this interpreter, never the object's own, lists what the object
would load: it maps files but runs none of them. No other program knows the search path, RPATHs,
the loader's cache and its configuration as well.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The loader of the GNU C library, by its current name and by the name before 2.34.
LOADER = re.compile(r"(/\S+/ld-(?:linux[\w.-]*\.so\.\d+|\d+\.\d+\.so))$", re.MULTILINE)
#: These come with the driver, which other checks look at.
DRIVERS_OWN = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid|nvidia-encode)\.so")
NVIDIAS = re.compile(
    r"lib(?:cu(?:da|dart|blas|fft|fftw|rand|solver|sparse|dnn|pti|tensor|dss|file|obj)"
    r"|nv|nccl|cudss)"
)
#: Its lines: a library that it would load, one that it cannot find, a preloaded one that it cannot
#: find, and a file that it cannot read. Source: elf/rtld.c, elf/dl-load.c.
FOUND = re.compile(r"^\t(\S+) => (/.*) \(0x[0-9a-f]+\)$", re.MULTILINE)
NOT_FOUND = re.compile(r"^\t(\S+) => not found$", re.MULTILINE)
UNREADABLE = re.compile(r"error while loading shared libraries: ([^:\n]+): ([^\n]+)")
#: Mapping gigabytes of libraries takes a fraction of this, unless a network file system hangs.
DEADLINE_S = 15.0


class Loading:
    """The loader's result: found and missing names, and damaged files.

    `died` are objects on which the loader crashed: they, or their libraries, are truncated.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.not_found: list[str] = []
        self.damaged: list[str] = []
        self.died: list[str] = []

    @property
    def missing(self) -> list[str]:
        """NVIDIA's libraries that cannot be found, except for the driver's."""
        return [
            name for name in self.not_found if NVIDIAS.match(name) and not DRIVERS_OWN.match(name)
        ]

    @property
    def broken(self) -> list[str]:
        """Other missing or damaged files, described."""
        others = [name for name in self.not_found if not NVIDIAS.match(name)]
        cut = [f"{name}, or a library that it needs, is cut" for name in self.died]
        return [f"{name} is not there" for name in others] + self.damaged + cut


class Loader:
    """The loader of this interpreter; `path` is null if it cannot list libraries (musl)."""

    def __init__(self) -> None:
        self.path = self._own()
        self.folders = [
            folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
        ]
        for prefix in {sys.prefix, sys.base_prefix}:
            if os.path.isdir(os.path.join(prefix, "conda-meta")):  # noqa: PTH112, PTH118
                # conda's Python has this folder as its RPATH, which applies to what it opens.
                self.folders.append(os.path.join(prefix, "lib"))  # noqa: PTH118

    @staticmethod
    def _own() -> str | None:
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                match = LOADER.search(file.read())
        except OSError:
            return None
        return match.group(1) if match else None

    def look(
        self, objects: Sequence[str], opened: Sequence[str] = (), folders: Sequence[str] = ()
    ) -> Loading:
        """Return the libraries that these files would load, those that they open by name too.

        A name counts as found if one of the objects finds it; without objects, if the interpreter
        itself does. `folders` are searched as well.
        """
        all_ = Loading()
        for path in objects or [os.path.realpath(sys.executable)]:
            self._list(path, opened, folders, all_)
        all_.not_found += [name for name in opened if name not in all_.found]
        all_.not_found = list(dict.fromkeys(all_.not_found))
        return all_

    def _list(
        self, path: str, opened: Sequence[str], folders: Sequence[str], into: Loading
    ) -> None:
        """List one object. The libraries that it opens by name are searched as if preloaded."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("LD_")}
        ours = {
            "LD_TRACE_LOADED_OBJECTS": "1",
            "LD_LIBRARY_PATH": ":".join([*self.folders, *folders]),
            "LD_PRELOAD": " ".join(opened),
        }
        try:
            code, listed, complaints = run([str(self.path), path], {**kept, **ours, "LC_ALL": "C"})
        except (OSError, subprocess.SubprocessError) as error:
            into.damaged.append(f"{os.path.basename(path)} could not be looked at: {error}")  # noqa: PTH119
            return
        if code < 0:
            # It maps a file by its headers: in a truncated file it touches absent pages.
            into.died.append(os.path.basename(path))  # noqa: PTH119
        into.found.update(FOUND.findall(listed))
        into.not_found += NOT_FOUND.findall(listed)
        for name, reason in UNREADABLE.findall(complaints):
            into.damaged.append(f"{os.path.basename(name)} is damaged: {reason}")  # noqa: PTH119


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a program to its end; return its exit code, its stdout and its stderr.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it was not at its end in time. It is killed, and not waited for.
    """
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,  # held open until we end: start_child.py watches it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    line, process.stdin = process.stdin, None  # communicate() would close it
    try:
        written, complained = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        if line is not None:
            line.close()
    return (
        process.returncode,
        written.decode("utf-8", "replace"),
        complained.decode("utf-8", "replace"),
    )


def wheel_folders() -> list[str]:
    """Return the library folders of NVIDIA's wheels: one per part for CUDA 12, one for CUDA 13."""
    return [
        folder
        for site in sys.path
        for folder in sorted(glob.glob(os.path.join(glob.escape(site), "nvidia/*/lib")))  # noqa: PTH118, PTH207
    ]


def toolkit_folders() -> list[str]:
    """Return the toolkits' library folders, which the loader searches only if configured to."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    homes += ["/usr/local/cuda", *sorted(glob.glob("/usr/local/cuda-*"), reverse=True)]  # noqa: PTH207
    folders = [os.path.join(home, "lib64") for home in homes if home.startswith("/")]  # noqa: PTH118
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]  # noqa: PTH112
