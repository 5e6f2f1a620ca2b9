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


@pytest.fixture(scope="module")
def recordings(
    pretend: Pretend, program: Program, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return a snapshot of every machine."""
    folder = tmp_path_factory.mktemp("machines")
    for name in machine_names():
        file = folder / f"{name}.json"
        assert program("snapshot", file, "--deadline", "2", env=pretend(name)).code == 0
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
@pytest.mark.parametrize("name", machine_names())
def test_document_is_valid(
    recordings: dict[str, Path],
    capfd: pytest.CaptureFixture[str],
    name: str,
    question: tuple[str, ...],
) -> None:
    code = main([*question, "--json", "--from", str(recordings[name])])

    written = capfd.readouterr()
    document = only_document(written.out)
    assert code in CODES
    assert_document(document, QUESTIONS[question], code)
    assert "Traceback" not in written.err
