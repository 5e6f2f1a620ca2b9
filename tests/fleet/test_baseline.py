"""Files that a judgement takes: an earlier report as a baseline, and the rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucheck.fleet.model import Group, JudgedBy
from gpucheck.fleet.speeds import read_baseline, read_rule
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError


def saved(path: Path, *groups: object, schema: object = "gpucheck/fleet/1") -> Path:
    path.write_text(json.dumps({"schema": schema, "result": {"groups": list(groups)}}))
    return path


def group(**changes: Any) -> dict[str, Any]:
    group = Group("copy | H100", "copy", "H100", 64, JudgedBy.PEERS, median=3e12, scale=3e10)
    plain: dict[str, Any] = to_plain(group)
    return plain | changes


def test_a_baseline_has_the_reference_of_each_group(tmp_path: Path) -> None:
    path = saved(tmp_path / "good.json", group(), group(key="small", scale=0, median=1))

    file, groups = read_baseline(path)

    assert file == str(path)
    assert {key: (group.median, group.scale, group.gpus) for key, group in groups.items()} == {
        "copy | H100": (3e12, 3e10, 64),
        "small": (1.0, 0.0, 64),
    }


@pytest.mark.parametrize(
    "bad",
    [
        group(key=None),
        group(median=0),
        group(median=None),
        group(scale=-1),
        group(scale="1"),
        group(gpus=0),
        group(gpus=1e999),
        7,
    ],
)
def test_a_malformed_group_is_left_out(tmp_path: Path, bad: object) -> None:
    _, groups = read_baseline(saved(tmp_path / "a.json", bad, group(key="good", new_field=1)))

    assert list(groups) == ["good"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no JSON document"),
        ("[" * 5000, "is no JSON document"),
        ("[]", "has no schema, not gpucheck/fleet/1"),
        ('{"schema": 5}', "has no schema"),
        (f'{{"schema": "{"s" * 70}"}}', f"has {'s' * 60}, not"),
        ('{"schema": "gpucheck/bench/1"}', "has gpucheck/bench/1, not gpucheck/fleet/1"),
        ('{"schema": "gpucheck/fleet/1"}', "has no group with a speed"),
        ('{"schema": "gpucheck/fleet/1", "result": {"groups": 5}}', "has no group with a speed"),
    ],
)
def test_another_baseline_is_refused_with_the_reason(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(WrongUseError) as raised:
        read_baseline(path)

    assert raised.value.code == "baseline-unusable"
    assert raised.value.message == f"The baseline '{path}' {says}." or says in raised.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slow = -5.0", "slow_z"),
        ("slow_z = -1.0", "at most watch_z"),
        ("watch_z = 0.0", "below 0"),
        ("least_percent = 200.0", "least_percent"),
        ("least_percent = 100.0", "least_percent"),
        ("least_group = 2", "at least 3"),
        ("risk = 0.0", "above 0"),
        ("majority_share = 1.1", "from above 0 to 1"),
        ("most_age_s = 0.0", "most_age_s must be above 0"),
        ("most_age_s = inf", "most_age_s = inf is not between"),
        ('correction = "bonferroni"', "fdr"),
        ('least_group = "many"', "least_group"),
        ("least_group = ", "Invalid value"),
    ],
)
def test_wrong_rule_is_refused_with_what_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rule.toml"
    path.write_text(text)

    with pytest.raises(WrongUseError) as caught:
        read_rule(path)
    assert says in " ".join((caught.value.message, *caught.value.remedy))
    assert caught.value.message.startswith(f"{path}")


def test_a_rule_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    path = tmp_path / "rule.toml"
    path.write_text("least_group = 3\nleast_percent = 0.0\nconfirmed_share = 1.0\n")

    rule = read_rule(path)

    assert (rule.least_group, rule.least_percent, rule.slow_z) == (3, 0.0, -5.0)
    assert rule.source == str(path)
