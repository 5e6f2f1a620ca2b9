"""Runs Python programs under the import hook, with stand-ins for the frameworks or real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpucheck.memlimit.environment import FRAMEWORKS, hook_folder

STAND_INS = Path(__file__).parents[2] / "data" / "frameworks"
GIB = 1 << 30


def payload(*sizes: int, **changes: object) -> str:
    """Return the hook's variable for GPUs of these limits."""
    document: dict[str, object] = {
        "text": "30%",
        "visible": None,
        "gpus": [{"uuid": f"GPU-{n}", "bytes": size} for n, size in enumerate(sizes)],
        "frameworks": list(FRAMEWORKS),
        "torch": None,
    }
    return json.dumps(document | changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a program ended, and what the stand-ins noted."""

    code: int
    stdout: str
    stderr: str
    events: list[list[Any]] = field(default_factory=list)

    def calls(self, framework: str) -> list[list[Any]]:
        """Return one framework's events without its name."""
        return [event[1:] for event in self.events if event[0] == framework]


def run_limited(
    program: str | Sequence[str],
    tmp_path: Path,
    *,
    limit: str | None = None,
    stand_ins: Path | None = STAND_INS,
    python: str = sys.executable,
    options: Sequence[str] = (),
    hook: bool = True,
    env: Mapping[str, str] | None = None,
) -> Ran:
    """Run `python OPTIONS -c PROGRAM` (or `python OPTIONS WORDS`) and return what happened."""
    log = tmp_path / "events.jsonl"
    log.unlink(missing_ok=True)
    folders = [hook_folder()] * hook + [str(stand_ins)] * (stand_ins is not None)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STUB_LOG": str(log),
        "GPUCHECK_MEMORY_LIMIT": payload(4 * GIB) if limit is None else limit,
        **(env or {}),
    }
    words = ["-c", program] if isinstance(program, str) else list(program)
    done = subprocess.run(
        [python, *options, *words],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line)[1:] for line in lines]
    return Ran(code=done.returncode, stdout=done.stdout, stderr=done.stderr, events=events)
