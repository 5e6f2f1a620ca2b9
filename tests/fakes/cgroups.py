"""Machine whose driver limits cgroups, with a tree of groups below its root; for tests and scripts.

A plain folder stands in for each group: gpucheck itself writes `cgroup.procs` there, and the
pretended NVML keeps the limits in files beside the machine's own.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine
from tests.fakes.tree import write_tree

VERSION = "615.71.09"
#: Makes a group where systemd would, and becomes the command. The kernel takes no Python with a
#: blank in its path, or with a long one: a shell starts it.
_SYSTEMD_RUN = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import os, sys
words = sys.argv[1:]
cut = words.index("--")
name = next(word.partition("=")[2] for word in words[:cut] if word.startswith("--unit="))
assert {{"--scope", "--slice=-.slice", "--collect", "--quiet"}} <= set(words[:cut]), words
folder = os.path.join({mount!r}, name)
os.mkdir(folder)
with open(os.path.join(folder, "cgroup.procs"), "a") as file:
    file.write(f"{{os.getpid()}}\\n")
if {dmem!r}:
    open(os.path.join(folder, "dmem.max"), "w").close()
os.execv(words[cut + 1], words[cut + 1:])
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capping:
    """The variables for a program on that machine, its root, and where its limits are kept."""

    env: dict[str, str]
    root: Path
    state: Path

    @property
    def mount(self) -> Path:
        """Return the folder of the cgroup tree."""
        return self.root / "sys/fs/cgroup"

    def groups(self) -> list[str]:
        """Return the groups that gpucheck made and did not remove."""
        return sorted(path.name for path in self.mount.rglob("gpucheck-*"))

    def limits(self) -> list[str]:
        """Return the limits that are set, as `soft hard group`."""
        return [path.read_text().strip() for path in sorted(self.state.glob("*"))]

    def records(self) -> list[str]:
        """Return the records of groups."""
        return sorted(path.name for path in (self.root / "run/gpucheck/memlimit").glob("*"))


def capping_machine(
    folder: Path,
    *,
    machine: str | Machine = "t4",
    back_end: str = "misc",
    version: str = VERSION,
    group: str = "/",
    uid: int = 0,
    files: Mapping[str, str] | None = None,
    kernel_mount: Path | None = None,
    **faults: list[str],
) -> Capping:
    """Build it in `folder`; `group` is the caller's own, `files` stand below the cgroup tree.

    `kernel_mount` is a real tree, used in place of plain folders.
    """
    found = load_machine(machine) if isinstance(machine, str) else machine
    found = found.with_driver(version=version, memory_limits=back_end).broken(**faults)
    env = build_libraries(found, folder / "libraries")
    root = write_tree(found, folder / "root")
    mount = root / "sys/fs/cgroup"
    mount.parent.mkdir(parents=True, exist_ok=True)
    if kernel_mount is not None:
        mount.symlink_to(kernel_mount)
    else:
        mount.joinpath(*group.strip("/").split("/")).mkdir(parents=True, exist_ok=True)
        for name, text in {"cgroup.controllers": "cpu memory pids\n", **(files or {})}.items():
            (mount / name).parent.mkdir(parents=True, exist_ok=True)
            (mount / name).write_text(text)
    own = root / "proc/self"
    own.unlink(missing_ok=True)
    own.mkdir(parents=True)
    (own / "cgroup").write_text(f"0::{group}\n")
    (own / "status").write_text(f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    state = Path(env["FAKE_MACHINE_FILE"] + ".limits")
    return Capping(env={**env, "GPUCHECK_ROOT": str(root)}, root=root, state=state)


def with_systemd(capping: Capping, python: str, *, dmem: bool = False) -> Capping:
    """Return the machine under systemd, which delegates nothing but makes scopes."""
    (capping.root / "run/systemd/system").mkdir(parents=True)
    programs = capping.root.parent / "bin"
    programs.mkdir()
    script = programs / "systemd-run"
    script.write_text(_SYSTEMD_RUN.format(python=python, mount=str(capping.mount), dmem=dmem))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join((str(programs), os.environ.get("PATH", "")))
    return dataclasses.replace(capping, env={**capping.env, "PATH": path})


def writable_kernel_tree() -> Path | None:
    """Return a cgroup tree of the running kernel in which we may make groups, or None."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        probe = mount / f"gpucheck-probe-{os.getpid()}"
        if not (mount / "cgroup.controllers").exists():
            continue
        try:
            probe.mkdir()
            (probe / "cgroup.procs").read_text()
            probe.rmdir()
        except OSError:
            continue
        return mount
    return None
