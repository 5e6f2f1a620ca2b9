"""Rules over the lines of a log: what matches, which is the first cause, and how it streams."""

from __future__ import annotations

import gzip
import io
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.data import FOLDER, read_table
from gpucheck.detect import log
from gpucheck.detect.checks import CHECKS
from gpucheck.detect.log import (
    BLOCK_BYTES,
    ENDED_LINES,
    INTERLEAVED_LINES,
    MOST_EXCERPT,
    MOST_LINE_BYTES,
    NOT_LOOKED,
    RETRIED_LINES,
    Level,
    LogVerdict,
    Match,
    Scan,
    Seen,
    check_log,
    conclusion,
    first_causes,
    read_log,
    rules,
    scan,
)
from gpucheck.detect.log_view import blocks
from gpucheck.detect.run import explain_check
from gpucheck.drivers import open_probes
from gpucheck.drivers.host.files import open_log
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.report.blocks import Headline
from gpucheck.report.envelope import TOOL, CheckStatus, Report, Status
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.host import Host
from gpucheck.report.text import View
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of
from tests.report.formats.recorded import in_lines, recorded

LOGS = Path(__file__).parents[1] / "data" / "logs"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.00 MiB."


def read(text: str | bytes, block: int = 1 << 20) -> Scan:
    """Return the scan of a text that comes in blocks of so many bytes."""
    data = text if isinstance(text, bytes) else text.encode()
    found = Scan()
    for start in range(0, len(data), block):
        found.feed(data[start : start + block])
    found.close()
    return found


def named(text: str | bytes, block: int = 1 << 20) -> tuple[str, int] | None:
    """Return the class and the line of the first cause."""
    causes, _ = first_causes(read(text, block).matches.values())
    return (causes[0].class_, causes[0].line) if causes else None


# ------------------------------------------------------------------------------------- the rules


def test_every_rule_is_of_literals_and_complete() -> None:
    classes = read_table("log_rules")["class"]
    ids = {check.ID: explain_check(check).causes for check in CHECKS}
    known = {cause for causes in ids.values() for cause in causes}
    offenders = [
        rule.id
        for rule in rules().values()
        if not (
            rule.lines
            and all(_is_chain(chain) for chain in (*rule.lines, *((x,) for x in rule.without)))
            and rule.class_ in classes
            and {*rule.consequences} <= {*classes}
            and {*rule.checks} <= {*ids}
            and all(cause in known or cause.startswith("xid-") for cause in rule.causes)
            and rule.says
            and rule.says == rule.says.strip(".")
            and rule.remedy
        )
    ]

    assert not offenders
    assert {row["class"] for row in read_table("log_rules")["row"]} == {*classes}


def _is_chain(chain: tuple[str, ...]) -> bool:
    """Return whether a pattern can only be compared, so that it takes linear time."""
    bare = [part.removeprefix("^").removesuffix("$") for part in chain]
    plain = all(part.isascii() and part.isprintable() and part == part.lower() for part in bare)
    return plain and all(bare) and 3 <= max(map(len, bare)) <= 120


def test_the_example_of_each_rule_is_found_by_it_and_is_of_its_class() -> None:
    offenders = [
        rule.id
        for rule in rules().values()
        if rule.id not in read(rule.example).matches or named(rule.example) != (rule.class_, 1)
    ]

    assert not offenders


def test_no_number_of_cuda_belongs_to_two_rules() -> None:
    codes = [code for rule in rules().values() for code in rule.codes]

    assert len(codes) == len({*codes})


@pytest.mark.parametrize("folder", ["open"])
def test_the_labelled_logs_are_named_as_their_labels_say(folder: str) -> None:
    rows = tomllib.loads((LOGS / folder / "labels.toml").read_text(encoding="utf-8"))["log"]
    wrong = {
        row["file"]: found
        for row in rows
        if (found := named((LOGS / folder / row["file"]).read_bytes()) or ("none", 0))
        != (row["class"], row["line"])
    }

    assert not wrong
    assert {*[row["file"] for row in rows]} == {path.name for path in (LOGS / folder).glob("*.log")}


def test_the_open_logs_of_projects_are_named_as_their_labels_say() -> None:
    folder = LOGS / "projects_open"
    rows = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["log"]
    found = {row["file"]: named((folder / row["file"]).read_bytes()) or ("none", 0) for row in rows}

    assert not [row["file"] for row in rows if found[row["file"]][0] != row["class"]]
    # Two have an earlier line that tells the same, two a warning before the error.
    assert [row["file"] for row in rows if found[row["file"]][1] != row["line"]] == [
        "librispeech-neon.log", "tf-keras-5080-jit.log", "tf-laptop-5080-ptx.log",
        "windows-tf-gpu-212.log",
    ]  # fmt: skip
    assert {*found} == {path.name for path in folder.glob("*.log")}


