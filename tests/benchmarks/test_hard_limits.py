"""The kill test of limits by the driver notices what is left, and finds nothing after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import hard_limits
from tests.fakes.cgroups import capping_machine

pytestmark = pytest.mark.usefixtures("c_compiler")


@pytest.mark.slow
def test_the_next_call_leaves_nothing_of_a_killed_run(tmp_path: Path) -> None:
    capping = capping_machine(tmp_path)

    stage, problems = hard_limits.kill_one(capping, f"test-{tmp_path.name}", 0.5)

    assert stage in hard_limits.STAGES
    assert problems == []
    assert hard_limits.next_call(capping, "next") == []


def test_everything_that_is_left_is_named(tmp_path: Path) -> None:
    capping = capping_machine(tmp_path)
    (capping.mount / "gpucheck-1-1").mkdir()
    capping.state.mkdir()
    (capping.state / "0-1").write_text("1 2 /group\n")
    records = capping.root / "run/gpucheck/memlimit"
    records.mkdir(parents=True)
    (records / "gpucheck-1-1").touch()

    assert hard_limits.leftovers(capping) == [
        "group gpucheck-1-1",
        "limit 1 2 /group",
        "record gpucheck-1-1",
    ]
    assert hard_limits.stage_of(capping, "nobody") == "limit set"
