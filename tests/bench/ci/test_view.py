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
from gpucheck.report.envelope import Evidence, Host
from gpucheck.report.errors import ExitCode
from gpucheck.report.formats.table import render
from gpucheck.report.text import View
from tests.bench.ci.test_compare import row_series, run, runs_of, saved_run
from tests.fakes.bench_results import measurement
from tests.fakes.verdicts import HOSTILE, report, result
from tests.report.formats.recorded import recorded

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


def test_below_the_verdict_stands_what_failed_with_figure_limit_class_reason_and_step() -> None:
    lines = drawn(GOOD, BAD).splitlines()

    assert lines[2:5] == [
        "profile nodes version 3, 5 processes of each device",
        "FAIL  2 checks: 1 failed, 1 passed",
        "",
    ]
    assert lines[5] == "✗ matmul on gpu:7: 640 TFLOP/s, at least 739.4 TFLOP/s (thermal)"
    assert lines[6].strip() == "19.5 % below 795 (-20.1 to -18.9 %): heat"
    assert lines[7].strip() == "seen temperature 91 C at most"


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


def test_a_figure_without_a_prefix_of_its_own_gets_one() -> None:
    raw = replace(BAD, unit="FLOP/s", measured=5.9e14, limit=6.1e14)

    assert "590 TFLOP/s, at least 610 TFLOP/s" in drawn(raw)
    passed = replace(raw, status=GateStatus.PASS, reason=None)
    two = drawn(passed, replace(passed, device="gpu:8", measured=6e14), verbosity=1)
    assert "590 TFLOP/s to 600 TFLOP/s" in two


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_command_to_copy_is_never_broken(width: int) -> None:
    lines = drawn(replace(BAD, next=(f"Look: {COMMAND}",)), width=width).splitlines()

    assert COMMAND in [line.strip() for line in lines]


def test_eight_gpus_that_pass_are_counted_and_verbose_shows_them_in_one_line() -> None:
    gates = [replace(GOOD, device=f"gpu:{at}", measured=800.0 + at) for at in range(8)]

    assert drawn(*gates).splitlines()[-1] == "PASS  8 checks passed"
    assert "matmul" not in drawn(*gates)
    text = drawn(*gates, verbosity=1, width=100)
    assert "✓ matmul on gpu:0-7: 800 TFLOP/s to 807 TFLOP/s, at least 739.4 TFLOP/s" in text


def test_one_cause_is_said_once_with_the_rows_it_touches() -> None:
    silent = replace(
        GOOD,
        status=GateStatus.INCONCLUSIVE,
        measured=None,
        limit=None,
        class_=GateClass.ENVIRONMENT,
        next=("run it again when the machine is idle",),
    )
    gates = [
        replace(silent, id=name, device=device, reason=f"{device} gave no answer within 84 s")
        for name in ("matmul", "copy", "processes")
        for device in ("gpu:3", "gpu:4", "gpu:5")
    ]

    lines = drawn(*gates, GOOD, BAD).splitlines()

    at = lines.index("? matmul, copy, processes on gpu:3-5: not measured (environment)")
    assert lines[at + 1].strip() == "gpu:3 gave no answer within 84 s"
    assert lines[at + 2].strip() == "→ run it again when the machine is idle"
    assert lines.index("✗ matmul on gpu:7: 640 TFLOP/s, at least 739.4 TFLOP/s (thermal)") < at
    assert sum("no answer" in line for line in lines) == 1


def test_gates_with_the_same_steps_keep_their_own_figures_and_say_the_steps_once() -> None:
    hot = [
        replace(BAD, device=f"gpu:{at}", measured=600.0 + at, reason=f"{at}.5 % below 795: heat")
        for at in range(5)
    ]

    lines = [line.strip() for line in drawn(*hot).splitlines()]

    at = lines.index("✗ matmul on gpu:0: 600 TFLOP/s, at least 739.4 TFLOP/s (thermal)")
    assert lines[at + 1] == "0.5 % below 795: heat"
    assert lines[at + 2].startswith("✗ matmul on gpu:1: 601 TFLOP/s")
    assert lines[at + 6] == "2 more: add -v"
    assert sum("nvidia-smi" in line for line in lines) == 1
    assert "✗ matmul on gpu:4: 604 TFLOP/s" in drawn(*hot, verbosity=1)


def test_quiet_leaves_out_what_passed_and_verbose_shows_each() -> None:
    gates = (GOOD, replace(GOOD, device="gpu:1"), BAD)

    assert "gpu:0" not in drawn(*gates, verbosity=-1)
    assert "processes on gpu:7: 800 TFLOP/s, 802.5 TFLOP/s" in drawn(*gates, verbosity=1)


