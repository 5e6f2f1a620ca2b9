"""What a terminal shows of some commands, at three widths, in text files.

After a change that is meant, `UPDATE_SNAPSHOTS=1 pytest tests/end_to_end/test_screens.py` writes
them anew; then read the difference.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Pretend, Program

SNAPSHOTS = Path(__file__).parent / "screens"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
CHECKOUT = Path(__file__).resolve().parents[2]
LOGS = CHECKOUT / "tests" / "data" / "logs" / "open"
TABLE = ("--format", "table")

#: Name of a screen -> its machine, and the command lines.
SCREENS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "place-count": (
        "h100x8",
        (
            ("place", "--count", "2", *TABLE),
            ("place", "--count", "1", "--min-free", "30GiB", "--exclude", "5,6,7", *TABLE),
            ("place", "--count", "8", *TABLE),
        ),
    ),
    "place-count-mig": ("a100-mig", (("place", "--count", "1", *TABLE),)),
    "place-count-lost": ("gpu-lost", (("place", "--count", "2", *TABLE),)),
    "place-device": (
        "h100x8",
        (("place", "/gpu:0"), ("place", "/gpu:0", "cuda:1"), ("place", "--soft", "/gpu:9")),
    ),
    "memlimit": (
        "no-driver",
        (
            ("memlimit", "30%", "--from", "example:h100x8"),
            ("memlimit", "1TiB", "--from", "example:h100x8"),
            ("memlimit", "30%"),
        ),
    ),
    "memlimit-unlike": ("mixed-order", (("memlimit", "8GiB", "-q"),)),
    "profile": (
        "no-driver",
        (
            ("profile", "list"),
            ("profile", "explain", "default"),
            ("profile", "explain", "default", "--board", "H100"),
        ),
    ),
    "peaks": (
        "mixed-order",
        (
            ("bench", "--peaks", "-v"),
            ("bench", "--peaks", "--board", "V100 SXM2", "--dtype", "float16,float8"),
            ("bench", "--peaks", "--board", "T4", "--dtype", "bfloat16"),
            ("bench", "--peaks", "--board", "h100"),
            ("bench", "--peaks", "--board", "H100 SMX"),
            ("bench", "--peaks", "--dtype", "fp8"),
            ("bench", "--board", "T4"),
            ("bench", "--peaks", "softmax", "--quick"),
        ),
    ),
    "peaks-unknown": (
        "gb10",
        (("bench", "--peaks"),),
    ),
    "peaks-no-driver": ("no-driver", (("bench", "--peaks"),)),
    "wheel": (
        "mixed-order",
        (
            ("detect", "--wheel", "torch,tensorflow,jax,cupy,onnxruntime,numba"),
            ("detect", "--wheel", "torch", "--format", "shell"),
            ("detect", "--wheel", "torch", "-q"),
            ("detect", "--wheel", "jax", "--from", "example:lost-gpu", "-v"),
            ("detect", "--wheel", "torch,jax", "--format", "shell"),
            ("detect", "--wheel", "pytroch"),
            ("detect", "--wheel", ","),
            ("detect", "--wheel", "torch", "--only", "xid", "--deep"),
            ("detect", "--format", "shell"),
        ),
    ),
    "wheel-old-driver": (
        "old-driver",
        (
            ("detect", "--wheel", "torch,cupy"),
            ("detect", "--wheel", "torch", "--format", "shell"),
        ),
    ),
    "wheel-unified": ("gb10", (("detect", "--wheel", "torch,tensorflow"),)),
    "wheel-no-driver": ("no-driver", (("detect", "--wheel", "torch"),)),
    "log": (
        "h100x8",
        (
            ("detect", "--log", "oom-then-nccl.log", "-v"),
            ("detect", "--log", "fabric-vllm.log", "--from", "example:h100x8"),
            ("detect", "--log", "lost-xid79.log", "--from", "example:lost-gpu"),
            ("detect", "--log", "lib-tf-cudnn.log", "--from", "example:h100x8", "-v"),
            ("detect", "--log", "host-oom-slurm-old.log", "-q"),
            ("detect", "--log", "none-words.log"),
            ("detect", "--log", "cpu-ort.log", "--format", "line"),
            ("detect", "--log", "/dev/null/x"),
            ("place", "/gpu:0", "--log", "train.log"),
        ),
    ),
    "place-no-driver": ("no-driver", (("place", "/gpu:0"), ("place", "--soft", "/gpu:0"))),
}
WIDTHS = (50, 80, 160)
#: What the active environment's Python answers of its frameworks.
PYTHON = {"python": "/tmp/env/bin/python", "python_version": "3.11.7", "builds": []}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCREENS)
def test_screens(pretend: Pretend, program: Program, tmp_path: Path, name: str, width: int) -> None:
    machine, commands = SCREENS[name]
    env = pretend(machine) | {"COLUMNS": str(width), "GPUCHECK_CLAIMS_DIR": str(tmp_path / "c")}
    env["VIRTUAL_ENV"] = str(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{json.dumps(PYTHON)}'\n")
    python.chmod(0o755)
    file = SNAPSHOTS / f"{name}-{width}.txt"
    found = ""
    for words in commands:
        ended = program(*words, env=env, cwd=LOGS if name == "log" else None)
        code = f"[exit code {ended.code}]\n" if ended.code else ""
        text = f"$ gpucheck {' '.join(words)}\n{ended.text}{ended.said}{code}\n"
        text = text.replace(str(CHECKOUT), "/checkout")
        found += re.sub(re.escape(str(tmp_path)), "/tmp", text)

    if UPDATE:
        SNAPSHOTS.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")


def test_no_screen_is_left_over() -> None:
    expected = {f"{name}-{width}.txt" for name in SCREENS for width in WIDTHS}

    assert {path.name for path in SNAPSHOTS.iterdir()} == expected
