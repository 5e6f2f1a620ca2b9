"""The project's files as the architecture tests look at them."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpucheck"

#: What holds no work of ours: caches, build products, and the file that `git worktree` makes.
NOT_OURS = {"__pycache__", "build", "dist", ".git"}


def modules() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a file's path below the project, for test ids and messages."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the file's syntax tree."""
    collects = gc.isenabled()
    gc.disable()  # a tree has many objects and no garbage
    try:
        return tuple(ast.walk(parse(path)))
    finally:
        if collects:
            gc.enable()


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the file's syntax tree; nobody changes it."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def statements(path: Path) -> Iterator[ast.AST]:
    """Yield every statement of the file; expressions, which are nine of ten nodes, are passed."""
    waiting: list[ast.AST] = [parse(path)]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            waiting += getattr(node, part, ())


def ids_in(folder: Path, suffix: str = ".py") -> set[str]:
    """Return the kebab-case ids that the files of a registry's folder stand for."""
    stems = (path.stem for path in folder.glob(f"*{suffix}"))
    return {stem.replace("_", "-") for stem in stems if not stem.startswith("_")}


def project_files(folder: Path = ROOT) -> Iterator[Path]:
    """Yield the project's files; hidden folders other than .ci are tools' own."""
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS or path.name.endswith(".egg-info"):
            continue
        if not path.is_dir():
            yield path
        elif not path.name.startswith(".") or path.name == ".ci":
            yield from project_files(path)


def top_imports(path: Path) -> set[str]:
    """Return the first names of what a file imports: `numpy` for `numpy.linalg`."""
    return {name.partition(".")[0] for name in imports(path)}


def offenders(found: Iterable[tuple[Path, Iterable[object]]]) -> dict[str, list[str]]:
    """Return what breaks a rule by file, for one assertion over all files."""
    broken: dict[str, list[str]] = {}
    for path, what in found:
        if told := sorted(map(str, what)):
            broken.setdefault(name_of(path), []).extend(told)
    return broken


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the full name of every module imported anywhere in a file, functions included."""
    found: list[str] = []
    for node in statements(path):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{name_of(path)}: relative import of {node.module}"
            # `from gpucheck import core` names the layer only in the second half.
            found += (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    return tuple(found)
