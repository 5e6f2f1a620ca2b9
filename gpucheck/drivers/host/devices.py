"""Device files of the driver below a root: which exist, and whether this user may open them.

Listing them only reads the file system. Opening one may wake a driver that hangs, so a child does
that, and only after a library has failed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpucheck.drivers.child import Child, ChildDiedError, ChildSilentError
from gpucheck.drivers.evidence import NodeOpening, NodeReading, NodesReading
from gpucheck.drivers.host.sysfs import read_text

WORKER = "gpucheck.drivers.host.devices_worker"

_GPU_NODE = re.compile(r"nvidia(?:ctl|-uvm|[0-9]+)")
#: As `gpu0/gi1/access 12`; the other lines are for administrators. Source: MIG User Guide.
_ACCESS = re.compile(r"^gpu\S*/access ([0-9]+)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)


def read_nodes(root: Path) -> NodesReading:
    """Read the nodes that programs need, and name those that are expected."""
    folder = root / "dev"
    try:
        names = sorted(name for name in os.listdir(folder) if _GPU_NODE.fullmatch(name))  # noqa: PTH208
    except OSError as error:
        return NodesReading(unavailable=f"/dev: {error.strerror}", expected=_expected(root))
    nodes = tuple(_node(root, folder / name) for name in names)
    return NodesReading(nodes=nodes, expected=_expected(root), caps=tuple(_caps(root)))


def _caps(root: Path) -> Iterator[NodeReading]:
    """Read the files that give access to MIG instances, from the driver's list of minor numbers."""
    listed = read_text(root / "proc/driver/nvidia-caps/mig-minors") or ""
    for minor in _ACCESS.findall(listed):
        path = root / f"dev/nvidia-caps/nvidia-cap{minor}"
        if path.exists():
            yield _node(root, path)


def _node(root: Path, path: Path) -> NodeReading:
    shown = f"/{path.relative_to(root)}"
    try:
        facts = path.stat()
    except OSError:
        return NodeReading(path=shown)
    return NodeReading(
        path=shown,
        mode=f"{stat.S_IMODE(facts.st_mode):04o}",
        owner=facts.st_uid,
        group=facts.st_gid,
        accessible=os.access(path, os.R_OK | os.W_OK),
    )


def _expected(root: Path) -> tuple[str, ...]:
    """Return the nodes by the minor numbers in the driver's own files."""
    minors = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        text = read_text(path) or ""
        found = _MINOR.search(text)
        if found and "Excluded:\t Yes" not in text:
            minors.append(int(found[1]))
    gpus = [f"/dev/nvidia{minor}" for minor in sorted(minors)]
    return ("/dev/nvidiactl", *gpus, "/dev/nvidia-uvm")


def open_nodes(paths: Iterable[str], root: Path, *, deadline_s: float) -> tuple[NodeOpening, ...]:
    """Open each node in a child, leaving out nodes that could not be tried in time."""
    child = None
    opened: list[NodeOpening] = []
    try:
        child = Child(WORKER, str(root), *paths)
        for document in child.documents(deadline_s):
            if "path" not in document:
                break
            opened.append(NodeOpening(**document))
    except (ChildSilentError, ChildDiedError):
        pass
    finally:
        if child is not None:
            child.close()
    return tuple(opened)
