"""A burn on a terminal: the live table, and in the end every verdict that is not good."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from gpucheck.bench.burn import BurnProgress, DeviceProgress
from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.model import BurnResult, Corruption
from gpucheck.cli.bench import live_table
from gpucheck.report.envelope import Failure, Host
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.bench.test_burn import burned, heating, said
from tests.fakes.verdicts import report, result


def shown(result: BurnResult, view: View | None = None) -> str:
    answer = conclude_burn(result, Host())
    found = report(result, code=answer.exit_code, failure=answer.error, command="burn")
    return render(found, view or View(width=100))


def corrupt() -> BurnResult:
    def script(device: str):  # type: ignore[no-untyped-def]
        yield said(device, "ready")
        for turn in range(1, 1000):
            found = (
                {"mismatches": 3, "first_index": 7, "largest_ulp": 1} if device[-1] == "1" else {}
            )
            yield {"products": turn, **found}

    return burned(script)[0]


def test_a_good_burn_says_what_was_done() -> None:
    text = shown(burned()[0])

    assert "burned 10 of 10 s, to the end" in text
    assert "gpu:0 NVIDIA H100 80GB HBM3: pass" in text
    assert "200 products 8x8x8 in bfloat16, 0 of 12800 numbers changed" in text


def test_corruption_is_told_with_what_to_do() -> None:
    text = shown(corrupt())

    assert "gpu:1 NVIDIA H100 80GB HBM3: fail" in text
    assert "fail burn.corruption (hardware): 3 of" in text
    assert "Take it out of use" in text
    assert "gpu:0 NVIDIA H100 80GB HBM3: pass" in text


def test_quiet_leaves_the_verdicts() -> None:
    text = shown(corrupt(), View(width=100, verbosity=-1))

    assert "burned" not in text
    assert "fail burn.corruption" in text


def test_verbose_has_every_verdict() -> None:
    assert "pass burn.temperature" in shown(burned(sensors=heating(50))[0], View(verbosity=1))


def test_the_temperature_limit_is_told() -> None:
    assert "until the temperature limit" in shown(burned(sensors=heating(50, 99))[0])


def drawn(moment: BurnProgress, *, unicode: bool) -> str:
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(live_table(moment, unicode=unicode))
    return captured.get()


@pytest.mark.parametrize("unicode", [True, False])
def test_the_live_table_has_a_line_for_each_device(unicode: bool) -> None:
    glances = (
        DeviceProgress(
            device="gpu:0",
            state="loaded",
            products=12,
            mismatches=1,
            flops_per_s=7e14,
            temperature_c=71.0,
            power_w=699.6,
            clock_sm_mhz=1500.0,
        ),
        DeviceProgress(device="cpu", state="opening"),
    )
    text = drawn(BurnProgress(elapsed_s=3.2, asked_s=60.0, devices=glances), unicode=unicode)
    lines = text.splitlines()

    assert "burn: 3 s of 60 s, 57 s left" in lines[0]
    assert lines[2].split() == [
        *("gpu:0", "loaded", "700", "TFLOP/s", "12", "1", "71", "C", "700", "W", "1500", "MHz"),
    ]
    assert lines[3].split()[:2] == ["cpu", "opening"]
    assert text.isascii() is not unicode


def repeated(**changes: Any) -> str:
    check = Corruption(
        device="gpu:1", gpu_uuid=None, products=40, words=64, dtype="bfloat16", **changes
    )
    found = replace(result(), corruption=(check,))
    return render(report(found), View(width=100))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reference_ok": True}, "40 identical products in bfloat16: every bit the same"),
        ({"mismatches": 2, "first_index": 9}, "2 numbers CHANGED, the first at 9"),
        ({"reference_ok": False}, "WRONG against float64"),
        ({"failure": Failure(code="gpu-lost", message="it is gone")}, "it is gone"),
    ],
)
def test_bench_says_what_its_repeated_products_showed(changes: dict[str, Any], said: str) -> None:
    assert said in repeated(**changes)


def test_while_devices_open_the_live_table_says_for_how_long() -> None:
    glances = (DeviceProgress(device="gpu:0", state="opening"),)
    moment = BurnProgress(elapsed_s=0.0, asked_s=20.0, devices=glances, opening_s=45.0)

    assert "burn: opening the devices for 45 s, then 20 s" in drawn(moment, unicode=True)
