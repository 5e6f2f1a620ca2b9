"""Checks that packages bring for `rapids doctor`: found by files, run in a child."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpucheck.drivers.evidence import PackageCheckReading, PackageCheckResult
from gpucheck.drivers.python.frameworks import read_builds
from gpucheck.drivers.python.frameworks_child import entry_points
from gpucheck.drivers.python.package_checks import run_package_checks
from tests.conftest import scrubbed_environment

MODULE = """
import os, sys, time, warnings
warnings.warn("of the import")
print("noise on stdout", flush=True)

def good(verbose=False, **kwargs):
    assert verbose is False

def bad(verbose=False, **kwargs):
    raise ValueError("cuDF needs\\n  a newer driver")

def silent(verbose=False, **kwargs):
    raise ValueError

def warns(verbose=False, **kwargs):
    warnings.warn("swap is small")

def leaves(verbose=False, **kwargs):
    sys.exit(3)

def dies(verbose=False, **kwargs):
    os._exit(7)

def hangs(verbose=False, **kwargs):
    time.sleep(1000)
"""
ENTRY_POINTS = """
[console_scripts]
stub = stub:good

[rapids_doctor_check]
Good = stub:good
bad = stub:bad
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables under which a Python has a package with checks."""
    (tmp_path / "stub.py").write_text(MODULE)
    for folder, text in (
        ("stub-1.0.dist-info", ENTRY_POINTS),
        ("other-1.0.dist-info", ENTRY_POINTS.replace("rapids_doctor_check", "other")),
        ("broken-1.0.egg-info", "[rapids_doctor_check]\n[rapids_doctor_check"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "entry_points.txt").write_text(text)
    return scrubbed_environment({"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})


def ran(
    names: list[str], environment: dict[str, str], deadline_s: float = 60.0
) -> list[PackageCheckResult]:
    values = [f"stub:{name}" for name in names]
    results = run_package_checks(
        values, sys.executable, environment, deadline_s=deadline_s, report_progress=lambda _: None
    )
    assert [result.value for result in results] == values
    return list(results)


def test_they_are_found_by_their_files(environment: dict[str, str]) -> None:
    found = read_builds(sys.executable, environment).package_checks or ()

    assert [each for each in found if each.package == "stub"] == [
        PackageCheckReading(name="Good", value="stub:good", package="stub"),
        PackageCheckReading(name="bad", value="stub:bad", package="stub"),
    ]
    assert {"other", "broken"} & {each.package for each in found} == set()


def test_a_malformed_file_has_none() -> None:
    assert entry_points("[rapids_doctor_check]\nno value", "rapids_doctor_check") == []
    assert entry_points("[a]\nb = c:d", "rapids_doctor_check") == []


def test_raising_has_failed_and_a_warning_is_one(environment: dict[str, str]) -> None:
    names = ["good", "bad", "silent", "warns", "leaves", "absent"]

    good, bad, silent, warns, leaves, absent = ran(names, environment)

    assert good == PackageCheckResult(value="stub:good")
    assert bad.error == "cuDF needs a newer driver"
    assert silent.error == "ValueError"
    assert (warns.error, warns.warnings) == (None, ("swap is small",))
    assert leaves.error == "3"
    assert "absent" in (absent.error or "")


def test_one_that_ends_its_process_costs_no_other_its_result(environment: dict[str, str]) -> None:
    first, dead, last = ran(["good", "dies", "bad"], environment)

    assert first.failure is None
    assert dead.failure is not None
    assert dead.failure.message == "its process ended with code 7"
    assert last.error == "cuDF needs a newer driver"


def test_one_that_does_not_end_is_left_at_the_deadline(environment: dict[str, str]) -> None:
    hanging, after = ran(["hangs", "good"], environment, deadline_s=0.3)

    for result in (hanging, after):
        assert result.failure is not None
        assert result.failure.message == "its process had not ended after 0.3 s"
