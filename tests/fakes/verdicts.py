"""Reports with verdicts of every kind, for what CI systems are told."""

from __future__ import annotations

from gpucheck.bench.model import BenchResult, Direction, Gate, GateClass, GateStatus, Severity
from gpucheck.report.envelope import TOOL, Evidence, Failure, Notice, Report, status_of
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fakes.bench_results import environment

#: A name that tries to leave wherever it is put.
HOSTILE = (
    "H100<&\"'>]]>|`x`\x00\x1b[31m\r\n::error::owned\n| a | b |\n<script>alert(1)</script>"
    "%0A,:\ud800\ufffe\u202e[link](http://x)"
)


def result(*gates: Gate) -> BenchResult:
    """Return a result with these gates and nothing else."""
    return BenchResult(measurements=(), comparisons=(), environment=environment(), gates=gates)


def gate(
    status: GateStatus = GateStatus.PASS,
    *,
    device: str = "gpu:0",
    name: str = "gemm.bf16",
    class_: GateClass | None = None,
    severity: Severity = Severity.ERROR,
    warning: bool = False,
    reason: str | None = None,
) -> Gate:
    """Return one verdict with figures and evidence."""
    return Gate(
        id=name,
        device=device,
        status=status,
        direction=Direction.HIGHER,
        unit="FLOP/s",
        measured=7.1e14,
        limit=7.394e14,
        reason=reason,
        class_=class_,
        severity=severity,
        warning=warning,
        gpu_uuid=f"GPU-{device[-1]}" if device.startswith("gpu") else None,
        interval=(7.0e14, 7.2e14),
        evidence=(Evidence("clocks event reasons", "0x40"),),
        next=("Look at the fans.",),
    )


def report(
    found: object | None,
    *,
    code: ExitCode = ExitCode.OK,
    failure: Failure | None = None,
    warnings: tuple[Notice, ...] = (),
    host: str | None = "node17",
    command: str = "bench",
) -> Report:
    """Return a finished report."""
    return Report(
        command=command,
        schema=f"gpucheck/{command}/1",
        tool=TOOL,
        time="2026-11-21T03:32:00Z",
        host=Host(name=host, driver_version="580.95.05"),
        exit_code=code,
        status=status_of(code, warnings=bool(warnings)),
        error=failure,
        warnings=warnings,
        result=found,
    )


def of_every_kind() -> Report:
    """Return a report in which each kind of verdict stands once."""
    gates = (
        gate(),
        gate(GateStatus.FAIL, name="pcie", class_=GateClass.CONFIG, reason="x8, and x16 fits"),
        gate(GateStatus.FAIL, device="gpu:1", class_=GateClass.THERMAL, reason="3.9 % too slow"),
        gate(GateStatus.INCONCLUSIVE, device="gpu:2", class_=GateClass.NOISE, reason="too noisy"),
        gate(GateStatus.SKIP, device="gpu:3", reason="this card has no bfloat16"),
        gate(GateStatus.PASS, device="gpu:4", warning=True, reason="near the limit"),
        gate(
            GateStatus.FAIL,
            device="gpu:5",
            class_=GateClass.HARDWARE,
            severity=Severity.WARN,
            reason="only a warning",
        ),
        gate(device="node", name="spread"),
    )
    failure = Failure(
        code="gate-failed", message="gpu:0: pcie: x8, and x16 fits.", remedy=("Look",)
    )
    return report(result(*gates), code=ExitCode.BAD, failure=failure)
