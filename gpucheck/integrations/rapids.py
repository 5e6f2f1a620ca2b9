"""Check of `rapids doctor`, which finds it by the entry-point group `rapids_doctor_check`.

A check takes `verbose` and whatever else a later version passes. What it raises has failed, a
warning is only shown, and a text that it returns is shown with --verbose. All are shown as Rich's
markup, in which the `[ctk]` of a command to copy would vanish.
Source: rapids-cli's documentation, Plugin Development; its doctor/doctor.py.
"""

from __future__ import annotations

import re
import warnings

#: What Rich takes for a tag.
TAG = re.compile(r"\[(?=[a-z#/@][^\[]*?\])")
#: What RAPIDS' own kernels are compiled and run by, if it is installed.
FRAMEWORKS = ("cupy", "numba")
DEADLINE_S = 30.0


def gpucheck(verbose: bool = False, **_: object) -> str | None:
    """Check that a GPU can be used from this Python, and name the first broken layer."""
    from gpucheck.integrations.diagnose import diagnosis_of, look_here
    from gpucheck.report.envelope import CheckStatus

    detection = look_here(FRAMEWORKS, deadline_s=DEADLINE_S)
    found = diagnosis_of(detection)
    if found is not None:
        # Not known is not passed either: the driver did not answer.
        raise RuntimeError(_escaped(str(found)))
    for finding in detection.checks:
        if finding.status is CheckStatus.WARN:
            steps = "".join(f"\n  {step}" for step in finding.remedy)
            warnings.warn(_escaped(f"{finding.id}: {finding.summary}.{steps}"), stacklevel=2)
    return _escaped(f"{detection.conclusion}.") if verbose else None


def _escaped(text: str) -> str:
    """Return a text that Rich's markup shows as it is."""
    return TAG.sub(r"\\[", text)
