"""cli -> core | render -> probes -> models, and what runs in another interpreter stands alone."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.architecture.house import PACKAGE, imports, modules, offenders, top_imports

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


def strange_layers(path: Path) -> set[str]:
    layer = layer_of(path)
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("gpucheck.")}
    return (ours & set(ALLOWED)) - ALLOWED[layer] - {layer}


def test_layer_imports_only_what_it_may() -> None:
    assert offenders((path, strange_layers(path)) for path in inside_layers()) == {}


def away_from_home(path: Path) -> set[str]:
    libraries = top_imports(path) & set(HOMES)
    return {name for name in libraries if layer_of(path) not in HOMES[name]}


def test_library_is_imported_only_in_its_home() -> None:
    assert offenders((path, away_from_home(path)) for path in inside_layers()) == {}


def test_models_need_the_standard_library_only() -> None:
    models = sorted(PACKAGE.glob("models/*.py"))
    known = sys.stdlib_module_names | {"gpucheck"}

    assert offenders((path, top_imports(path) - known) for path in models) == {}


def test_single_file_needs_no_gpucheck() -> None:
    # It may ask any library that its interpreter has; ours need not be installed there.
    assert single_files()
    assert offenders((path, top_imports(path) & {"gpucheck"}) for path in single_files()) == {}
