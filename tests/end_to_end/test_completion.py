"""Completion: what the program offers a shell, and what shells make of it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpucheck.bench.kernels import KERNELS
from gpucheck.cli import COMPLETING as VARIABLE
from gpucheck.cli.app import SHELLS
from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.completion import VALUES
from gpucheck.cli.examples import EXAMPLES
from gpucheck.data import FOLDER
from gpucheck.detect.checks import CHECKS
from tests.architecture.commands import LEAVES, built_command
from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend, Program

PROGRAM = Path(sys.executable).with_name("gpucheck")
SET_UP = Path(__file__).parents[2] / "docs" / "install.md"


def offered(command: Callable, *words: str, env: dict[str, str] | None = None) -> list[str]:
    """Return the words that the program offers for the last of these."""
    ended = command("--", *words, env={VARIABLE: "fish", **(env or {})})
    assert (ended.code, ended.stderr) == (0, "")
    return [line.partition("\t")[0] for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ([""], ["help", *COMMANDS]),
        (["me"], ["memlimit"]),
        (["he"], ["help"]),
        (["help", "com"], ["compare"]),
        (["--show-completion", ""], ["bash", "zsh", "fish"]),
        (["list", "--proc"], ["--processes"]),
        (["list", "--format", "j"], ["json", "jsonl"]),
        (["list", "--from", "example:"], [f"example:{name}" for name in EXAMPLES]),
        (["bench", ""], [*KERNELS]),
        (["bench", "matmul", "so"], ["softmax"]),
        (["bench", "--dtype", "float16,bf"], ["float16,bfloat16"]),
        (["bench", "--profile", "acc"], ["acceptance"]),
        (["bench", "--fill", ""], ["normal", "zeros"]),
        (["detect", "--explain", "nv"], [each.ID for each in CHECKS if each.ID.startswith("nv")]),
        (["detect", "--framework", "py"], ["pytorch"]),
        (["profile", ""], ["list", "lint", "explain"]),
        (["profile", "explain", "def"], ["default"]),
        (["place", "--prefer", "c"], ["cool"]),
        (["memlimit", "30%", "--code", "p"], ["pytorch"]),
        (["place", "/gpu:0", "--", "no"], []),
        (["list", "--output", "x"], []),
        (["list", "--user", ""], []),
        (["snapshot", "--red"], ["--redact"]),
        (["list", "--from", "example:lost-gpu", "--gpu", ""], ["0", "1", "2", "3"]),
        (["place", "--from", "example:geforce", "/g"], ["/gpu:0"]),
        (["place", "--from", "example:geforce", "--name", "N"], ["NVIDIA GeForce RTX 4090"]),
    ],
    ids=" ".join,
)
def test_what_is_offered(line: list[str], expected: list[str], gpucheck_command: Callable) -> None:
    assert offered(gpucheck_command, *line) == expected


def test_gpus_of_this_machine_are_offered(pretend: Pretend, program: Program) -> None:
    environment = {**pretend("h100x8"), VARIABLE: "zsh"}

    ended = program("--", "bench", "--device", "gpu:", env=environment)

    assert ended.stdout.decode().splitlines() == [
        f"gpu\\:{index}:NVIDIA H100 80GB HBM3" for index in range(8)
    ]


def test_a_driver_that_hangs_is_not_waited_for(pretend: Pretend, program: Program) -> None:
    ended = program("--", "list", "--gpu", "", env={**pretend("hung"), VARIABLE: "fish"})

    assert (ended.code, ended.stdout, ended.stderr) == (0, b"", b"")


def test_without_a_driver_nothing_is_offered_and_nothing_said(gpucheck_command: Callable) -> None:
    assert offered(gpucheck_command, "list", "--gpu", "") == []


def test_values_are_of_parameters_that_exist() -> None:
    known = {item.name for line in LEAVES for item in built_command(line).params}
    own = {
        f"{line.split()[0]} {item.name}" for line in LEAVES for item in built_command(line).params
    }

    assert {key for key in VALUES if key != "show_completion"} <= known | own


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, gpucheck_command: Callable) -> None:
    ended = gpucheck_command("--show-completion", shell)

    assert (ended.code, ended.stdout) == (
        0,
        (FOLDER / "completion" / f"gpucheck.{shell}").read_text(),
    )


def test_completing_loads_nothing_heavy() -> None:
    code = (
        "import sys; from gpucheck.__main__ import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(' '.join(sys.modules))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "--", "bench", "--dtype", "fl"],
        env=scrubbed_environment({VARIABLE: "fish"}),
        capture_output=True,
        text=True,
        check=True,
    )

    assert "float16" in ended.stdout
    assert {"rich", "numpy", "cupy", "pynvml"}.isdisjoint(ended.stderr.split())


# ------------------------------------------------------------------------------- real shells


def installed(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


@contextmanager
def terminal_of(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    """Start a shell on a terminal of its own."""
    pid, master = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes the shell
        os.execve(command[0], command, environment)
    try:
        yield master
    finally:
        os.close(master)
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def type_until(master: int, keys: str, expected: str) -> str:
    """Type keys and return what the terminal shows until `expected` does."""
    os.write(master, keys.encode())
    shown = ""
    while expected not in shown:
        shown += os.read(master, 4096).decode(errors="replace")
    return shown


#: The shells as they start without a user's configuration, and the line that docs/install.md gives.
SHELLS = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(gpucheck --show-completion bash)"'),
    "zsh": (["-f", "-i"], 'eval "$(gpucheck --show-completion zsh)"'),
    "fish": (["-N"], "gpucheck --show-completion fish | source"),
}


#: A line that is typed, and what stands there after Tab.
LINES = {
    "gpucheck memli": "gpucheck memlimit",
    "gpucheck profile expl": "gpucheck profile explain",
    "gpucheck list --proc": "gpucheck list --processes",
    "gpucheck list --format=ta": "gpucheck list --format=table",
    "gpucheck bench --dtype float16,bf": "gpucheck bench --dtype float16,bfloat16",
    "gpucheck detect --only pcie-w": "gpucheck detect --only pcie-width",
    "gpucheck place --from=example:geforce /g": "gpucheck place --from=example:geforce /gpu:0",
    "gpucheck profile explain --board H100\\ S": "gpucheck profile explain --board H100\\ SXM",
    "gpucheck list --output kep": "gpucheck list --output kept.txt",
    "~/elsewhere/gpucheck bench sof": "~/elsewhere/gpucheck bench softmax",
    "gpucheck memlimit 30% -- unam": "gpucheck memlimit 30% -- uname",
}


def typed_on_terminal(shell: str, environment: dict[str, str]) -> dict[str, str]:
    """Return what the terminal shows for each line and Tab."""
    options, install = SHELLS[shell]
    shown = {}
    with terminal_of([installed(shell), *options], environment) as master:
        type_until(master, f'{install}; cd; echo rea""dy\n', "ready")
        for line, whole in LINES.items():
            shown[line] = type_until(master, f"{line}\t", whole)
            os.write(master, b"\x15")  # Ctrl-U empties the line
    return shown


def asked_of_fish(environment: dict[str, str]) -> dict[str, str]:
    """Return the line that each of fish's offers would make; fish is asked, not typed to."""
    options, install = SHELLS["fish"]
    ask = 'for line in $argv; echo "line $line"; complete -C $line; end'
    ended = subprocess.run(
        [installed("fish"), *options, "-c", f"{install}; cd; {ask}", *LINES],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, str] = {}
    for offer in ended.stdout.splitlines():
        if offer.startswith("line "):
            found[line := offer.removeprefix("line ")] = ""
        else:
            before = line.replace("\\ ", "\\_").rpartition(" ")[0]
            word = offer.partition("\t")[0].replace(" ", "\\ ")
            found[line] += f"{before} {word}\n"
    return found


def test_the_guide_to_the_set_up_names_the_lines() -> None:
    text = " ".join(SET_UP.read_text().split())

    assert [shell for shell, (_, line) in SHELLS.items() if f"`{line}`" not in text] == []


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete(shell: str, tmp_path: Path) -> None:
    (tmp_path / "kept.txt").touch()
    (tmp_path / "elsewhere").symlink_to(PROGRAM.parent)
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    environment = scrubbed_environment(
        {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}
    )

    ask = asked_of_fish if shell == "fish" else partial(typed_on_terminal, shell)
    shown = ask(environment)

    assert {line: shown[line] for line, whole in LINES.items() if whole not in shown[line]} == {}
