"""Exit code of a finished benchmark."""

from __future__ import annotations

from gpucheck.bench.corruption import corruption_sentence, is_corrupt
from gpucheck.bench.model import BenchResult, Measurement
from gpucheck.bench.plan import MEMORY_TAKEN
from gpucheck.bench.sampler import CLOCK_STUCK
from gpucheck.bench.scheduler import NO_TIME
from gpucheck.drivers.cupy.errors import BUSY
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.errors import ExitCode

#: Errors that do not judge the device: no time was left, others hold it or its memory, or the
#: host's clock cannot be trusted.
_UNKNOWN = frozenset({NO_TIME, MEMORY_TAKEN, BUSY, CLOCK_STUCK})


def conclude(result: BenchResult, host: Host, *, require_gpu: bool) -> Answer:
    """Return the result with its exit code: 130 interrupted, 4 no required GPU, 1 failed, else 0.

    3 (unknown) if the driver does not answer whether a required GPU is there. A row without
    convergence or time is 0 with its doubt if other rows of its device have figures. It is 3 if a
    device has no figure or repeated product because no time was left or others hold it or its
    memory, if a GPU is busy with another process, or if the clock stands still. A wrong result, or
    any other error of a row or a repetition, is 1.
    """
    code, failure = _judge(result, require_gpu=require_gpu)
    return Answer(result=result, exit_code=code, host=host, error=failure)


def _judge(result: BenchResult, *, require_gpu: bool) -> tuple[ExitCode, Failure | None]:
    if result.interrupted:
        message = "Interrupted: the rows without figures were not measured."
        return ExitCode.INTERRUPTED, Failure(code="interrupted", message=message)
    if require_gpu and not result.environment.gpus:
        reason = result.environment.gpu_unavailable or "none took part"
        message = f"A GPU is required, but none was measured: {reason}."
        failure = Failure(code="gpu-required", message=message, remedy=("Run: gpucheck detect",))
        silent = result.environment.gpu_silent
        return (ExitCode.INCONCLUSIVE if silent else ExitCode.MISSING), failure
    errors = [row.error for row in result.measurements if row.error is not None]
    for error in errors:
        if error.code not in _UNKNOWN:
            return ExitCode.BAD, error
    wrong = next((row for row in result.measurements if _is_wrong(row)), None)
    if wrong is not None:
        message = f"{wrong.kernel} on {wrong.device} computed a wrong result ({wrong.variant})."
        return ExitCode.BAD, Failure(code="wrong-result", message=message)
    refused = _refused(result)
    if refused is not None and not result.environment.gpu_silent:
        return ExitCode.BAD, refused
    corrupt = next((check for check in result.corruption if is_corrupt(check)), None)
    if corrupt is not None:
        message = f"Silent data corruption on {corrupt.device}: {corruption_sentence(corrupt)}."
        remedy = ("Take it out of service and test it: gpucheck bench --burn 600",)
        return ExitCode.BAD, Failure(code="silent-corruption", message=message, remedy=remedy)
    undone = [check.failure for check in result.corruption if check.failure is not None]
    for failure in undone:
        if failure.code not in _UNKNOWN:
            return ExitCode.BAD, failure
    stuck = next((error for error in errors if error.code == CLOCK_STUCK), None)
    unknown = stuck or _without_figures(result) or next(iter(undone), None) or refused
    return (ExitCode.OK, None) if unknown is None else (ExitCode.INCONCLUSIVE, unknown)


def _refused(result: BenchResult) -> Failure | None:
    """Return the failure if some GPUs could not be opened but others could, else None."""
    if not result.environment.gpus or result.environment.gpu_unavailable is None:
        return None
    message = f"Not every GPU could be measured: {result.environment.gpu_unavailable}."
    return Failure(code="gpu-refused", message=message, remedy=("Run: gpucheck detect",))


def _without_figures(result: BenchResult) -> Failure | None:
    """Return why a device has no figures, None if every device has some."""
    for device in dict.fromkeys(row.device for row in result.measurements):
        rows = [row for row in result.measurements if row.device == device]
        errors = [row.error for row in rows if row.error is not None]
        if errors and all(row.median_s is None for row in rows):
            return errors[0]
    return None


def _is_wrong(row: Measurement) -> bool:
    return row.verified is not None and not row.verified.ok
