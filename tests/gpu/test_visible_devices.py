"""CUDA_VISIBLE_DEVICES on a machine with a real driver: the rules must match it.

What NVIDIA documents must hold. What it does not document, a driver may read in another way: such
a test is skipped with what the driver makes of the text, so that the rules can be corrected. Where
the rules leave a text open, that is printed (`pytest -rP`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

#: Texts about the first card, UUID stands for its UUID. Source: CUDA C++ Programming Guide, CUDA
#: Environment Variables: numbers or UUIDs by commas, a UUID may be abbreviated, and an entry that
#: names no device ends the list.
DOCUMENTED = (
    "", "0", "-1", "1", "99", "0,-1", "0,99", "0,99,0", "GPU-ffffffff", "UUID", "UUID-PREFIX",
)  # fmt: skip
#: Texts that it does not mention.
UNDOCUMENTED = (
    "+0", "-0", " 0", "0 ", "\t0", "00", "0x0", "0X0", "010", "0,0", "0,00", "0,", ",0", "0,,0",
    " ", "0x", "0a", "0-2", "0:1", "0.9", "+", "- 0", "++0", "all", "none", "NoDevFiles", "'0'",
    '"0"', "2147483647", "2147483648", "4294967296", "18446744073709551616", "-4294967296", "GPU-",
    "UUID,0", "0,UUID", "UUID,UUID", " UUID", "UUID ", "UUID,", "UUID0", "UUID-UPPER",
    "UUID-LOWER-KIND", "UUID,UUID-PREFIX", "MIG-", "MIG-UUID/0/0",
)  # fmt: skip


def spelled(text: str, uuid: str) -> str:
    """Return a text with the card's UUID in the place of the word."""
    for word, value in (
        ("UUID-PREFIX", uuid[:8]),
        ("UUID-UPPER", uuid.upper()),
        ("UUID-LOWER-KIND", uuid.replace("GPU", "gpu")),
        ("UUID", uuid),
    ):
        text = text.replace(word, value)
    return text


@pytest.fixture(name="uuid", scope="module")
def _uuid(gpucheck_command: Callable[..., Any]) -> str:
    """Return the first card's UUID, asked for once: a command may take seconds on a card."""
    found = gpucheck_command("list", "--json").document["result"]["gpus"][0]["uuid"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("text", DOCUMENTED)
def test_the_documented_rules_say_what_the_driver_does(
    text: str, uuid: str, gpucheck_command: Callable[..., Any]
) -> None:
    seen, _ = read_by_driver(text, uuid, gpucheck_command)

    assert seen["decided_by"] == "driver"
    assert seen["disagreement"] is None


@pytest.mark.parametrize("text", UNDOCUMENTED)
def test_the_driver_reads_what_is_not_documented_as_the_rules_do(
    text: str, uuid: str, gpucheck_command: Callable[..., Any]
) -> None:
    seen, driver = read_by_driver(text, uuid, gpucheck_command)

    if seen["decided_by"] != "driver" or seen["disagreement"] is not None:
        why = seen["disagreement"] or seen["open_question"] or "CUDA does not start with it"
        pytest.skip(f"driver {driver} reads {text!r} in its own way: {why}")


def read_by_driver(
    text: str, uuid: str, gpucheck_command: Callable[..., Any]
) -> tuple[dict[str, Any], str]:
    """Return what the driver makes of a text, and the driver's version."""
    environment = {
        "CUDA_VISIBLE_DEVICES": spelled(text, uuid),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    asked = gpucheck_command("list", "--json", "--ask-driver", env=environment).document
    seen, driver = asked["result"]["visibility"], asked["host"]["driver_version"]
    count = len(seen["visible"] or ())
    sys.stdout.write(f"{text!r}: driver {driver} sees {count} GPUs ({seen['decided_by']})\n")
    return seen, driver
