"""Check of `rapids doctor`, which finds it by the entry-point group `rapids_doctor_check`.

A check takes `verbose` and whatever else a later version passes. What it raises has failed, a
warning is only shown, and a text that it returns is shown with --verbose.
Source: rapids-cli's documentation, Plugin Development.
"""

from __future__ import annotations

import warnings

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
        raise RuntimeError(str(found))
    for finding in detection.checks:
        if finding.status is CheckStatus.WARN:
            steps = "".join(f"\n  {step}" for step in finding.remedy)
            warnings.warn(f"{finding.id}: {finding.summary}.{steps}", stacklevel=2)
    return f"{detection.conclusion}." if verbose else None
