"""What a person sees: the tables of the main machines, kept as text files beside this test.

After a change that is meant, `UPDATE_SNAPSHOTS=1 pytest tests/end_to_end/test_tables.py` writes
them anew; then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Pretend, Program

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"

#: Machine -> the lists that show what is special about it.
MACHINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "h100x8": ((), ("--topology",), ("--processes",)),
    "a100-mig": ((), ("--processes",)),
    "busy": (("--processes",),),
    "gpu-lost": (("--processes",),),
    "mixed-order": ((),),
    "p2p-bridge": (("--topology",),),
    "wsl2": (("--processes",),),
    "old-driver": (("--processes",),),
    "hung-gpu": (("--processes", "--deadline", "4"),),
    "no-driver": ((),),
}
WIDTHS = (40, 80, 160)


def seen(program: Program, env: dict[str, str], arguments: tuple[str, ...]) -> str:
    """Return what a terminal shows after a command line: stdout, stderr, and the code."""
    ended = program("list", *arguments, env=env)
    words = " ".join(("gpucheck list", *arguments))
    code = f"[exit code {ended.code}]\n" if ended.code else ""
    return f"$ {words}\n{ended.text}{ended.said}{code}"


@pytest.mark.parametrize(
    "width",
    [pytest.param(width, marks=() if width == 80 else pytest.mark.slow) for width in WIDTHS],
)
@pytest.mark.parametrize("name", MACHINES)
def test_tables(pretend: Pretend, program: Program, name: str, width: int) -> None:
    env = pretend(name) | {"COLUMNS": str(width)}
    file = SNAPSHOTS / f"{name}-{width}.txt"

    found = "\n".join(seen(program, env, arguments) for arguments in MACHINES[name])

    if UPDATE:
        SNAPSHOTS.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def test_no_snapshot_is_left_over() -> None:
    expected = {f"{name}-{width}.txt" for name in MACHINES for width in WIDTHS}

    assert {path.name for path in SNAPSHOTS.iterdir()} == expected
