"""xdist's workers and the GPUs: no more workers than GPUs, and one test run claims at a time.

The controller of a run holds no GPU: its workers claim theirs one after another. Two runs that each
have a part of the GPUs would wait for each other, so the controller has the turn until its workers
have theirs. It starts them once there is a GPU for each, or when time is up those that find one: a
worker without a GPU would fail its tests at once, and so be given nearly all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from gpucheck.drivers.live import LiveProbes
from gpucheck.integrations.pytest_gpus import (
    NAME,
    ProcessGpus,
    runs_tests,
    say,
    shown,
    wanted_gpus,
    worker_name,
)
from gpucheck.place.claim_store import Lock, list_claims
from gpucheck.place.claims import open_claims
from gpucheck.place.lease import suitable_gpus
from gpucheck.place.model import Candidate, name_together
from gpucheck.place.selection import SelectionRequest
from gpucheck.report.errors import GpucheckError
from gpucheck.report.text import count_of, group_by

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Intervals at which a waiting controller looks whether it has the turn, and whether GPUs are free.
LOOK_S = 0.1
LOOK_AT_GPUS_S = 1.0


#: How many workers find a GPU here, how many were wanted, and the GPUs that they share out.
Places = tuple[int, int | None, Sequence[Candidate]]
PLACES = pytest.StashKey[Places]()


def is_controller(config: pytest.Config) -> bool:
    """Return whether xdist runs the tests in other processes."""
    is_worker = hasattr(config, "workerinput")
    return not is_worker and getattr(config.option, "dist", "no") != "no" and config.option.tx != []


def configure(config: pytest.Config) -> None:
    """Claim GPUs for this process, unless its tests run in others.

    Raises:
        pytest.UsageError: an option makes no sense.
    """
    request = wanted_gpus(config)
    if not runs_tests(config):
        return
    if is_controller(config):
        config.pluginmanager.register(Controller(config, request), NAME)
        return
    gpus = ProcessGpus(config, request)
    gpus.claim()
    config.pluginmanager.register(gpus, NAME)


def limit_workers(config: pytest.Config) -> None:
    """Lower xdist's number of workers to those that can get GPUs; `-n auto` takes the free ones.

    Where there is no GPU at all the number stays: nothing is claimed.
    """
    wanted = getattr(config.option, "numprocesses", None)
    if not wanted or not runs_tests(config) or config.option.usepdb:
        return
    request = wanted_gpus(config)
    gpus = find_gpus(request)
    count = len(gpus) // request.count * request.share
    asked = wanted if isinstance(wanted, int) else None
    config.stash[PLACES] = (count, asked, gpus)
    if count and asked is None:
        config.option.numprocesses = max(1, count_free(request, gpus))
    elif count and asked is not None:
        config.option.numprocesses = min(asked, count)


def count_free(request: SelectionRequest, gpus: Sequence[Candidate]) -> int:
    """Return how many workers can have their GPUs now."""
    return sum(gpu.eligible for gpu in gpus) // request.count * request.share


def find_gpus(request: SelectionRequest) -> Sequence[Candidate]:
    """Return each GPU or MIG instance that could fit; none if that is unknown."""
    try:
        with closing(LiveProbes()) as probes:
            return suitable_gpus(request, probes, os.environ)
    except GpucheckError:
        return ()  # a worker finds the reason, and says it


class Controller:
    """Controller of xdist's workers, which claim the GPUs themselves."""

    def __init__(self, config: pytest.Config, request: SelectionRequest) -> None:
        self._config = config
        self._request = request
        self._timeout_s: float = config.option.gpucheck_timeout
        self._count, self._wanted, self._gpus = config.stash.get(PLACES, (0, None, ()))
        self._turn: Lock | None = None
        self._awaited = 0
        self._ready: dict[str, str] = {}

    def pytest_report_header(self) -> list[str]:
        """Say why fewer workers start than were wanted, and if the tests wait for GPUs."""
        return [f"gpucheck: {line}" for line in (self._fewer(), self._later()) if line]

    def _fewer(self) -> str | None:
        count, wanted = self._count, self._wanted
        if not count or wanted is None or wanted <= count:
            return None
        return (
            f"{count} of {wanted} workers start, since only {count} can have {self._what}"
            " (--gpucheck-share N lets N of them use the same)"
        )

    def _later(self) -> str | None:
        """Return why xdist, which waits for every worker, will begin late."""
        count, wanted, gpus = self._count, self._wanted, self._gpus
        starting = count if wanted is None else min(count, wanted)
        now = count_free(self._request, gpus)
        if now >= starting:
            return None
        reasons = group_by((gpu for gpu in gpus if not gpu.eligible), lambda gpu: gpu.reason)
        why = "; ".join(f"{name_together(same)}: {reason}" for reason, same in reasons.items())
        number = f"{now or 'none'} of {count_of(starting, 'worker')}"
        if now and wanted is None:
            return f"-n auto starts {number}: the others find no GPU now ({why})"
        at_once = f"-n {now} begins at once, and " if now else ""
        return (
            f"{number} can have {self._what} now ({why}); the tests begin once all have one, or"
            f" after {self._timeout_s:g} s with those that do: {at_once}--gpucheck-timeout"
            " SECONDS waits less"
        )

    @property
    def _what(self) -> str:
        return "a GPU" if self._request.count == 1 else "GPUs"

    def pytest_sessionstart(self) -> None:
        """Take the turn, and wait for the GPUs, before xdist starts the workers."""
        if not self._count:
            return
        try:
            store = open_claims(os.environ)
            self._turn = store.try_turn()
            if self._turn is None:
                say(self._config, "gpucheck: waiting for another test run to get its GPUs")
            end_s = time.monotonic() + self._timeout_s
            while self._turn is None and time.monotonic() < end_s:
                time.sleep(LOOK_S)
                self._turn = store.try_turn()
                if self._turn is not None:
                    self._look_at_gpus()  # the other run has claimed some meanwhile
        except GpucheckError:
            return  # the workers cannot claim either, and say why
        self._wait_for_gpus(end_s)

    def _wait_for_gpus(self, end_s: float) -> None:
        """Wait until each worker can have its GPUs; when time is up, start those that can."""
        request, specs = self._request, self._config.option.tx
        while count_free(request, self._gpus) < len(specs) and time.monotonic() < end_s:
            time.sleep(min(LOOK_AT_GPUS_S, max(0.0, end_s - time.monotonic())))
            self._look_at_gpus()
        free = count_free(request, self._gpus)
        if free >= len(specs):
            return
        # The specification of each worker, from which xdist starts it afterwards.
        del specs[max(1, free) :]
        waited = f"after {self._timeout_s:g} s"
        if free:
            say(
                self._config, f"gpucheck: {waited} {count_of(free, 'worker')} can have {self._what}"
            )
        else:
            say(self._config, f"gpucheck: {waited} no GPU is free: the tests on a GPU fail")
            self._config.option.gpucheck_timeout = 0.0

    def _look_at_gpus(self) -> None:
        self._gpus = find_gpus(self._request) or self._gpus

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[object]) -> None:
        """Note how many workers start."""
        self._awaited = len(specs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: WorkerController) -> None:
        """Note that a worker has claimed its GPUs, or given up."""
        self._note(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Note that a worker has ended, which a broken one does before it is ready."""
        self._note(node)

    def _note(self, node: WorkerController) -> None:
        self._awaited -= node.gateway.id not in self._ready
        self._ready[node.gateway.id] = node.workerinput["testrunuid"]
        if self._awaited == 0:
            self._awaited = -1
            self._give_turn_back()
            self._show()

    def _give_turn_back(self) -> None:
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    def _show(self) -> None:
        """Show which worker has which GPU, as the claims say."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or not self._count:
            return
        try:
            claims = list_claims(open_claims(os.environ)).claims
        except GpucheckError:
            return
        indices = {gpu.uuid: gpu.index for gpu in self._gpus}
        parts = []
        for worker, run in sorted(self._ready.items(), key=lambda item: (len(item[0]), item)):
            program = worker_name(worker, run)
            own = [claim for claim in claims if (claim.command or "").split(" ")[0] == program]
            names = (shown(claim.uuid, indices.get(claim.uuid)) for claim in own)
            parts.append(f"{worker} -> {', '.join(names) or 'no GPU'}")
        terminal.ensure_newline()
        terminal.write_line("   ".join(parts))

    def pytest_unconfigure(self) -> None:
        """Give the turn back if the run ended early."""
        self._give_turn_back()
