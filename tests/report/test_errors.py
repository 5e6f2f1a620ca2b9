"""Errors of a system that refuses memory or threads are no bugs of ours."""

from __future__ import annotations

import pytest

from gpucheck.report.errors import LONGEST_S, ExitCode, WrongUseError, check_seconds, system_refusal


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError("can't start new thread"), "a thread"),
        (MemoryError(), "memory"),
        (ImportError("libopenblas.so: failed to map segment from shared object"), "memory"),
        (OSError(12, "Cannot allocate memory"), "memory"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_limits_to_look_at(error: Exception, what: str) -> None:
    found = system_refusal(error)
    assert found is not None
    assert found.message == f"The system refuses {what} that gpucheck needs."
    assert found.exit_code is ExitCode.INCONCLUSIVE
    assert "ulimit -a" in found.remedy[0]


@pytest.mark.parametrize(
    "error", [RuntimeError("dictionary changed size"), ImportError("no numpy"), OSError(2, "gone")]
)
def test_any_other_error_is_none(error: Exception) -> None:
    assert system_refusal(error) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, LONGEST_S + 1, 1e300, float("inf"), float("nan")])
def test_seconds_have_bounds(seconds: float) -> None:
    with pytest.raises(WrongUseError, match="--deadline takes seconds above 0 to 604800 "):
        check_seconds("--deadline", seconds, code="bad-deadline")
    check_seconds("--deadline", LONGEST_S)
    check_seconds("--timeout", 0, least=0)
