"""Processes in a pretended /proc: what they have mapped, opened, and were started with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

PID = 4711
CUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20"


def map_line(path: str, *, device: str = "fd:01", inode: int = 7) -> str:
    return f"7f8e00000000-7f8e00021000 r-xp 00000000 {device} {inode:<26} {path}\n"


def add(
    root: Path,
    pid: int = PID,
    *,
    parent: int = 1,
    state: str = "S",
    maps: str = "",
    environ: dict[str, str] | None = None,
    opened: tuple[str, ...] = (),
    started: int = 500,
    cgroup: str = "0::/user.slice/session-1.scope\n",
    name: str = "python",
) -> Path:
    """Write a process below the root, whose own root folder is `tree`."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "task" / str(pid)).mkdir(parents=True)
    stat = f"{pid} ({name}) {state} {parent} {' '.join(['0'] * 17)} {started} 0\n"
    (folder / "stat").write_text(stat)
    (folder / "task" / str(pid) / "stat").write_text(stat)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_text(f"{name}\0train.py\0--token=abc\0")
    (folder / "status").write_text(f"Name:\t{name}\nTgid:\t{pid}\nUid:\t0\t0\nThreads:\t3\n")
    (folder / "maps").write_text(maps)
    variables = environ or {}
    (folder / "environ").write_text("".join(f"{key}={text}\0" for key, text in variables.items()))
    (folder / "cgroup").write_text(cgroup)
    for number, path in enumerate(opened):
        (folder / "fd" / str(number)).symlink_to(path)
    (root / "tree" / "dev").mkdir(parents=True, exist_ok=True)
    (folder / "root").symlink_to("../../tree")
    return folder


def write(root: Path, path: str, content: str = "") -> str:
    """Write a file that the process sees at this path."""
    place = root / "tree" / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    return path


# ------------------------------------------------------------------------------ whole programs

SITE = "/opt/venv/lib/python3.12/site-packages"


def _see_all_gpus(root: Path) -> str:
    """Let the process be one of the host's, with a GPU in its /dev; return the driver's libcuda."""
    link = root / "proc/1/ns/pid"
    link.parent.mkdir()
    link.symlink_to("pid:[4026531836]")
    write(root, "/dev/nvidia0")
    version = (root / "sys/module/nvidia/version").read_text(encoding="ascii").strip()
    return CUDA.replace("570.133.20", version)


def _built_for_cpus(root: Path) -> None:
    """Add a program whose PyTorch has no CUDA, although its settings name a GPU."""
    _see_all_gpus(root)
    library = write(root, f"{SITE}/torch/lib/libtorch_cpu.so")
    write(root, f"{SITE}/torch/version.py", "__version__ = '2.11.0+cpu'\ncuda = None\n")
    add(root, maps=map_line(library), environ={"TORCH_DEVICE": "cuda"})


def _two_cudnn(root: Path) -> None:
    """Add a program on no GPU yet, into which LD_LIBRARY_PATH brings another cuDNN."""
    cuda = _see_all_gpus(root)
    other = "/public/apps/cudnn/v8.0.3/lib64"
    library = write(root, f"{SITE}/torch/lib/libtorch_cuda.so")
    write(root, f"{SITE}/torch/version.py", "__version__ = '1.12.0+cu113'\ncuda = '11.3'\n")
    mapped = (library, cuda, f"{other}/libcudnn.so.8", f"{SITE}/torch/lib/libcudnn.so.8")
    maps = "".join(map_line(path, inode=number) for number, path in enumerate(mapped))
    add(root, maps=maps, opened=("/dev/nvidiactl",), environ={"LD_LIBRARY_PATH": other})


#: Programs for the screens of the documents, by name; each is process `PID`.
PROGRAMS: dict[str, Callable[[Path], None]] = {
    "built-for-cpus": _built_for_cpus,
    "two-cudnn": _two_cudnn,
}
