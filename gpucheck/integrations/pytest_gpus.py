"""GPUs of one test process: claimed before it imports any test, held until it ends.

CUDA reads CUDA_VISIBLE_DEVICES once, when it starts, and a process keeps memory on its GPU until it
ends. So a process has the same GPUs for all of its tests: a marker can only require them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import pytest

from gpucheck.drivers.cuda.in_process import is_cuda_started
from gpucheck.drivers.live import LiveProbes
from gpucheck.integrations.diagnose import diagnose
from gpucheck.place.claims import ClaimOptions, Lease, Waiting, own_command
from gpucheck.place.lease import lease_best, request_of
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.place.placement import CudaDevice, environment_for
from gpucheck.place.selection import (
    ALLOW_BUSY_GPUS,
    SelectionRequest,
    capability_of,
    selectable_devices,
)
from gpucheck.report.envelope import CheckStatus, Failure
from gpucheck.report.errors import (
    GpucheckError,
    MissingError,
    WrongUseError,
    check_argument,
    check_seconds,
)
from gpucheck.report.text import count_of
from gpucheck.report.units import Amount, parse_amount

NAME = "gpucheck-gpus"
MARKER = "gpucheck"
FIXTURES = frozenset({"gpucheck_gpu", "gpucheck_gpus"})
#: What pytest only shows, without running a test.
ONLY_SHOWS = (
    "cacheshow", "collectonly", "help", "markers", "show_fixtures_per_test", "showfixtures",
    "version",
)  # fmt: skip
DIAGNOSIS_S = 20.0
#: Characters of a UUID that tell the GPUs of a machine apart: "GPU-3f2a91bc".
SHORT = 12


class Refusal(NamedTuple):
    """Why a process has no GPU; `skips` if this machine has none for it."""

    text: str
    skips: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a marker requires of the GPUs of its process."""

    count: int = 1
    memory: Amount | None = None
    capability: str | None = None

    def are_met_by(self, device: CudaDevice) -> bool:
        """Return whether a GPU has the memory and the compute capability; False if not known."""
        total, capability = device.memory_total_bytes, device.gpu.compute_capability
        if self.memory and (total is None or total < self.memory.bytes_of(total)):
            return False
        if not self.capability:
            return True
        return capability is not None and capability_of(capability) >= capability_of(
            self.capability
        )

    def __str__(self) -> str:
        """Return them in words: "2 GPUs with 8GiB of memory and compute capability 9.0"."""
        memory = [f"{self.memory.text} of memory"] if self.memory else []
        capability = [f"compute capability {self.capability}"] if self.capability else []
        features = " and ".join((*memory, *capability))
        return count_of(self.count) + (f" with {features}" if features else "")

    @property
    def options(self) -> str:
        """Return the options that give every process such GPUs."""
        words = ["--gpucheck", "--gpucheck-count", str(self.count)]
        words += ["--gpucheck-memory", self.memory.text] if self.memory else []
        words += ["--gpucheck-capability", self.capability] if self.capability else []
        return " ".join(words)


def wanted_gpus(config: pytest.Config) -> SelectionRequest:
    """Return the GPUs that each process asks for, by the options of the plug-in.

    Raises:
        pytest.UsageError: one makes no sense.
    """
    option = config.getoption
    try:
        check_seconds("--timeout", option("gpucheck_timeout"), least=0)
        criteria = {
            "count": option("gpucheck_count"),
            "min_free": option("gpucheck_memory"),
            "min_compute_capability": option("gpucheck_capability"),
            "share": option("gpucheck_share"),
        }
        request = request_of((), criteria)
    except WrongUseError as error:
        # The message names the options of `gpucheck place`.
        message = " ".join((error.message.replace("--", "--gpucheck-"), *error.remedy))
        raise pytest.UsageError(message) from None
    assert request is not None, "a choice without names"
    return request


def needs_of(mark: pytest.Mark) -> Needs:
    """Return the requirements of a marker.

    Raises:
        WrongUseError: it has other arguments, or one makes no sense.
    """
    strange = [
        *map(repr, mark.args),
        *sorted(set(mark.kwargs) - {field.name for field in fields(Needs)}),
    ]
    if strange:
        message = f"The marker gpucheck takes count, memory and capability, not {strange[0]}."
        raise WrongUseError(code="usage", message=message)
    given = Needs(**mark.kwargs)
    check_argument("count", given.count, "a whole number", int)
    if given.count < 1:
        raise WrongUseError(code="usage", message=f"count takes 1 or more, not {given.count}.")
    if given.capability is not None:
        check_argument("capability", given.capability, "a text such as '9.0'", str)
        capability_of(given.capability)
    if given.memory is None:
        return given
    check_argument("memory", given.memory, "a text such as '8GiB'", str)
    amount = parse_amount(str(given.memory))
    if amount.size_bytes is None:
        message = f"memory takes an amount such as '8GiB', not the share {amount.text!r}."
        raise WrongUseError(code="usage", message=message)
    return replace(given, memory=amount)


