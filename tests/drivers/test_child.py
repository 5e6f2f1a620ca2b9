"""Child processes with a deadline: answers, silence, death, and one that cannot be killed."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucheck.drivers import child as child_module
from gpucheck.drivers.child import START, Child, ChildDiedError, ChildSilentError
from tests.conftest import scrubbed_environment
from tests.hang_watch import is_running, wait_until

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a child from the text of its script; all are ended after the test."""
    started: list[Child] = []

    def build(text: str, *arguments: str, environment: dict[str, str] | None = None) -> Child:
        script = tmp_path / f"script{len(started)}.py"
        script.write_text(textwrap.dedent(text), encoding="utf-8")
        child = Child(str(script), *arguments, environment=environment)
        started.append(child)
        return child

    yield build
    for child in started:
        child.close()


ECHO = """
    import json, sys
    for line in sys.stdin:
        print(json.dumps({"got": json.loads(line)}), flush=True)
"""


def test_questions_and_answers(start: Start) -> None:
    child = start(ECHO)

    child.ask({"first": 1})
    child.ask({"second": ["é\n"]})
    answers = child.documents(600)

    assert next(answers) == {"got": {"first": 1}}
    assert next(answers) == {"got": {"second": ["é\n"]}}


def test_a_line_may_come_in_pieces_and_be_long(start: Start) -> None:
    child = start("""
        import json, sys, time
        text = json.dumps({"long": "x" * 300_000}) + "\\n" + '{"short": 1}' + "\\n"
        for begin in range(0, len(text), 50_000):
            sys.stdout.write(text[begin:begin + 50_000])
            sys.stdout.flush()
            time.sleep(0.01)
    """)

    answers = child.documents(600)
    long, short = next(answers), next(answers)

    assert len(long["long"]) == 300_000
    assert short == {"short": 1}


def test_a_silent_child_is_given_up_at_the_deadline(start: Start) -> None:
    child = start("""
        import json, os, time
        print(json.dumps({"pid": os.getpid()}), flush=True)
        time.sleep(600)
    """)
    pid = next(child.documents(600))["pid"]

    with pytest.raises(ChildSilentError) as caught:
        next(child.documents(0.1))

    assert caught.value.ending == "0.1 s"
    wait_until(lambda: not is_running(pid))


def test_another_program_that_writes_without_end_is_given_up_at_the_deadline() -> None:
    program = "import os\nwhile True: os.write(1, b'y\\n' * 999)"
    child = Child("-", interpreter=(sys.executable, "-c", program))
    try:
        with pytest.raises(ChildSilentError):
            next(child.documents(0.2))
    finally:
        child.close()


def test_an_answer_without_end_does_not_take_all_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "MOST_LINE_BYTES", 1 << 20)
    child = start("""
        import os
        while True:
            os.write(1, b"x" * 65536)
    """)

    with pytest.raises(ChildDiedError, match="more than 1 MiB"):
        next(child.documents(600))


def test_a_child_that_ignores_signals_is_killed(start: Start) -> None:
    child = start("""
        import json, os, signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print(json.dumps({"pid": os.getpid()}), flush=True)
        time.sleep(600)
    """)
    pid = next(child.documents(600))["pid"]

    child.close()

    wait_until(lambda: not is_running(pid))


def test_a_child_that_cannot_be_killed_is_left_and_collected_once_it_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = start("""
        import json, os, time
        print(json.dumps({"pid": os.getpid()}), flush=True)
        time.sleep(600)
    """)
    pid = next(child.documents(600))["pid"]
    monkeypatch.setattr(Child, "_kill", staticmethod(lambda pid: None))

    child.abandon()
    child.abandon()  # nothing more to give up

    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    start("pass")
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("last_words", "how"),
    [
        ("import sys; sys.exit(7)", "ended with code 7"),
        ("pass", "ended with code 0"),
        ("raise SystemError", "ended with code 1"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("import os; os.kill(os.getpid(), 40)", "was ended by signal 40"),
        ("print('Driver says hello', flush=True)", "gave an unreadable answer"),
        ("print('[1]', flush=True)", "gave an unreadable answer"),
        ("print('{\"half\":', end='', flush=True)", "ended with code 0"),
    ],
)
def test_a_child_that_dies_says_how(start: Start, last_words: str, how: str) -> None:
    child = start(f"print('{{\"part\": 1}}', flush=True); {last_words}")
    answers = child.documents(600)

    assert next(answers) == {"part": 1}
    with pytest.raises(ChildDiedError) as caught:
        next(answers)

    assert caught.value.how == how


