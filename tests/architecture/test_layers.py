"""Homes of the outside libraries, and files that run in another interpreter and stand alone.

That imports go one way is import-linter's to hold (pyproject.toml).
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import tomllib
from pathlib import Path

from tests.architecture.house import PACKAGE, ROOT, imports, modules, offenders, top_imports

#: Libraries that only some folders may know.
HOMES = {
    "cupy": {"drivers"},
    "numpy": {"bench", "drivers", "fleet", "place"},
    "psutil": {"drivers"},
    "pynvml": {"drivers"},
    "rich": {"cli", "report"},
    "threadpoolctl": {"drivers"},
    "typer": {"cli"},
}


def folder_of(path: Path) -> str:
    """Return the folder of the package that a file lies in, or its own name at the top."""
    return path.relative_to(PACKAGE).parts[0]


def is_view(path: Path) -> bool:
    return path.stem == "view" or path.stem.endswith("_view")


def single_files() -> list[Path]:
    """Return the scripts run by path in another process."""
    return sorted(PACKAGE.rglob("*_child.py"))


def away_from_home(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if not any(name in text for name in HOMES):  # most files need no parser, which takes long
        return set()
    strangers = {
        name for name in top_imports(path) & set(HOMES) if folder_of(path) not in HOMES[name]
    }
    return strangers - {"rich"} if is_view(path) else strangers


#: Full name of a module, or of what stands in it, as a text: to be imported when it is used.
NAMED = re.compile(r'"(gpucheck\.([a-z]+)\.[a-z_.]+(?::\w+)?)"')


@functools.cache
def floors() -> tuple[str, ...]:
    """Return the layers of import-linter's contract, from the top down."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return tuple(project["tool"]["importlinter"]["contracts"][0]["layers"])


def named_above(path: Path) -> set[str]:
    """Return the modules that a file names in texts and that stand above it."""
    own = folder_of(path).removesuffix(".py")
    above = {
        name
        for floor in itertools.takewhile(lambda names: own not in names.split(" | "), floors())
        for name in floor.split(" | ")
    }
    found = NAMED.findall(path.read_text(encoding="utf-8"))
    return {name for name, folder in found if folder in above and own != "__init__"}


def test_no_module_names_one_above_it_as_a_text() -> None:
    assert offenders((path, named_above(path)) for path in modules()) == {}


def test_library_is_imported_only_in_its_home() -> None:
    assert offenders((path, away_from_home(path)) for path in modules()) == {}


def test_drivers_draw_nothing() -> None:
    drivers = [path for path in modules() if folder_of(path) == "drivers"]

    assert offenders((path, top_imports(path) & {"rich", "typer"}) for path in drivers) == {}


def test_models_need_the_standard_library_only() -> None:
    known = sys.stdlib_module_names | {"gpucheck"}
    models = sorted({*PACKAGE.rglob("model.py"), *PACKAGE.rglob("*_model.py")})

    assert models
    assert offenders((path, top_imports(path) - known) for path in models) == {}


def test_models_know_records_only() -> None:
    records = ("gpucheck.report.", "gpucheck.drivers.")
    models = sorted({*PACKAGE.rglob("model.py"), *PACKAGE.rglob("*_model.py")})

    assert (
        offenders(
            (
                path,
                {
                    name
                    for name in imports(path)
                    if name.startswith("gpucheck.")
                    and not name.startswith(records)
                    and "model" not in name
                },
            )
            for path in models
        )
        == {}
    )


def test_worker_imports_its_own_folder_and_the_common_part_only() -> None:
    # It starts with every listing, in a bare interpreter.
    folders = [PACKAGE / "drivers" / name for name in ("nvml", "cuda")]
    workers = [path for folder in folders for path in sorted(folder.glob("*worker.py"))]

    def strangers(path: Path) -> set[str]:
        common = ("gpucheck.drivers.native", "gpucheck.drivers.command_lines")
        known = (*common, f"gpucheck.drivers.{path.parent.name}.")
        found = {name for name in imports(path) if name.startswith("gpucheck.")}
        return {name for name in found if not name.startswith(known)}

    assert workers
    assert offenders((path, strangers(path)) for path in workers) == {}


def test_single_file_needs_no_gpucheck() -> None:
    # It may ask any library that its interpreter has; ours need not be installed there.
    assert single_files()
    assert offenders((path, top_imports(path) & {"gpucheck"}) for path in single_files()) == {}