@pytest.mark.parametrize(
    ("gate", "word"),
    [
        (GOOD, "PASS  1 check passed"),
        (BAD, "FAIL  1 check failed"),
        (replace(BAD, status=GateStatus.INCONCLUSIVE), "INCONCLUSIVE  1 check undecided"),
        (replace(GOOD, status=GateStatus.SKIP), "INCONCLUSIVE  1 check skipped"),
        (replace(GOOD, warning=True, reason="close"), "PASS  1 check: 1 passed, 1 with a warning"),
        (replace(BAD, severity=Severity.WARN), "INCONCLUSIVE  1 check failed"),
    ],
)
def test_the_verdict_counts_the_checks(gate: Gate, word: str) -> None:
    assert drawn(gate).splitlines()[3] == word


def test_a_step_of_two_things_is_two_and_a_command_stands_alone() -> None:
    gate = replace(BAD, next=("list them: gpucheck list --processes; run it again then",))

    lines = [line.strip() for line in drawn(gate).splitlines()]

    at = lines.index("1. list them:")
    assert lines[at + 1 : at + 3] == ["gpucheck list --processes", "2. run it again then"]


def test_with_strict_the_verdict_is_the_exit_codes() -> None:
    found = replace(result(replace(GOOD, warning=True, reason="close")), profile=USE)

    text = render(report(found, code=ExitCode.BAD), View())

    assert text.splitlines()[3].startswith("FAIL  1 check")


def test_a_terminal_without_unicode_gets_ascii_and_names_cannot_steer_it() -> None:
    text = drawn(replace(BAD, reason="bad \x1b[2J"), unicode=False)

    assert text.isascii()
    assert "\x1b" not in text
    assert "FAIL matmul on gpu:7" in text


def test_what_is_skipped_says_once_what_would_help() -> None:
    skipped = replace(
        GOOD,
        status=GateStatus.SKIP,
        limit=None,
        reason="there is no baseline",
        next=("keep this run with --save FILE",),
    )
    gates = (skipped, replace(skipped, device="gpu:1"), replace(skipped, id="copy"))
    lines = [line.strip() for line in drawn(*gates, width=120).splitlines()]

    assert lines[5] == (
        "– matmul on gpu:0-1; copy on gpu:0: 801.2 TFLOP/s: there is no baseline"
    ), "it has no limit to show"
    assert lines[6] == "→ keep this run with --save FILE"


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


def test_a_run_against_a_baseline_is_one_verdict_and_one_table() -> None:
    moved = replace(ROW, id=f"{ROW.id}/end-to-end", measured=7.5e13)
    lines = drawn(ROW, moved, GOOD, baseline=BEFORE, profile=None, width=120).splitlines()

    assert lines[2] == (
        "PASS  2 of 2 rows keep 95 % of before.json (2026-11-22, driver 575.64.05): "
        "nothing got slower; 1 check passed"
    )
    assert lines[4].split() == ["device", "row", "before", "now", "change", "90", "%", "interval"]
    assert lines[5].split() == [
        *("✓", "gpu:0", "matmul", "float32", "cublas", "75.0", "74.0", "TFLOP/s"),
        *("-1.3", "%", "-2.7", "to", "+0.0", "%"),
    ]
    assert "cublas with transfers   75.0 75.0 TFLOP/s +0.0 %" in lines[6]
    assert len(lines) == 7, "what passed stands in the table"


def test_every_device_has_its_row_with_its_interval() -> None:
    bad = replace(
        ROW,
        device="gpu:3",
        status=GateStatus.FAIL,
        measured=6e13,
        class_=GateClass.THERMAL,
        reason="20.0 % worse, 5 % is allowed; heat",
        next=("cool it",),
    )
    gates = [bad if at == 3 else replace(ROW, device=f"gpu:{at}") for at in range(8)]

    lines = drawn(*gates, baseline=BEFORE, profile=None, width=100).splitlines()

    assert lines[2].startswith("FAIL  1 of 8 rows over 5 % slower than before.json")
    assert [line.split()[:2] for line in lines[5:13]] == [
        ["✗" if at == 3 else "✓", f"gpu:{at}"] for at in range(8)
    ]
    assert all("-2.7 to +0.0 %" in line for line in lines[5:13])
    at = lines.index(
        "✗ matmul float32 cublas on gpu:3: 60.0 TFLOP/s, at least 739 FLOP/s (thermal)"
    )
    assert lines[at + 1].strip() == "20.0 % worse, 5 % is allowed; heat"


def test_what_is_allowed_has_a_column_only_where_it_differs() -> None:
    other = replace(ROW, id=f"{ROW.id}/end-to-end", tolerance_percent=8.0)
    lines = drawn(ROW, other, baseline=BEFORE, profile=None, width=120).splitlines()

    assert lines[4].split()[-1] == "allowed"
    assert [line.split()[-2:] for line in lines[5:7]] == [["-5", "%"], ["-8", "%"]]
    assert "keep enough of before.json" in lines[2]


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


def test_rows_of_the_processor_are_named_as_bench_names_them() -> None:
    ids = ("copy/numpy-1-thread/float32/8x8/threads=1", "copy/numpy/float32/8x8/threads=2")

    assert [*row_names(ids).values()] == [
        "copy float32 numpy, 1 thread",
        "copy float32 numpy, 2 threads",
    ]


