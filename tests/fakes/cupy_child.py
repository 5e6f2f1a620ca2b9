"""Python code in a separate process, with the pretended CuPy on a pretended machine."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import scrubbed_environment
from tests.fakes.libraries import build_libraries, cupy_environment
from tests.fakes.machine import Machine, load_machine


def run_lines(
    head: str,
    lines: str,
    folder: Path,
    machine: str | Machine,
    *,
    script: str = "",
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Run `head` and then `lines`, which fill the dictionary `said`, and return it."""
    found = load_machine(machine) if isinstance(machine, str) else machine
    pretended = {
        **build_libraries(found, folder),
        **cupy_environment(script, time="modelled"),
        **(variables or {}),
    }
    code = f"import json\nsaid = {{}}\n{head}\n{textwrap.dedent(lines)}\nprint(json.dumps(said))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=scrubbed_environment(pretended),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
