"""`bench --profile`: what cannot be asked together is refused before anything is measured."""

from __future__ import annotations

import pytest

from gpucheck.cli.gating import run_with_profile
from gpucheck.cli.reporting import Outlets
from gpucheck.cli.saving import Saving
from gpucheck.cli.shared import Shared
from gpucheck.report.errors import WrongUseError


def test_a_profile_of_the_processor_needs_no_gpu() -> None:
    with pytest.raises(WrongUseError, match="leave --require-gpu out") as raised:
        run_with_profile("cpu", (), Shared(format="json"), Saving(), Outlets(), require_gpu=True)

    assert raised.value.code == "other-device"
