"""The project's files as the architecture tests look at them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpucheck"

#: Folders that hold no work of ours: environments, caches, build products.
NOT_OURS = {"__pycache__", "build", "dist"}


def modules() -> list[Path]:
    """Return every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a file's path below the project, for test ids and messages."""
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    """Return the file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def ids_in(folder: Path, suffix: str = ".py") -> set[str]:
    """Return the kebab-case ids that the files of a registry's folder stand for."""
    stems = (path.stem for path in folder.glob(f"*{suffix}"))
    return {stem.replace("_", "-") for stem in stems if not stem.startswith("_")}


def project_files(folder: Path = ROOT) -> Iterator[Path]:
    """Yield the project's files; hidden folders other than .ci are tools' own."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path.name not in NOT_OURS and not path.name.endswith(".egg-info"):
                yield from project_files(path)
        elif path.name != ".git":  # a file, in a further work tree of git's
            yield path


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of every module imported anywhere in a tree, functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"relative import of {node.module}"
            yield node.module
            # `from gpucheck import core` names the layer only in the second half.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
