"""The examples for CI systems: what they run exists, and means what their comments say."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from gpucheck.bench.ci.profiles import load_profile
from gpucheck.report.errors import ExitCode
from tests.architecture.commands import COMMAND_NAMES, parsed
from tests.architecture.house import ROOT, name_of

EXAMPLES = sorted((ROOT / "configs" / "ci").iterdir())
#: A line that runs the program: after YAML's dash or key, or at the start of a shell's line. What
#: follows the command (`|| code=$?`) is the shell's.
LINE = re.compile(r"^\s*(?:#   |- |run: )?(gpucheck (?:[^|\n;]|\|(?!\|))*)", re.MULTILINE)


def commands_of(path: Path) -> list[list[str]]:
    """Return the words of every call of the program, comments included: people copy those too."""
    found = LINE.findall(path.read_text(encoding="utf-8"))
    # A shell's default stands for the value: ${GPUS:-8} is 8.
    return [shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", line)) for line in found]


CALLS = [(path, words) for path in EXAMPLES for words in commands_of(path)]


def test_the_three_systems_are_there() -> None:
    assert {path.name for path in EXAMPLES} == {
        *("github-actions.yml", "gitlab-ci.yml", "slurm.sbatch"),
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_every_example_judges_and_reports(path: Path) -> None:
    called = [words for where, words in CALLS if where == path]

    assert len(called) >= 2
    assert any("--profile" in words and "--junit" in words for words in called)


@pytest.mark.parametrize(
    ("path", "words"), CALLS, ids=[f"{path.name}: {' '.join(words)}" for path, words in CALLS]
)
def test_every_option_exists(path: Path, words: list[str]) -> None:
    assert words[1] in COMMAND_NAMES
    # The program's own parser refuses what it does not know; nothing is run.
    context = parsed(words[1:])

    if context.params.get("profile") is not None:
        assert load_profile(context.params["profile"]).checks


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_every_example_installs_what_it_runs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = re.findall(r'bin/pip" install (?:--quiet )?"([\w-]+)\[(\w+)\] @ ', text)

    assert installed
    assert {name for name, _ in installed} == {extras["name"]}
    assert {extra for _, extra in installed} <= set(extras["optional-dependencies"])
    assert re.search(r"gpucheck/bin(:\$PATH|\" >> )|\}/bin:\$PATH", text)


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_the_codes_are_the_programs(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert "0 good, 1 bad, 2 wrong use, 3 cannot tell, 4 something is missing" in text
    meanings = {ExitCode.OK: 0, ExitCode.BAD: 1, ExitCode.WRONG_USE: 2}
    meanings |= {ExitCode.INCONCLUSIVE: 3, ExitCode.MISSING: 4}
    assert all(code == number for code, number in meanings.items())


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_yaml_is_indented_by_spaces_and_shell_parses(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert "\t" not in text
    if path.suffix == ".sbatch":
        subprocess.run(["bash", "-n", path], check=True)
