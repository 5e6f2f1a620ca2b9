"""Suites of others run with the plug-in, on pretended GPUs, with xdist and beside other claims."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.house import ROOT
from tests.conftest import scrubbed_environment
from tests.end_to_end.test_place_race import NOBODY, for_nobody
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fakes.tree import write_tree

PLUGIN = "gpucheck.integrations.pytest_plugin"

#: A test holds a file with the name of its GPU: two at one moment fail, however short it is.
SUITE = """
import fcntl, os, pathlib, time
import pytest

FOLDER = pathlib.Path(os.environ["IN_USE"])
SEEN = os.environ.get("CUDA_VISIBLE_DEVICES")

@pytest.mark.gpucheck(memory="1GiB")
@pytest.mark.parametrize("number", range(6))
def test_alone(number, gpucheck_gpu):
    assert gpucheck_gpu.uuid == os.environ["CUDA_VISIBLE_DEVICES"] == SEEN
    assert gpucheck_gpu.cuda_index == 0
    with open(FOLDER / gpucheck_gpu.uuid, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.02)
    with open(FOLDER / "log", "a") as log:
        log.write(gpucheck_gpu.uuid + "\\n")

def test_without_a_gpu():
    pass
"""
DIES_ONCE = """
import os, pathlib, signal

FLAG = pathlib.Path(os.environ["IN_USE"]) / "died"

def test_that_kills_its_process_once(gpucheck_gpu):
    if not FLAG.exists():
        FLAG.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
