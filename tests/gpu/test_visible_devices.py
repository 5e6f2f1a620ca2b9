"""CUDA_VISIBLE_DEVICES on a machine with a real driver: the rules must match it.

Where the rules leave a text open, what the driver made of it is printed (`pytest -rP`), so that the
answer can be written down with the driver's version.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

#: Texts about the first card; UUID stands for its UUID.
TEXTS = (
    "", "0", "-1", "+0", "-0", " 0", "0 ", "\t0", "00", "0x0", "0X0", "010", "1", "99", "0,-1",
    "0,99", "0,99,0", "0,0", "0,00", "0,", ",0", "0,,0", " ", "0x", "0a", "0-2", "0:1", "0.9", "+",
    "- 0", "++0", "all", "none", "NoDevFiles", "'0'", '"0"', "2147483647", "2147483648",
    "4294967296", "18446744073709551616", "-4294967296", "GPU-", "GPU-ffffffff", "UUID", "UUID,0",
    "0,UUID", "UUID,UUID", " UUID", "UUID ", "UUID,", "UUID0", "UUID-PREFIX", "UUID-UPPER",
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


@pytest.mark.parametrize("text", TEXTS)
def test_the_rules_say_what_the_driver_does(
    text: str, uuid: str, gpucheck_command: Callable[..., Any]
) -> None:
    value = spelled(text, uuid)
    environment = {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    asked = gpucheck_command("list", "--json", "--ask-driver", env=environment).document
    seen = asked["result"]["visibility"]

    assert seen["decided_by"] == "driver"
    driver = asked["host"]["driver_version"]
    sys.stdout.write(f"{text!r}: driver {driver} sees {len(seen['visible'])} GPUs\n")
    assert seen["disagreement"] is None
