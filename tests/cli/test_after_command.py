"""Line after a command that ended badly: from its code, the kernel, its cgroup and its log."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpucheck.cli.after_command import NEAR_THE_LIMIT, AfterCommand, verdict
from gpucheck.cli.options import Shared
from gpucheck.drivers.host.cgroups import count_oom_kills
from gpucheck.drivers.host.kernel_log import NewMessages
from gpucheck.memlimit.model import RunGpu

GIB = 1 << 30
LOST = b"NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n"
FAULT = b"NVRM: Xid (PCI:0000:1a:00): 31, pid=811, name=python3, Ch 00000008, MMU Fault\n"
STUCK = b"NVRM: Xid (PCI:0000:1a:00): 119, pid=811, name=python3, Timeout after 6s of waiting\n"


def gpu(peak_bytes: int | None, limit_bytes: int | None) -> RunGpu:
    """Return what a command took of a GPU."""
    return RunGpu(
        uuid=None,
        index=0,
        limit_bytes=limit_bytes,
        allowance_bytes=0,
        peak_bytes=peak_bytes,
        exceeded=False,
    )


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (
            partial(verdict, 1, kernel=b"", oom_kills=0),
            "1: its own output says why (no GPU error in the kernel log, no kill for memory)",
        ),
        (
            partial(verdict, 1),
            "1: its own output says why (not checked: the kernel log and kills for memory)",
        ),
        (
            partial(verdict, 143, oom_kills=0),
            "143 (SIGTERM): somebody sent it that signal"
            " (no kill for memory, not checked: the kernel log)",
        ),
        (
            partial(verdict, 137, oom_kills=1, host_peak_bytes=3 * GIB),
            "137 (SIGKILL): the kernel killed a process of its cgroup for memory, of which one"
            " took up to 3.0 GiB",
        ),
        (
            partial(verdict, 1, oom_kills=2),
            "1: the kernel killed 2 processes of its cgroup for memory",
        ),
        (
            partial(verdict, 1, logged="t.log:9: the GPU's memory ran out", kernel=FAULT),
            "1: t.log:9: the GPU's memory ran out; a kernel of the program read or wrote where it"
            f" may not (in its time: {FAULT.decode().strip()})",
        ),
        (
            partial(verdict, 1, logged="t.log:9: x", kernel=b"usb 1-1\n" + LOST + FAULT),
            f"1: the GPU has fallen off the bus (in its time: {LOST.decode().strip()}); t.log:9: x",
        ),
        (partial(verdict, 1, kernel=STUCK), "1: Xid 119 in its time"),
        (
            partial(verdict, 1, gpu=gpu(round(NEAR_THE_LIMIT * 10 * GIB), 10 * GIB)),
            "1: it took 9.0 GiB of its 10.0 GiB of GPU memory: the limit may have refused it more",
        ),
        (partial(verdict, 200), "200: somebody sent it that signal"),
    ],
)
def test_what_is_known_of_the_end(judge: Callable[[], str | None], said: str) -> None:
    sentence = judge() or ""

    assert sentence.startswith(f"the command ended with {said}")
    assert sentence.isprintable()


def test_memory_far_below_the_limit_or_without_one_is_no_cause() -> None:
    near = round(NEAR_THE_LIMIT * 10 * GIB)

    for one in (gpu(near - 1, 10 * GIB), gpu(near, None), gpu(None, 10 * GIB)):
        assert "its own output" in (verdict(1, gpu=one) or "")


def test_what_somebody_asked_for_needs_no_line() -> None:
    assert verdict(130) is None
    assert verdict(141) is None
    assert "Xid 119" in (verdict(130, kernel=STUCK) or "")


# ------------------------------------------------------------------------------------ readings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with a kernel log and a cgroup of version 2."""
    for name, text in {
        "dev/kmsg": "6,1,1,-;NVRM: Xid (PCI:0000:1a:00): 79, before\n",
        "proc/self/cgroup": "0::/user.slice/a.scope\n",
        "sys/fs/cgroup/user.slice/a.scope/memory.events": "low 0\noom 4\noom_kill 3\n",
    }.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def write(root: Path, kills: int, message: str) -> None:
    """Let the kernel of a root kill processes and say something."""
    events = root / "sys/fs/cgroup/user.slice/a.scope/memory.events"
    events.write_text(f"oom {kills}\noom_kill {kills}\n")
    with (root / "dev/kmsg").open("a") as log:
        log.write(f"6,2,2,-;{message}\n")


def test_only_what_the_kernel_said_meanwhile_counts(root: Path) -> None:
    messages = NewMessages(root)
    write(root, 3, "NVRM: Xid (PCI:0000:1a:00): 31, new")

    assert messages.read() == b"NVRM: Xid (PCI:0000:1a:00): 31, new\n"
    assert messages.read() is None
    assert NewMessages(root / "nowhere").read() is None


def test_kills_are_counted_in_both_versions_of_cgroups(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    for name, text in {
        "proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/job/7\n",
        "sys/fs/cgroup/memory/job/7/memory.oom_control": "under_oom 0\noom_kill 12\n",
    }.items():
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(text)

    assert count_oom_kills(root) == 3
    assert count_oom_kills(old) == 12
    assert count_oom_kills(tmp_path) is None


def test_the_line_is_of_this_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCHECK_ROOT", str(root))
    log = tmp_path / "t.log"
    log.write_text("CUDA error 802\nKilled\n")
    after = AfterCommand(str(log))
    write(root, 4, "eth0 up")
    with log.open("a") as file:
        file.write("x\ndevice-side assert triggered\n")

    after.report(1, Shared())

    said = capsys.readouterr().err
    assert f"{log}:4: a check inside a kernel failed" in said
    assert "the kernel killed a process of its cgroup for memory" in said
    assert said.count("\n") == 1


def test_a_log_that_was_begun_anew_is_read_whole(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCHECK_ROOT", str(root))
    log = tmp_path / "t.log"
    log.write_text("x\n" * 99)
    after = AfterCommand(str(log))
    log.write_text("CUDA error 802\n")

    after.report(1, Shared())

    assert f"{log}:1: the fabric of the NVSwitch machine" in capsys.readouterr().err


def test_a_missing_log_is_said_and_a_good_or_quiet_end_is_not(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCHECK_ROOT", str(root))

    AfterCommand("/nowhere/t.log").report(1, Shared())
    assert "the log /nowhere/t.log cannot be read: No such file" in capsys.readouterr().err
    AfterCommand().report(0, Shared())
    AfterCommand().report(1, Shared(verbosity=-1))
    assert capsys.readouterr().err == ""