def test_the_halves_of_the_logs_of_projects_are_those_of_their_seed() -> None:
    halves = [
        {path.stem for path in (LOGS / folder).glob("*.log")}
        for folder in ("projects_open", "projects_heldout")
    ]
    names = sorted(set.union(*halves))
    failures = [name for name in names if not name.startswith("healthy-")]
    healthy = [name for name in names if name.startswith("healthy-")]
    draw = random.Random(20261123)
    draw.shuffle(failures)
    draw.shuffle(healthy)

    assert (len(failures), len(healthy)) == (150, 40)
    assert halves[0] == {*failures[:75], *healthy[:20]}


@pytest.mark.parametrize(
    ("name", "counts"),
    [("projects_fresh", (75, 20)), ("projects_fresh2", (75, 40)), ("healthy_fresh", (0, 40))],
)
def test_the_fresh_logs_have_the_form_of_their_labels(name: str, counts: tuple[int, int]) -> None:
    folder = LOGS / name
    rows = tomllib.loads((folder / "labels.toml").read_text(encoding="utf-8"))["log"]
    lines = {path.name: path.read_text("utf-8").splitlines() for path in folder.glob("*.log")}
    healthy = [row for row in rows if row["file"].startswith("healthy-")]

    assert [row["file"] for row in rows] == sorted(lines)
    assert (len(rows) - len(healthy), len(healthy)) == counts
    assert {row["class"] for row in healthy} == {"none"}
    assert {row["class"] for row in rows} <= {rule.class_ for rule in rules().values()} | {"none"}
    first_run = {"first_found", "first_found_line"}
    assert all(row.keys() - first_run == {"file", "class", "line", "source"} for row in rows)
    assert all((row["line"] == 0) == (row["class"] == "none") for row in rows)
    assert all(row["line"] <= len(lines[row["file"]]) for row in rows)
    assert all(5 <= len(text) <= 60 for text in lines.values())


@pytest.mark.parametrize("name", ["projects_fresh", "projects_fresh2", "healthy_fresh"])
def test_no_thread_of_the_fresh_logs_is_in_another_folder(name: str) -> None:
    sources = {
        path.parent.name: [
            row["source"] for row in tomllib.loads(path.read_text(encoding="utf-8"))["log"]
        ]
        for path in LOGS.glob("*/labels.toml")
    }
    fresh = sources.pop(name)

    assert len(fresh) == len({*fresh})
    assert not {*fresh} & {source for others in sources.values() for source in others}


@pytest.mark.parametrize(
    ("folder", "least"),
    [
        ("heldout", 87),
        ("heldout_recent", 66),
        ("projects_heldout", 95),
        ("projects_fresh", 93),
        ("projects_fresh2", 108),
    ],
)
def test_the_logs_kept_aside_are_named_at_least_as_well_as_before(folder: str, least: int) -> None:
    rows = tomllib.loads((LOGS / folder / "labels.toml").read_text(encoding="utf-8"))["log"]
    found = {
        row["file"]: (named((LOGS / folder / row["file"]).read_bytes()) or ("none",))[0]
        for row in rows
    }

    assert sum(found[row["file"]] == row["class"] for row in rows) >= least
    assert {*found} == {path.name for path in (LOGS / folder).glob("*.log")}


def test_logs_of_healthy_programs_that_warn_have_no_cause() -> None:
    folders = (
        *("heldout_recent", "projects_open", "projects_heldout", "projects_fresh"),
        *("projects_fresh2", "healthy_fresh"),
    )
    healthy = [path for name in folders for path in (LOGS / name).glob("*healthy-*.log")]

    assert len(healthy) == 145
    assert [path.name for path in healthy if named(path.read_bytes())] == []


