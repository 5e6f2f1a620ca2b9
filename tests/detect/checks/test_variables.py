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


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_what_is_off_is_well(value: str) -> None:
    assert look(CUDA_LAUNCH_BLOCKING=value).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("platforms", "status"),
    [("cpu", "warn"), ("cuda,cpu", "ok"), ("gpu", "ok"), ("", "ok"), ("tpu,cpu", "warn")],
)
def test_platforms_of_jax(platforms: str, status: str) -> None:
    assert look(JAX_PLATFORMS=platforms).status == status


def test_the_platform_that_jax_computes_on() -> None:
    assert look(JAX_PLATFORMS="cuda,cpu", JAX_PLATFORM_NAME="CPU").evidence[0].value == "'CPU'"


def test_several_at_once() -> None:
    found = look(CUDA_LAUNCH_BLOCKING="1", NUMBA_DISABLE_CUDA="1")

    assert found.remedy[0].endswith("unset CUDA_LAUNCH_BLOCKING NUMBA_DISABLE_CUDA")
