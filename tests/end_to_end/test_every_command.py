"""Every command that answers from a snapshot, on every pretended machine: one valid document."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.cli import main
from tests.end_to_end.conftest import Pretend, Program
from tests.end_to_end.documents import assert_document, only_document
from tests.fakes.machine import machine_names

#: Command line -> its document. Each is asked of all machines, whatever state they are in.
QUESTIONS = {
    ("detect",): "detect",
    ("detect", "--strict", "--expect-gpus", "2"): "detect",
    ("list", "--visible", "--sort", "-memory_used_bytes"): "list",
    ("place", "/gpu:0"): "place",
    ("place", "--soft", "/gpu:7", "/cpu:0"): "place",
    ("place", "--count", "1", "--min-free", "1GiB", "--prefer", "nvlink"): "place",
    ("memlimit", "30%"): "memlimit",
    ("memlimit", "8GiB", "--code", "tensorflow"): "memlimit",
}
#: What holds of every answer, good or bad: looked at, refused, cannot tell, or missing.
CODES = {0, 1, 2, 3, 4}
#: One of each kind; the others are `slow`.
QUICK = ("a100-mig", "busy", "gpu-lost", "hung-gpu", "no-driver", "wsl2")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in machine_names()
    ],
)
def test_documents_are_valid(
    name: str,
    pretend: Pretend,
    program: Program,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    recording = tmp_path / f"{name}.json"
    assert program("snapshot", recording, env=pretend(name)).code == 0
    capfd.readouterr()

    for question, kind in QUESTIONS.items():
        code = main([*question, "--json", "--from", str(recording)])

        written = capfd.readouterr()
        document = only_document(written.out)
        assert code in CODES, question
        assert_document(document, kind, code)
        assert "Traceback" not in written.err, question
