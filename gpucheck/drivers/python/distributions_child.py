"""Distributions of an interpreter: the libraries that they recorded, and what installs them here.

A single file that frameworks_child.py loads, in any interpreter (Python 3.8 or newer, standard
library only).
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import re
import sys
from importlib import metadata

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

#: The names under which RECORD lists modules and shared objects, with or without a version.
RECORDED = re.compile(r"\.so(?:\.\d+)*$")
#: The name in a requirement, such as `nvidia-cudnn-cu13==9.26.0.51; extra == "cuda"`.
REQUIRED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: The part of an NVIDIA package's name that tells its CUDA; packages of CUDA 13 may have none.
OF_CUDA = re.compile(r"-cu(\d\d)$")


class Recorded:
    """One library as its distribution recorded it; `size` is null if it recorded none."""

    def __init__(self, package: metadata.Distribution, path: str, size: str) -> None:
        self.path = path
        self.name = os.path.basename(path)  # noqa: PTH119
        self.place = str(package.locate_file(path))
        self.size = int(size) if size.isdigit() else None
        self.package = f"{package.metadata['Name']} {package.version}"

    @property
    def size_now(self) -> int | None:
        """The size of the file that is there; None if there is none."""
        try:
            return os.stat(self.place).st_size  # noqa: PTH116
        except OSError:
            return None

    @property
    def is_cut(self) -> bool:
        """Whether the file is smaller than recorded, as one that was stripped is, too."""
        now = self.size_now
        return None not in (now, self.size) and now < self.size  # type: ignore[operator]


def recorded_by(packages: Iterable[metadata.Distribution]) -> Iterator[Recorded]:
    """Yield the shared objects that distributions recorded."""
    for package in packages:
        try:
            lines = (package.read_text("RECORD") or "").splitlines()
        except Exception:  # damaged metadata
            continue
        for line in lines:
            path, _, rest = line.partition(",")
            if RECORDED.search(path) and not path.startswith('"'):  # a name with a comma is quoted
                yield Recorded(package, path, rest.rpartition(",")[2])


def distributions_of(names: Iterable[str]) -> list[metadata.Distribution]:
    """Return the distributions that are installed, of these names."""
    distributions = []
    for name in names:
        try:
            distributions.append(metadata.distribution(name))
        except Exception:  # not installed, or damaged metadata
            continue
    return distributions


def required_by(names: Iterable[str]) -> list[str]:
    """Return NVIDIA's packages that these need, directly or not, with any extra."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            for package in distributions_of([name]):
                matches = map(REQUIRED.match, package.requires or ())
                waiting.extend(match.group() for match in matches if match)
    return sorted(name for name in seen if name.startswith("nvidia-") and distributions_of([name]))


# ------------------------------------------------------------------------------ damage


def note_harm(build: dict[str, Any], parts: list[str]) -> None:
    """Note the libraries that are absent or cut, and the packages to which they belong.

    A smaller size alone is harmless: people strip libraries. What the loader complains of is
    examined; RECORD is more exact than the loader.
    """
    complaints = build["broken"]
    crashes = [fault for fault in complaints if fault.endswith("is cut")]
    needed = required_by(parts) if build["gpu_build"] else []
    harmed: list[Recorded] = []
    broken = []
    for names, own in ((parts, True), (needed, False)):
        for file in recorded_by(distributions_of(names)):
            named = [fault for fault in complaints if file.name in fault and fault not in crashes]
            if file.size_now is None:
                if own:
                    broken.append(f"{file.path} is not there")
                else:
                    build["missing_libraries"].append(file.name)
            elif file.is_cut and (crashes or named):
                broken.append(f"{file.path} is cut: {file.size_now} bytes of {file.size}")
            elif named:
                broken += named
            else:
                continue
            harmed.append(file)
    build["broken"] = broken or complaints
    missing = set(build["missing_libraries"])
    if missing:
        all_ = recorded_by(metadata.distributions())
        harmed += [file for file in all_ if file.name in missing and file.size_now is None]
    if harmed or missing:
        note_owners(build, harmed, missing)


def note_owners(build: dict[str, Any], harmed: list[Recorded], names: set[str]) -> None:
    """Note the packages that own harmed files and missing libraries, conda's by conda's name."""
    by_conda = dict(recorded_by_conda())
    for file in harmed:
        place = os.path.realpath(file.place)
        owner = by_conda.get(place)
        build["conda_owners" if owner else "owners"].append(owner or file.package)
    for place, owner in by_conda.items():
        if os.path.basename(place) in names and not os.path.exists(place):  # noqa: PTH110, PTH119
            build["conda_owners"].append(owner)


def recorded_by_conda() -> Iterator[tuple[str, str]]:
    """Yield the shared objects of conda's packages, each with the name and version of its owner."""
    prefix = os.path.realpath(sys.prefix)
    for path in glob.glob(os.path.join(glob.escape(sys.prefix), "conda-meta", "*.json")):  # noqa: PTH118, PTH207
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                package = json.load(file)
            owner = f"{package['name']} {package['version']}"
            for name in package.get("files", ()):
                if RECORDED.search(name):
                    yield os.path.join(prefix, name), owner  # noqa: PTH118
        except (OSError, ValueError, KeyError, TypeError):
            continue


# ------------------------------------------------------------------------------ rivals


def note_rival_requirements(build: dict[str, Any], parts: list[str], cuda: str) -> None:
    """Note NVIDIA's packages for several CUDAs that write the same files.

    Where the files are those of the framework's own CUDA, it works until the other is installed
    again.
    """
    for name in required_by(parts):
        base = OF_CUDA.sub("", name)
        several = distributions_of([base, *(f"{base}-cu{number}" for number in (11, 12, 13))])
        own = [rival for rival in several if f"{rival.metadata['Name']}".endswith(f"-cu{cuda}")]
        if not own or len(several) < 2:
            continue
        files = {file.place: file for file in recorded_by(own)}
        others = [
            rival
            for rival in several
            if rival is not own[0] and any(file.place in files for file in recorded_by([rival]))
        ]
        if not others:
            continue
        packages = [f"{rival.metadata['Name']} {rival.version}" for rival in (*others, own[0])]
        if all(file.size in (None, file.size_now) for file in files.values()):
            names = " and ".join(package.partition(" ")[0] for package in packages)
            build["remarks"].append(f"{names} overwrite each other, and its own was installed last")
        else:
            build["rivals"] += packages


# ------------------------------------------------------------------------------ installers


def find_installers() -> list[str]:
    """Return this environment's installers of packages: conda or pixi, then pip or uv."""
    installers = []
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # noqa: PTH112, PTH118
        installers.append("pixi" if ".pixi" in sys.prefix.split("/") else "conda")
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            made_by_uv = re.search(r"^uv\s*=", file.read(), re.MULTILINE) is not None
    except (OSError, ValueError):
        made_by_uv = False
    without_pip = importlib.util.find_spec("pip") is None
    installers.append("uv" if made_by_uv or without_pip else "pip")
    return installers


def is_from_conda(names: Iterable[str]) -> bool:
    """Return whether conda installed the first of these packages that is there."""
    for package in distributions_of(names):
        try:
            return (package.read_text("INSTALLER") or "").strip() == "conda"
        except Exception:  # damaged metadata
            return False
    return False
