"""Ctrl-C before a command has begun: it is never lost, and always answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.cli import main
from tests.conftest import scrubbed_environment

#: Is interrupted while a module is imported, at a place from which no exception comes out.
PROGRAM = """
import contextlib, io, os, signal, sys
wanted = sys.argv.pop(1)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from gpucheck.__main__ import main
main()
"""


def answered(text: str, command: str) -> None:
    document = json.loads(text)
    assert document["schema"] == f"gpucheck/{command}/1"
    assert document["exit_code"] == 130
    assert document["error"]["code"] == "interrupted"


def test_while_the_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpucheck.cli.app.read_defaults", interrupted)

    code = main(["detect", "--json", "--config", str(tmp_path / "any.toml")])

    said = capsys.readouterr()
    assert code == 130
    answered(said.out, "detect")
    assert said.err == "gpucheck: interrupted\n"


@pytest.mark.parametrize(
    "module", ["gpucheck.cli.output", "gpucheck.cli.app", "gpucheck.cli.detect"]
)
def test_while_a_module_is_imported(module: str, tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, "detect", "--json"],
        env=scrubbed_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 130
    answered(finished.stdout, "detect")
    assert finished.stderr == "gpucheck: interrupted\n"


#: Is interrupted in the middle of exec(), as when a module that is imported late makes a dataclass.
IN_EXEC = """
import contextlib, io, os, signal, sys
from gpucheck.cli import output
from gpucheck.cli.options import Context
from gpucheck.drivers.interrupts import REQUESTS
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "gpucheck.drivers.live":
            with contextlib.redirect_stdout(io.StringIO()):
                # Later text that runs would make Python forget what it remembers.
                output.interrupted(Context(command="detect", document="json"))
            REQUESTS.listen()
            exec("os.kill(os.getpid(), signal.SIGTERM)\\nfor _ in range(10_000): pass", globals())
sys.meta_path.insert(0, Finder())
from gpucheck.__main__ import main
main()
"""


def test_while_python_runs_text(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(IN_EXEC, encoding="ascii")

    # Only with -m does Python look at its end for what happened in such a text.
    finished = subprocess.run(
        [sys.executable, "-m", "program", "detect", "--json"],
        env=scrubbed_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    answered(finished.stdout, "detect")
    assert (finished.returncode, "Traceback" in finished.stderr) == (130, False)
