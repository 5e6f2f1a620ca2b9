"""Maker of the example recordings: `gpucheck snapshot` on simulated machines.

`python -m tests.fakes.examples` writes gpucheck/data/examples anew; a test fails as long as the
files are not what it writes: tests/end_to_end/test_examples.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucheck.cli.examples import EXAMPLES, FOLDER
from tests.fakes.libraries import build_libraries
from tests.fakes.scenarios import load_scenario

#: Example -> its scenario, and the name of its host.
SOURCES: Mapping[str, tuple[str, str]] = {
    "h100x8": ("healthy-h100x8", "node17"),
    "geforce": ("healthy-geforce", "desktop"),
    "mig": ("healthy-mig", "node03"),
    "lost-gpu": ("one-of-four-lost", "node08"),
    "nouveau": ("nouveau", "workstation"),
    "version-mismatch": ("version-mismatch", "node11"),
}
#: What the machine that runs this would put into the recording.
TIME = "2026-01-02T03:04:05Z"
PYTHON = "3.12.3"
BUILDS: Mapping[str, Any] = {
    "python": "/usr/bin/python3",
    "python_version": PYTHON,
    "builds": [],
    "unavailable": None,
    "named_by": "PATH",
}
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def record(name: str, folder: Path) -> str:
    """Return the text of an example, made with libraries and files below `folder`."""
    scenario, host = SOURCES[name]
    machine = load_scenario(scenario)
    libraries = build_libraries(machine.listed, folder / "libraries")
    root = machine.write_root(folder / "root")
    (root / "proc/sys/kernel/hostname").write_text(f"{host}\n", encoding="utf-8")
    if scenario.startswith("healthy-"):  # whose kernel log may be read
        (root / "var/log").mkdir(parents=True, exist_ok=True)
        (root / "var/log/kern.log").write_text("", encoding="utf-8")
    kept = {variable: os.environ[variable] for variable in ("HOME",) if variable in os.environ}
    environment = {**kept, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "gpucheck", "snapshot"],
        env={**environment, **machine.environment(libraries, root)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    text = finished.stdout.replace(libraries["LD_LIBRARY_PATH"], LIBRARIES)
    return _steady(json.loads(text), machine.variables)


def _steady(document: dict[str, Any], variables: Mapping[str, str]) -> str:
    """Return the document without what differs from run to run and from machine to machine."""
    result = document["result"]
    document["time"] = result["time"] = TIME
    document["tool"]["version"] = "0.1.0"
    for host in (document["host"], result["host"]):
        host["python"] = PYTHON
    # Where the libraries of the simulation are; a machine has them where its loader looks.
    if "LD_LIBRARY_PATH" not in variables:
        result["environment"].pop("LD_LIBRARY_PATH", None)
    result["builds"] = BUILDS
    for gpu in (result["health"] or {}).get("gpus", ()):
        if gpu.get("sample_s") is not None:
            gpu["sample_s"] = round(gpu["sample_s"], 1)
    return json.dumps(document, separators=(",", ":")) + "\n"


def write_all() -> None:
    """Write every example's file."""
    FOLDER.mkdir(exist_ok=True)
    for name in EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            text = record(name, Path(folder))
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
