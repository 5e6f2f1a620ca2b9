"""`gpucheck.limit_memory`: a memory limit for the calling program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from types import TracebackType
from typing import Any

from gpucheck.drivers import open_probes
from gpucheck.drivers.cuda.in_process import active_devices, limit_pools, restore_pools
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.python.frameworks import Software
from gpucheck.inventory.inventory import list_gpus
from gpucheck.memlimit.environment import hook_document
from gpucheck.memlimit.hook import gpucheck_limit_hook as hook
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.plan import plan_limit
from gpucheck.report.errors import WrongUseError, check_argument
from gpucheck.report.units import Amount, parse_amount

#: The limits that have not ended, the latest last: modules that are imported get that one.
_IN_FORCE: list[LimitedMemory] = []


class LimitedMemory:
    """Memory limit in force.

    As a context manager it ends with the block, for CuPy and for modules not imported yet.
    PyTorch and TensorFlow keep a limit once it is set.
    """

    def __init__(self, plan: MemoryLimit) -> None:
        self.plan = plan
        self._variables: dict[str, tuple[str | None, str]] = {}
        self._pools: dict[int, int] = {}
        document = hook_document(plan, os.environ)
        if document is not None and "torch" in sys.modules:
            document["torch"] = None  # it has already read its variable
        self._limit = None if document is None else hook.Limit(document)
        for name, value in plan.environment.items():
            self._variables[name] = (os.environ.get(name), value)
            os.environ[name] = value
        if self._limit is not None:
            self._cap_imported(self._limit)
        _IN_FORCE.append(self)
        _hook_latest()

    def _cap_imported(self, limit: Any) -> None:
        """Cap the modules that are already imported."""
        for name in hook.HANDLERS:
            module = sys.modules.get(name)
            if module is None:
                continue
            if name == "cupy":
                self._pools = limit_pools(module, limit.bytes_of, active_devices())
            else:
                hook.limit_now(name, module, limit)

    def release(self) -> None:
        """Undo what can be undone: the environment, the import hook and CuPy's limits.

        A limit that was set inside this one stays, and leaves what was before this one.
        """
        if self not in _IN_FORCE:
            return
        later = _IN_FORCE[_IN_FORCE.index(self) + 1 :]
        _IN_FORCE.remove(self)
        _hook_latest()
        self._restore_variables(later)
        cupy = sys.modules.get("cupy")
        if cupy is not None:
            # A device first used inside the block had no limit before.
            before = {**dict.fromkeys(active_devices(), 0), **self._pools}
            if later:
                later[0]._pools = before
            else:
                restore_pools(cupy, before)

    def _restore_variables(self, later: Sequence[LimitedMemory]) -> None:
        for name, (before, ours) in self._variables.items():
            heir = next(
                (item._variables for item in later if name in item._variables),
                None,
            )
            if heir is not None:
                inherited, theirs = heir[name]
                heir[name] = (before if inherited == ours else inherited, theirs)
            elif os.environ.get(name) != ours:
                continue  # the program has changed it since: leave it
            elif before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

    def __enter__(self) -> LimitedMemory:
        """Return the limit, already in force."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the limit."""
        self.release()


def _hook_latest() -> None:
    hook.uninstall()
    limit = next((item._limit for item in reversed(_IN_FORCE) if item._limit is not None), None)
    if limit is not None:
        hook.install(lambda: limit)


def limit_memory(
    amount: str | float, *, include_overhead: bool = False, probes: Probes | None = None
) -> LimitedMemory:
    """Limit this process's memory on each visible GPU.

    Raises:
        GpucheckError: a WrongUseError for an argument, a MissingError without a GPU.
    """
    wanted = _amount_of(amount)
    check_argument("include_overhead", include_overhead, "True or False", bool)
    with closing(open_probes() if probes is None else probes) as opened:
        gpus = list_gpus(opened, names_devices=True)
    from gpucheck.drivers.python.frameworks_child import find_frameworks

    plan = plan_limit(
        wanted,
        gpus,
        environment=os.environ,
        include_overhead=include_overhead,
        software=Software(interpreter=sys.executable, frameworks=find_frameworks()),
    )
    return LimitedMemory(plan)


def _amount_of(amount: str | float) -> Amount:
    """Return the amount meant by a text, or by a share as a float above 0 and up to 1.

    Raises:
        WrongUseError: it is anything else; an integer has no unit.
    """
    if isinstance(amount, str):
        return parse_amount(amount)
    wants = "a text such as '30%' or '8GiB', or a share above 0 and up to 1 such as 0.3"
    check_argument("limit_memory", amount, wants, float)
    if not 0 < amount <= 1:
        raise WrongUseError(
            code="bad-amount", message=f"limit_memory takes {wants}, not {amount!r}."
        )
    return Amount(text=repr(amount), share=Fraction(repr(amount)))