def runs_tests(config: pytest.Config) -> bool:
    """Return whether tests will run, and not only be shown."""
    return not any(getattr(config.option, name, False) for name in ONLY_SHOWS)


def gpus_of(config: pytest.Config) -> tuple[PlacedDevice, ...]:
    """Return the GPUs of this process; skip or fail the test if it has none."""
    gpus = config.pluginmanager.get_plugin(NAME)
    assert isinstance(gpus, ProcessGpus), "a process that runs no tests"
    gpus.check(Needs())
    return gpus.devices


def say(config: pytest.Config, text: str) -> None:
    """Write a line to the terminal, past pytest's capturing."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def worker_name(worker: str, run: str) -> str:
    """Return the name of a worker's program in the record of its claim: "pytest-gw0-3f2a91bc"."""
    return f"pytest-{worker}-{run[:8]}"


def shown(uuid: str | None, index: int | None) -> str:
    """Return a GPU as the header shows it: "GPU-3f2a91bc (index 2)"."""
    return f"{(uuid or 'unknown')[:SHORT]} (index {index})"


class ProcessGpus:
    """GPUs that this process holds until it ends, or the reason why it holds none."""

    def __init__(self, config: pytest.Config, request: SelectionRequest) -> None:
        self._config = config
        self._request = request
        self._timeout_s: float = config.option.gpucheck_timeout
        self._lease = Lease()
        self._before: dict[str, str | None] = {}
        self._has_told = False
        self.devices: tuple[PlacedDevice, ...] = ()
        self._refusal: Refusal | None = None

    # ------------------------------------------------------------------------------ claiming

    def claim(self) -> None:
        """Claim the GPUs and let this process see no others; note why if that cannot be."""
        if is_cuda_started():
            text = "CUDA was started before this process could get a GPU of its own"
            how = "a conftest.py or a plug-in starts it when it is imported: do that in a fixture"
            self._refusal = Refusal(f"{text}: {how}", skips=False)
            return
        probes = LiveProbes()
        try:
            self._refusal = self._take(probes)
        except MissingError as error:
            # Anything but the claims' directory: there is no driver, or no GPU.
            self._refusal = no_gpu(error.message)
            if error.code == "claims-directory-unusable":
                self._refusal = Refusal(" ".join((error.message, *error.remedy)), skips=False)
        except GpucheckError as error:
            self._refusal = Refusal(error.message, skips=False)
        finally:
            probes.close()
        if self._refusal is not None:
            self._lease.close()
            self.devices = ()

    def _take(self, probes: LiveProbes) -> Refusal | None:
        options = ClaimOptions(
            share=self._request.share,
            wait=True,
            timeout_s=self._timeout_s,
            # A scheduler gave GPUs to the whole job: its processes still need one each.
            claim=True,
            command=self._command(),
        )
        self._lease = lease_best(self._request, options, probes, os.environ, on_wait=self._tell)
        placement, failure = self._lease.answer.result, self._lease.answer.error
        assert isinstance(placement, Placement), "a lease without a placement"
        if failure is not None:
            # Others hold the GPUs: a test without a marker must not use them either.
            self._set(environment_for(()))
            return refused(failure)
        self._set(placement.environment)
        self.devices = tuple(
            replace(device, cuda_index=ordinal) for ordinal, device in enumerate(placement.devices)
        )
        cuda = probes.cuda()
        if cuda.failure is None and len(cuda.devices) == len(self.devices):
            return None
        missing = f"CUDA lists {len(cuda.devices)} of {count_of(len(self.devices))}"
        return no_gpu(cuda.failure.message if cuda.failure else missing)

    def _command(self) -> str:
        """Return the command that the record of the claim shows for this process."""
        worker: Mapping[str, str] | None = getattr(self._config, "workerinput", None)
        if worker is None:
            return own_command(sys.orig_argv)
        name = worker_name(worker["workerid"], worker["testrunuid"])
        return own_command((name, *worker["mainargv"][1:]))

    def _tell(self, waiting: Waiting) -> None:
        """Say once that this process waits, and for whom."""
        if self._has_told:
            return
        self._has_told = True
        worker = getattr(self._config, "workerinput", {}).get("workerid")
        reasons = [reason for reason in waiting.details if reason != ALLOW_BUSY_GPUS]
        why = "; ".join(reasons) or waiting.reason
        who = f"{worker} waits" if worker else "waiting"
        say(self._config, f"gpucheck: {who} up to {self._timeout_s:g} s for a GPU: {why}")

    def _set(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            os.environ[name] = value

    # ------------------------------------------------------------------------------ tests

    def check(self, needs: Needs) -> None:
        """Skip or fail the current test if this process does not have what it needs."""
        refusal = self._refuse(needs)
        if refusal is not None and refusal.skips:
            pytest.skip(refusal.text)
        if refusal is not None:
            pytest.fail(refusal.text, pytrace=False)

    def _refuse(self, needs: Needs) -> Refusal | None:
        """Return why a test cannot run here, as a failure where GPUs are required."""
        uuids = {device.uuid for device in self.devices}
        every = selectable_devices(self._lease.gpus)
        own = [device for device in every if device.uuid in uuids]
        refusal = self._refusal or unmet(needs, own, every)
        if refusal is not None and self._config.option.gpucheck_required:
            return refusal._replace(skips=False)
        return refusal

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Check what a test needs before its fixtures are made."""
        mark = item.get_closest_marker(MARKER)
        if mark is None and not FIXTURES.intersection(getattr(item, "fixturenames", ())):
            return
        needs, wrong = Needs(), ""
        try:
            needs = needs_of(mark) if mark is not None else needs
        except WrongUseError as error:
            wrong = " ".join((error.message, *error.remedy))
        if wrong:
            pytest.fail(wrong, pytrace=False)
        refusal = self._refuse(needs)
        if refusal is not None and refusal.skips:
            # A skip that is raised here would be reported with this file as its place.
            item.add_marker(pytest.mark.skip(reason=refusal.text))
        elif refusal is not None:
            pytest.fail(refusal.text, pytrace=False)

    def pytest_report_header(self) -> Sequence[str]:
        """Say which GPUs the tests get."""
        if self._refusal is not None:
            return (f"gpucheck: no GPU: {self._refusal.text}",)
        names = ", ".join(shown(device.uuid, device.index) for device in self.devices)
        notices = (f"gpucheck: {notice.message}" for notice in self._lease.answer.warnings)
        return (f"gpucheck: {names}, {self.devices[0].name}", *notices)

    def pytest_unconfigure(self) -> None:
        """Give the GPUs back, but not while CUDA runs in this process: then its end does."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if not is_cuda_started():
            self._lease.close()


def unmet(needs: Needs, own: Sequence[CudaDevice], every: Sequence[CudaDevice]) -> Refusal | None:
    """Return why the GPUs of a process do not do for a test; None if they do.

    If other GPUs of the machine would do, that is no reason to skip: which process gets which GPU
    is chance.
    """
    if len(own) >= needs.count and all(map(needs.are_met_by, own)):
        return None
    could = [d for d in every if d.gpu.visible is not False and needs.are_met_by(d)]
    if len(could) < needs.count:
        has = f"this machine has {len(could) or 'none'} of them"
        return Refusal(f"the test needs {needs}: {has}", skips=True)
    has = ", ".join(shown(device.uuid, device.gpu.index) for device in own)
    text = (
        f"the test needs {needs}, but its process got {has} before it imported the tests, and CUDA"
        f" reads that only once. Run: pytest {needs.options}"
    )
    return Refusal(text, skips=False)


def refused(failure: Failure) -> Refusal:
    """Return why no GPU was given: none could ever fit, or none became free in time."""
    reasons = [reason for reason in failure.remedy[:-1] if reason != ALLOW_BUSY_GPUS]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    more = ""
    if len(reasons) < len(failure.remedy) - 1:
        more = "; --gpucheck-memory 8GiB takes a GPU in use that has so much free"
    text = f"{failure.message.removesuffix('.')}{why}{more}"
    return Refusal(text, skips=failure.code == "nothing-fits")


def no_gpu(otherwise: str) -> Refusal:
    """Return the cause that detect finds, in one line; `otherwise` if it finds nothing wrong."""
    diagnosis = diagnose(None, deadline_s=DIAGNOSIS_S)
    if diagnosis is None:
        return Refusal(f"no usable GPU: {otherwise.removesuffix('.')}", skips=True)
    cause = diagnosis.message.removesuffix(".").removeprefix("GPU not usable: ")
    unknown = diagnosis.status is CheckStatus.UNKNOWN
    return Refusal(f"no usable GPU: {cause} (see: gpucheck detect)", skips=not unknown)
