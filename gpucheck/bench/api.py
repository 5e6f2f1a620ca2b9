"""Python interface of the benchmark, `gpucheck.bench`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from numbers import Integral, Real
from typing import TypeVar

from gpucheck.bench.model import BenchMode, BenchRequest, BenchResult, Fill
from gpucheck.bench.outcome import conclude
from gpucheck.bench.session import open_session
from gpucheck.drivers.interface import Probes
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError, check_argument

Word = TypeVar("Word", bound=StrEnum)


def request_of(
    kernels: Iterable[str],
    *,
    device: str | Iterable[str],
    size: int | None,
    dtype: str | Iterable[str],
    mode: str,
    budget_s: float | None,
    seed: int,
    fill: str,
    temperature: float,
    towers: int,
    data_file: str | os.PathLike[str] | None,
) -> BenchRequest:
    """Return the request that these arguments describe.

    Raises:
        WrongUseError: an unknown mode or fill, or an argument of the wrong type.
    """
    for kernel in kernels:
        check_argument("bench", kernel, "names of kernels such as 'matmul'", str)
    for name, whole in (("size", size), ("seed", seed), ("towers", towers)):
        if whole is not None:
            check_argument(name, whole, "a whole number", Integral)
    for name, number in (("budget_s", budget_s), ("temperature", temperature)):
        if number is not None:
            check_argument(name, number, "a number", Real)
    if data_file is not None:
        check_argument("data_file", data_file, "a path", str, os.PathLike)
    return BenchRequest(
        kernels=tuple(kernels),
        devices=_words("device", device) or ("all",),
        size=size,
        dtypes=_words("dtype", dtype),
        mode=_member(BenchMode, "mode", mode),
        budget_s=budget_s,
        seed=seed,
        fill=_member(Fill, "fill", fill),
        temperature=temperature,
        towers=towers,
        data_file=None if data_file is None else os.fspath(data_file),
    )


def bench_here(
    request: BenchRequest, probes: Probes, *, corruption_s: float, require_gpu: bool
) -> BenchResult:
    """Measure in this process and close the probes.

    Raises:
        GpucheckError: as `gpucheck.bench` documents.
        KeyboardInterrupt: the user interrupted it.
    """
    try:
        with open_session(request, probes, os.environ) as session:
            result = session.measure(corruption_s=corruption_s)
            answer = conclude(result, session.host, require_gpu=require_gpu)
    finally:
        probes.close()
    if result.interrupted:
        # The user wanted to end the calling program.
        raise KeyboardInterrupt
    failure = answer.error
    if failure is not None and answer.exit_code is ExitCode.MISSING:
        raise failure.as_error(MissingError)
    return result


def _words(name: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Return words given as a list, or separated by commas as on the command line."""
    wants = "a text, or several in a list"
    check_argument(name, given, wants, str, Iterable)
    texts = [given] if isinstance(given, str) else list(given)
    for text in texts:
        check_argument(name, text, wants, str)
    return tuple(word.strip() for text in texts for word in text.split(",") if word.strip())


def _member(kind: type[Word], name: str, given: str) -> Word:
    if given not in list(kind):
        message = f"{name} takes {', '.join(kind)}, not {given!r}."
        raise WrongUseError(code="usage", message=message)
    return kind(given)