MARKED = "import pytest\n@pytest.mark.gpucheck\ndef test_marked(): pass\ndef test_plain(): pass\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A folder with tests, and the machine that they run on."""

    folder: Path
    environment: dict[str, str]

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start pytest there with no other plug-in than ours and xdist."""
        words = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "xdist.plugin"]
        quiet = ["-p", "no:cacheprovider", "-rsfE", "-c", os.devnull, "--rootdir", str(self.folder)]
        return subprocess.Popen(
            [*words, *quiet, str(self.folder), *options],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *options: str, code: int = 0) -> str:
        """Run pytest and return what it wrote."""
        return ended(self.start(*options), code)

    @property
    def claims(self) -> Path:
        """The directory of the claims."""
        return Path(self.environment["GPUCHECK_CLAIMS_DIR"])


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    written, _ = process.communicate()
    assert process.returncode == code, written
    return written


def counts(written: str) -> dict[str, int]:
    """Return the numbers of the last line: {"passed": 7}."""
    last = written.rstrip().splitlines()[-1]
    found = re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)
    return {word: int(number) for number, word in found}


@pytest.fixture
def suite(c_compiler: str, tmp_path: Path) -> Callable[..., Suite]:
    """Return a suite of one file on a pretended machine."""

    def make(text: str, machine: str = "p2p-bridge", gpus: int | None = 2, **faults: Any) -> Suite:
        pretended = load_machine(machine)
        pretended = (pretended if gpus is None else pretended.with_gpus(gpus)).broken(**faults)
        folder = tmp_path / "suite"
        for path in (folder, tmp_path / "in-use"):
            path.mkdir()
        (folder / "test_suite.py").write_text(text)
        environment = scrubbed_environment(
            {
                **build_libraries(pretended, tmp_path / "libraries"),
                "GPUCHECK_ROOT": str(write_tree(pretended, tmp_path / "root")),
                "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"),
                "IN_USE": str(tmp_path / "in-use"),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
        )
        return Suite(folder=folder, environment=environment)

    return make


# ------------------------------------------------------------------------------ left alone


def test_the_entry_point_is_this_plug_in() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

    assert groups["pytest11"] == {"gpucheck": PLUGIN}
    assert hasattr(import_module(PLUGIN), "pytest_addoption")


LOADED = """
import sys, pytest
code = pytest.main(sys.argv[1:])
print(sorted(name for name in sys.modules if name.partition(".")[0] == "gpucheck"))
sys.exit(code)
"""


def test_other_suites_run_as_if_it_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import os, pytest\n"
        "@pytest.mark.gpucheck(count=9)\n"
        "def test_marked(): assert 'GPUCHECK_CLAIM_IDS' not in os.environ\n"
        "def test_asks(gpucheck_gpu): pass\n"
    )
    options = ("-p", PLUGIN, "--strict-markers", "-rs", "-p", "no:cacheprovider", "-c", os.devnull)
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    finished = subprocess.run(
        [sys.executable, "-c", LOADED, *options, str(tmp_path)],
        env=scrubbed_environment(environment),
        capture_output=True,
        text=True,
        check=False,
    )

    *_, last, loaded = finished.stdout.splitlines()
    assert finished.returncode == 0, finished.stdout
    assert "1 passed, 1 skipped" in last
    assert "it needs a GPU of its own: run pytest with --gpucheck" in finished.stdout
    assert loaded == str(["gpucheck", "gpucheck.integrations", PLUGIN])


@pytest.mark.slow
def test_a_wrong_option_is_one_sentence_with_workers_too(suite: Callable[..., Suite]) -> None:
    written = suite(MARKED).run("--gpucheck", "--gpucheck-share", "0", "-n", "2", code=4)

    assert "--gpucheck-share takes 1 to 256" in written
    assert "Traceback" not in written


# ------------------------------------------------------------------------------ one process


@pytest.mark.slow
def test_a_process_has_its_gpu_before_it_imports_a_test(suite: Callable[..., Suite]) -> None:
    made = suite(SUITE)
    (made.folder / "pytest.ini").write_text("[pytest]\ngpucheck = true\n")

    written = made.run("-c", str(made.folder / "pytest.ini"))

    assert counts(written) == {"passed": 7}
    assert re.search(r"^gpucheck: GPU-[0-9a-f]{8} \(index \d\), NVIDIA RTX A6000$", written, re.M)


@pytest.mark.slow
def test_only_looking_claims_nothing(suite: Callable[..., Suite]) -> None:
    made = suite(MARKED)

    made.run("--gpucheck", "--collect-only")

    assert not made.claims.exists()


@pytest.mark.slow
def test_no_driver_is_a_skip_with_detect_s_cause_and_a_failure_if_required(
    suite: Callable[..., Suite],
) -> None:
    made = suite(MARKED, "version-mismatch", None)
    cause = "no usable GPU: the driver's library is version 550"

    skipped = made.run("--gpucheck")
    failed = made.run("--gpucheck", "--gpucheck-required", code=1)

    assert counts(skipped) == {"passed": 1, "skipped": 1}
    assert cause in skipped
    assert "SKIPPED [1] test_suite.py" in skipped, "the place of the test, not of the plug-in"
    assert counts(failed) == {"passed": 1, "error": 1}
    assert cause in failed
    assert "Traceback" not in failed


@pytest.mark.slow
def test_cuda_that_does_not_start_is_no_usable_gpu(suite: Callable[..., Suite]) -> None:
    made = suite(MARKED, fail=["cuInit 804"])

    assert "no usable GPU: " in made.run("--gpucheck")


STARTS_CUDA = """
import ctypes
def pytest_configure(config): ctypes.CDLL("libcuda.so.1").cuInit(0)
"""


@pytest.mark.slow
def test_cuda_that_was_started_too_early_is_refused(suite: Callable[..., Suite]) -> None:
    made = suite(MARKED)
    (made.folder / "early.py").write_text('import ctypes\nctypes.CDLL("libcuda.so.1").cuInit(0)\n')
    (made.folder / "late.py").write_text(STARTS_CUDA)
    path = os.pathsep.join((str(ROOT), str(made.folder)))
    made.environment["PYTHONPATH"] = path

    early = made.run("--gpucheck", "-p", "early", code=1)
    late = made.run("--gpucheck", "-p", "late")

    assert "CUDA was started before this process could get a GPU of its own" in early
    assert counts(early) == {"passed": 1, "error": 1}
    assert counts(late) == {"passed": 2}


# ------------------------------------------------------------------------------ beside others

HOLDER = """
import sys, time
from pathlib import Path
import gpucheck
folder, ends = Path(sys.argv[1]), sys.argv[2]
with gpucheck.place(count=int(sys.argv[3])):
    print("held", flush=True)
    # A ticket drops this part of its name once its owner knows what it waits for.
    while ends == "never" or all(".new." in each.name for each in folder.glob("ticket-*")):
        time.sleep(0.02)
