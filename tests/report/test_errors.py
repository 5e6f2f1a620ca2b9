"""Errors of a system that refuses memory or threads are no bugs of ours."""

from __future__ import annotations

import pytest

from gpucheck.report.errors import ExitCode, system_refusal


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
