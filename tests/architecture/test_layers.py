"""cli -> core | render -> probes -> models, and what runs in another interpreter stands alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.architecture.house import PACKAGE, imports, modules, name_of, parse

#: What each layer may import of the others.
ALLOWED = {
    "models": set(),
    "probes": {"models"},
    "core": {"models", "probes"},
    "render": {"models"},
    "cli": {"models", "probes", "core", "render"},
}

#: Libraries that only some layers may know.
HOMES = {
    "cupy": {"core", "probes"},
    "numpy": {"core", "probes"},
    "psutil": {"probes"},
    "pynvml": {"probes"},
    "rich": {"cli", "render"},
    "threadpoolctl": {"core", "probes"},
    "typer": {"cli"},
}


def layer_of(path: Path) -> str:
    """Return the layer a file of the package belongs to, or its own name at the top."""
    return path.relative_to(PACKAGE).parts[0]


def inside_layers() -> list[Path]:
    return [path for path in modules() if layer_of(path) in ALLOWED]


def single_files() -> list[Path]:
    """Return the scripts run by path in another process."""
    return sorted(PACKAGE.rglob("*_child.py"))


def test_every_folder_is_a_layer() -> None:
    folders = {layer_of(path) for path in modules() if path.parent != PACKAGE}

    assert folders == set(ALLOWED)


@pytest.mark.parametrize("path", inside_layers(), ids=name_of)
def test_layer_imports_only_what_it_may(path: Path) -> None:
    layer = layer_of(path)
    ours = {name.split(".")[1] for name in imports(parse(path)) if name.startswith("gpucheck.")}

    forbidden = (ours & set(ALLOWED)) - ALLOWED[layer] - {layer}

    assert forbidden == set()


@pytest.mark.parametrize("path", inside_layers(), ids=name_of)
def test_library_is_imported_only_in_its_home(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(parse(path))}

    strangers = {name for name in tops & set(HOMES) if layer_of(path) not in HOMES[name]}

    assert strangers == set()


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("models/*.py")), ids=name_of)
def test_models_need_the_standard_library_only(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(parse(path))}

    assert tops - sys.stdlib_module_names - {"gpucheck"} == set()


def test_there_are_single_files_run_in_a_child() -> None:
    assert single_files()


@pytest.mark.parametrize("path", single_files(), ids=name_of)
def test_single_file_needs_no_gpucheck(path: Path) -> None:
    # It may ask any library that its interpreter has; ours need not be installed there.
    tops = {name.split(".")[0] for name in imports(parse(path))}

    assert "gpucheck" not in tops