"""


@contextlib.contextmanager
def held(suite: Suite, ends: str, count: int = 2) -> Iterator[None]:
    """Hold GPUs from another process: for ever, or until somebody waits for one."""
    words = [sys.executable, "-c", HOLDER, str(suite.claims), ends, str(count)]
    with subprocess.Popen(words, env=suite.environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield
        finally:
            other.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_claimed_gpu_is_waited_for_and_then_the_tests_fail(suite: Callable[..., Suite]) -> None:
    made = suite(MARKED)

    with held(made, "never"):
        late = made.run("--gpucheck", "--gpucheck-timeout", "0", code=1)
    with held(made, "when somebody waits"):
        served = made.run("--gpucheck")

    assert counts(late) == {"passed": 1, "error": 1}
    assert "Nothing became free within 0 s" in late
    assert "GPUs 0-1: held by " in late
    assert counts(served) == {"passed": 2}
    assert "gpucheck: waiting up to 300 s for a GPU: GPUs 0-1: held by " in served


OF_ANOTHER = """
import sys, time
from pathlib import Path
from gpucheck.place.claim_store import ClaimStore, Slot, Target
from gpucheck.place.model import Holder
with ClaimStore(Path(sys.argv[1])).mutex() as store:
    slot = Slot(target=Target(card=sys.argv[2]), steps=((0, 1),))
    lock = store.take(slot, Holder(pid=None, command="theirs.py"))
print("held", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_another_user_s_claim_is_respected(suite: Callable[..., Suite]) -> None:
    interpreter = for_nobody() if os.geteuid() == 0 else None
    if interpreter is None:
        pytest.skip("only root can become another user, who must be able to run this Python")
    made = suite(SUITE)
    first, second = (gpu.uuid for gpu in load_machine("p2p-bridge").with_gpus(2).gpus)
    made.claims.mkdir()
    made.claims.chmod(0o1777)
    # The folder becomes the current one before the user changes: it lies in a private one.
    with subprocess.Popen(
        [interpreter, "-c", OF_ANOTHER, ".", first], cwd=made.claims,
        user=NOBODY, group=NOBODY, extra_groups=[],
        env=made.environment, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            made.run("--gpucheck")
        finally:
            other.kill()

    assert set((in_use(made) / "log").read_text().split()) == {second}


def in_use(suite: Suite) -> Path:
    return Path(suite.environment["IN_USE"])


# ------------------------------------------------------------------------------ xdist


@pytest.mark.slow
def test_four_workers_on_two_gpus_twice_at_once(suite: Callable[..., Suite]) -> None:
    made = suite(SUITE)

    both = [made.start("--gpucheck", "-n", "4") for _ in range(2)]
    written = [ended(each) for each in both]

    assert [counts(each) for each in written] == [{"passed": 7}] * 2
    for each in written:
        assert "gpucheck: 2 of 4 workers start, since only 2 can have a GPU" in each
        shown = re.findall(r"(gw\d) -> (GPU-[0-9a-f]{8}) \(index (\d)\)", each)
        assert sorted((worker, index) for worker, _, index in shown) in (
            [("gw0", "0"), ("gw1", "1")],
            [("gw0", "1"), ("gw1", "0")],
        ), each
    log = (in_use(made) / "log").read_text().split()
    assert (len(log), len(set(log))) == (12, 2)


@pytest.mark.slow
def test_a_gpu_in_use_costs_a_worker_and_no_test(suite: Callable[..., Suite]) -> None:
    made = suite(
        "import pytest\n@pytest.mark.gpucheck\n@pytest.mark.parametrize('n', range(20))\n"
        "def test_gpu(n): pass\n"
    )

    with held(made, "never", count=1):
        auto = made.run("--gpucheck", "-n", "auto")
        two = made.run("--gpucheck", "-n", "2", "--gpucheck-timeout", "0.1")

    assert counts(auto) == counts(two) == {"passed": 20}
    assert "-n auto starts 1 of 2 workers" in auto
    assert "after 0.1 s 1 worker can have a GPU" in two


@pytest.mark.slow
def test_workers_share_a_gpu_or_have_several(suite: Callable[..., Suite]) -> None:
    made = suite(MARKED)

    sharing = made.run("--gpucheck", "-n", "3", "--gpucheck-share", "2")
    pairs = made.run("--gpucheck", "-n", "auto", "--gpucheck-count", "2")

    assert "3 workers" in sharing
    assert len(re.findall(r"gw\d -> GPU-", sharing)) == 3
    assert "1 worker " in pairs
    assert re.search(r"gw0 -> GPU-\S+ \(index 0\), GPU-\S+ \(index 1\)", pairs)


@pytest.mark.slow
def test_a_killed_worker_s_gpu_is_free_for_the_next(suite: Callable[..., Suite]) -> None:
    made = suite(f"{SUITE}\n{DIES_ONCE}")

    written = made.run("--gpucheck", "-n", "2", code=1)

    assert counts(written) == {"passed": 7, "failed": 1}
    assert "worker 'gw" in written