def test_rows_of_frameworks_are_named_as_bench_names_them() -> None:
    ids = (
        "softmax/softmax-1-thread/float32/8x8/framework=jax/form=jax.jit/threads=1",
        "softmax/softmax/float32/8x8/framework=pytorch/form=eager/threads=2",
        "transfer/to-gpu-pinned/float32/8x8/framework=pytorch/form=eager",
    )

    assert [*row_names(ids).values()] == [
        "softmax float32 jax.jit, 1 thread",
        "softmax float32 PyTorch eager, 2 threads",
        "transfer float32 PyTorch eager to GPU, pinned",
    ]


def test_rows_that_differ_in_their_batches_say_how_many_images() -> None:
    ids = (
        "batch/batch/float32/1/framework=pytorch/form=eager/threads=2",
        "batch/numpy/float32/64/threads=2",
        "train/numpy/float32/100/threads=2",
        "train/numpy/float32/512/threads=2",
    )

    assert [*row_names(ids).values()] == [
        "batch float32 PyTorch eager, 1 image, 2 threads",
        "batch float32 numpy, 64 images, 2 threads",
        "train float32 numpy, batches of 100 images, 2 threads",
        "train float32 numpy, batches of 512 images, 2 threads",
    ]


def test_a_row_shows_ratio_interval_and_verdict() -> None:
    text = shown(0.9)

    (line,) = [line for line in text.splitlines() if line.startswith("✗ gpu:0")]
    assert line.split()[5:] == [
        *("700", "630", "TFLOP/s", "-10.0", "%", "-10.8", "to", "-9.2", "%"),
    ]
    said = " ".join(text.split())
    assert "no load, no throttling and no limit explains it" in said
    assert "(hardware)" in said
    assert text.splitlines()[2] == (
        "FAIL  1 of 1 row over 5 % slower than a.json (2026-11-21, driver 580.95.05)"
    )


def test_a_good_comparison_is_short() -> None:
    assert len(shown().splitlines()) == 6
    assert "PASS  1 of 1 row keeps 95 % of a.json" in shown()
    assert "nothing got slower" in shown()


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_narrow_terminals_get_all_of_it_without_a_cut(width: int) -> None:
    text = shown(0.9, View(width=width))

    assert "…" not in text
    joined = " ".join(text.split())
    for part in ("700", "630 TFLOP/s", "-10.0 %", "FAIL"):
        assert part in joined


def test_the_differing_keys_are_named() -> None:
    assert "driver: 580.95.05 -> 590.1" in shown(driver="590.1")


def test_ascii_terminals_get_ascii() -> None:
    assert shown(0.9, View(width=60, unicode=False)).isascii()


def test_outside_text_cannot_steer_the_terminal() -> None:
    text = shown(driver=HOSTILE)

    assert "\x1b" not in text
    assert "\x00" not in text


def test_a_profiles_unit_gets_no_second_prefix_and_a_wide_interval_is_cut() -> None:
    found = compare_runs(run(), run(), files=(Path("a.json"), Path("b.json")))
    row = replace(found.rows[0], unit="GB/s", first=2036.4, second=801.5, interval=(0.01, 400.0))
    text = render(report(replace(found, rows=(row,)), command="compare"), View(width=120))

    assert " 2036 " in text
    assert "801.5 GB/s" in text
    assert "-99.0 to over +1000 %" in text


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


@pytest.mark.parametrize("width", [40, 120])
def test_a_mistake_is_told_as_compilers_do(width: int) -> None:
    text = drawn_profile(ProfileResult(action=ProfileAction.LINT, files=(file(PROBLEM),)), width)

    assert f"{PATH}:17 mistake wrong-unit\n" in text
    assert "fix: Did you mean 'GB/s'?" in text
    assert text.startswith("FAIL  1 mistake in 1 of 1 profile\n")


def test_a_limit_is_one_statement() -> None:
    limits = explain(load_profile("default"), "H100 SXM")

    lines = drawn_profile(
        ProfileResult(action=ProfileAction.EXPLAIN, files=(file(),), limits=limits), width=100
    ).splitlines()

    assert "on H100 SXM" in lines
    assert (
        "matmul-bfloat16  at least 622 TFLOP/s  63 % of 989 (good boards reach 74 %, less 15 %)"
        in lines
    )
    assert "throttle-power-brake       at most 0 s" in [
        " ".join([line[:26], line[27:].strip()]) for line in lines
    ]


def test_boards_that_are_left_out_are_counted() -> None:
    found = ProfileResult(action=ProfileAction.EXPLAIN, files=(file(),), boards_left_out=24)

    assert drawn_profile(found).splitlines()[-1] == "24 boards that are not here: add --all-boards"


@pytest.mark.parametrize("width", [50, 80])
def test_profiles_are_a_table_with_name_time_and_purpose(width: int) -> None:
    listed = replace(file(), seconds=75.0, description="minutes: speed and heat of a node")

    lines = drawn_profile(ProfileResult(action=ProfileAction.LIST, files=(listed,)), width)

    assert lines.splitlines()[:2] == [
        "name   takes      for",
        "nodes  from 75 s  speed and heat of a node",
    ]


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
