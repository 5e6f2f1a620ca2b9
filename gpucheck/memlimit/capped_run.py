"""Run of a command in a cgroup that the driver limits: made, limited, proved, watched, removed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucheck.drivers.child import Child, ChildError, explain
from gpucheck.drivers.cuda.worker import BEYOND_BYTES
from gpucheck.drivers.host import capped_groups
from gpucheck.drivers.host.cgroups import MOUNT
from gpucheck.drivers.interrupts import DeferredStops
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.readings import HUNG, ProbeFailure
from gpucheck.memlimit.model import HardGpu, HardLimit, LimitedRun, MemoryLimit, RunGpu
from gpucheck.report.errors import BadAnswerError, InconclusiveError, LaunchError, MissingError
from gpucheck.report.text import binary_bytes

GATE = str(Path(capped_groups.__file__).with_name("gated_start_child.py"))
CUDA_WORKER = "gpucheck.drivers.cuda.worker"
INTERVAL_S = 1.0
#: The driver has already answered: it does so again within milliseconds.
ANSWER_S = 5.0
#: systemd starts a scope within a second; a CUDA context takes seconds on a large machine.
START_S = 30.0
PROOF_S = 120.0
PROOF_WORDS = (
    (HUNG, "CUDA did not answer within {}"),
    ("cuda-child-died", "the process that asks for memory {}"),
)
#: So long systemd may take to remove an empty scope, before we do.
_SYSTEMD_S = 0.5
#: Drivers allocate in blocks of 2 MiB, and may round a limit up to one.
_BLOCK_BYTES = 2 << 20
#: The proof's own context, and what NVML and CUDA count differently.
_SPARE_BYTES = 1 << 30

#: Answers to the question for a limit where there is none.
_WITHOUT_LIMITS = frozenset(
    {"not-found", "not-supported", "function-not-found", "driver-not-loaded", "library-not-found"}
)

#: Turns NVML's refusal into the error that names the missing prerequisite.
Refused = Callable[[ProbeFailure, Path], MissingError]


def clear_dead_groups(root: Path, session: NvmlSession, *, deadline_s: float) -> tuple[int, int]:
    """Remove the groups whose owner is dead, with their limits; return how many, and how many stay.

    A group in which the command still runs keeps its limit, until a later call.
    """
    removed = kept = 0
    for record in capped_groups.dead_records(root):
        if record.folder.is_dir():
            if capped_groups.members(record.folder) or not _clear(record, session, deadline_s):
                kept += 1
                continue
            removed += 1
        capped_groups.forget_record(root, record.name)
    return removed, kept


def _clear(record: capped_groups.Record, session: NvmlSession, deadline_s: float) -> bool:
    """Give the limits back, then remove the group; the driver never sees a mere removal.

    Source: NVIDIA, "MPS v3 Memory Partitioning", Ancestor reservation propagation.
    """
    group, wanted = str(record.folder), dict.fromkeys(record.uuids)
    failures = session.set_limits(group, wanted, deadline_s=deadline_s)
    refused = [uuid for uuid, failure in failures.items() if failure is not None]
    if refused and not _has_no_limit(record.folder, refused, session, deadline_s):
        return False
    return capped_groups.remove(record.folder)


def _has_no_limit(
    folder: Path, uuids: Sequence[str], session: NvmlSession, deadline_s: float
) -> bool:
    """Return whether a group has no limit of its own: none was set, or it is gone with the driver.

    Without one, the driver may report that of the group above.
    """
    above = session.limits(str(folder.parent), uuids, deadline_s=deadline_s)
    for uuid, reading in session.limits(str(folder), uuids, deadline_s=deadline_s).items():
        known = reading.failure is None or reading.failure.code in _WITHOUT_LIMITS
        limit = (reading.soft_bytes, reading.hard_bytes)
        inherited = (above[uuid].soft_bytes, above[uuid].hard_bytes)
        if not known or limit not in ((None, None), inherited):
            return False
    return True


class CappedRun:
    """One run: `open` the group, start the `words`, `admit` the process, `tick`, the `outcome`."""

    def __init__(
        self,
        root: Path,
        plan: MemoryLimit,
        session: NvmlSession,
        *,
        place: str,
        parent: Path,
        user: str | None,
        refused: Refused,
    ) -> None:
        self._root = root
        self._session = session
        self._refused = refused
        self._user = user
        name = capped_groups.own_name(os.getpid(), scope=place == "scope")
        mount = root / MOUNT
        folder = (mount if place == "scope" else parent) / name
        self._limits = {
            gpu.uuid: gpu.limit_bytes for gpu in plan.gpus if gpu.uuid and gpu.limit_bytes
        }
        self._record = capped_groups.Record(name, folder, tuple(self._limits))
        self._readings = 0
        self._unread: str | None = None
        self._pipes: list[int] = []
        self.limit = HardLimit(
            cgroup=str(folder),
            place=place,
            back_end="driver",
            user=user,
            gpus=tuple(
                HardGpu(
                    uuid=gpu.uuid or "",
                    index=gpu.index,
                    cuda_index=gpu.cuda_index,
                    soft_limit_bytes=gpu.limit_bytes or 0,
                    hard_limit_bytes=gpu.limit_bytes or 0,
                )
                for gpu in plan.gpus
            ),
        )

    # ------------------------------------------------------------------------------- the start

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[int, int]]:
        """Make the group, and yield the descriptors that the starter inherits.

        Whatever happens after that, the limits are cleared and the group is removed.

        Raises:
            MissingError: the group cannot be made, or NVML refuses the limits.
        """
        try:
            capped_groups.write_record(self._root, self._record)
        except capped_groups.UnsafeRecordsError as error:
            message = f"The record of the cgroup cannot be kept: {error}."
            raise MissingError(code="unsafe-records", message=message) from None
        try:
            if self.limit.place == "own":
                self._make()
            ready, ready_end = os.pipe()
            go_end, go = os.pipe()
            self._pipes = [ready, ready_end, go_end, go]
            yield ready_end, go_end
        finally:
            with DeferredStops():
                self._close_pipes()
                self._remove()

    def _make(self) -> None:
        try:
            capped_groups.make(self._record.folder)
        except OSError as error:
            message = f"The cgroup {self._record.folder} cannot be made: {error.strerror}."
            raise MissingError(code="no-hard-limit-delegation", message=message) from None
        self._set_limits()

    def _set_limits(self) -> None:
        """Set the soft limit equal to the hard one: below it the driver never evicts the command.

        Source: NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS": a strict partition.
        """
        group = str(self._record.folder)
        wanted = {uuid: (size, size) for uuid, size in self._limits.items()}
        failures = self._session.set_limits(group, wanted, deadline_s=ANSWER_S)
        failure = next((failure for failure in failures.values() if failure is not None), None)
        if failure is not None:
            raise self._refused(failure, self._record.folder)
        for uuid, reading in self._session.limits(group, wanted, deadline_s=ANSWER_S).items():
            if reading.hard_bytes is None or reading.hard_bytes > self._limits[uuid] + _BLOCK_BYTES:
                reason = (
                    reading.failure.message if reading.failure else f"it reads {reading.hard_bytes}"
                )
                message = f"The limit on {uuid} was set, but cannot be read back: {reason}."
                raise BadAnswerError(code="hard-limit-not-read-back", message=message)
        if (self._record.folder / "dmem.max").exists():
            self.limit = replace(self.limit, back_end="dmem")

    def words(
        self, path: str, command: Sequence[str], ends: tuple[int, int], scope_program: str | None
    ) -> list[str]:
        """Return the words that start the command behind the gate, in a scope if need be."""
        user = self._user or "-"
        gate = [sys.executable, "-I", "-S", GATE, *map(str, ends), user, path, *command]
        if self.limit.place == "own":
            return gate
        unit = f"--unit={self._record.name}"
        scope = ["--scope", "--quiet", "--collect", "--slice=-.slice", unit, "--"]
        return [scope_program or "systemd-run", *scope, *gate]

    def admit(self, pid: int, before: Callable[[Path], None] | None = None) -> None:
        """Put the waiting process into the group, call `before` with it, and open the gate.

        Raises:
            LaunchError: the process does not wait, or is not in the group.
        """
        ready, ready_end, go_end, go = self._pipes
        os.close(ready_end)
        os.close(go_end)
        self._pipes = [ready, go]
        self._wait(ready)
        try:
            if self.limit.place == "own":
                capped_groups.join(self._record.folder, pid)
            elif pid not in capped_groups.members(self._record.folder):
                reason = f"systemd has made no group {self._record.name}"
                raise OSError(errno.ESRCH, reason)
        except OSError as error:
            message = f"The command is not in its cgroup: {error.strerror}."
            raise LaunchError(code="not-in-the-cgroup", message=message) from None
        if self.limit.place == "scope":
            self._set_limits()
        if before is not None:
            before(self._record.folder)
        os.write(go, b"g")
        self._close_pipes()

    @staticmethod
    def _wait(ready: int) -> None:
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        if not poll.poll(START_S * 1000) or os.read(ready, 1) != b"r":
            message = "The command could not be prepared: its starter ended, or did not answer."
            raise LaunchError(code="starter-ended", message=message)

    def _close_pipes(self) -> None:
        for descriptor in self._pipes:
            os.close(descriptor)
        self._pipes = []

    # ------------------------------------------------------------------------------- the proof

    def prove(self, environment: Mapping[str, str], free: Mapping[str, int | None]) -> None:
        """Let a process in the group ask for more than the limit of each GPU.

        `free` are the bytes that are free on the cards themselves, by UUID.

        Raises:
            BadAnswerError: a request beyond the limit was granted.
            InconclusiveError: it could not be tried.
        """
        for uuid, size in self._limits.items():
            left = free.get(uuid)
            if left is not None and left < size + BEYOND_BYTES + _SPARE_BYTES:
                raise _not_proved(
                    reason=f"only {binary_bytes(left)} is free on {uuid}, and a refusal there would"
                    f" not show that the limit of {binary_bytes(size)} holds"
                )
        answers = self._ask_for_more(environment)
        gpus = []
        for gpu in self.limit.gpus:
            answer = answers.get(_digits(gpu.uuid), {})
            failure = answer.get("failure")
            if failure or not answer:
                reason = failure["message"] if failure else "CUDA does not show the GPU"
                raise _not_proved(reason=f"{gpu.uuid}: {reason}")
            got = answer["allocated_bytes"]
            if answer["refused_bytes"] is None:
                allowed = binary_bytes(gpu.hard_limit_bytes)
                message = (
                    f"The limit of {allowed} on {gpu.uuid} does not hold:"
                    f" {binary_bytes(got)} were allocated under it."
                )
                raise BadAnswerError(code="hard-limit-not-held", message=message)
            gpus.append(
                replace(
                    gpu,
                    allocated_bytes=got,
                    refused_bytes=answer["refused_bytes"],
                    refused_with=answer["refused_with"],
                )
            )
        self.limit = replace(self.limit, gpus=tuple(gpus))

    def _ask_for_more(self, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        limits = json.dumps({_digits(uuid): size for uuid, size in self._limits.items()})
        answers: dict[str, dict[str, Any]] = {}
        folder = str(self._record.folder)
        try:
            with Child(CUDA_WORKER, "limits", folder, limits, environment=environment) as child:
                for document in child.documents(PROOF_S):
                    if "end" in document:
                        break
                    if "uuid_hex" not in document:
                        raise _not_proved(reason=document["failure"]["message"])
                    answers[document["uuid_hex"]] = document
        except ChildError as error:
            raise _not_proved(reason=explain(error, PROOF_WORDS).message) from None
        return answers

    # --------------------------------------------------------------------------------- the end

    def tick(self, pid: int) -> None:
        """Read how much the group uses."""
        del pid
        self._read()

    def _read(self) -> None:
        if self._unread is not None:
            return
        readings = self._session.limits(str(self._record.folder), self._limits, deadline_s=ANSWER_S)
        gpus = []
        for gpu in self.limit.gpus:
            reading = readings[gpu.uuid]
            if reading.failure is not None:
                self._unread = reading.failure.message
            used = [amount for amount in (gpu.peak_bytes, reading.used_bytes) if amount is not None]
            gpus.append(replace(gpu, peak_bytes=max(used, default=None)))
        self._readings += 1
        self.limit = replace(self.limit, gpus=tuple(gpus))

    def _remove(self) -> None:
        """Clear and remove, unless processes of the command are left, which stay limited."""
        record, folder = self._record, self._record.folder
        end = time.monotonic() + (_SYSTEMD_S if self.limit.place == "scope" else 0.0)
        while folder.is_dir() and not capped_groups.members(folder) and time.monotonic() < end:
            time.sleep(0.02)  # systemd removes an empty scope itself
        left = tuple(capped_groups.members(folder)) if folder.is_dir() else ()
        gone = not folder.is_dir() or (not left and _clear(record, self._session, ANSWER_S))
        if gone:
            capped_groups.forget_record(self._root, record.name)
        self.limit = replace(self.limit, removed=gone, left_pids=left)

    def outcome(self, exit_code: int) -> LimitedRun:
        """Return the run in the words of every limited run."""
        gpus = tuple(
            RunGpu(
                uuid=gpu.uuid,
                index=gpu.index,
                limit_bytes=gpu.hard_limit_bytes,
                allowance_bytes=gpu.hard_limit_bytes,
                peak_bytes=gpu.peak_bytes,
                exceeded=None if gpu.peak_bytes is None else gpu.peak_bytes > gpu.hard_limit_bytes,
                cuda_index=gpu.cuda_index,
            )
            for gpu in self.limit.gpus
        )
        peaks = [gpu.peak_bytes for gpu in gpus if gpu.peak_bytes is not None]
        early = f"the command ended before the first reading ({INTERVAL_S:g} s)"
        unknown = self._unread or ("NVML did not tell it" if self._readings else early)
        return LimitedRun(
            exit_code=exit_code,
            peak_bytes=max(peaks, default=None),
            exceeded=any(gpu.exceeded for gpu in gpus) if peaks else None,
            action=None,
            interval_s=INTERVAL_S,
            readings=self._readings,
            gpus=gpus,
            unavailable={} if peaks else dict.fromkeys(("peak_bytes", "exceeded"), unknown),
        )


def _digits(uuid: str) -> str:
    """Return the 32 digits of "GPU-…", as libcuda gives them."""
    return uuid.removeprefix("GPU-").replace("-", "").lower()


def _not_proved(*, reason: str) -> InconclusiveError:
    return InconclusiveError(
        code="hard-limit-not-tried",
        message=f"The limit could not be proved, so the command was not started: {reason}.",
        remedy=("Try an idle GPU (--gpu) or a smaller amount, or leave out --verify.",),
    )
