"""variables: switches that are still on after debugging."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks.variables import MEANING, check
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.report.envelope import CheckStatus
from tests.fakes.probes import FakeProbes


def look(**variables: str) -> Finding:
    return check(Machine(FakeProbes(variables=variables)))


@pytest.mark.parametrize("name", MEANING)
def test_each_is_named_with_what_it_does(name: str) -> None:
    found = look(**{name: "1"})

    assert (found.status, found.cause) == (CheckStatus.WARN, "variables-set")
    assert found.summary == f"{name} is set: {MEANING[name]}"
    assert found.evidence[0].value == "'1'"
    assert found.remedy[0].endswith(f"unset {name}")