def test_a_child_that_only_closes_its_output(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucheck.drivers.child._EXIT_S", 0.05)
    child = start("""
        import os, time
        os.close(1)
        time.sleep(600)
    """)

    with pytest.raises(ChildDiedError) as caught:
        next(child.documents(600))

    assert caught.value.how == "closed its output"


def test_asking_a_dead_child_is_noticed_with_the_answer(start: Start) -> None:
    child = start("import sys; sys.exit(3)")
    with pytest.raises(ChildDiedError):
        next(child.documents(600))

    child.ask({"anybody": "there"})

    with pytest.raises(ChildDiedError):
        next(child.documents(600))


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    child = Child(str(tmp_path / "none.py"))

    with pytest.raises(ChildDiedError) as caught:
        next(child.documents(600))

    assert caught.value.how == "ended with code 2"
    child.close()


@pytest.mark.parametrize("executable", ["/nonexistent/python", "", "/dev/null"])
def test_an_interpreter_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    gc.collect()  # what earlier tests left would be closed between the two counts
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(sys, "executable", executable)

    with pytest.raises(ChildDiedError) as caught:
        Child("script.py")

    assert caught.value.how.startswith("could not be started: ")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_child_is_isolated(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(9)", encoding="ascii")
    environment = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": "/none",
        "KEPT": "yes",
        "HOME": str(tmp_path),
    }
    child = start(
        """
        import json, os, sys
        print(json.dumps({
            "path": sys.path, "kept": os.environ.get("KEPT"), "words": sys.argv[1:],
            "here": os.getcwd() in sys.path or "" in sys.path,
            "site": "site" in sys.modules,
        }), flush=True)
        """,
        "a b",
        "",
        environment=environment,
    )

    said = next(child.documents(600))

    assert str(tmp_path) not in said["path"]
    assert (said["kept"], said["words"]) == ("yes", ["a b", ""])
    assert (said["here"], said["site"]) == (False, False)


def test_the_environment_is_ours_unless_given(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUCHECK_TEST_VARIABLE", "ours")
    text = """
        import json, os
        print(json.dumps({"it": os.environ.get("GPUCHECK_TEST_VARIABLE")}), flush=True)
    """

    inherited = start(text)
    given = start(text, environment={})

    assert next(inherited.documents(600)) == {"it": "ours"}
    assert next(given.documents(600)) == {"it": None}


def test_no_descriptor_of_ours_leaks_into_the_child(start: Start) -> None:
    # Neither an open file nor the pipes of another child: those would hold its output open.
    # Nor what our own caller left open for us: it may wait for the end of that pipe.
    other = start("import time; time.sleep(600)")
    with Path("/dev/null").open("rb") as file:
        os.set_inheritable(file.fileno(), True)
        child = start("""
            import json, os
            with os.scandir("/proc/self/fd") as entries:
                targets = {entry.name: os.readlink(entry.path) for entry in entries}
            print(json.dumps(targets), flush=True)
        """)
        targets = next(child.documents(600))

    # The one with which the child looks is of /proc; a newer libffi keeps itself open.
    others = [targets[name] for name in targets.keys() - {"0", "1", "2"}]
    assert [path for path in others if "/fd" not in path and "libffi" not in path] == []
    other.close()


def test_a_descriptor_above_a_lowered_limit_is_not_passed_on(start: Start) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path("/dev/null").open("rb") as file:
        high = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 200)
        os.set_inheritable(high, True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
        try:
            child = start("""
                import json, os
                print(json.dumps({"open": [int(fd) for fd in os.listdir("/proc/self/fd")]}))
            """)
            said = next(child.documents(600))
            still_ours = os.get_inheritable(high)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            os.close(high)

    assert high not in said["open"]
    assert still_ours


def test_the_child_writes_nothing_to_our_terminal(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    child = start("""
        import sys
        print("noise", file=sys.stderr, flush=True)
        print('{"done": true}', flush=True)
    """)

    assert next(child.documents(600)) == {"done": True}
    assert capfd.readouterr() == ("", "")


def test_ctrl_c_is_ours_to_answer(start: Start) -> None:
    child = start(ECHO.replace("import json, sys", 'import json, os, sys; print(json.dumps('
                  '{"pid": os.getpid()}), flush=True)'))  # fmt: skip
    answers = child.documents(600)
    pid = next(answers)["pid"]

    os.kill(pid, signal.SIGINT)
    time.sleep(0.05)
    child.ask({"still": "there"})

    assert next(answers) == {"got": {"still": "there"}}


def test_closing_frees_the_descriptors(start: Start) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(5):
        start("import time; time.sleep(600)").close()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


#: Starts a child beside a thread that accepts every signal, and is asked to stop before the child
#: is registered. Without that thread, a mask in the main one would defer the request.
INTERRUPTED = """
import os, signal, sys, threading
from gpucheck.drivers.child import Child
threading.Thread(target=threading.Event().wait, daemon=True).start()
spawn, born = os.posix_spawn, []
def interrupted(*arguments, **options):
    born.append(spawn(*arguments, **options))
    os.kill(os.getpid(), int(sys.argv[1]))
    for _ in range(10_000):  # time enough to run a handler
        pass
    return born[-1]
os.posix_spawn = interrupted
if sys.argv[1] == "15":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
try:
    Child(sys.argv[2])
except KeyboardInterrupt:
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    try:
        print(os.WTERMSIG(os.waitpid(born[0], 0)[1]))
    except ChildProcessError:  # it was waited for already
        print(int(signal.SIGKILL))
"""


def run_program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in its own group: signals to it must not reach pytest."""
    return subprocess.run(
        [sys.executable, "-c", text, *arguments],
        env=scrubbed_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_child_is_born_leaves_nobody_behind(
    number: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS, encoding="ascii")

    finished = run_program(INTERRUPTED, str(int(number)), str(script))

    assert (finished.stdout, finished.stderr) == (f"{int(signal.SIGKILL)}\n", "")


#: Starts a child that prints its process id and hangs where no handler of Python's ever runs.
PARENT = """
import os, signal, sys, time
from gpucheck.drivers.child import Child
child = Child(*sys.argv[2:], interpreter=tuple(sys.argv[1].split(":")) if sys.argv[1] else ())
print(next(child.documents(600))["pid"], flush=True)
os.read(0, 1)
"""
HANGS = """
import ctypes, json, os
print(json.dumps({"pid": os.getpid(), "words": __import__("sys").argv[1:]}), flush=True)
ctypes.CDLL(None).pause()
"""
#: A child that starts another process, which the kernel ties to nobody, and waits for it.
PARENT_OF_GROUP = """
import os, sys
from gpucheck.drivers.child import Child
child = Child(sys.argv[2], interpreter=(sys.argv[1],), own_group=True)
print(next(child.documents(600))["pid"], flush=True)
os.read(0, 1)
"""
STARTS_ANOTHER = """
import json, subprocess
another = subprocess.Popen(["sleep", "600"])
print(json.dumps({"pid": another.pid}), flush=True)
another.wait()
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a parent of a hung child; return it and the child's process id."""
    script = tmp_path / "hangs.py"
    script.write_text(HANGS, encoding="ascii")
    started: list[tuple[subprocess.Popen[str], int]] = []

    def build(interpreter: str = "", word: str = "") -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", PARENT, interpreter, word or str(script)],
            env={**scrubbed_environment(), "PYTHONPATH": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        started.append((process, int(process.stdout.readline())))
        return started[-1]

    yield build
    for process, pid in started:
        for left in (process.pid, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_hung_child_ends_with_its_parent(parent: Any, number: signal.Signals) -> None:
    process, pid = parent()
    assert is_running(pid)

    process.send_signal(number)

    wait_until(lambda: not is_running(pid))


def test_a_hung_child_in_another_interpreter_ends_with_its_parent(parent: Any) -> None:
    process, pid = parent(sys.executable)

    process.kill()

    wait_until(lambda: not is_running(pid))


def test_a_module_ends_with_its_parent(parent: Any) -> None:
    process, pid = parent(f"{sys.executable}:-P:-m", "hangs")

    process.kill()

    wait_until(lambda: not is_running(pid))


def test_a_child_behind_a_wrapper_ends_with_the_one_that_asked(parent: Any, tmp_path: Path) -> None:
    # The kernel ties it to the shell, which lives on: the end of the line tells it.
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f'#!/bin/sh\n"{sys.executable}" "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    process, pid = parent(str(wrapper))
    assert is_running(pid)

    process.kill()

    wait_until(lambda: not is_running(pid))


def test_what_a_child_has_started_ends_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS_ANOTHER, encoding="ascii")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT_OF_GROUP, sys.executable, str(script)],
        env=scrubbed_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    another = int(process.stdout.readline())
    assert is_running(another)

    process.kill()
    process.communicate()

    wait_until(lambda: not is_running(another))


def test_what_a_child_has_started_ends_with_its_close(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS_ANOTHER, encoding="ascii")
    child = Child(str(script), interpreter=(sys.executable,), own_group=True)
    another = next(child.documents(600))["pid"]

    child.close()

    wait_until(lambda: not is_running(another))


def test_end_of_a_child_with_a_group_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("import os; os._exit(9)", encoding="ascii")

    child = Child(str(script), interpreter=(sys.executable,), own_group=True)

    with child, pytest.raises(ChildDiedError, match="ended with code 9"):
        next(child.documents(600))


def test_a_child_whose_parent_died_before_it_could_be_tied_does_not_begin(tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    script = tmp_path / "begins.py"
    script.write_text(f"open({str(mark)!r}, 'w')", encoding="ascii")

    finished = subprocess.run(
        [sys.executable, "-I", START, "2147483647", str(script)],
        input=b"",  # the line from the parent has ended
        check=False,
    )

    assert finished.returncode == -signal.SIGKILL
    assert not mark.exists()


def test_a_child_that_nobody_knows_any_more_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(HANGS, encoding="ascii")
    pid = next(Child(str(script)).documents(600))["pid"]

    wait_until(lambda: not is_running(pid))
