"""Inputs of every mechanism: the limits, the environment, and the installed software."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpucheck.drivers.python.frameworks import Software
from gpucheck.memlimit.model import GpuMemoryLimit, Mechanism, Strength, Way
from gpucheck.report.text import shown
from gpucheck.report.units import Amount

MIB = 1024**2

#: Decimals of a fraction in a setting; rounding down costs less than 0.1 MiB on any card.
_DECIMALS = 9


#: Whether something will be there, None if that is not known, and the reason.
Presence = tuple[bool | None, str]
#: Presence of the import hook where there is no command.
NO_COMMAND: Presence = (
    None,
    "add this line to the program (gpucheck memlimit --code); -- CMD needs none",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    """Inputs of one plan; `environment` is what the limited program would inherit.

    `hook` is the import hook, and `mps` MPS's daemon, None if nobody looked for it.
    """

    amount: Amount
    limits: tuple[GpuMemoryLimit, ...]
    environment: Mapping[str, str]
    overhead_included: bool = False
    software: Software
    hook: Presence
    mps: Presence | None = None
    oldest_capability: tuple[int, int] | None = None

    def fraction(self, *, of_cards: bool = False) -> Fraction | None:
        """Return the fraction that keeps every GPU's allocators within the limit, if known.

        It is of the total that CUDA's cuMemGetInfo reports, or `of_cards`. The two differ where our
        cgroup has a limit.
        """
        capped = any(gpu.memory_limit_bytes is not None for gpu in self.limits)
        if self.amount.share is not None and not self.overhead_included and not capped:
            return self.amount.share
        shares = []
        for gpu in self.limits:
            total = gpu.memory_total_bytes if of_cards else gpu.cuda_total_bytes
            if gpu.allocator_limit_bytes is None or total is None:
                return None
            shares.append(Fraction(gpu.allocator_limit_bytes, total))
        return min(shares)

    def describe_pool(self, pool: str) -> str:
        """Return the pool that a fraction limits, and whether some GPUs get less by it."""
        totals = {gpu.memory_total_bytes for gpu in self.limits}
        uneven = len(totals) > 1 and (self.amount.share is None or self.overhead_included)
        return f"one fraction for all GPUs, the smallest of them; {pool}" if uneven else pool

    def version(self, module: str) -> str | None:
        """Return a framework's version; None if the framework or its version is unknown."""
        known = self.software.frameworks
        return (known.get(module) or None) if known is not None else None

    def has(self, module: str) -> bool | None:
        """Return whether the Python of the plan has a framework; None if unknown."""
        known = self.software.frameworks
        return None if known is None else module in known

    def missing_reason(self, module: str) -> str | None:
        """Return why a framework is certainly missing, or None."""
        interpreter = self.software.interpreter
        if self.has(module) is not False or interpreter is None:
            return None
        return f"{shown(interpreter)} has no {module}"


#: Mechanism, and the variables that it adds to the environment.
Setting = tuple[Mechanism, Mapping[str, str]]


def variable_setting(
    inputs: PlanInput,
    module: str,
    name: str,
    value: str | None,
    reason: str,
    *,
    framework: str | None = None,
    strength: Strength = Strength.ALLOCATOR,
) -> Setting:
    """Return the setting of one environment variable; without a value it is not set.

    It is also set for a framework that this interpreter missing_reason, as another one may have it.
    """
    missing = inputs.missing_reason(module) if value is not None else None
    mechanism = Mechanism(
        framework=framework or module,
        mechanism=name,
        setting=None if value is None else f"{name}={shown(value, len(value))}",
        strength=strength,
        applies=value is not None and missing is None,
        reason=f"{missing}; {reason}" if missing else reason,
        installed=inputs.has(module),
        inherited=inputs.environment.get(name),
    )
    return mechanism, {} if value is None else {name: value}


def code_setting(
    inputs: PlanInput,
    module: str,
    mechanism: str,
    line: str | None,
    reason: str,
    *,
    framework: str | None = None,
    strength: Strength = Strength.ALLOCATOR,
) -> Setting:
    """Return the mechanism of a line of code, which the import hook runs if present."""
    missing = inputs.missing_reason(module)
    present, hook = inputs.hook
    applies = line is not None and present is True and missing is None
    why = reason if line is None else f"{missing or hook}; {reason}"
    code = Mechanism(
        framework=framework or module,
        mechanism=mechanism,
        setting=line,
        strength=strength,
        applies=applies,
        reason=why,
        by=Way.CODE,
        installed=inputs.has(module),
        by_hook=line is not None and present is not False,
    )
    return code, {}


def format_decimal(value: Fraction) -> str:
    """Format a number of at most 100 as a decimal, rounded down."""
    whole, rest = divmod(int(value * 10**_DECIMALS), 10**_DECIMALS)
    return f"{whole}.{rest:0{_DECIMALS}d}".rstrip("0").rstrip(".")


def parse_number(text: str) -> Fraction | None:
    """Parse a plain decimal; None for longer or unusual text, which is no limit to rely on."""
    if len(text) > 40 or not text.isascii() or not set(text) <= set("0123456789."):
        return None
    try:
        return Fraction(text)
    except ValueError:
        return None
