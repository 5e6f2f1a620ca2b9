"""What the options and the marker of the pytest plug-in mean, decided without a process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.live import LiveProbes
from gpucheck.drivers.readings import CudaDeviceReading, CudaReading
from gpucheck.integrations import pytest_gpus as module
from gpucheck.integrations.diagnose import Diagnosis
from gpucheck.integrations.pytest_gpus import (
    Needs,
    ProcessGpus,
    Refusal,
    needs_of,
    refused,
    runs_tests,
    shown,
    unmet,
    wanted_gpus,
)
from gpucheck.integrations.pytest_workers import is_controller
from gpucheck.place.claims import ClaimOptions, Lease, Waiting, own_command
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.place.placement import CudaDevice
from gpucheck.place.selection import ALLOW_BUSY_GPUS, SelectionRequest
from gpucheck.report.envelope import Answer, CheckStatus, Failure
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError, WrongUseError
from tests.fakes.gpus import GIB, sized_row
from tests.integrations.test_pytest_plugin import PLUGIN

pytest_plugins = ("pytester",)
MARK = pytest.mark.gpucheck


def card(
    index: int, gib: int | None = 8, capability: str | None = "9.0", **more: Any
) -> CudaDevice:
    total = None if gib is None else gib * GIB
    return CudaDevice(
        sized_row(index, total, uuid=f"GPU-{index:08x}-1", compute_capability=capability, **more)
    )


def needs(**arguments: Any) -> Needs:
    return needs_of(MARK(**arguments).mark)


def test_a_plain_marker_needs_one_gpu_of_any_kind() -> None:
    assert needs_of(MARK.mark) == Needs()
    assert unmet(Needs(), [card(0, None, None)], [card(0, None, None)]) is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"count": 0}, "count takes 1 or more, not 0"),
        ({"count": "2"}, "count"),
        ({"count": True}, "count"),
        ({"memory": 8}, "memory takes a text"),
        ({"memory": "8 apples"}, "8 apples"),
        ({"memory": "30%"}, "not the share '30%'"),
        ({"capability": 9.0}, "capability takes a text"),
        ({"capability": "nine"}, "nine"),
        ({"counts": 1}, "not counts"),
    ],
)
def test_a_marker_that_makes_no_sense_is_wrong_use(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(WrongUseError, match=word):
        needs(**arguments)


def test_a_marker_takes_no_position() -> None:
    with pytest.raises(WrongUseError, match="not 2"):
        needs_of(MARK(2).mark)


@pytest.mark.parametrize(
    ("arguments", "device", "met"),
    [
        ({"memory": "8GiB"}, card(0, 8), True),
        ({"memory": "8193MiB"}, card(0, 8), False),
        ({"memory": "1GiB"}, card(0, None), False),
        ({"capability": "9.0"}, card(0), True),
        ({"capability": "9.1"}, card(0), False),
        ({"capability": "9.0"}, card(0, capability="10.0"), True),
        ({"capability": "9.0"}, card(0, capability=None), False),
        ({"count": 2}, card(0), False),
    ],
)
def test_a_gpu_meets_what_is_known_of_it(
    arguments: dict[str, Any], device: CudaDevice, met: bool
) -> None:
    assert (unmet(needs(**arguments), [device], [device]) is None) == met


def test_every_gpu_of_the_process_must_do() -> None:
    small, large = card(0, 8), card(1, 80)

    assert unmet(needs(count=2, memory="8GiB"), [small, large], [small, large]) is None
    refusal = unmet(needs(memory="80GiB"), [small, large], [small, large])

    assert refusal is not None


def test_what_this_machine_does_not_have_is_skipped() -> None:
    refusal = unmet(needs(count=3, memory="8GiB", capability="9.0"), [card(0)], [card(0), card(1)])

    assert refusal == Refusal(
        "the test needs 3 GPUs with 8GiB of memory and compute capability 9.0:"
        " this machine has 2 of them",
        skips=True,
    )
    none = unmet(needs(capability="99.0"), [card(0)], [card(0)])
    assert none is not None
    assert none.text.endswith("this machine has none of them")


def test_what_another_process_might_have_got_fails_with_the_command() -> None:
    arguments = {"count": 2, "memory": "8GiB", "capability": "9.0"}

    refusal = unmet(needs(**arguments), [card(0)], [card(0), card(1)])

    assert refusal is not None
    assert not refusal.skips
    assert "its process got GPU-00000000 (index 0)" in refusal.text
    assert refusal.text.endswith(
        "Run: pytest --gpucheck --gpucheck-count 2 --gpucheck-memory 8GiB --gpucheck-capability 9.0"
    )


def test_a_hidden_gpu_is_none_that_the_test_might_have_got() -> None:
    refusal = unmet(needs(count=2), [card(0)], [card(0), card(1, visible=False)])

    assert refusal is not None
    assert refusal.skips


def test_nothing_that_fits_is_skipped_and_waiting_in_vain_is_not() -> None:
    reasons = ("GPU 0: in use by alice (train.py)", ALLOW_BUSY_GPUS, "Wait.")

    none = refused(Failure("nothing-fits", "1 GPU was requested, but none fits.", ("x", "Wait.")))
    late = refused(Failure("wait-timeout", "Nothing became free within 3 s.", reasons))

    assert none == Refusal("1 GPU was requested, but none fits (x)", skips=True)
    assert late == Refusal(
        "Nothing became free within 3 s (GPU 0: in use by alice (train.py));"
        " --gpucheck-memory 8GiB takes a GPU in use that has so much free",
        skips=False,
    )


@pytest.mark.parametrize(
    ("found", "refusal"),
    [
        (None, Refusal("no usable GPU: libcuda is not there", skips=True)),
        (
            Diagnosis(status=CheckStatus.FAIL, message="GPU not usable: it is broken."),
            Refusal("no usable GPU: it is broken (see: gpucheck detect)", skips=True),
        ),
        (
            Diagnosis(status=CheckStatus.UNKNOWN, message="Cannot tell: it hangs."),
            Refusal("no usable GPU: Cannot tell: it hangs (see: gpucheck detect)", skips=False),
        ),
    ],
)
def test_detect_s_cause_in_one_line(
    found: Diagnosis | None, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "diagnose", lambda *_, **__: found)

    assert module.no_gpu("libcuda is not there.") == refusal


def test_a_gpu_is_shown_by_the_beginning_of_its_uuid() -> None:
    assert shown("GPU-3f2a91bc-7d4e-5a6b", 2) == "GPU-3f2a91bc (index 2)"


# ------------------------------------------------------------------------------ one process

CHOSEN = PlacedDevice(
    spec="1", resolved="", kind="GPU", index=1, cuda_index=1, uuid=card(1).uuid, name="H100"
)
PLACED = Placement(devices=(CHOSEN,), environment={"CUDA_VISIBLE_DEVICES": "GPU-1"})


class Held(Lease):
    """Lease that tells whether it was given back."""

    closed: list[bool] = []  # noqa: RUF012 - emptied by each test

    def close(self) -> None:
        """Take note."""
        self.closed.append(True)


class Cuda(LiveProbes):
    """Probes whose CUDA sees this many GPUs."""

    number = 1

    def cuda(self, *, unrestricted: bool = False) -> CudaReading:
        """Return them."""
        each = (CudaDeviceReading(ordinal=n, uuid_hex="0" * 32) for n in range(self.number))
        return CudaReading(devices=tuple(each))


@pytest.fixture
def outcome_is(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what decides how claims end: a lease, or an error that is raised."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "before")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(module, "LiveProbes", Cuda)
    monkeypatch.setattr(module, "diagnose", lambda *_, **__: None)
    monkeypatch.setattr(Cuda, "number", 1)
    Held.closed.clear()

    def decide(outcome: Lease | GpucheckError, *, started: bool = False) -> None:
        def lease_best(*_: object, **__: object) -> Lease:
            if isinstance(outcome, GpucheckError):
                raise outcome
            return outcome

        monkeypatch.setattr(module, "lease_best", lease_best)
        monkeypatch.setattr(module, "is_cuda_started", lambda: started)

    return decide


@pytest.fixture
def process(outcome_is: Callable[..., None]) -> Callable[..., ProcessGpus]:
    """Return a process that has tried to claim: `process(lease or error, required=True)`."""

    def make(
        outcome: Lease | GpucheckError, *, started: bool = False, required: bool = False
    ) -> ProcessGpus:
        outcome_is(outcome, started=started)
        made = ProcessGpus(
            SimpleNamespace(  # type: ignore[arg-type]
                option=SimpleNamespace(gpucheck_timeout=0.0, gpucheck_required=required)
            ),
            SelectionRequest(),
        )
        made.claim()
        return made

    return make


def lease(failure: Failure | None = None, placement: Placement = PLACED) -> Held:
    rows = (card(0).gpu, card(1).gpu)
    return Held(answer=Answer(result=placement, error=failure), gpus=rows)


def test_a_process_sees_its_gpu_alone_until_it_gives_it_back(
    process: Callable[..., ProcessGpus],
) -> None:
    gpus = process(lease())

    gpus.check(Needs())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert [(each.index, each.cuda_index) for each in gpus.devices] == [(1, 0)]
    assert gpus.pytest_report_header() == ("gpucheck: GPU-00000001 (index 1), H100",)
    assert Held.closed == []
    gpus.pytest_unconfigure()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    assert Held.closed == [True]


def test_the_claim_outlasts_the_tests_while_cuda_runs(
    process: Callable[..., ProcessGpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = process(lease())
    monkeypatch.setattr(module, "is_cuda_started", lambda: True)

    gpus.pytest_unconfigure()

    assert Held.closed == []


def test_a_test_asks_for_more_than_its_process_has(process: Callable[..., ProcessGpus]) -> None:
    gpus = process(lease())

    with pytest.raises(pytest.fail.Exception, match="Run: pytest --gpucheck --gpucheck-count 2"):
        gpus.check(Needs(count=2))
    with pytest.raises(pytest.skip.Exception, match="this machine has 2 of them"):
        gpus.check(Needs(count=3))
    with pytest.raises(pytest.fail.Exception, match="this machine has 2 of them"):
        process(lease(), required=True).check(Needs(count=3))


NO_DRIVER = MissingError(code="nvml-not-found", message="There is no driver.")
NO_FOLDER = MissingError(code="claims-directory-unusable", message="It is a link.", remedy=("Go.",))
SILENT = InconclusiveError(code="claims-busy", message="They stay locked.")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (NO_DRIVER, pytest.skip.Exception, "^no usable GPU: There is no driver$"),
        (NO_FOLDER, pytest.fail.Exception, "^It is a link. Go.$"),
        (SILENT, pytest.fail.Exception, "^They stay locked.$"),
    ],
)
def test_only_a_missing_gpu_is_a_reason_to_skip(
    error: GpucheckError,
    kind: type[BaseException],
    text: str,
    process: Callable[..., ProcessGpus],
) -> None:
    gpus = process(error)

    with pytest.raises(kind, match=text):
        gpus.check(Needs())
    [line] = gpus.pytest_report_header()
    assert line.startswith("gpucheck: no GPU: ")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


def test_a_process_without_a_gpu_sees_nobody_else_s(process: Callable[..., ProcessGpus]) -> None:
    late = Failure("wait-timeout", "Nothing became free within 0 s.", ("GPU 0: held", "Wait."))
    gpus = process(lease(late, Placement()))

    with pytest.raises(pytest.fail.Exception, match="Nothing became free"):
        gpus.check(Needs())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    gpus.pytest_unconfigure()
    assert "CUDA_DEVICE_ORDER" not in os.environ


def test_a_gpu_that_cuda_does_not_see_is_given_back(
    process: Callable[..., ProcessGpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cuda, "number", 0)
    gpus = process(lease())

    with pytest.raises(pytest.skip.Exception, match="no usable GPU: CUDA lists 0 of 1 GPU"):
        gpus.check(Needs())
    assert (Held.closed, gpus.devices) == ([True], ())


def test_cuda_that_runs_already_is_too_late(process: Callable[..., ProcessGpus]) -> None:
    gpus = process(lease(), started=True)

    with pytest.raises(pytest.fail.Exception, match="CUDA was started before"):
        gpus.check(Needs())
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"


# ------------------------------------------------------------------------------ options


def config_with(**options: Any) -> Any:
    """Return a config with these options, and xdist's and pytest's own."""
    ours = {"timeout": 300.0, "count": 1, "memory": None, "capability": None, "share": 1}
    values = {f"gpucheck_{name}": value for name, value in ours.items()}
    values |= {"gpucheck_required": False, **options}
    return SimpleNamespace(getoption=values.get, option=SimpleNamespace(**values))


def test_the_options_are_those_of_a_choice_by_place() -> None:
    made = wanted_gpus(
        config_with(
            gpucheck_count=2,
            gpucheck_memory="8GiB",
            gpucheck_capability="9.0",
            gpucheck_share=4,
            gpucheck_timeout=0.0,
            gpucheck_required=True,
        )
    )

    assert made.words == (
        *("--count", "2", "--min-free", "8GiB", "--min-compute-capability", "9.0"),
        *("--share", "4"),
    )


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("timeout", -1.0, "--gpucheck-timeout takes seconds from 0 to 604800 (a week), not -1."),
        ("timeout", float("inf"), "--gpucheck-timeout takes seconds from 0 to 604800"),
        ("count", 0, "--gpucheck-count takes 1 to 1024 GPUs, not 0."),
        ("count", 1025, "--gpucheck-count takes 1 to 1024 GPUs, not 1025."),
        ("share", 257, "--gpucheck-share takes 1 to 256 claims per GPU, not 257."),
        ("capability", "nine", "A compute capability is a number such as 9.0, not 'nine'."),
    ],
)
def test_an_option_that_makes_no_sense_is_named(option: str, value: object, text: str) -> None:
    with pytest.raises(pytest.UsageError, match=re.escape(text)):
        wanted_gpus(config_with(**{f"gpucheck_{option}": value}))


@pytest.mark.parametrize(
    ("config", "controls"),
    [
        (config_with(), False),
        (config_with(dist="no", tx=[]), False),
        (config_with(dist="load", tx=["popen"]), True),
        (config_with(dist="load", tx=[]), False),
        (SimpleNamespace(workerinput={}, **vars(config_with(dist="load", tx=["popen"]))), False),
    ],
)
def test_a_controller_has_workers(config: Any, controls: bool) -> None:
    assert is_controller(config) == controls


def test_only_showing_runs_no_tests() -> None:
    assert runs_tests(config_with())
    for option in ("collectonly", "help", "version", "markers", "showfixtures"):
        assert not runs_tests(config_with(**{option: True}))


def test_waiting_is_told_once_with_the_holders(
    process: Callable[..., ProcessGpus], capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = process(lease())
    gpus._config = SimpleNamespace(  # type: ignore[assignment]
        workerinput={"workerid": "gw1"},
        pluginmanager=SimpleNamespace(get_plugin=lambda _: None),
    )
    details = ("GPUs 0-1: held by alice (train.py)", ALLOW_BUSY_GPUS)

    gpus._tell(Waiting(ahead=0, waited_s=0.0, reason="r", details=details))
    gpus._tell(Waiting(ahead=0, waited_s=0.1, reason="later"))

    said = "gpucheck: gw1 waits up to 0 s for a GPU: GPUs 0-1: held by alice (train.py)\n"
    assert capsys.readouterr().err == said


# ------------------------------------------------------------------------------ whole suites

SUITE = """
import os
import pytest

