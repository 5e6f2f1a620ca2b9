"""What the README promises is what the program and its CI do."""

from __future__ import annotations

import re

from gpucheck.report.errors import ExitCode
from tests.architecture.house import ROOT, project_files

#: A terminal of 80 by 50: what somebody sees before scrolling.
FIRST_SCREEN_LINES = 50


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def set_up_commands() -> list[str]:
    """Return the lines of the shell blocks on the first screen."""
    screen = "\n".join(readme().splitlines()[:FIRST_SCREEN_LINES])
    return [
        line
        for block in re.findall(r"```sh\n(.*?)```", screen, re.S)
        for line in block.splitlines()
    ]


def ci_commands() -> list[str]:
    """Return the set-up commands that .ci/run executes."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("python3 -m venv")]


def test_first_screen_has_two_commands() -> None:
    main_job, tests = set_up_commands()

    assert main_job.endswith("gpucheck bench --quick")
    assert ".venv/bin/pytest" in tests


def test_ci_runs_the_readme_commands_word_for_word() -> None:
    assert ci_commands() == set_up_commands()


def test_exit_codes_are_all_listed() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", readme(), re.M)]

    assert listed == sorted(ExitCode)


def test_nobody_is_sent_to_the_other_project() -> None:
    # On the package index the bare name is another project's.
    wrong = re.compile(r"pip install (-\S+ )*['\"]?gpucheck(?!-cli)\b")
    texts = [path for path in project_files() if path.suffix in {".md", ".py", ".toml"}]

    offenders = [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))]

    assert offenders == []
