"""The envelope's status, derived from the exit code."""

from __future__ import annotations

import pytest

from gpucheck.report.envelope import Status, status_of
from gpucheck.report.errors import ExitCode


@pytest.mark.parametrize("code", ExitCode)
@pytest.mark.parametrize("warnings", [False, True])
def test_status(code: ExitCode, *, warnings: bool) -> None:
    expected = {ExitCode.OK: Status.WARN if warnings else Status.OK, ExitCode.BAD: Status.FAIL}

    assert status_of(code, warnings=warnings) is expected.get(code, Status.UNKNOWN)
