"""Gates, comparisons and profiles as they are shown on a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.compare import compare_runs, conclude_comparison
from gpucheck.bench.ci.limits import explain
from gpucheck.bench.ci.profile_model import Problem, ProfileAction, ProfileFile, ProfileResult
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.verdicts import exit_status
from gpucheck.bench.ci.view import row_names
from gpucheck.bench.model import (
    BaselineUse,
    Direction,
    Gate,
    GateClass,
    GateStatus,
    ProfileUse,
    Severity,
)
from gpucheck.report.envelope import Evidence
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.bench.ci.test_compare import row_series, run, runs_of, saved_run
from tests.fakes.bench_results import measurement
from tests.fakes.verdicts import HOSTILE, report, result
from tests.report.formats.recorded import in_sections, recorded

GOOD = Gate(
    id="matmul",
    device="gpu:0",
    status=GateStatus.PASS,
    direction=Direction.HIGHER,
    unit="TFLOP/s",
    measured=801.25,
    limit=739.35,
    values=(800.0, 802.5),
)
BAD = replace(
    GOOD,
    device="gpu:7",
    status=GateStatus.FAIL,
    measured=640.0,
    class_=GateClass.THERMAL,
    reason="19.5 % below 795 (-20.1 to -18.9 %): heat",
    evidence=(Evidence("temperature", "91 C at most"),),
    next=("nvidia-smi -q -d TEMPERATURE,PERFORMANCE,CLOCK,POWER --id=00000000:1A:00.0 | less",),
)
COMMAND = "nvidia-smi -q -d TEMPERATURE,PERFORMANCE,CLOCK,POWER --id=00000000:1A:00.0"
USE = ProfileUse(name="nodes", version=3, path="p.toml", digest="ab", processes=5, max_processes=10)


def drawn(
    *gates: Gate,
    width: int = 80,
    baseline: BaselineUse | None = None,
    profile: ProfileUse | None = USE,
    **settings: Any,
) -> str:
    found = replace(result(*gates), profile=profile, baseline=baseline)
    code = exit_status(gates)[0]
    return render(report(found, code=code), View(width=width, **settings))


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_command_to_copy_is_never_broken(width: int) -> None:
    lines = drawn(replace(BAD, next=(f"Look: {COMMAND}",)), width=width).splitlines()

    assert COMMAND in [line.strip() for line in lines]


def test_a_terminal_without_unicode_gets_ascii_and_names_cannot_steer_it() -> None:
    text = drawn(replace(BAD, reason="bad \x1b[2J"), unicode=False)

    assert text.isascii()
    assert "\x1b" not in text
    assert "FAIL matmul on gpu:7" in text


ROW = replace(
    GOOD,
    id="matmul/cublas/float32/1024x1024x1024",
    unit="FLOP/s",
    measured=7.4e13,
    expected=7.5e13,
    tolerance_percent=5.0,
    interval=(7.3e13, 7.5e13),
    reason="1.3 % worse, 5 % is allowed",
)
BEFORE = BaselineUse(
    file="/tmp/before.json",
    time="2026-11-22T10:00:00Z",
    host="node17",
    driver="575.64.05",
    gpucheck="0.1.0",
)


def eight(**changes: Any) -> list[Gate]:
    """Return the gates of eight GPUs, each with a figure of its own."""
    return [replace(GOOD, device=f"gpu:{at}", measured=800.0 + at, **changes) for at in range(8)]


def causes() -> dict[str, tuple[Gate, ...]]:
    """Return gates that share a cause, a step or a figure, by what is shown of them."""
    raw = replace(BAD, unit="FLOP/s", measured=5.9e14, limit=6.1e14)
    passed = replace(raw, status=GateStatus.PASS, reason=None)
    silent = replace(
        GOOD,
        status=GateStatus.INCONCLUSIVE,
        measured=None,
        limit=None,
        class_=GateClass.ENVIRONMENT,
        next=("run it again when the machine is idle",),
    )
    silent_ones = (
        replace(silent, id=name, device=device, reason=f"{device} gave no answer within 84 s")
        for name in ("matmul", "copy", "processes")
        for device in ("gpu:3", "gpu:4", "gpu:5")
    )
    hot = (
        replace(BAD, device=f"gpu:{at}", measured=600.0 + at, reason=f"{at}.5 % below 795: heat")
        for at in range(5)
    )
    skipped = replace(
        GOOD,
        status=GateStatus.SKIP,
        limit=None,
        reason="there is no baseline",
        next=("keep this run with --save FILE",),
    )
    two_steps = ("list them: gpucheck list --processes; or choose less (--size; or in a profile)",)
    return {
        "what failed has its figure, limit, class, reason and step": (GOOD, BAD),
        "a figure without a prefix of its own gets one": (raw,),
        "two such figures": (passed, replace(passed, device="gpu:8", measured=6e14)),
        "eight GPUs that pass are counted": (*eight(),),
        "one cause is said once with the rows it touches": (*silent_ones, GOOD, BAD),
        "gates with the same steps keep their figures": (*hot,),
        "a step of two things is two": (replace(BAD, next=two_steps),),
        "what is skipped says once what would help": (
            skipped, replace(skipped, device="gpu:1"), replace(skipped, id="copy"),
        ),
    }  # fmt: skip


def verdicts() -> dict[str, tuple[Gate, ...]]:
    return {
        "passed": (GOOD,),
        "failed": (BAD,),
        "undecided": (replace(BAD, status=GateStatus.INCONCLUSIVE),),
        "skipped": (replace(GOOD, status=GateStatus.SKIP),),
        "passed with a warning": (replace(GOOD, warning=True, reason="close"),),
        "failed, which only warns": (replace(BAD, severity=Severity.WARN),),
    }


def beside_a_baseline() -> dict[str, tuple[Gate, ...]]:
    moved = replace(ROW, id=f"{ROW.id}/end-to-end", measured=7.5e13)
    hot = replace(
        ROW,
        device="gpu:3",
        status=GateStatus.FAIL,
        measured=6e13,
        class_=GateClass.THERMAL,
        reason="20.0 % worse, 5 % is allowed; heat",
        next=("cool it",),
    )
    return {
        "what passed stands in one table": (ROW, moved, GOOD),
        "every device has its row with its interval": tuple(
            hot if at == 3 else replace(ROW, device=f"gpu:{at}") for at in range(8)
        ),
        "what is allowed has a column where it differs": (
            ROW, replace(ROW, id=f"{ROW.id}/end-to-end", tolerance_percent=8.0),
        ),
    }  # fmt: skip


def test_gates_are_shown_as_recorded() -> None:
    screens = {}
    for name, gates in (causes() | verdicts()).items():
        screens[name] = drawn(*gates, width=100)
        screens[f"{name}, with -v"] = drawn(*gates, width=100, verbosity=1)
    for name, gates in beside_a_baseline().items():
        screens[name] = drawn(*gates, baseline=BEFORE, profile=None, width=120)
    screens["quiet leaves out what passed"] = drawn(GOOD, BAD, verbosity=-1)
    warned = replace(result(*verdicts()["passed with a warning"]), profile=USE)
    screens["with --strict a warning fails"] = render(report(warned, code=ExitCode.BAD), View())
    text = in_sections(screens)

    assert text == recorded("gates-view", text)


def test_an_interruption_is_told_by_the_verdict_alone() -> None:
    stopped = replace(
        GOOD,
        id="processes",
        status=GateStatus.INCONCLUSIVE,
        reason="the process that measured gpu:0 was interrupted",
        evidence=(Evidence("worker-interrupted", "1 of 5 processes"),),
    )
    found = replace(result(GOOD, stopped), profile=USE)
    texts = [
        render(report(found, code=code), View())
        for code in (ExitCode.INTERRUPTED, ExitCode.INCONCLUSIVE)
    ]

    assert ["was interrupted" in text for text in texts] == [False, True]
    assert texts[0].splitlines()[-1] == "INTERRUPTED  2 checks: 1 undecided, 1 passed"


def shown(factor: float = 1.0, view: View | None = None, driver: str = "580.95.05") -> str:
    second = run(7e14 * factor)
    (device,) = second.devices
    changed = replace(device, fingerprint=replace(device.fingerprint, driver=driver))
    found = compare_runs(
        run(), replace(second, devices=(changed,)), files=(Path("a.json"), Path("b.json"))
    )
    answer = conclude_comparison(found, Host())
    return render(
        report(found, code=answer.exit_code, failure=answer.error, command="compare"),
        view or View(width=120),
    )


def test_comparisons_are_shown_as_recorded() -> None:
    same = compare_runs(run(), run(), files=(Path("a.json"), Path("b.json")))
    row = replace(same.rows[0], unit="GB/s", first=2036.4, second=801.5, interval=(0.01, 400.0))
    wide = report(replace(same, rows=(row,)), command="compare")
    text = in_sections(
        {
            "a row that is slower": shown(0.9),
            "nothing got slower": shown(),
            "keys that differ": shown(driver="590.1"),
            "a profile's unit gets no second prefix": render(wide, View(width=120)),
        }
    )

    assert text == recorded("compare-view", text)


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_get_all_of_it_without_a_cut(width: int) -> None:
    text = shown(0.9, View(width=width))

    assert "…" not in text
    joined = " ".join(text.split())
    for part in ("700", "630 TFLOP/s", "-10.0 %", "FAIL"):
        assert part in joined


@pytest.mark.parametrize(
    ("row_id", "other_id", "name"),
    [
        ("copy/numpy-1-thread/float32/8x8/threads=1", "copy/numpy/float32/8x8/threads=2",
         "copy float32 numpy, 1 thread"),
        ("softmax/softmax-1-thread/float32/8x8/framework=jax/form=jax.jit/threads=1",
         "softmax/softmax/float32/8x8/framework=pytorch/form=eager/threads=2",
         "softmax float32 jax.jit, 1 thread"),
        ("transfer/to-gpu-pinned/float32/8x8/framework=pytorch/form=eager", "",
         "transfer float32 PyTorch eager to GPU, pinned"),
        ("batch/batch/float32/1/framework=pytorch/form=eager/threads=2",
         "batch/numpy/float32/64/threads=2", "batch float32 PyTorch eager, 1 image, 2 threads"),
        ("train/numpy/float32/100/threads=2", "train/numpy/float32/512/threads=2",
         "train float32 numpy, batches of 100 images, 2 threads"),
    ],
)  # fmt: skip
def test_rows_are_named_as_bench_names_them(row_id: str, other_id: str, name: str) -> None:
    names = row_names([row_id, other_id] if other_id else [row_id])

    assert names[row_id] == name


def test_outside_text_cannot_steer_the_terminal() -> None:
    text = shown(driver=HOSTILE)

    assert "\x1b" not in text
    assert "\x00" not in text


PROBLEM = Problem(
    line=17,
    where="check[0].unit",
    code="wrong-unit",
    message="copy is measured in B/s, and 'GBs' is not a unit of that",
    mend="Did you mean 'GB/s'?",
)
PATH = "/a/rather/long/path/that/no/narrow/terminal/holds/in/one/line/nodes.toml"


def drawn_profile(found: ProfileResult, width: int = 80) -> str:
    return render(report(found, command="profile"), View(width=width))


def file(*problems: Problem) -> ProfileFile:
    return ProfileFile(path=PATH, name="nodes", version=3, description="d", problems=problems)


def test_profiles_are_shown_as_recorded() -> None:
    listed = replace(file(), seconds=75.0, description="minutes: speed and heat of a node")
    explained = ProfileResult(
        action=ProfileAction.EXPLAIN, files=(file(),), boards_left_out=24,
        limits=explain(load_profile("default"), "H100 SXM"),
    )  # fmt: skip
    found = {
        "a mistake is told as compilers do": ProfileResult(
            action=ProfileAction.LINT, files=(file(PROBLEM),)
        ),
        "limits, and boards that are left out": explained,
        "profiles with name, time and purpose": ProfileResult(
            action=ProfileAction.LIST, files=(listed,)
        ),
    }
    text = in_sections(
        {
            f"{name}, {width} columns": drawn_profile(result, width)
            for name, result in found.items()
            for width in (50, 100)
        }
    )

    assert text == recorded("profile-view", text)


# ------------------------------------------------------------------------------------ screens


def a_baseline_with_trouble(view: View) -> str:
    """Return eight GPUs against a baseline: one hot, two whose figures are too uncertain."""
    hot = replace(
        ROW,
        device="gpu:3",
        status=GateStatus.FAIL,
        measured=6e13,
        interval=(5.9e13, 6.1e13),
        class_=GateClass.THERMAL,
        reason="20.0 % worse, 5 % is allowed; heat held the clock down for 80 % of the run",
        evidence=BAD.evidence,
        next=(f"Look for the cause: {COMMAND}",),
    )
    noisy = replace(
        ROW,
        id=f"{ROW.id}/end-to-end",
        status=GateStatus.INCONCLUSIVE,
        class_=GateClass.NOISE,
        reason="2.0 % worse, but the noise spans the limit of 5 %",
        next=("repeat it with more processes (--processes 10, or processes in a profile)",),
    )
    gates = [hot if at == 3 else replace(ROW, device=f"gpu:{at}") for at in range(8)]
    gates += [replace(noisy, device=f"gpu:{at}") for at in (1, 2)]
    found = replace(result(*gates), baseline=BEFORE)
    return render(report(found, code=ExitCode.BAD), view)


def a_profile_with_one_silent_worker(view: View) -> str:
    """Return what a silent worker, a slow GPU and a missing baseline amount to."""
    silent = replace(
        GOOD,
        device="gpu:5",
        status=GateStatus.INCONCLUSIVE,
        measured=None,
        limit=None,
        values=(),
        class_=GateClass.ENVIRONMENT,
        reason="the process that measured gpu:5 gave no answer within 84 s, "
        "while 25 programs shared 2 cores",
        next=("run it again when the machine is idle",),
    )
    names = ("processes", "matmul", "copy", "results", "softmax", "triad", "launch", "corruption")
    skipped = replace(silent, status=GateStatus.SKIP, id="cpu", reason="there is no baseline")
    gates = (GOOD, BAD, *(replace(silent, id=name) for name in names), skipped)
    found = replace(result(*gates), profile=USE)
    return render(report(found, code=ExitCode.BAD), view)


def two_runs_of_which_one_row_is_slower(view: View) -> str:
    """Return what `compare` says of a GPU that lost 20 %, beside one that kept its speed."""
    factors = (0.999, 1.0, 1.001, 1.0, 0.9995)
    first, second = (
        saved_run(runs, row_series(runs), time="2026-11-21T03:32:00Z", profile=None)
        for runs in (
            runs_of({"gpu:0": [7e14 * f for f in factors], "gpu:1": [gpu_1 * f for f in factors]})
            for gpu_1 in (7e14, 5.6e14)
        )
    )
    found = compare_runs(first, second, files=("before.json", "after.json"))
    code = conclude_comparison(found, Host()).exit_code
    return render(report(found, code=code, command="compare"), view)


def a_saved_run(view: View) -> str:
    """Return what `bench --save` shows: the figures of five processes, and its checks."""
    gates = [
        replace(GOOD, id=name, unit="", measured=0.0, limit=0.0, direction=Direction.LOWER)
        for name in ("processes", "results", "not-finite")
    ]
    rows = (measurement("copy", 2e10), measurement("copy", 2.9e12, device="gpu:0"))
    return render(report(replace(result(*gates), measurements=rows)), view)


SCREENS = {
    "compare": two_runs_of_which_one_row_is_slower,
    "save": a_saved_run,
    "baseline-trouble": a_baseline_with_trouble,
    "profile-silent": a_profile_with_one_silent_worker,
}


@pytest.mark.parametrize("width", [50, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_screens_are_as_recorded(name: str, width: int) -> None:
    text = SCREENS[name](View(width=width))

    assert text == recorded(f"{name}-{width}", text)
    assert all(len(line) <= width for line in text.splitlines() if COMMAND not in line)
