"""Every scenario of tests/data/scenarios, through the real command and the pretended libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.detect.checks import CHECKS
from gpucheck.detect.run import explain_check
from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.scenarios import Scenario, load_scenario, scenario_names
from tests.sampling import sampled

LEAST = 165


def run(scenario: Scenario, program: Program, folder: Path, *arguments: str) -> Ended:
    variables = build_libraries(scenario.listed, folder / "libraries")
    root = scenario.write_root(folder / "root")
    env = scenario.environment(variables, root)
    return program("detect", *scenario.arguments, *arguments, env=env)


def checks_of(document: Any) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for check in document["result"]["checks"]:
        found.setdefault(check["id"], []).append(check)
    return found


#: What every check can meet, and none has to name.
ANYWHERE = {"not-read", "not-recorded", "driver-not-answering", "nvml-child-died"}


def has_a_known_cause(check: dict[str, Any]) -> bool:
    """Return whether the cause is one that --explain names; what is well or skipped has none."""
    (about,) = [explain_check(each) for each in CHECKS if check["id"] == each.ID]
    if check["status"] in ("ok", "skip"):
        return check["cause"] is None
    cause = re.sub(r"(?<=-)[0-9]+$", "N", check["cause"] or "none")
    # A sign that was outweighed is unknown, and so is what was wrong.
    outweighed = check["cause"] is None and check["status"] == "unknown"
    return outweighed or cause in {*about.causes, *ANYWHERE}


#: Causes that no file of a pretended machine can bring about: root may read and open everything,
#: and pci-stub is vfio-pci by another name.
BY_VALUES_ALONE = {
    "bus-not-readable",
    "modules-not-readable",
    "nodes-not-readable",
    "nodes-not-permitted",
    "uvm-not-permitted",
    "held-by-pci-stub",
}


#: What detect concludes of these it concludes of another scenario as well.
ALIKE = (
    "container-with-old-libraries", "container-without-gpus", "driver-not-installed-arch",
    "driver-not-installed-debian", "driver-not-installed-fedora", "driver-not-installed-rocky",
    "exclusive-and-taken", "fabric-of-the-fourth-generation", "healthy-geforce",
    "healthy-h100x8", "healthy-mig", "healthy-t4", "healthy-wsl2", "hung-driver", "hung-launch",
    "hung-one-gpu", "hung-twice", "impossible-readings", "jetson-without-nvml",
    "kubernetes-without-gpus", "log-not-readable", "lost-while-its-health-is-read",
    "mixed-firmware", "nodes-made-on-demand", "nouveau-and-no-driver", "nvml-timeout",
    "nvml-unknown-error", "one-lost-of-four-expected", "one-of-four-lost",
    "power-cap-is-normal", "sandbox-with-an-old-driver", "sandbox-without-sys",
    "secure-boot-and-blacklist", "secure-boot-by-the-log", "skip-launch", "strict-warnings",
    "suspended-laptop", "toolkit-not-in-use", "undersized-supply",
    "unsigned-module-by-the-kernel", "uvm-missing-and-hung", "uvm-missing-and-old-driver",
    "version-mismatch", "visible-empty", "visible-mig", "visible-mig-gone", "visible-minus-one",
    "visible-nine", "visible-nodevfiles", "visible-quotation-marks", "visible-some",
    "visible-wrong-uuid", "wsl2-container-without-gpus", "wsl2-old-driver", "xid-of-a-program",
)  # fmt: skip


def test_what_is_left_out_is_concluded_of_another() -> None:
    def outcomes(names: Iterable[str]) -> set[tuple[str, str, str]]:
        expected = (load_scenario(name).expect for name in names)
        return {(one.verdict, one.first_failure, one.cause) for one in expected}

    assert outcomes(ALIKE) <= outcomes({*scenario_names()} - {*ALIKE})


def test_there_are_enough() -> None:
    assert len(scenario_names()) >= LEAST


def test_nearly_every_cause_of_a_broken_machine_has_a_scenario() -> None:
    shown = {load_scenario(name).expect.cause for name in scenario_names()}
    layers = {"pci", "kernel", "device-nodes", "visibility", "toolkit"}

    named = {c for check in CHECKS if check.LAYER in layers for c in explain_check(check).causes}

    assert named - shown == BY_VALUES_ALONE


@pytest.mark.parametrize(
    "name", [*(name for name in scenario_names() if name not in ALIKE), *sampled(ALIKE, 15)]
)
def test_scenario(name: str, program: Program, tmp_path: Path, c_compiler: str) -> None:
    scenario = load_scenario(name)
    expect = scenario.expect

    ended = run(scenario, program, tmp_path, "--json")

    document = ended.document("detect")
    result = document["result"]
    said = [result["conclusion"], *(check["summary"] for check in result["checks"])]
    assert (ended.code, result["verdict"], result["first_failure"], result["cause"]) == (
        expect.exit_code,
        expect.verdict,
        expect.first_failure or None,
        expect.cause or None,
    ), said
    assert expect.says in " | ".join(said)
    # Healthy machines have nothing to do; elsewhere the step to try first is the one expected.
    assert bool(result["remedy"]) == bool(expect.remedy)
    assert expect.remedy in "".join(result["remedy"][:1])
    found = checks_of(document)
    statuses = {name: found[name][0]["status"] for name in expect.statuses}
    assert statuses == dict(expect.statuses), said
    wrong = [c for c in result["checks"] if c["status"] in ("fail", "warn")]
    assert all(check["remedy"] and check["evidence"] and check["cause"] for check in wrong)
    assert [check for check in result["checks"] if not has_a_known_cause(check)] == []


@pytest.mark.parametrize("name", ["healthy-h100x8", "no-gpu-on-bus", "ecc-uncorrected"])
def test_the_terminal_says_the_same(
    name: str, program: Program, tmp_path: Path, c_compiler: str
) -> None:
    scenario = load_scenario(name)

    ended = run(scenario, program, tmp_path)

    assert ended.code == scenario.expect.exit_code
    text = " ".join(ended.text.split())
    assert scenario.expect.says in text
    usable, unusable = "GPU usable" in text, "GPU not usable" in text
    assert (usable, unusable) == (
        (False, True) if scenario.expect.verdict == "unusable" else (True, False)
    )
    assert scenario.expect.remedy in text


def test_what_the_table_says_is_not_said_twice(
    program: Program, tmp_path: Path, c_compiler: str
) -> None:
    scenario = load_scenario("pcie-half-width")

    for_people = run(scenario, program, tmp_path / "people")
    for_programs = run(scenario, program, tmp_path / "programs", "--json")
    in_a_file = run(scenario, program, tmp_path / "file", "--output", str(tmp_path / "report"))

    assert "PCIe x8 of x16" in for_people.text
    assert for_people.said == ""
    assert "pcie-width: GPU 1: PCIe x8 of x16" in for_programs.said
    # A table that went to a file says nothing to whoever started it.
    assert in_a_file.text == ""
    assert "pcie-width: GPU 1: PCIe x8 of x16" in in_a_file.said


def test_what_is_made_to_be_copied_is_not_broken(
    program: Program, tmp_path: Path, c_compiler: str
) -> None:
    scenario = load_scenario("version-mismatch")
    variables = build_libraries(scenario.listed, tmp_path / "libraries")
    env = scenario.environment(variables, scenario.write_root(tmp_path / "root"))

    narrow = program("detect", env=env | {"COLUMNS": "40"}).text.splitlines()

    command = "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia"
    assert [line.strip() for line in narrow if "sudo" in line] == [command]
    assert narrow[2].startswith("✗ GPU not usable: ")
    assert narrow[5].startswith("    1. Reboot")


#: What only the self-test of a kernel shows (launch-…), or comes after it, is in no recording.
AFTER_THE_KERNEL = ("hung-launch", "hung-twice", "lost-after-the-kernel")
RECORDED = [
    name
    for name in scenario_names()
    if not name.startswith("launch-") and name not in AFTER_THE_KERNEL
]
SPECIAL = ("visible-nine", "nouveau", "uvm-missing", "container-without-gpus", "row-remap-failed")


@pytest.mark.parametrize("name", sampled(RECORDED, 0, always=SPECIAL))
def test_a_recording_gives_the_same_verdict(
    name: str, program: Program, tmp_path: Path, c_compiler: str
) -> None:
    scenario = load_scenario(name)
    expect, given = scenario.expect, scenario.arguments
    variables = build_libraries(scenario.listed, tmp_path / "libraries")
    root = scenario.write_root(tmp_path / "root")
    recording = tmp_path / "machine.json"
    env = scenario.environment(variables, root)
    at = given.index("--deadline") if "--deadline" in given else len(given)
    deadline = given[at : at + 2]
    assert program("snapshot", recording, "--redact", *deadline, env=env).code == 0

    ended = program("detect", "--json", *given, "--from", recording, env={})

    result = ended.document("detect")["result"]
    assert (ended.code, result["verdict"], result["first_failure"], result["cause"]) == (
        expect.exit_code,
        expect.verdict,
        expect.first_failure or None,
        expect.cause or None,
    )
    launched = [check for check in result["checks"] if check["id"] == "launch"]
    assert {check["status"] for check in launched} <= {"skip"}


@pytest.mark.parametrize("changes", [{}, {"pcie_width": 8, "remapped_rows_pending": True}])
def test_eight_gpus_make_a_small_document(
    changes: dict[str, Any], pretend: Pretend, program: Program
) -> None:
    machine = load_machine("h100x8")
    for index in range(len(machine.gpus)):
        machine = machine.with_gpu(index, **changes)

    ended = program("detect", "--json", env=pretend(machine))

    assert len(ended.stdout) < 20 * 1024


@pytest.mark.parametrize("words", [["--list-checks"], ["--explain", "pcie-width"]])
def test_the_checks_describe_themselves(words: list[str], program: Program) -> None:
    ended = program("detect", "--json", *words, env={})

    assert ended.code == 0
    catalogue = ended.document("detect")["result"]["catalogue"]
    assert [check["id"] for check in catalogue if check["id"] == "pcie-width"] == ["pcie-width"]
    assert "pcie-width" in program("detect", *words, env={}).text
