"""Start of an interpreter under the hook: the user's own start-up runs as always."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck.memlimit.environment import hook_folder
from tests.memlimit.hook.limited_python import payload, run_limited

LISTS_HOOKS = "import sys; print([type(f).__name__ for f in sys.meta_path].count('Finder'))"


def users_sitecustomize(tmp_path: Path, text: str) -> dict[str, str]:
    folder = tmp_path / "users"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join((hook_folder(), str(folder)))}


def test_the_hook_is_there_and_its_folder_is_not(tmp_path: Path) -> None:
    ran = run_limited(f"{LISTS_HOOKS}; print({hook_folder()!r} in sys.path)", tmp_path)

    assert (ran.stdout, ran.stderr) == ("1\nFalse\n", "")


def test_children_inherit_it(tmp_path: Path) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LISTS_HOOKS!r}])"

    assert run_limited(program, tmp_path).stdout == "1\n"


def test_without_a_limit_in_the_environment_there_is_no_hook(tmp_path: Path) -> None:
    assert run_limited(LISTS_HOOKS, tmp_path, limit="").stdout == "0\n"


def test_the_users_sitecustomize_runs_and_is_the_module(tmp_path: Path) -> None:
    env = users_sitecustomize(tmp_path, "print('users own'); MARK = 1\n")
    program = "import sitecustomize; print(sitecustomize.MARK, sitecustomize.__file__)"

    ran = run_limited(program, tmp_path, env=env)

    own = tmp_path / "users" / "sitecustomize.py"
    assert ran.stdout == f"users own\n1 {own}\n"


def test_without_one_of_the_users_there_is_what_the_system_has(tmp_path: Path) -> None:
    """Debian's Python has a sitecustomize of its own; most have none."""
    program = """
try:
    import sitecustomize
    print(sitecustomize.__file__)
except ModuleNotFoundError as error:
    print(error)
"""
    ran = run_limited(program, tmp_path, options=["-v"])
    without = run_limited(program, tmp_path, hook=False)

    assert without.stdout
    assert ran.stdout == without.stdout
    # Even -v, which makes `site` report a failing sitecustomize, reports none of ours.
    assert "Error in sitecustomize" not in ran.stderr


def test_a_broken_sitecustomize_of_the_users_is_reported_as_ever(tmp_path: Path) -> None:
    env = users_sitecustomize(tmp_path, "raise RuntimeError('users mistake')\n")

    with_hook = run_limited("print('ran')", tmp_path, env=env)
    without = run_limited("print('ran')", tmp_path, env={"PYTHONPATH": str(tmp_path / "users")})

    assert with_hook.stdout == "ran\n"
    assert with_hook.stderr == without.stderr
    assert "users mistake" in with_hook.stderr


def test_the_users_usercustomize_and_pth_files_are_untouched(tmp_path: Path) -> None:
    program = "import sys; print([p for p in sys.path if 'limit_hook' in p], sys.flags.no_site)"

    assert run_limited(program, tmp_path).stdout == "[] 0\n"


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_a_python_that_reads_no_site_or_environment_has_no_hook(
    tmp_path: Path, option: str
) -> None:
    ran = run_limited(LISTS_HOOKS, tmp_path, options=[option])

    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_a_virtual_environment_has_the_hook_and_its_own_sitecustomize(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    python = tmp_path / "venv" / "bin" / "python"
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "sitecustomize.py").write_text("print('the environment')\n")

    ran = run_limited(LISTS_HOOKS, tmp_path, python=str(python))
    without = run_limited(LISTS_HOOKS, tmp_path, python=str(python), hook=False)

    # Where the system has one, Python takes that before the environment's, with the hook or not.
    known = [sys.executable, "-I", "-c", "import sitecustomize"]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        assert without.stdout == "the environment\n0\n"
    assert ran.stdout == without.stdout.replace("0\n", "1\n")


def test_a_second_memlimit_inside_installs_one_hook(tmp_path: Path) -> None:
    folders = os.pathsep.join((hook_folder(), hook_folder()))

    ran = run_limited(LISTS_HOOKS, tmp_path, env={"PYTHONPATH": folders})

    assert ran.stdout == "1\n"


def test_a_hook_that_cannot_start_is_one_warning(tmp_path: Path) -> None:
    broken = tmp_path / "first"
    broken.mkdir()
    (broken / "gpucheck_limit_hook.py").write_text("raise RuntimeError('damaged')\n")
    env = {"PYTHONPATH": os.pathsep.join((str(broken), hook_folder()))}

    ran = run_limited("print('ran')", tmp_path, env=env, limit=payload(1))

    assert (ran.code, ran.stdout) == (0, "ran\n")
    assert ran.stderr.startswith("gpucheck: warning: no memory limit by import hook: ")
    assert ran.stderr.count("\n") == 1
