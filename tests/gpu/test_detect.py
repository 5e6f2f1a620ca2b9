"""`detect` on a real card: it is usable, and every way of hiding it is explained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Finished

pytestmark = pytest.mark.gpu


def statuses(ended: Finished) -> dict[str, str]:
    return {check["id"]: check["status"] for check in ended.document["result"]["checks"]}


def test_a_kernel_runs(gpucheck_command: Callable[..., Finished]) -> None:
    ended = gpucheck_command("detect", "--json")

    assert ended.document["result"]["usable"] is True
    found = statuses(ended)
    # A second library, or an old log of the driver, may be worth a warning.
    assert {found[name] for name in ("launch", "cuda-driver", "visibility")} <= {"ok", "warn"}


def test_deep_agrees_with_the_frameworks(gpucheck_command: Callable[..., Finished]) -> None:
    ended = gpucheck_command("detect", "--json", "--deep")

    result = ended.document["result"]
    assert result["usable"] is True
    found = statuses(ended)
    for framework in result["frameworks"]:
        well = found[framework["name"]] == "ok"
        assert framework["sees_gpu"] is True or not well, framework
        # One that computes may still be warned of: a library too many, a build too old.
        assert (framework["reason"] is None) == well, framework


@pytest.mark.parametrize("text", ["", "-1", "99", "GPU-00000000-0000-4000-8000-000000000000"])
def test_hidden_by_the_variable(text: str, gpucheck_command: Callable[..., Finished]) -> None:
    ended = gpucheck_command("detect", "--json", env={"CUDA_VISIBLE_DEVICES": text})

    result = ended.document["result"]
    assert (ended.code, result["first_failure"]) == (1, "visibility")
    assert result["cause"] == "hidden-by-variable"
    assert repr(text) in result["conclusion"]
    assert statuses(ended)["cuda-driver"] in ("ok", "warn")
