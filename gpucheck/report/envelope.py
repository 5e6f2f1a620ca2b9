"""Envelope of every document: the machine, the outcome, the error and the warnings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from gpucheck.report.errors import ExitCode, GpucheckError
from gpucheck.report.host import Host
from gpucheck.version import __version__

AnyError = TypeVar("AnyError", bound=GpucheckError)
AnyResult = TypeVar("AnyResult")

#: An empty mapping, as a default.
NOTHING: Mapping[str, str] = MappingProxyType({})


class CheckStatus(StrEnum):
    """Status of a finding; `skip`: not reached or not applicable, `unknown`: could not be read."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    UNKNOWN = "unknown"


class Evidence(NamedTuple):
    """Source of a fact (a path, a call, a variable), and the raw value found there."""

    source: str
    value: str


class Status(StrEnum):
    """The outcome in one word, derived from the exit code and the warnings."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Failure(NamedTuple):
    """Why a command gave no full answer, as data: the `error` of the envelope."""

    code: str
    message: str
    remedy: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: GpucheckError) -> Failure:
        """Return an error as data."""
        return cls(code=error.code, message=error.message, remedy=error.remedy)

    def as_error(self, kind: type[AnyError]) -> AnyError:
        """Return the failure as an error of this class."""
        return kind(code=self.code, message=self.message, remedy=self.remedy)


#: Code of the library's own words, where there is no GPU at all: only `-v` shows them to people.
DRIVER_LIBRARY = "driver-library"


class Notice(NamedTuple):
    """Warning about an answer, for the user."""

    code: str
    message: str


class Answer(NamedTuple):
    """Result of a command, before it is wrapped in an envelope.

    `result` is the document's own record (an Inventory, a BenchResult, ...), or None when
    there is only an error.
    """

    result: object | None
    exit_code: ExitCode = ExitCode.OK
    host: Host = Host()
    error: Failure | None = None
    warnings: tuple[Notice, ...] = ()


class Tool(NamedTuple):
    """Program that wrote a document, and its version: of a saved one perhaps not this one."""

    name: str
    version: str


#: The program that runs.
TOOL = Tool("gpucheck", __version__)


class Report(NamedTuple):
    """Finished document: envelope and result, ready to be rendered."""

    command: str
    schema: str
    tool: Tool
    time: str
    host: Host
    status: Status
    exit_code: ExitCode
    error: Failure | None
    result: object | None
    warnings: tuple[Notice, ...] = ()

    def result_as(self, kind: type[AnyResult]) -> AnyResult:
        """Return the result, which is of this class."""
        if not isinstance(self.result, kind):
            raise TypeError(type(self.result).__name__)
        return self.result


def status_of(exit_code: ExitCode, *, warnings: bool) -> Status:
    """Return the envelope's status: exit code 0 is ok or warn, 1 is fail, the rest unknown."""
    if exit_code is ExitCode.OK:
        return Status.WARN if warnings else Status.OK
    return Status.FAIL if exit_code is ExitCode.BAD else Status.UNKNOWN
