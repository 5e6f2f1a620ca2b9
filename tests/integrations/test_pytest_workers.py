"""How many workers start, who has the turn, and what is shown of their claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.integrations import pytest_workers as module
from gpucheck.integrations.pytest_gpus import worker_name
from gpucheck.integrations.pytest_workers import PLACES, Controller, limit_workers
from gpucheck.place.claim_store import ClaimStore, Slot, Target
from gpucheck.place.model import Candidate, Holder
from gpucheck.place.selection import SelectionRequest

GPUS = tuple(
    Candidate(uuid=uuid, index=index, name="NVIDIA T4", eligible=True, reason="free")
    for uuid, index in (("GPU-aaaaaaaa-1", 4), ("GPU-bbbbbbbb-2", 6))
)
RUN = "0123456789abcdef"


class Terminal:
    """Terminal that keeps what is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        """Do nothing."""

    def write_line(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)


def a_config(numprocesses: Any = None, **options: Any) -> Any:
    """Return a config with xdist's options, and what is written to its terminal."""
    values = {"usepdb": False, "numprocesses": numprocesses, **options}
    terminal = Terminal()
    return SimpleNamespace(
        option=SimpleNamespace(**values),
        stash=pytest.Stash(),
        pluginmanager=SimpleNamespace(
            get_plugin=lambda name: terminal if name == "terminalreporter" else None
        ),
        terminal=terminal,
    )


def limited(
    monkeypatch: pytest.MonkeyPatch, config: Any, gpus: Sequence[Candidate], **request: int
) -> Any:
    monkeypatch.setattr(module, "wanted_gpus", lambda _: SelectionRequest(**request))
    monkeypatch.setattr(module, "find_gpus", lambda _: gpus)
    limit_workers(config)
    return config.option.numprocesses


