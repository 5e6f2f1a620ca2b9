"""NVIDIA Health Validation's checks stand beside ours, with the reason where ours differ."""

from __future__ import annotations

from gpucheck.data import read_table
from gpucheck.detect.checks import CHECKS
from gpucheck.detect.health_validation import beside, of_xid
from gpucheck.detect.run import describe_checks
from gpucheck.detect.xids import guide

ROWS = read_table("health_validation")["row"]


def test_a_reason_stands_where_ours_judges_otherwise_and_nowhere_else() -> None:
    alike = {"CRITICAL": "fail", "WARNING": "warn"}
    offenders = [
        row["id"]
        for row in ROWS
        if (row["judgement"] == alike.get(row.get("severity", ""))) == ("because" in row)
    ]

    assert not offenders


def test_each_stands_beside_a_check_of_ours_or_is_not_judged() -> None:
    others = [row for row in ROWS if "check" not in row]

    assert {row["check"] for row in ROWS if "check" in row} <= {check.ID for check in CHECKS}
    assert {row["judgement"] for row in others} == {"none"}
    assert [line.split()[3] for line in beside(None)] == [f"{row['id']}:" for row in others]


def test_an_xid_is_judged_as_its_row_says() -> None:
    numbers = {row["id"].removeprefix("gpu_xid_"): row["judgement"] for row in ROWS}
    numbers = {name: own for name, own in numbers.items() if name.isdigit()}

    assert set(numbers) == {"46", "48", "154"}
    assert numbers == {name: guide(int(name)).judgement for name in numbers}
    assert of_xid(46) == "CRITICAL: drain, then reset_gpu, then service_required"
    assert of_xid(48) == "CRITICAL: drain"
    assert of_xid(154) == "INFO"
    assert of_xid(4) is None


def test_what_explain_says() -> None:
    lines = [*beside("nvlink")]

    assert (
        "NVIDIA Health Validation, nvlink_active: for A100, H100, GB200, GB300: "
        "max_inactive_nvlinks 0; CRITICAL: drain, then reset_gpu, then restart_os, "
        "then service_required; here warn, because programs run with fewer links, only more slowly"
    ) in lines
    (speed,) = (line for line in lines if "nvlink_bandwidth_count_speed" in line)
    assert "26562 (H100) or 53125 (GB200) or 53125 (GB300)" in speed
    assert "here not judged, because the links" in speed
    assert not [*beside("no-such-check")]


def test_explain_has_them_and_the_list_does_not() -> None:
    (explained,) = describe_checks("nvlink").result.catalogue  # type: ignore[attr-defined]
    listed = describe_checks().result.catalogue  # type: ignore[attr-defined]

    lines = [*beside("nvlink")]
    assert lines == list(explained.about.sources[-len(lines) :])
    assert not [check for check in listed if "nvlink_active" in str(check.about)]
