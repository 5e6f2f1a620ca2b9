"""What each check says of each machine in tests/data/checks."""

from __future__ import annotations

import pytest

from gpucheck.report.envelope import CheckStatus
from tests.detect.checks.situations import BY_ID, TABLES, read_situations, show_findings
from tests.report.formats.recorded import in_sections, recorded

#: What they find is never bad.
NOTES = ("environment", "persistence-mode", "vbios-versions")
BAD = {CheckStatus.WARN, CheckStatus.FAIL}


@pytest.mark.parametrize("check", sorted(path.stem for path in TABLES.glob("*.toml")))
def test_what_a_check_finds_is_as_recorded(check: str) -> None:
    shown, statuses = {}, set()
    for name, (machine, probes, never_asked) in read_situations(check).items():
        found = BY_ID[check].check(machine)
        findings = found if isinstance(found, list) else [found]
        shown[name] = show_findings(findings)
        statuses |= {finding.status for finding in findings}
        assert not {*probes.asked} & {*never_asked}, name
        assert {finding.id for finding in findings} == {check}
        bad = [finding for finding in findings if finding.status in BAD]
        assert all(finding.cause and finding.remedy for finding in bad), name
    text = in_sections(shown)

    assert text == recorded(f"check-{check}", text)
    assert statuses - BAD
    assert statuses & BAD or check in NOTES
