"""One document of every kind, as its command writes it: from recordings, and of pretended runs."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.ci.baseline import row_series, saved_run
from gpucheck.bench.ci.compare import compare_runs, conclude_comparison
from gpucheck.bench.ci.model import SavedRun
from gpucheck.bench.model import BurnDevice, BurnEnd, BurnResult, Corruption, GateStatus
from gpucheck.cli import main
from gpucheck.cli.report import MachineReport, ReportFile
from gpucheck.place.model import Claim, ClaimList
from gpucheck.report.envelope import Answer, CheckStatus, Report
from gpucheck.report.formats.json import document
from tests.fakes.bench_results import measurement, product, result_of, sensors
from tests.fakes.bench_runs import HOST, runs_of
from tests.fakes.reports import wrap
from tests.fakes.verdicts import gate, of_every_kind

LOG = Path(__file__).parents[1] / "data" / "logs" / "open" / "oom-then-nccl.log"
H100X8 = ("--from", "example:h100x8")
#: Name of a document -> the call that writes it; only one looks at this machine.
CALLS: Mapping[str, tuple[str, ...]] = {
    "detect": ("detect", "--from", "example:lost-gpu"),
    "detect-well": ("detect", *H100X8),
    "detect-checks": ("detect", "--list-checks", *H100X8),
    "list": ("list", "--processes", *H100X8),
    "list-topology": ("list", "--topology", *H100X8),
    "place": ("place", "/gpu:0", "/gpu:1", *H100X8),
    "place-count": ("place", "--count", "2", *H100X8),
    "memlimit": ("memlimit", "30%", *H100X8),
    "wheel": ("detect", "--wheel", "torch,jax", *H100X8),
    "process": ("detect", "--pid", str(os.getpid())),
    "log": ("detect", "--log", str(LOG), *H100X8),
    "peaks": ("bench", "--peaks", "--board", "H100 SXM"),
    "profile-list": ("profile", "list"),
    "profile-lint": ("profile", "lint", "acceptance"),
    "profile-explain": ("profile", "explain", "default", "--board", "H100"),
    "fleet": ("fleet", "report", str(LOG.parent)),
    "error": ("no-such-command",),
    "failed-list": ("list", "--gpu", "9", *H100X8),
}
#: What no recording can answer: see `pretended`.
PRETENDED = ("bench", "bench-judged", "burn", "claims", "compare", "report")
#: For `parametrize`: collecting must not run the commands.
NAMES = sorted((*CALLS, *PRETENDED))


@functools.cache
def documents() -> Mapping[str, Mapping[str, Any]]:
    """Return a document of each kind by its name, such as "list-topology"."""
    found: dict[str, Mapping[str, Any]] = {
        name: document(report) for name, report in pretended().items()
    }
    for name, words in CALLS.items():
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            main([*words, "--json"])
        found[name] = json.loads(stdout.getvalue())
    return found


def pretended() -> Mapping[str, Report]:
    """Return reports of what no recording can answer: of runs, a process and claims."""
    rows = [measurement("matmul", 2e11, unit="FLOP/s"), product(7e14), product(6.8e14, "gpu:1")]
    run = result_of(*rows, telemetry=sensors(), notes=("a note",))
    before, now = (_saved(factor) for factor in (1.0, 0.9))
    comparison = compare_runs(before, now, files=(Path("before.json"), Path("now.json")))
    burn = BurnResult(
        asked_s=10.0,
        duration_s=10.0,
        ended_by=BurnEnd.TIME,
        temperature_limit_c=90.0,
        devices=(
            BurnDevice(
                device="gpu:0",
                gpu_uuid="GPU-0",
                name="NVIDIA H100 80GB HBM3",
                corruption=Corruption(
                    device="gpu:0",
                    gpu_uuid="GPU-0",
                    products=400,
                    dtype="bfloat16",
                    shape=(8, 8, 8),
                    seconds=10.0,
                ),
                flops_per_s=7e14,
                telemetry=sensors(),
            ),
        ),
        gates=(gate(), gate(GateStatus.FAIL)),
    )
    written = MachineReport(
        path="ticket.tar.gz",
        redacted={"users": 1, "gpu_uuids": 2},
        files=(ReportFile("detect.json", 9, "for programs", "no driver"),),
        conclusion="There is no driver.",
        conclusion_status=CheckStatus.FAIL,
    )
    claim = Claim(uuid="GPU-1", path="/run/lock/1", slot=0, held=True, pid=4711, user="alice")
    return {
        "bench": wrap("bench", Answer(run, host=HOST)),
        "bench-judged": of_every_kind(),
        "burn": wrap("burn", conclude_burn(burn, HOST)),
        "report": wrap("report", Answer(written)),
        "claims": wrap("claims", Answer(ClaimList(directory="/run/lock", claims=(claim,)))),
        "compare": wrap("compare", conclude_comparison(comparison, HOST)),
    }


def _saved(factor: float) -> SavedRun:
    runs = runs_of({"gpu:0": [7e14 * factor * noise for noise in (0.99, 1.0, 1.01, 1.005, 0.995)]})
    return saved_run(runs, row_series(runs), time="2026-11-21T03:32:00Z", profile=None)
