"""What a strict reader of JUnit XML demands, in the words of the two schemas in use.

Ant's (JUnit.xsd by Windy Road) and that of Jenkins' xUnit plug-in (junit-10.xsd): a document must
hold to both. Written from the schemas' rules; neither is contained here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

INT = re.compile(r"[+-]?\d+")
DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
#: Ant's: no time zone. Jenkins' for times: digits, a point, digits.
DATE_TIME = re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d")
SUREFIRE = re.compile(r"\d*(\.\d*)?")

SUITE_REQUIRED = {
    "name": None,
    "package": None,
    "hostname": None,
    "id": INT,
    "timestamp": DATE_TIME,
    "tests": INT,
    "failures": INT,
    "errors": INT,
    "time": DECIMAL,
}
SUITE_OPTIONAL = {"skipped": INT}
NOT_EMPTY = ("name", "hostname")
RESULTS = ("failure", "error", "skipped")


def violations(text: str) -> list[str]:
    """Return every rule that the document breaks."""
    root = ElementTree.fromstring(text)
    if root.tag != "testsuites":
        return [f"the root is {root.tag}"]
    found = [f"testsuites has the attribute {name}" for name in root.attrib]
    for number, suite in enumerate(root):
        if suite.tag != "testsuite":
            found.append(f"testsuites holds {suite.tag}")
            continue
        found.extend(_suite(suite, number))
    return found


def _suite(suite: ElementTree.Element, number: int) -> Iterator[str]:
    yield from _attributes(suite, SUITE_REQUIRED, SUITE_OPTIONAL)
    if suite.get("id") != str(number):
        yield f"suite {number} has the id {suite.get('id')}"
    if not SUREFIRE.fullmatch(suite.get("time", "")):
        yield "the suite's time is not Jenkins'"
    for name in NOT_EMPTY:
        if not suite.get(name, "").strip():
            yield f"{name} is empty"
    tags = [child.tag for child in suite]
    cases = tags.count("testcase")
    if tags != ["properties", *["testcase"] * cases, "system-out", "system-err"]:
        yield f"the suite's children stand as {tags}"
        return
    yield from _properties(suite[0])
    for case in suite[1 : 1 + cases]:
        yield from _case(case)
    for stream in suite[1 + cases :]:
        if stream.attrib or len(stream):
            yield f"{stream.tag} holds more than text"
    yield from _counts(suite)


def _counts(suite: ElementTree.Element) -> Iterator[str]:
    cases = suite.findall("testcase")
    if suite.get("tests") != str(len(cases)):
        yield "tests is not the number of cases"
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        if suite.get(name) != str(sum(case.find(tag) is not None for case in cases)):
            yield f"{name} is not the number of cases with {tag}"


def _properties(properties: ElementTree.Element) -> Iterator[str]:
    for item in properties:
        if item.tag != "property" or set(item.attrib) != {"name", "value"} or len(item):
            yield "properties holds something else than properties"
        elif not item.get("name", "").strip():
            yield "a property has no name"


def _case(case: ElementTree.Element) -> Iterator[str]:
    yield from _attributes(case, {"name": None, "classname": None, "time": DECIMAL}, {})
    if len(case) > 1:
        yield f"a case has {len(case)} children"
    for child in case:
        if child.tag not in RESULTS:
            yield f"a case holds {child.tag}"
        if child.tag in ("failure", "error") and "type" not in child.attrib:
            yield f"{child.tag} has no type"
        if set(child.attrib) - {"message", "type"} or len(child):
            yield f"{child.tag} holds more than message, type and text"


def _attributes(
    element: ElementTree.Element,
    required: dict[str, re.Pattern[str] | None],
    optional: dict[str, re.Pattern[str] | None],
) -> Iterator[str]:
    for name in required.keys() - element.attrib.keys():
        yield f"{element.tag} lacks {name}"
    for name, value in element.attrib.items():
        if name not in required and name not in optional:
            yield f"{element.tag} has the attribute {name}"
            continue
        pattern = required.get(name) or optional.get(name)
        if pattern is not None and not pattern.fullmatch(value):
            yield f"{element.tag}: {name} is {value!r}"
