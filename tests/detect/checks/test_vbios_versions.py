"""vbios-versions: GPUs of one model with different firmware."""

from __future__ import annotations

import pytest

from gpucheck.detect.checks import vbios_versions
from tests.detect.checks.healthy import pairs_of
from tests.fakes.probes import gpu_reading, healthy


@pytest.mark.parametrize(
    ("gpus", "status", "summary", "evidence"),
    [
        ([("A", "1"), ("A", "1")], "ok", "GPUs of one model have the same firmware", []),
        ([("A", "1"), ("B", "2")], "ok", "GPUs of one model have the same firmware", []),
        (
            [("A", "1"), ("A", "2"), ("A", "1")],
            "ok",
            "GPUs of one model have different firmware",
            [("A: 1", "GPU 0, 2"), ("A: 2", "GPU 1")],
        ),
        (
            [("A", None), (None, "1")],
            "skip",
            "not available: no GPU reports its firmware version",
            [],
        ),
    ],
)
def test_firmware(
    gpus: list[tuple[str | None, str | None]],
    status: str,
    summary: str,
    evidence: list[tuple[str, str]],
) -> None:
    pairs = [
        (gpu_reading(n, name=name), healthy(n, vbios_version=version))
        for n, (name, version) in enumerate(gpus)
    ]

    (found,) = pairs_of(*pairs, check=vbios_versions)

    assert (found.status, found.summary) == (status, summary)
    assert list(found.evidence) == evidence
