"""What a finished run means for the exit code (contract: exit codes)."""

from __future__ import annotations

from gpucheck.core.bench.corruption import corruption_sentence, is_corrupt
from gpucheck.core.bench.record import CLOCK_STUCK, MEMORY_TAKEN, NO_TIME
from gpucheck.models.bench import BenchResult, Measurement
from gpucheck.models.errors import ExitCode
from gpucheck.models.report import Answer, Failure, Host
from gpucheck.probes.cupy_errors import BUSY

#: Errors that say nothing of the device: the time was over, others have its memory or all of it, or
#: the host's clock cannot be trusted.
_UNKNOWN = frozenset({NO_TIME, MEMORY_TAKEN, BUSY, CLOCK_STUCK})


def conclude(result: BenchResult, host: Host, *, require_gpu: bool) -> Answer:
    """Wrap the result: 130 interrupted, 4 a required GPU is missing, 1 a row failed, else 0.

    Whether a required GPU is there is unknown (3) while the driver does not answer.
    A row that did not converge is 0 with its doubt, and so is one that the time did not reach, as
    long as others of its device have figures. A device of which nothing could be measured, since
    the time was over or others have it or its memory, is 3, and so is repeating products there, and
    a GPU that is busy with another process, and any run whose clock stands. A result that was
    wrong, or a row or repetition that ended with another error, is 1.
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
        message = f"Silent corruption on {corrupt.device}: {corruption_sentence(corrupt)}."
        remedy = ("Take it out of use and repeat: gpucheck bench --burn 600",)
        return ExitCode.BAD, Failure(code="silent-corruption", message=message, remedy=remedy)
    undone = [check.failure for check in result.corruption if check.failure is not None]
    for failure in undone:
        if failure.code not in _UNKNOWN:
            return ExitCode.BAD, failure
    stuck = next((error for error in errors if error.code == CLOCK_STUCK), None)
    unknown = stuck or _without_figures(result) or next(iter(undone), None) or refused
    return (ExitCode.OK, None) if unknown is None else (ExitCode.INCONCLUSIVE, unknown)


def _refused(result: BenchResult) -> Failure | None:
    """Return that some GPUs could not be opened although others could, None if all could."""
    if not result.environment.gpus or result.environment.gpu_unavailable is None:
        return None
    message = f"Not every GPU could be measured: {result.environment.gpu_unavailable}."
    return Failure(code="gpu-refused", message=message, remedy=("Run: gpucheck detect",))


def _without_figures(result: BenchResult) -> Failure | None:
    """Return why a device has no figure at all, None if each has one."""
    for device in dict.fromkeys(row.device for row in result.measurements):
        rows = [row for row in result.measurements if row.device == device]
        errors = [row.error for row in rows if row.error is not None]
        if errors and all(row.median_s is None for row in rows):
            return errors[0]
    return None


def _is_wrong(row: Measurement) -> bool:
    return row.verified is not None and not row.verified.ok
