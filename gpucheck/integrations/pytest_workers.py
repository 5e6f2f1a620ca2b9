"""xdist's workers and the GPUs: no more workers than GPUs, and one test run claims at a time.

The controller of a run holds no GPU. Its workers claim theirs one after another, and xdist starts
no test before all of them are ready. Two runs that each have a part of the GPUs would wait for each
other, so the controller has the turn until its workers have theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pytest

from gpucheck.drivers.live import LiveProbes
from gpucheck.integrations.pytest_gpus import (
    Settings,
    runs_tests,
    say,
    settings_of,
    shown,
    worker_name,
)
from gpucheck.place.claim_store import Lock, list_claims
from gpucheck.place.claims import open_claims
from gpucheck.place.lease import suitable_gpus
from gpucheck.place.model import Candidate, name_together
from gpucheck.place.selection import SelectionRequest
from gpucheck.report.errors import GpucheckError
from gpucheck.report.text import count_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: Interval at which a waiting controller looks whether it has the turn.
LOOK_S = 0.1


class Places(NamedTuple):
    """How many workers find a GPU here, how many were wanted, and the GPUs that they share out."""

    number: int
    wanted: int | None
    gpus: Sequence[Candidate] = ()


PLACES = pytest.StashKey[Places]()


def limit_workers(config: pytest.Config) -> None:
    """Lower xdist's number of workers to those that can get GPUs; `-n auto` is that number.

    Where there is no GPU at all the number stays: nothing is claimed.
    """
    wanted = getattr(config.option, "numprocesses", None)
    if not wanted or not runs_tests(config) or config.option.usepdb:
        return
    request = settings_of(config).request
    gpus = find_gpus(request)
    count = len(gpus) // request.count * request.share
    asked = wanted if isinstance(wanted, int) else None
    config.stash[PLACES] = Places(count, asked, gpus)
    if count and (asked is None or asked > count):
        config.option.numprocesses = count


def find_gpus(request: SelectionRequest) -> Sequence[Candidate]:
    """Return each GPU or MIG instance that could fit; none if that is unknown."""
    probes = LiveProbes()
    try:
        return suitable_gpus(request, probes, os.environ)
    except GpucheckError:
        return ()  # a worker finds the reason, and says it
    finally:
        probes.close()


class Controller:
    """Controller of xdist's workers, which claim the GPUs themselves."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._places = config.stash.get(PLACES, Places(0, None))
        self._turn: Lock | None = None
        self._awaited = 0
        self._ready: dict[str, str] = {}

    def pytest_report_header(self) -> list[str]:
        """Say why fewer workers start than were wanted, and if the tests wait for GPUs."""
        return [f"gpucheck: {line}" for line in (self._fewer(), self._later()) if line]

    def _fewer(self) -> str | None:
        count, wanted, _ = self._places
        if not count or wanted is None or wanted <= count:
            return None
        return (
            f"{count} of {wanted} workers start, since only {count} can have {self._what}"
            " (--gpucheck-share N lets N of them use the same)"
        )

    def _later(self) -> str | None:
        """Return why xdist, which waits for every worker, will begin late."""
        count, wanted, gpus = self._places
        starting = count if wanted is None else min(count, wanted)
        taken = [gpu for gpu in gpus if not gpu.eligible]
        request = self._settings.request
        now = (len(gpus) - len(taken)) // request.count * request.share
        if now >= starting:
            return None
        reasons: dict[str, list[Candidate]] = {}
        for gpu in taken:
            reasons.setdefault(gpu.reason, []).append(gpu)
        why = "; ".join(f"{name_together(each)}: {reason}" for reason, each in reasons.items())
        at_once = f"-n {now} begins at once, and " if now else ""
        return (
            f"{now or 'none'} of {count_of(starting, 'worker')} can have {self._what} now ({why});"
            f" no test begins before the others have one too, or after"
            f" {self._settings.timeout_s:g} s: {at_once}--gpucheck-timeout SECONDS waits less"
        )

    @property
    def _what(self) -> str:
        return "a GPU" if self._settings.request.count == 1 else "GPUs"

    def pytest_sessionstart(self) -> None:
        """Take the turn before xdist starts the workers; go on without it when time is up."""
        if not self._places.number:
            return
        try:
            store = open_claims(os.environ)
            self._turn = store.try_turn()
            if self._turn is None:
                say(self._config, "gpucheck: waiting for another test run to get its GPUs")
            end_s = time.monotonic() + self._settings.timeout_s
            while self._turn is None and time.monotonic() < end_s:
                time.sleep(LOOK_S)
                self._turn = store.try_turn()
        except GpucheckError:
            return  # the workers cannot claim either, and say why

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
        if terminal is None or not self._places.number:
            return
        try:
            claims = list_claims(open_claims(os.environ)).claims
        except GpucheckError:
            return
        indices = {gpu.uuid: gpu.index for gpu in self._places.gpus}
        parts = []
        for worker, run in sorted(self._ready.items(), key=lambda each: (len(each[0]), each)):
            program = worker_name(worker, run)
            own = [claim for claim in claims if (claim.command or "").split(" ")[0] == program]
            names = (shown(claim.uuid, indices.get(claim.uuid)) for claim in own)
            parts.append(f"{worker} -> {', '.join(names) or 'no GPU'}")
        terminal.ensure_newline()
        terminal.write_line("   ".join(parts))

    def pytest_unconfigure(self) -> None:
        """Give the turn back if the run ended early."""
        self._give_turn_back()
