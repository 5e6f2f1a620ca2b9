"""How claims look on a terminal."""

from __future__ import annotations

from gpucheck.models.claim import Claim, ClaimList
from gpucheck.models.errors import ExitCode
from gpucheck.models.report import Host, Report, Status
from gpucheck.render.base import View
from gpucheck.render.console import render

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


def shown(claims: ClaimList) -> str:
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
    return render(report, View(width=60))


def test_nobody() -> None:
    assert shown(ClaimList(directory="/run/lock/c")) == (
        "Nobody holds a GPU.\nThe locks are in /run/lock/c.\n"
    )


def test_a_claim_and_a_queue() -> None:
    unknown = Claim(uuid="MIG-1", path="/y", slot=0, held=True)
    text = shown(ClaimList(directory="/c", claims=(CLAIM, unknown), waiting=2))

    assert text == (
        "GPU-00000002-1111-2222-3333-444444444444, 2 of 4\n"
        "  alice, process 42, since 2026-01-02T03:04:05Z\n"
        f"  python train.py --name \\x1b[31m{'x' * 26}…\n"
        "MIG-1\n"
        "  somebody, process ?, since ?\n"
        "2 processes wait.\n"
        "The locks are in /c.\n"
    )