@pytest.mark.parametrize(
    ("wanted", "request_", "started"),
    [
        (4, {}, 2),
        (2, {}, 2),
        (1, {}, 1),
        ("auto", {}, 2),
        ("logical", {"share": 3}, 6),
        (7, {"share": 3}, 6),
        ("auto", {"count": 2}, 1),
        ("auto", {"count": 2, "share": 2}, 2),
        (5, {"count": 3}, 5),
        (0, {}, 0),
        (None, {}, None),
    ],
)
def test_no_more_workers_than_gpus_for_them(
    wanted: Any, request_: dict[str, int], started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limited(monkeypatch, a_config(wanted), GPUS, **request_) == started


@pytest.mark.parametrize(("taken", "started"), [(0, 2), (1, 1), (2, 1)])
def test_auto_takes_the_free_ones_and_at_least_one(
    taken: int, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (*(replace(gpu, eligible=False) for gpu in GPUS[:taken]), *GPUS[taken:])

    assert limited(monkeypatch, a_config("auto"), gpus) == started


def test_without_any_gpu_the_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limited(monkeypatch, a_config(4), ()) == 4
    assert limited(monkeypatch, a_config("auto"), ()) == "auto"


@pytest.mark.parametrize("option", ["usepdb", "collectonly"])
def test_nothing_is_changed_where_xdist_starts_none(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_config("auto", **{option: True})

    assert limited(monkeypatch, config, GPUS) == "auto"
    assert PLACES not in config.stash


# ------------------------------------------------------------------------------ the controller


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClaimStore:
    """Return the claims that the controller looks at."""
    monkeypatch.setenv("GPUCHECK_CLAIMS_DIR", str(tmp_path / "claims"))
    return ClaimStore(tmp_path / "claims")


def a_controller(
    number: int = 2,
    wanted: int | None = 4,
    gpus: Sequence[Candidate] = GPUS,
    *,
    timeout_s: float = 0.0,
    **request: int,
) -> tuple[Controller, list[str]]:
    config = a_config(tx=["popen"] * min(number, wanted or number), gpucheck_timeout=timeout_s)
    config.stash[PLACES] = (number, wanted, gpus)
    return Controller(config, SelectionRequest(**request)), config.terminal.lines


def node(worker: str) -> Any:
    return SimpleNamespace(
        gateway=SimpleNamespace(id=worker), workerinput={"workerid": worker, "testrunuid": RUN}
    )


def test_the_header_says_why_fewer_start() -> None:
    controller, _ = a_controller()
    pairs, _ = a_controller(1, 2, count=2)

    (said,) = controller.pytest_report_header()
    assert said.startswith("gpucheck: 2 of 4 workers start, since only 2 can have a GPU (")
    (said,) = pairs.pytest_report_header()
    assert "since only 1 can have GPUs" in said
    for number, wanted in ((2, 2), (2, None), (0, 4)):
        assert a_controller(number, wanted)[0].pytest_report_header() == []


@pytest.mark.parametrize(
    ("workers", "taken", "options", "said"),
    [
        (2, 1, {}, "1 of 2 workers can have a GPU now (GPU 4: held by theirs); the tests begin"
         " once all have one, or after 9 s with those that do: -n 1 begins at once, and"
         " --gpucheck-timeout SECONDS waits less"),
        (2, 2, {}, "none of 2 workers can have a GPU now (GPUs 4,6: held by theirs); the tests"
         " begin once all have one, or after 9 s with those that do: --gpucheck-timeout SECONDS"
         " waits less"),
        (None, 1, {}, "-n auto starts 1 of 4 workers: the others find no GPU now (GPU 4: held by"
         " theirs)"),
        (1, 1, {"count": 2}, "none of 1 worker can have GPUs now (GPU 4: held by theirs)"),
        (4, 1, {"share": 2}, "2 of 4 workers can have a GPU now"),
        (2, 0, {}, None),
        (1, 1, {}, None),
    ],
)  # fmt: skip
def test_the_header_says_that_the_tests_wait_for_gpus_in_use(
    workers: int | None, taken: int, options: dict[str, int], said: str | None
) -> None:
    in_use = [replace(gpu, eligible=False, reason="held by theirs") for gpu in GPUS[:taken]]
    controller, _ = a_controller(4, workers, (*in_use, *GPUS[taken:]), timeout_s=9.0, **options)

    header = controller.pytest_report_header()

    if said is None:
        assert header == []
    else:
        (line,) = header
        assert line.startswith(f"gpucheck: {said}")


def test_one_run_has_the_turn_until_its_workers_are_ready(store: ClaimStore) -> None:
    controller, _ = a_controller()
    controller.pytest_sessionstart()
    controller.pytest_xdist_setupnodes([object(), object()])
    assert store.try_turn() is None

    controller.pytest_testnodeready(node("gw0"))
    controller.pytest_testnodedown(node("gw0"))  # it is the same one
    assert store.try_turn() is None
    controller.pytest_testnodedown(node("gw1"))

    turn = store.try_turn()
    assert turn is not None
    turn.close()


def test_a_run_that_ends_early_gives_the_turn_back(store: ClaimStore) -> None:
    controller, _ = a_controller()
    controller.pytest_sessionstart()
    controller.pytest_unconfigure()

    assert store.try_turn() is not None


def test_a_run_goes_on_without_the_turn_when_time_is_up(
    store: ClaimStore, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = store.try_turn()
    controller, _ = a_controller(timeout_s=0.01)

    controller.pytest_sessionstart()
    controller.pytest_unconfigure()

    assert turn is not None
    assert store.try_turn() is None, "another run's turn was given back"
    assert capsys.readouterr().err == "gpucheck: waiting for another test run to get its GPUs\n"


def test_a_run_waits_for_the_turn_of_another(
    store: ClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = store.try_turn()
    assert turn is not None
    monkeypatch.setattr(module.time, "sleep", lambda _: turn.close())
    controller, _ = a_controller(timeout_s=60)

    controller.pytest_sessionstart()

    assert store.try_turn() is None, "it has no turn"
    controller.pytest_unconfigure()
    assert store.try_turn() is not None


TAKEN = tuple(replace(gpu, eligible=False, reason="held by theirs") for gpu in GPUS)


@pytest.mark.parametrize(
    ("seen", "started", "said"),
    [
        ([GPUS], 2, ""),
        ([TAKEN, (GPUS[0], TAKEN[1]), GPUS], 2, ""),
        ([TAKEN, (GPUS[0], TAKEN[1])], 1, "gpucheck: after 3 s 1 worker can have a GPU\n"),
        ([TAKEN, ()], 1, "gpucheck: after 3 s no GPU is free: the tests on a GPU fail\n"),
    ],
)
def test_workers_start_once_all_have_a_gpu_or_those_that_do_when_time_is_up(
    seen: list[Any],
    started: int,
    said: str,
    store: ClaimStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(module.time, "sleep", lambda s: clock_s.__setitem__(0, clock_s[0] + s))
    later = iter(seen[1:])
    monkeypatch.setattr(module, "find_gpus", lambda _: next(later, seen[-1]))
    controller, _ = a_controller(2, 2, seen[0], timeout_s=3.0)

    controller.pytest_sessionstart()
    controller.pytest_unconfigure()

    option = controller._config.option
    assert len(option.tx) == started
    assert option.gpucheck_timeout == (0.0 if "no GPU" in said else 3.0)
    assert capsys.readouterr().err == said
    assert clock_s[0] <= 3.0


def test_without_gpus_there_is_no_turn_to_take(store: ClaimStore) -> None:
    controller, lines = a_controller(0)
    controller.pytest_sessionstart()
    controller.pytest_xdist_setupnodes([object()])
    controller.pytest_testnodeready(node("gw0"))

    assert not store.exists()
    assert lines == []


def test_which_worker_has_which_gpu(store: ClaimStore) -> None:
    controller, lines = a_controller()
    with store.mutex() as locked:
        locks = [
            locked.take(
                Slot(target=Target(card=str(uuid)), steps=((0, 1),)),
                Holder(pid=1, command=f"{worker_name(worker, run)} tests -n 4"),
            )
            for uuid, worker, run in (
                ("GPU-aaaaaaaa-1", "gw1", RUN),
                ("GPU-bbbbbbbb-2", "gw0", "another"),
            )
        ]
    controller.pytest_xdist_setupnodes([object(), object()])
    for worker in ("gw1", "gw0"):
        controller.pytest_testnodeready(node(worker))
    controller.pytest_testnodeready(node("gw2"))  # in place of one that was killed

    assert lines == ["gw0 -> no GPU   gw1 -> GPU-aaaaaaaa (index 4)"]
    assert all(locks)
