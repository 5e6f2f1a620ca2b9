"""A burn on a terminal: the live table, and in the end every verdict that is not good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.burn import BurnProgress, DeviceProgress
from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.burn_view import live_blocks
from gpucheck.bench.model import BurnResult, Corruption
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import draw, render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.bench.test_burn import burned, heating, said
from tests.fakes.verdicts import report, result
from tests.report.formats.recorded import in_sections, recorded


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


def drawn(
    moment: BurnProgress | None, *, elapsed_s: float = 0.0, unicode: bool = True
) -> list[str]:
    view = View(width=100, unicode=unicode)
    return [line.plain for line in draw(live_blocks(moment, elapsed_s), view)]


def situations() -> dict[str, str]:
    """Return what is shown of burns, by what is special about them."""
    good = burned()[0]
    first, second = good.devices
    slower = replace(second.corruption, product_time_percent=88.2, output_bytes=40 * 2**30)
    unknown = replace(first.corruption, product_time_percent=None)
    no_device = report(good, code=ExitCode.MISSING, command="burn")
    return {
        "a good burn": shown(good),
        "uneven shares of the time": shown(
            replace(good, devices=(first, replace(second, corruption=slower)))
        ),
        "a share that is not known": shown(
            replace(good, devices=(replace(first, corruption=unknown),))
        ),
        "corruption": shown(corrupt()),
        "corruption, quiet": shown(corrupt(), View(width=100, verbosity=-1)),
        "every verdict": shown(burned(sensors=heating(50))[0], View(verbosity=1)),
        "the temperature's limit": shown(burned(sensors=heating(50, 99))[0]),
        "no device could begin": render(no_device, View()),
    }


def moments() -> dict[str, list[str]]:
    """Return what turns while a burn goes on."""
    loaded = DeviceProgress(
        device="gpu:0", state="loaded", products=12, mismatches=1, flops_per_s=7e14,
        temperature_c=71.0, power_w=699.6, clock_sm_mhz=1500.0,
    )  # fmt: skip
    cpu = DeviceProgress(device="cpu", state="opening")
    burning = BurnProgress(elapsed_s=3.2, asked_s=60.0, devices=(loaded, cpu))
    both = (
        DeviceProgress(device="gpu:0", state="opening"),
        DeviceProgress(device="gpu:1", state="ready"),
    )
    starting = BurnProgress(elapsed_s=0.0, asked_s=20.0, devices=both, opening_s=45.0)
    return {
        "a line for each device": drawn(burning),
        "a line for each device in ASCII": drawn(burning, unicode=False),
        **{f"starting, {at}": drawn(starting, elapsed_s=at / 4) for at in range(4)},
        "before that": drawn(None, elapsed_s=2.0),
    }


def repeated() -> dict[str, str]:
    """Return what bench says of products that it repeated."""
    check = Corruption(device="gpu:1", gpu_uuid=None, products=40, words=64, dtype="bfloat16")
    lost = Failure(code="gpu-lost", message="it is gone")
    changes: dict[str, dict[str, Any]] = {
        "the same bits": {"reference_ok": True},
        "two numbers changed": {"mismatches": 2, "first_index": 9},
        "wrong against float64": {"reference_ok": False},
        "the GPU was lost": {"failure": lost},
    }
    return {
        f"repeated products: {name}": render(
            report(replace(result(), corruption=(replace(check, **change),))), View(width=100)
        )
        for name, change in changes.items()
    }


def test_situations_are_as_recorded() -> None:
    texts = {name: "\n".join(lines) for name, lines in moments().items()}
    text = in_sections({**situations(), **texts, **repeated()})

    assert text == recorded("burn-situations", text)
    assert texts["a line for each device in ASCII"].isascii()


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
