"""A burn on a terminal: the live table, and in the end every verdict that is not good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.burn import BurnProgress, DeviceProgress
from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.burn_view import live_blocks
from gpucheck.bench.model import BurnResult, Corruption
from gpucheck.report.envelope import Failure, Host
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import draw, render
from gpucheck.report.text import View
from tests.bench.test_burn import burned, heating, said
from tests.fakes.verdicts import report, result
from tests.report.formats.recorded import recorded


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


def test_a_good_burn_is_a_verdict_and_a_table() -> None:
    lines = shown(burned()[0]).splitlines()

    assert lines[0] == "node17 · driver 580.95.05 · 2 × NVIDIA H100 80GB HBM3"
    assert lines[2] == "PASS  burned 10 of 10 s: 400 products, no bit changed"
    assert lines[4].split() == [
        *("device", "speed", "products", "wrong", "temp", "power", "load"),
    ]
    assert lines[5].split()[:2] == ["✓", "gpu:0"]
    assert lines[5].endswith("8 × 8 × 8 bfloat16")


def test_corruption_is_told_with_what_to_do() -> None:
    lines = shown(corrupt()).splitlines()

    # The other one computed right, but 20 products are no burn.
    assert [line.split()[:2] for line in lines[5:7]] == [["?", "gpu:0"], ["✗", "gpu:1"]]
    (failed,) = [line for line in lines if line.startswith("✗ corruption")]
    assert failed.startswith("✗ corruption on gpu:1")
    assert failed.endswith("(hardware)")
    assert any("Take it out of use" in line for line in lines)
    assert lines[2].startswith("FAIL  burned 10 of 10 s: ")


def test_where_the_time_went_and_which_memory_was_used_is_told() -> None:
    result = burned()[0]
    first, second = result.devices
    slower = replace(second.corruption, product_time_percent=88.2, output_bytes=40 * 2**30)
    uneven = replace(result, devices=(first, replace(second, corruption=slower)))
    unknown = replace(first.corruption, product_time_percent=None)

    assert "92 % of the time in products; the results rotate through 62.0 GiB of memory" in shown(
        result
    )
    assert "88 to 92 % of the time in products; the results rotate through 40.0" in shown(uneven)
    alone = replace(result, devices=(replace(first, corruption=unknown),))
    assert "in products" not in shown(alone)


def test_quiet_leaves_the_verdicts() -> None:
    text = shown(corrupt(), View(width=100, verbosity=-1))

    assert "driver" not in text
    assert "✗ corruption" in text


def test_verbose_has_every_verdict() -> None:
    text = shown(burned(sensors=heating(50))[0], View(verbosity=1))

    assert "✓ temperature on gpu:0-1" in text


def test_the_temperature_limit_is_told() -> None:
    assert "until the temperature limit" in shown(burned(sensors=heating(50, 99))[0])


def test_if_no_device_could_begin_the_error_says_why() -> None:
    found = report(burned()[0], code=ExitCode.MISSING, command="burn")

    assert render(found, View()).splitlines()[2] == "NOT RUN  no device could begin"


def drawn(
    moment: BurnProgress | None, *, elapsed_s: float = 0.0, unicode: bool = True
) -> list[str]:
    view = View(width=100, unicode=unicode)
    return [line.plain for line in draw(live_blocks(moment, elapsed_s), view)]


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
    moment = BurnProgress(elapsed_s=3.2, asked_s=60.0, devices=glances)
    lines = drawn(moment, unicode=unicode)

    assert lines[0] == "| burn: 3 s of 60 s, 57 s left"
    degrees = "°C" if unicode else "C"
    assert lines[2].split() == [
        *("gpu:0", "loaded", "700", "TFLOP/s", "12", "1", "71", degrees),
        *("700", "W", "1500", "MHz"),
    ]
    assert lines[3].split()[:2] == ["cpu", "opening"]
    assert "".join(lines).isascii() is not unicode


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


def test_while_the_processes_start_something_turns_and_says_how_far_it_is() -> None:
    glances = (
        DeviceProgress(device="gpu:0", state="opening"),
        DeviceProgress(device="gpu:1", state="ready"),
    )
    moment = BurnProgress(elapsed_s=0.0, asked_s=20.0, devices=glances, opening_s=45.0)

    said = "burn: starting the processes, 45 s: 1 of 2 ready, then 20 s of load"
    assert [drawn(moment, elapsed_s=at / 4)[0] for at in range(4)] == [
        f"{sign} {said}" for sign in "|/-\\"
    ]
    assert drawn(None, elapsed_s=2.0)[0].endswith("burn: looking at the devices, 2 s")


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("name", ["good", "corrupt", "hot"])
def test_screens_are_as_recorded(name: str, width: int) -> None:
    made = {
        "good": lambda: burned()[0],
        "corrupt": corrupt,
        "hot": lambda: burned(sensors=heating(50, 99))[0],
    }
    text = shown(made[name](), View(width=width))

    assert text == recorded(f"burn-{name}-{width}", text)
    assert all(len(line) <= width for line in text.splitlines())
