"""How claims look on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.place.model import Claim, ClaimList, Holder, ProcessState
from gpucheck.report.envelope import Host, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.text import View

CLAIM = Claim(
    uuid="GPU-00000002-1111-2222-3333-444444444444",
    path="/x",
    slot=1,
    share=4,
    held=True,
    pid=42,
    user="alice",
    command="python train.py --name \x1b[31m" + "x" * 200,
    since="2026-01-02T03:04:05Z",
)


def shown(claims: ClaimList, *, verbosity: int = 0) -> str:
    report = Report(
        command="claims",
        schema="gpucheck/claims/1",
        time="2026-01-01T00:00:00Z",
        host=Host(),
        exit_code=ExitCode.OK,
        status=Status.OK,
        error=None,
        warnings=(),
        result=claims,
    )
    return render(report, View(width=60, verbosity=verbosity))


def test_nobody() -> None:
    assert shown(ClaimList(directory="/run/lock/c")) == (
        "No GPU is held.\nThe locks are in /run/lock/c\n"
    )


def test_a_claim_and_a_queue() -> None:
    unknown = Claim(uuid="MIG-1", path="/y", slot=0, held=True)
    waiter = Holder(pid=7, user="bob", command="sleep 9", since="2026-01-02T03:04:06Z")
    claims = ClaimList(directory="/c", claims=(CLAIM, unknown), waiting=2, queue=(waiter, Holder()))

    assert shown(claims) == (
        "GPU-00000002-1111-2222-3333-444444444444, 2 of 4\n"
        "  alice, process 42, since 2026-01-02T03:04:05Z\n"
        f"  python train.py --name \\x1b[31m{'x' * 26}…\n"
        "MIG-1\n"
        "  an unknown user, process ?, since ?\n"
        "2 processes wait in this order:\n"
        "  bob, process 7, since 2026-01-02T03:04:06Z\n"
        "  sleep 9\n"
        "  an unknown user, process ?, since ?\n"
        "The locks are in /c\n"
    )


@pytest.mark.parametrize(
    ("state", "remark"),
    [
        (ProcessState.RUNNING, "process 42, since"),
        (ProcessState.ENDED, "process 42 (ended, but its children"),
        (ProcessState.ELSEWHERE, "process 42 (in another PID namespace)"),
    ],
)
def test_what_became_of_the_process(state: ProcessState, remark: str) -> None:
    assert remark in shown(ClaimList(directory="/c", claims=(replace(CLAIM, process=state),)))


def test_verbose_cuts_nothing_off() -> None:
    text = shown(ClaimList(directory="/c", claims=(CLAIM,)), verbosity=1)

    assert f"{'x' * 200}\n" in text
    assert "  /x\n" in text
