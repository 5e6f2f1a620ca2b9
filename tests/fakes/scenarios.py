"""Scenarios: a machine file, changes to it, and detect's expected findings.

A scenario is a TOML file in tests/data/scenarios: `machine`, changes to it (`[driver]`, `[host]`,
`[gpu.N]`, `[every_gpu]`, `name`, `gpus`, `no_gpus`, `listed_gpus`, `faults`), changes to its files
(`[files]`, `remove`), `[variables]`, `arguments`, and `[expect]`. Those in its folder questions are
for the screens of docs/questions.md, and expect nothing.
"""

import dataclasses
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.machine import Machine, load_machine
from tests.fakes.tree import write_tree

SCENARIOS = Path(__file__).resolve().parent.parent / "data" / "scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Detect's expected findings: `remedy` is part of the first step, `says` of any summary."""

    exit_code: int
    verdict: str
    first_failure: str = ""
    cause: str = ""
    remedy: str = ""
    says: str = ""
    statuses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One broken (or healthy) machine, made of pretended files and libraries."""

    name: str
    description: str
    machine: Machine
    listed: Machine
    expect: Expectation
    files: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def environment(self, libraries: Mapping[str, str], root: Path) -> dict[str, str]:
        """Return the variables of a run; a loader path of the scenario comes before ours."""
        found = {**libraries, "GPUCHECK_ROOT": str(root), **self.variables}
        told = self.variables.get("LD_LIBRARY_PATH")
        if told is not None:
            found["LD_LIBRARY_PATH"] = f"{told}:{libraries['LD_LIBRARY_PATH']}"
        return found

    def write_root(self, root: Path) -> Path:
        """Write /proc, /sys, /dev and the rest below `root`, with this scenario's changes."""
        write_tree(self.machine, root)
        for path in self.remove:
            target = root / path
            folder = target.is_dir() and not target.is_symlink()
            shutil.rmtree(target) if folder else target.unlink()
        for path, content in self.files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, encoding="utf-8")
        return root


def scenario_names() -> tuple[str, ...]:
    """List the names of the scenario files."""
    return tuple(sorted(path.stem for path in SCENARIOS.glob("*.toml")))


def load_scenario(name: str) -> Scenario:
    """Read one scenario; an unknown key is an error."""
    document = tomllib.loads((SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"))
    machine = _machine(document)
    listed = document.pop("listed_gpus", None)
    scenario = Scenario(
        name=name,
        description=document.pop("description"),
        machine=machine,
        listed=machine if listed is None else machine.with_gpus(listed),
        expect=Expectation(**document.pop("expect", {"exit_code": 0, "verdict": "usable"})),
        files=document.pop("files", {}),
        remove=tuple(document.pop("remove", ())),
        variables=document.pop("variables", {}),
        arguments=tuple(document.pop("arguments", ())),
    )
    if document:
        raise KeyError(f"{name}: unknown keys {sorted(document)}")
    return scenario


def _machine(document: dict[str, Any]) -> Machine:
    machine = load_machine(document.pop("machine"))
    machine = dataclasses.replace(machine, name=document.pop("name", machine.name))
    if document.pop("no_gpus", False):
        machine = dataclasses.replace(machine, gpus=(), faults=())
    if "gpus" in document:
        machine = machine.with_gpus(document.pop("gpus"))
    machine = machine.with_driver(**_tuples(document.pop("driver", {})))
    machine = machine.with_host(**_tuples(document.pop("host", {})))
    every = _tuples(document.pop("every_gpu", {}))
    for index in range(len(machine.gpus)):
        machine = machine.with_gpu(index, **every)
    for index, changes in document.pop("gpu", {}).items():
        machine = machine.with_gpu(int(index), **_tuples(changes))
    faults = [line.partition(" ") for line in document.pop("faults", ())]
    return machine.broken(
        fail=[rest for kind, _, rest in faults if kind == "fail"],
        hang=[rest for kind, _, rest in faults if kind == "hang"],
    )


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in table.items()}
