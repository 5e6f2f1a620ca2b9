from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.bench.ci.profiles import describe, find_profile, load_profile, shipped, unreadable
from gpucheck.report.errors import WrongUseError
from tests.bench.ci.test_profile_lint import GOOD


def test_what_comes_with_the_program_is_found_by_name() -> None:
    assert set(shipped()) == {"acceptance", "ci-smoke", "cpu", "default", "frameworks"}
    assert load_profile("cpu").name == "cpu"


@pytest.mark.parametrize(("text", "hint"), [("acceptence", "acceptance"), ("zzz", "ci-smoke")])
def test_an_unknown_name_is_refused_with_a_near_one(text: str, hint: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        find_profile(text)

    assert hint in caught.value.remedy[0]


@pytest.mark.parametrize("text", ["./mine.toml", "mine.toml", "somewhere/mine"])
def test_a_path_is_a_file(text: str) -> None:
    assert find_profile(text) == Path(text)


def test_a_profile_with_mistakes_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(GOOD.replace("count = 8", "count = 0").replace("ecc = true", "ecc = 1"))

    where = r"p\.toml:12: match\.count: "
    with pytest.raises(WrongUseError, match=where) as caught:
        load_profile(str(path))

    assert "1 more with: gpucheck profile lint" in caught.value.remedy[-1]


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(GOOD)

    found = describe(path)

    assert (found.name, found.version, found.problems) == ("nodes", 3, ())
    run = load_profile(str(path)).run
    assert found.seconds == run.processes * (run.seconds + run.corruption_s) > 0


def test_a_file_that_is_not_toml_is_one_mistake_at_its_line(tmp_path: Path) -> None:
    broken, missing = tmp_path / "p.toml", tmp_path / "none.toml"
    broken.write_text("[profile]\nname =\n")
    found = []
    for path in (broken, missing):
        with pytest.raises(WrongUseError) as caught:
            describe(path)
        (problem,) = unreadable(path, caught.value).problems
        found.append((problem.line, problem.mend, str(path) in problem.message))

    assert found == [
        (2, "write it as TOML", False),
        (None, "name a file that can be read", True),
    ]