MESSAGES = tomllib.loads((LOGS / "messages.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("class_", MESSAGES)
def test_a_message_alone_has_its_class(class_: str) -> None:
    expected = None if class_ == "none" else (class_, 1)

    assert [line for line in MESSAGES[class_] if named(line) != expected] == []


# ----------------------------------------------------------------------------------- interrupted


class Endless(io.BufferedIOBase):
    """A pipe that gives these pieces and then waits, until somebody presses Ctrl-C."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [*pieces]

    def read1(self, _size: int = -1, /) -> bytes:
        if not self.pieces:
            raise KeyboardInterrupt
        return self.pieces.pop(0)


def test_an_interrupted_log_is_judged_by_what_came() -> None:
    found = scan(Endless(b"step 1\nRuntimeErr", f"or: {OOM}\nMemory".encode(), b"Error"))
    answer = check_log("-", found, FakeProbes())

    assert found.interrupted
    assert isinstance(answer.result, LogVerdict)
    assert answer.result.cause is not None
    assert (answer.result.cause.line, answer.result.lines) == (2, 3)
    assert [match.rule for match in answer.result.causes] == [
        "cuda-out-of-memory", "python-memory-error",
    ]  # fmt: skip
    assert answer.result.live == NOT_LOOKED[0]
    assert answer.result.remedy
    assert answer.exit_code is ExitCode.INTERRUPTED
    assert answer.error is not None
    assert answer.error.message == "Interrupted after 3 lines of the log."


def test_a_block_whose_reading_was_interrupted_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupts, numbers = ["Ctrl-C"], log._numbers

    def interrupted(text: bytes) -> Iterator[tuple[int, int, int]]:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        yield from numbers(text)

    monkeypatch.setattr(log, "_numbers", interrupted)
    block = f"step 1\nRuntimeError: {OOM}\n".encode().ljust(BLOCK_BYTES, b".")

    found = scan(Endless(block))

    assert found.interrupted
    assert (found.size_bytes, found.lines) == (BLOCK_BYTES, 3)
    assert [(match.rule, match.line) for match in found.matches.values()] == [
        ("cuda-out-of-memory", 2)
    ]


def test_an_interrupted_log_without_a_cause_is_not_well() -> None:
    answer = check_log("-", scan(Endless(b"step 1\n")), FakeProbes())

    assert answer.exit_code is ExitCode.INTERRUPTED
    assert isinstance(answer.result, LogVerdict)
    assert answer.result.cause is None


# ------------------------------------------------------------------------------------- one line


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error 802", "CUDA error: 802", "CUDA error (802): x", "CUDA error(802), x",
        "cuda runtime error (802) : x", "CUDA error code: 802", "CUDA failure 802: x",
        "Unexpected error from cudaGetDeviceCount(). Error 802: x", "CUDA error: x (code 802, X)",
        "CUDA error at a.cu:256 code=802(x)", "Check failed: e == cudaSuccess (802 vs. 0) : x",
        "cudaGetDeviceProperties returned 802", "THCudaCheck FAIL file=a line=1 error=802 : x",
        "numba: [802] Call to cuInit results in X", "ollama[16]: cuInit err: 802",
        'msg="x libcuda.so.570: cuda driver library init failure: 802"', "cudaSetDevice err: 802",
        "Unable to load cudart library x: cudart init failure: 802",
    ],
)  # fmt: skip
def test_error_numbers_are_read_in_every_spelling(line: str) -> None:
    assert named(line) == ("fabric-manager", 1)


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error 8020", "CUDA error 1802", "CUDA errors: 12 of 802", "error 802: no device",
        "cuda: 802 ms", "CUDA error 80200000", "error=802 :", "(802 vs. 0)",
        "curl err: 35", "CUDA management library x: nvml vram init failure: 2",
        "NVRM: Xid (PCI:0000:44:00): 790, x", "NVRM: Xid (PCI:0000:44:00): 7, 79, x",
        "exitcode: -90", "exitcode: -159 x", "failed call to cuInit: x1303 x", "Killed 3 workers",
        "killed", "not Killed today",
        '    raise RuntimeError("CUDA out of memory")', "oomkilled: false",
    ],
)  # fmt: skip
def test_near_matches_are_none(line: str) -> None:
    assert named(line) is None or line == "killed"


def test_a_line_of_source_is_no_message_but_one_that_raises_is() -> None:
    assert named("raise MemoryError(x)\n[rank0]:     raise CudaError('cuda out of memory')") is None
    assert named("raise CudaError('cuda out of memory')") is None
    assert named("we raise it: CUDA out of memory") == ("cuda-oom", 1)


@pytest.mark.parametrize(
    "line",
    [
        f"tests/a.py::test_b[{OOM}] PASSED [ 12%]", f"tests/a.py::test_b[{OOM}] PASSED",
        f"[gw1] [ 12%] PASSED tests/a.py::test_b[{OOM}]", f"tests/a.py::t SKIPPED ({OOM}) [ 2%]",
        "test_cuda_error_illegal_address (a.Test) ... ok", "[       OK ] A.cudaErrorAssert (3 ms)",
        "[ RUN      ] A.cudaErrorMemoryAllocation", "tests/a.py::test_n[CUDA error 802] PASSED",
        "1/3 Test #1: cudaErrorAssert ...   Passed    0.41 sec", "ok 2 - tells of CUDA error: 802",
        "--- PASS: TestOOMKilled (0.02s)", "SKIPPED [1] a.py:5: no CUDA GPUs are available",
        f"  ✓ survives {OOM}", "[  PASSED  ] A.cudaErrorAssert",
    ],
)  # fmt: skip
def test_a_test_that_passed_is_no_failure(line: str) -> None:
    assert named(line) is None
    assert named(f"{line}\n{OOM}") == ("cuda-oom", 2)


def test_a_test_that_failed_is_one() -> None:
    assert named(f"FAILED tests/a.py::test_b - {OOM}") == ("cuda-oom", 1)
    assert named(f"12 tests had passed, then {OOM}") == ("cuda-oom", 1)


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_what_ends_a_program_that_has_failed_is_no_cause(block: int) -> None:
    failed = "Traceback (most recent call last):\n  File x\nRuntimeError: y\n"
    ended = "run.sh: line 9:  867080 Killed                  python x.py\n"
    far = "step\n" * ENDED_LINES

    assert named(failed + ended, block) is None
    assert named(failed + "Killed\n" + far + ended, block) == ("killed", 5 + ENDED_LINES)
    assert named(ended + failed + ended, block) == ("killed", 1)
    assert read(ended + failed + ended, block).matches["shell-reports-sigkill"].matches == 1
    assert named(failed + "Signal 9 (SIGKILL) received by PID 9\n", block) == ("killed", 4)


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_what_a_program_does_in_another_way_is_no_cause(block: int) -> None:
    again = (
        "W sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
    )
    steps = "step\n" * RETRIED_LINES

    assert named(f"{OOM}\nstep\n{again}{steps}", block) is None
    assert named(f"{OOM}\n{again}{steps}{OOM}\n{again}", block) is None
    assert named(f"{OOM}\n{steps}{again}", block) == ("cuda-oom", 1)
    assert named(f"{OOM}\n{again}{OOM}\n", block) == ("cuda-oom", 1)
    assert named(f"{again.strip()}\r{OOM}\n", block) == ("cuda-oom", 1)


def test_what_went_on_after_all_is_no_cause() -> None:
    waits = "Warning  FailedScheduling  0/3 nodes are available: 3 Insufficient nvidia.com/gpu.\n"
    node = "ModuleNotFoundError: No module named 'cupy'\n"

    assert named(waits) == ("container-runtime", 1)
    assert named(waits + "Normal  Scheduled  Successfully assigned ml/train to gpu-1\n") is None
    assert named(waits + "Normal  TriggeredScaleUp  pod triggered scale-up: [{gpu 0->1}]\n") is None
    assert named(node) == ("missing-library", 1)
    assert named(f"{node}\nCannot import /x/y module for custom nodes: No module 'cupy'\n") is None


def test_a_program_that_falls_back_has_not_failed_but_may_warn() -> None:
    falls = "RuntimeError: no CUDA-capable device is detected. Falling back to CPU."

    assert named(falls) is None
    assert named(falls.partition(". ")[0]) == ("no-driver", 1)
    assert named("An NVIDIA GPU: a CUDA-enabled jaxlib is not installed. Falling back to cpu.") == (
        "cpu-only-build", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    "before",
    ["In case of ", "hint: ", "If you see ", "caught expected error: ", "* fix: ", "to avoid "],
)
def test_a_line_that_only_speaks_of_an_error_is_none(before: str) -> None:
    assert named(f"{before}CUDA out of memory") is None
    assert named(f"{OOM} {before}it lower the batch size") == ("cuda-oom", 1)
    assert named("  [Hint: cudaErrorMemoryAllocation. The API call failed.]") == ("cuda-oom", 1)


def test_ends_of_a_line_are_its_own() -> None:
    assert named("  Killed  \n") == ("killed", 1)
    assert named("x Killed") is None
    assert named("No devices were found \n") == ("no-driver", 1)


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-23T10:00:02.123456789Z stderr F ", "2026-11-23T10:00:02.1Z ", "3: ", "app-1  | ",
        "2025-05-30 18:28:27.890 | ", "[pod/train-0/main] ", "[rank3]: ", "[1,3]<stderr>:",
        "(Worker pid=8, ip=10.0.0.1) ", "Nov  3 10:00:01 node-1 run.sh[12]: ",
        "2026-11-23T10:00:02+0100 node-1 run.sh[12]: ", "2024-12-16 17:10:56,767 - root - ERROR - ",
        "(EngineCore_DP0 pid=17) ERROR 09-28 15:47:24 [core.py:718] ", "ERROR:    ",
        "[pod/a/b] 2026-11-23T10:00:02+01:00 [default0]:", "\x1b[0;1;31m",
        "\x1b[36m(W pid=8)\x1b[0m ",
    ],
)  # fmt: skip
def test_what_others_write_before_a_line_is_not_its_beginning(prefix: str) -> None:
    assert named(f"step 1\n{prefix}Killed\n") == ("killed", 2)
    assert named(f"step 1\n{prefix}x Killed\n") is None
    assert named(f"step 1\n{prefix}    raise CudaError('cuda out of memory')\n") is None


@pytest.mark.parametrize("ending", [r"\n", r"\r\n"])
def test_lines_in_dockers_json_files_end_where_the_programs_do(ending: str) -> None:
    line = '{"log":"%s%s","stream":"stdout","time":"2026-11-23T10:00:00.1Z"}\n'

    assert named(line % ("step 1", ending) + line % ("Killed", ending)) == ("killed", 2)
    assert named(line % ("Killed 3 workers", ending)) is None


def test_colours_do_not_split_a_message() -> None:
    coloured = (
        "\x1b[1;35mRuntimeError\x1b[0m: \x1b[35mCUDA \x1b[1merror\x1b[m: out of memory\x1b[0m"
    )

    assert named("    \x1b[1;31mraise CudaError('device-side assert triggered')\x1b[0m") is None
    assert named(coloured) == ("cuda-oom", 1)
    assert read(coloured).matches["cuda-out-of-memory"].excerpt.startswith("RuntimeError: CUDA")
    assert named("│ ❱ 12 │   raise CudaError('cuda out of memory') │") is None


def test_only_the_beginning_of_a_line_is_looked_at() -> None:
    pad = MOST_LINE_BYTES - len("killed by signal: killed")

    assert named("x" * pad + "killed by signal: killed") == ("killed", 1)
    assert named("x" * (pad + 1) + "killed by signal: killed") is None
    assert named("x" * MOST_LINE_BYTES * 3 + f" {OOM}\n{OOM}") == ("cuda-oom", 2)


def test_progress_bars_are_lines_without_a_number() -> None:
    bar = "\r 12%|## | 12/100" * 1000

    assert named(f"start\n{bar}\r{OOM}\r\nend\n") == ("cuda-oom", 2)
    assert named(f"a\r\nb\r\n{OOM}\r\n") == ("cuda-oom", 3)


def test_an_excerpt_shows_the_match_and_no_control_characters() -> None:
    found = read("\x1b[2J" + "x" * 1000 + f"\x00\x07 {OOM} " + "y" * 1000).matches
    excerpt = found["cuda-out-of-memory"].excerpt

    assert "CUDA out of memory" in excerpt
    assert excerpt.isprintable()
    assert "\\x07" in excerpt
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert read(f"\x1b]0;{OOM}").matches["cuda-out-of-memory"].excerpt == f"\\x1b]0;{OOM}"
    for whole in ("é" * 8 + OOM, "x " * 300 + OOM):
        whole = whole[-MOST_EXCERPT:]
        assert read(whole).matches["cuda-out-of-memory"].excerpt == whole
    assert len(excerpt) < MOST_EXCERPT + 20
    number = read("cuda " + "x" * 300 + " (802 vs. 0)").matches["system-not-ready"].excerpt
    assert number == "…" + "x" * 38 + " (802 vs. 0)"


def test_matches_are_counted_up_to_the_last_line() -> None:
    found = read(f"{OOM}\nx\n{OOM}\n{OOM} {OOM}\n").matches["cuda-out-of-memory"]

    assert (found.line, found.matches, found.last_line) == (1, 3, 4)


@given(
    st.lists(
        st.sampled_from(["x", OOM, "Killed", "\r", "\n", "CUDA error 802", "retrying with", "\0"])
    ),
    st.integers(1, 40),
)
def test_blocks_do_not_matter(parts: list[str], block: int) -> None:
    text = "".join(parts)
    whole, cut = read(text), read(text, block)

    assert (cut.matches, cut.lines, cut.size_bytes) == (
        whole.matches,
        whole.lines,
        whole.size_bytes,
    )


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    found = read(data)

    assert found.lines >= data.count(b"\n")
    assert all(match.excerpt.isprintable() for match in found.matches.values())


def test_hostile_input_is_read_in_bounded_memory() -> None:
    found = Scan()
    for piece in (b"CUDA error " * 9000, b"\r" * 90000, bytes(range(1, 10)) * 9000, b"oom\n" * 900):
        found.feed(piece)
        assert len(found._rest) <= MOST_LINE_BYTES

    assert found.lines == 900


# ------------------------------------------------------------------------------------ the cause


def match(rule: str, line: int) -> Match:
    """Return a match of a rule."""
    found = rules()[rule]
    return Match(rule, found.class_, found.level, line, "x", found.says, last_line=line)


def order(*matches: Match) -> list[str]:
    """Return the rules of the causes."""
    return [each.rule for each in first_causes(matches)[0]]


def test_a_cause_comes_before_its_consequences_wherever_they_stand() -> None:
    late = match("cuda-out-of-memory", 1 + INTERLEAVED_LINES)

    assert order(match("collective-timeout", 1), late) == ["cuda-out-of-memory"]
    assert order(match("collective-timeout", 0), late)[0] == "collective-timeout"
    assert order(match("cuda-out-of-memory", 1), match("sigkill", 9000)) == ["cuda-out-of-memory"]


def test_what_may_follow_from_each_other_goes_by_the_line() -> None:
    assert order(match("time-limit", 1), match("nccl-connection", 2)) == ["time-limit"]
    assert order(match("time-limit", 2), match("nccl-connection", 1)) == ["nccl-connection"]
    assert order(match("illegal-address", 2), match("cublas-not-initialized", 1)) == [
        "illegal-address"
    ]


def test_a_line_that_two_rules_know_is_one_message() -> None:
    line = (
        "Operation was explicitly assigned to /device:GPU:2 but available devices are "
        "[ /job:localhost/replica:0/task:0/device:GPU:0 ]\n"
    )
    causes, consequences = first_causes(read(line).matches.values())
    later, follows = first_causes(
        read(f"{line}RuntimeError: No CUDA GPUs detected").matches.values()
    )

    assert [each.rule for each in causes] == ["framework-has-other-gpus"]
    assert consequences == []
    assert [each.rule for each in later] == ["framework-has-other-gpus"]
    assert [each.line for each in follows] == [2]


def test_a_driver_that_fits_and_no_device_are_a_hidden_one() -> None:
    starts = "E cuda_driver.cc:300] failed call to cuInit: %s\n"
    fits = "I cuda_diagnostics.cc:305] kernel version seems to match DSO: 410.78.0\n"

    assert named(starts % "CUDA_ERROR_NO_DEVICE" + fits) == ("hidden-devices", 2)
    assert named(starts % "CUDA_ERROR_UNKNOWN" + fits) == ("no-driver", 1)
    assert named(starts % "CUDA_ERROR_NO_DEVICE" + "No visible GPU devices") == ("no-driver", 1)


def test_what_a_build_lacked_comes_before_that_it_failed() -> None:
    lacked = "OSError: CUDA_HOME environment variable is not set."

    assert named(f"× Failed to build `flash-attn==2.8.3`\n{lacked}") == ("missing-toolkit", 2)
    assert named("g++: fatal error: Killed signal terminated program cc1plus\n"
                 "ERROR: Failed building wheel for flash-attn") == ("host-oom", 1)  # fmt: skip


def test_a_launch_that_failed_on_a_broken_gpu_is_the_gpus() -> None:
    table = "| N/A   34C    ERR!          ERR! /  700W |  141023MiB / 143771MiB |    100% |\n"

    assert named("CUDA error: unspecified launch failure\n" + table) == ("gpu-error", 2)


def test_an_error_comes_before_an_earlier_warning() -> None:
    warned = match("jax-without-cuda", 1)

    assert warned.level is Level.WARNING
    assert order(warned, match("no-kernel-image", 9)) == ["no-kernel-image", "jax-without-cuda"]
    assert order(warned) == ["jax-without-cuda"]
    assert order(match("container-without-driver", 1), match("driver-not-found", 2)) == [
        "container-without-driver"
    ]


@pytest.mark.parametrize(
    ("rows", "mark"),
    [
        ([("jax-without-cuda", 1)], CheckStatus.WARN),
        ([("no-kernel-image", 9), ("jax-without-cuda", 1)], CheckStatus.FAIL),
        # The error follows from the warning, which is the cause then.
        ([("tensorflow-library-missing", 1), ("sigkill", 2)], CheckStatus.FAIL),
    ],
)
def test_the_mark_of_the_first_line_is_that_of_the_whole_log(
    rows: list[tuple[str, int]], mark: CheckStatus
) -> None:
    causes, consequences = first_causes(match(*row) for row in rows)
    found = LogVerdict("train.log", 9, 99, causes[0], tuple(causes), tuple(consequences))
    report = Report(
        "detect", "gpucheck/log/1", TOOL, "", Host(), Status.FAIL, ExitCode.BAD, None, found
    )
    headline = next(each for each in blocks(report, View()) if isinstance(each, Headline))

    assert headline.status is mark


# ------------------------------------------------------------------------------------ the machine


def verdict(machine: str, text: str) -> Any:
    """Return the verdict on a log, on one of the recorded machines."""
    probes = open_probes(FOLDER / "examples" / f"{machine}.json")
    answer = check_log("train.log", read(text), probes)
    found: Any = answer.result
    assert answer.exit_code is (ExitCode.BAD if found.cause else ExitCode.OK)
    return found


def test_a_cause_that_is_still_there_has_the_checks_remedy() -> None:
    found = verdict("nouveau", "NVML Shared Library Not Found")

    assert found.live.seen is Seen.YES
    assert found.live.check in rules()["driver-library-missing"].checks
    assert found.remedy != rules()["driver-library-missing"].remedy


def test_a_cause_that_is_gone_is_no_longer_seen() -> None:
    found = verdict("h100x8", "x\nNVML Shared Library Not Found")

    assert found.live.seen is Seen.NO_LONGER
    assert found.live.check == "nvml"
    assert found.remedy[1:] == rules()["driver-library-missing"].remedy
    assert conclusion(found) == "train.log:2: no NVIDIA driver, or no GPU, was found"


def test_what_no_check_shows_cannot_be_told() -> None:
    found = verdict("h100x8", OOM)

    assert (found.live.seen, found.live.check) == (Seen.CANNOT_BE_TOLD, None)
    assert found.remedy == rules()["cuda-out-of-memory"].remedy


def test_another_failure_of_the_check_says_nothing_of_this_cause() -> None:
    found = verdict("nouveau", "CUDA driver version is insufficient for CUDA runtime version")

    assert found.live.seen is Seen.CANNOT_BE_TOLD
    assert found.live.check == "cuda-driver"
    assert found.live.summary.startswith("cuda-driver: ")


@pytest.mark.parametrize(
    ("bus_id", "seen"),
    [
        ("0000:2a:00", Seen.YES),
        ("00000000:2A:00", Seen.YES),
        ("0000:44:00", Seen.CANNOT_BE_TOLD),
    ],
)
def test_a_lost_gpu_is_the_one_that_the_log_names(bus_id: str, seen: Seen) -> None:
    found = verdict("lost-gpu", f"NVRM: Xid (PCI:{bus_id}): 79, GPU has fallen off the bus.")

    assert (found.live.seen, found.live.check) == (seen, "gpu-lost")
    assert ("the log names 0000:44:00" in found.live.summary) is (seen is not Seen.YES)


def test_a_lost_gpu_without_a_name_may_be_any() -> None:
    assert verdict("lost-gpu", "2026:11:22 RuntimeError: GPU is lost").live.seen is Seen.YES


def test_a_check_that_passes_although_the_cause_is_there_decides_nothing() -> None:
    found = verdict("h100x8", "RuntimeError: The NVIDIA driver on your system is too old")

    assert (found.live.seen, found.live.check) == (Seen.CANNOT_BE_TOLD, None)
    assert found.live.summary.startswith("cuda-driver: ")


def test_a_check_that_fails_otherwise_comes_before_one_that_passes() -> None:
    found = verdict("version-mismatch", "Failed to initialize NVML: Unknown Error")

    assert found.live.seen is Seen.CANNOT_BE_TOLD
    assert found.live.check == "nvml"


def test_without_a_cause_nothing_is_asked_of_the_machine() -> None:
    found = verdict("lost-gpu", "all is well\n")

    assert (found.cause, found.live, found.remedy, found.lines) == (None, None, (), 1)
    assert found.size_bytes == 12
    assert conclusion(found) == "train.log: no known cause in 1 line"
    assert conclusion(verdict("lost-gpu", "")) == "train.log is empty"


# ------------------------------------------------------------------------------------ the file


def test_files_pipes_and_gzip_are_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.log", tmp_path / "a.log.gz"
    plain.write_text(f"\n{OOM}\n")  # an empty first line counts
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    wide, swapped = tmp_path / "powershell.log", tmp_path / "swapped.log"
    wide.write_bytes(f"\ufeffü\r\n{OOM}\r\n".encode("utf-16-le"))
    swapped.write_bytes(f"\ufeff{'x' * 70_000}\n{OOM}".encode("utf-16-be"))

    for path in (plain, packed, wide, swapped):
        with open_log(str(path)) as file:
            assert scan(file).matches["cuda-out-of-memory"].line == 2


def test_what_is_skipped_counts_as_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"Killed\n{OOM}\n")

    for skip, found in (
        (0, {"shell-reports-sigkill", "cuda-out-of-memory"}),
        (1, {"cuda-out-of-memory"}),
        (7, {"cuda-out-of-memory"}),
        (99, {}),
    ):
        with open_log(str(path)) as file:
            scanned = scan(file, skip_bytes=skip)
        assert {*scanned.matches} == {*found}
        assert all(
            match.line == 2
            for name, match in scanned.matches.items()
            if name != "shell-reports-sigkill"
        )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x7fELF\0\0", "it is no text"),
        (gzip.compress(b"a\0b"), "what it packs is no text"),
        (gzip.compress(b"x" * 9000)[:-12], ""),
        (b"\x1f\x8bxx", ""),
        (b"\xff\xfe\0\0x\0", "it is no text"),
        (b"\xff\xfe\0\xdcx\0", "it is no text"),
        (None, "it is a directory"),
    ],
    ids=[
        "a program",
        "packed bytes",
        "packed, cut",
        "packed, broken",
        "UTF-16 with NUL",
        "no UTF-16",
        "a directory",
    ],
)
def test_what_is_no_log_is_refused(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir() if content is None else path.write_bytes(content)

    with pytest.raises((OSError, EOFError)) as raised, open_log(str(path)) as file:
        scan(file)

    assert reason in str(raised.value)


def test_a_file_that_unpacks_to_very_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucheck.drivers.host.files.MOST_UNPACKED_BYTES", 2 << 20)
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b"step 1\n" * 299_593))

    assert read_log(str(path)).size_bytes == 299_593 * 7

    path.write_bytes(gzip.compress(b"step 1\n" * 299_594))
    with pytest.raises(WrongUseError, match="it unpacks to more than 2 MiB"):
        read_log(str(path))


def test_a_nul_after_the_beginning_is_part_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (1 << 16) + b"\n\0\0\n" + OOM.encode())

    with open_log(str(path)) as file:
        assert scan(file).matches["cuda-out-of-memory"].line == 3


def test_progress_is_told_in_long_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucheck.detect.log.PROGRESS_BYTES", 4 << 20)
    told: list[str] = []
    scan(io.BytesIO(b"x\n" * (5 << 19)), told.append)

    assert told == ["reading the log, 4 MiB so far"]


def test_what_the_rules_find_in_each_log_is_as_recorded() -> None:
    text = ""
    for path in sorted((LOGS / "open").glob("*.log")):
        found = read(path.read_bytes())
        causes, consequences = first_causes(found.matches.values())
        text += f"{path.stem}: {found.lines} lines\n"
        for match in (*causes, *consequences):
            kind = "cause" if match in causes else "follows"
            text += f"  {kind} {match.line} {match.level.value} {match.class_} {match.rule} "
            text += f"{match.excerpt[:50]!r}\n"

    assert text == recorded("logs-open", text)


#: A fault of each kind as a log tells it, looked for on a machine that is well and on a broken one.
TOLD = {
    "out of memory": OOM,
    "no device": "RuntimeError: No CUDA GPUs are available",
    "an Xid": "NVRM: Xid (PCI:0000:10:00): 79, pid=1, GPU has fallen off the bus.",
    "an Xid of another card": "NVRM: Xid (PCI:0000:99:00): 79, pid=1, GPU has fallen off the bus.",
    "a mismatch": "Failed to initialize NVML: Driver/library version mismatch",
    "nothing": "epoch 1: loss 0.3",
}


def test_what_a_log_tells_and_the_machine_shows_is_as_recorded() -> None:
    failure = ProbeFailure(code="version-mismatch", message="Driver/library version mismatch")
    machines = {
        "well": FakeProbes(readings=reading_of(gpu_reading(0))),
        "broken": FakeProbes(readings=NvmlReading(failure=failure)),
    }
    text = ""
    for machine, probes in machines.items():
        for name, line in TOLD.items():
            answer = check_log("train.log", read(f"first\n{line}\n"), probes)
            assert isinstance(answer.result, LogVerdict)
            text += f"## {name}, {machine}: {answer.exit_code.value} {conclusion(answer.result)}\n"
            text += in_lines([answer.result])

    assert text == recorded("logs-told", text)


def test_a_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(b"CUDA error: out of memory\n" * 99)[:-9])

    for path, reason in ((tmp_path / "none", "No such file or directory"), (cut, "ended before")):
        with pytest.raises(WrongUseError, match=reason):
            read_log(str(path))