SEEN = os.environ["CUDA_VISIBLE_DEVICES"]

@pytest.mark.gpucheck
def test_marked(): assert SEEN == "GPU-1"

@pytest.mark.gpucheck(capability="8.0")
class TestAll:
    def test_in_a_class(self, gpucheck_gpu): assert gpucheck_gpu.index == 1

def test_fixture(gpucheck_gpu, gpucheck_gpus): assert gpucheck_gpus == (gpucheck_gpu,)

@pytest.mark.gpucheck(count=3)
def test_too_many(): pass

@pytest.mark.gpucheck(memory=8)
def test_wrong(gpucheck_gpu): pass

def test_asks_while_it_runs(request): request.getfixturevalue("gpucheck_gpu")

def test_plain(): pass
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run the suite in this process, with our plug-in alone."""
    pytester.makepyfile(SUITE)
    return pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-rs", *options)


@pytest.fixture(autouse=True)
def _no_other_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_a_suite_on_a_gpu(pytester: pytest.Pytester, outcome_is: Callable[..., None]) -> None:
    outcome_is(lease())

    result = run(pytester, "--gpucheck")

    result.assert_outcomes(passed=5, skipped=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "gpucheck: GPU-00000001 (index 1), H100",
            "memory takes a text such as '8GiB', not 8.",
            "SKIPPED*the test needs 3 GPUs: this machine has 2 of them",
        ]
    )
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "before"
    assert Held.closed == [True]


def test_a_suite_without_a_gpu(pytester: pytest.Pytester, outcome_is: Callable[..., None]) -> None:
    outcome_is(NO_DRIVER)

    run(pytester, "--gpucheck").assert_outcomes(passed=1, skipped=5, errors=1)
    run(pytester, "--gpucheck", "--gpucheck-required").assert_outcomes(passed=1, failed=1, errors=5)


def test_the_key_of_a_suite_turns_it_on(
    pytester: pytest.Pytester, outcome_is: Callable[..., None]
) -> None:
    outcome_is(NO_DRIVER)

    run(pytester, "-o", "gpucheck=true").assert_outcomes(passed=1, skipped=5, errors=1)
    looked = run(pytester, "--gpucheck", "--collect-only")
    looked.stdout.no_fnmatch_line("gpucheck: *")


def test_without_it_only_the_fixtures_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_fixture="def test_fixture(gpucheck_gpu): pass")
    marked = "import pytest\n@pytest.mark.gpucheck(nonsense=1)\ndef test_marked(): pass"
    pytester.makepyfile(test_marked=marked)

    result = pytester.runpytest_inprocess("-p", PLUGIN, "--strict-markers", "-rs")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*run pytest with --gpucheck"])


def test_required_alone_is_wrong_use(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--gpucheck-required")

    assert result.ret is pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --gpucheck-required needs --gpucheck, or *"])


def test_the_options_are_passed_on(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, outcome_is: Callable[..., None]
) -> None:
    asked = []

    def lease_best(request: SelectionRequest, options: ClaimOptions, *_: Any, **__: Any) -> Lease:
        asked.append((request.words, options))
        return lease()

    outcome_is(lease())
    monkeypatch.setattr(module, "lease_best", lease_best)
    criteria = ("--gpucheck-memory", "1GiB", "--gpucheck-capability", "7.5")

    run(pytester, "--gpucheck", *criteria, "--gpucheck-timeout", "2.5", "--gpucheck-share", "2")

    [(words, options)] = asked
    assert words == ("--count", "1", *(
        *("--min-free", "1GiB", "--min-compute-capability", "7.5"), *("--share", "2"),
    ))  # fmt: skip
    assert (options.share, options.wait, options.timeout_s, options.claim) == (2, True, 2.5, True)
    assert options.command == own_command(sys.orig_argv)


def test_a_worker_is_named_in_its_claim(process: Callable[..., ProcessGpus]) -> None:
    gpus = process(lease())
    gpus._config = SimpleNamespace(  # type: ignore[assignment]
        workerinput={"workerid": "gw1", "testrunuid": "0123456789", "mainargv": ["/x/pytest", "-n"]}
    )

    assert gpus._command() == "pytest-gw1-01234567 -n"
