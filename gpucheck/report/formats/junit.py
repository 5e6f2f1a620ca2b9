"""JUnit XML format: a suite for each device, a case for each of its checks.

It satisfies the two schemas of CI systems, the Ant one (windyroad's JUnit.xsd) and that
of Jenkins' xUnit plug-in: properties belong to suites, a case has one child at most, and times
carry no zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree

from gpucheck.report.envelope import Report
from gpucheck.report.text import View
from gpucheck.report.verdicts import Kind, Verdict, seconds_of, verdicts_of

#: Characters that XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {Kind.FAILURE: "failure", Kind.ERROR: "error", Kind.SKIPPED: "skipped"}


def render(report: Report, view: View) -> str:
    """Return the document; a report without verdicts gives one case that says how it ended."""
    verdicts = verdicts_of(report) or (_ended(report),)
    # Stable: within a device the checks keep the report's order.
    ordered = sorted(verdicts, key=lambda verdict: _order(verdict.device))
    root = ElementTree.Element("testsuites")
    for number, (device, cases) in enumerate(groupby(ordered, key=lambda verdict: verdict.device)):
        root.append(_suite(report, device, list(cases), number))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _ended(report: Report) -> Verdict:
    message = f"ended with code {int(report.exit_code)}"
    return Verdict(device="run", check=report.command, kind=Kind.PASS, message=message)


def _order(device: str) -> tuple[str, int]:
    kind, _, number = device.replace(" ", ":").partition(":")
    return kind, int(number) if number.isascii() and number.isdecimal() else 0


def _suite(
    report: Report, device: str, cases: Sequence[Verdict], number: int
) -> ElementTree.Element:
    uuid = next((case.gpu_uuid for case in cases if case.gpu_uuid), None)
    kinds = [case.kind for case in cases]
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": _text(f"gpucheck {report.command} {device}"),
            "package": "gpucheck",
            "id": str(number),
            "timestamp": _text(report.time.removesuffix("Z")),
            "hostname": _text(report.host.name or "").strip() or "localhost",
            "tests": str(len(cases)),
            "failures": str(kinds.count(Kind.FAILURE)),
            "errors": str(kinds.count(Kind.ERROR)),
            "skipped": str(kinds.count(Kind.SKIPPED)),
            "time": f"{seconds_of(report):.3f}",
        },
    )
    suite.append(_properties(report, device, uuid, cases))
    suite.extend(_case(report, uuid or device, case) for case in cases)
    output = "\n".join(line for case in cases for line in _lines(case))
    ElementTree.SubElement(suite, "system-out").text = _text(output)
    warned = [f"warning: {notice.message}" for notice in report.warnings]
    ElementTree.SubElement(suite, "system-err").text = _text("\n".join(warned))
    return suite


def _properties(
    report: Report, device: str, uuid: str | None, cases: Sequence[Verdict]
) -> ElementTree.Element:
    """Return the properties of the suite, and the values of every case, under the case's name."""
    facts = {
        "gpucheck.device": device,
        "gpucheck.gpu_uuid": uuid or "",
        "gpucheck.exit_code": str(int(report.exit_code)),
        "gpucheck.driver_version": report.host.driver_version or "",
        **{f"{case.check} {name}": value for case in cases for name, value in case.values},
    }
    properties = ElementTree.Element("properties")
    for name, value in facts.items():
        if value:
            ElementTree.SubElement(
                properties, "property", {"name": _text(name), "value": _text(value)}
            )
    return properties


def _case(report: Report, where: str, verdict: Verdict) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {
            "name": _text(verdict.check),
            "classname": _text(f"gpucheck.{report.command}.{where}"),
            "time": "0",
        },
    )
    element = _ELEMENTS.get(verdict.kind)
    if element is not None:
        attributes = {"message": _text(verdict.message)}
        if verdict.kind is not Kind.SKIPPED:
            attributes["type"] = _text(verdict.class_ or "unknown")
        child = ElementTree.SubElement(case, element, attributes)
        child.text = _text("\n".join((verdict.message, *_details(verdict))))
    return case


def _lines(verdict: Verdict) -> list[str]:
    head = f"{verdict.kind.value}: {verdict.check}: {verdict.message}"
    return [head, *(f"  {line}" for line in _details(verdict))]


def _details(verdict: Verdict) -> list[str]:
    return [*(f"{name}: {value}" for name, value in verdict.values), *verdict.lines]


def _text(text: str) -> str:
    """Return a text without the characters that XML forbids."""
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
