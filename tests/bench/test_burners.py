"""Processes of a burn: their messages, their ends, and that none is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.bench import worker
from gpucheck.bench.burners import BurnNews, BurnOrder, ProcessBurners

#: Speaks as burn_process does; what it does is in its order.
PROGRAM = """
import fcntl, json, os, select, sys, time
order = json.loads(sys.stdin.readline())
def say(document):
    print(json.dumps(document), flush=True)
if order["what"] == "refuse":
    say({"part": "failure", "code": "no-gpu", "message": "none", "remedy": [], "exit_code": 4})
    sys.exit(0)
say({"part": "ready", "order": order})
lock = os.open(os.environ["GPUCHECK_TURN"].partition(":")[2], os.O_RDWR | os.O_APPEND)
fcntl.flock(lock, fcntl.LOCK_SH)
while not select.select([0], [], [], 0.02)[0]:
    if order["what"] == "die":
        os.kill(os.getpid(), 9)
    say({"part": "progress"})
if order["what"] == "deaf":
    time.sleep(600)
say({"part": "end"})
"""


@pytest.fixture(name="burners")
def _burners(tmp_path: Path) -> ProcessBurners:
    script = tmp_path / "burner.py"
    script.write_text(PROGRAM, encoding="utf-8")
    return ProcessBurners(command=(sys.executable, str(script)))


def orders(*words: str) -> list[BurnOrder]:
    return [
        BurnOrder(device=f"gpu:{place}", request={"what": word}) for place, word in enumerate(words)
    ]


def heard(burners: ProcessBurners, part: str, count: int) -> list[BurnNews]:
    """Return the news until `count` of them are `part`, or nothing more comes."""
    found: list[BurnNews] = []
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found += burners.news(0.2)
        parts = [(news.document or {}).get("part") for news in found]
        if parts.count(part) >= count or any(news.failure for news in found):
            return found
    return found


def test_they_begin_when_they_are_let_and_end_when_they_are_told(
    burners: ProcessBurners, children: Callable[[], set[str]]
) -> None:
    burners.start(orders("load", "load"))
    ready = heard(burners, "ready", 2)
    assert {news.device for news in ready} == {"gpu:0", "gpu:1"}
    assert ready[0].document is not None
    assert ready[0].document["order"]["device"] == ready[0].device
    assert burners.news(0.1) == []

    burners.begin()
    assert heard(burners, "progress", 2)
    burners.stop()
    ends = [news for news in heard(burners, "end", 2) if (news.document or {})["part"] == "end"]
    burners.close()

    assert {news.device for news in ends} == {"gpu:0", "gpu:1"}
    assert children() == set()


def test_one_that_dies_is_news(burners: ProcessBurners) -> None:
    burners.start(orders("die"))
    heard(burners, "ready", 1)
    burners.begin()
    (*_, last) = heard(burners, "never", 1)
    burners.close()

    assert last.failure is not None
    assert last.failure.code == worker.DIED
    assert last.failure.message == "the process that loads gpu:0 was ended by SIGKILL"


def test_one_that_refuses_is_news(burners: ProcessBurners) -> None:
    burners.start(orders("refuse"))
    (news,) = heard(burners, "failure", 1)
    burners.close()

    assert (news.document or {})["code"] == "no-gpu"


def test_one_that_does_not_listen_is_killed(
    burners: ProcessBurners, children: Callable[[], set[str]]
) -> None:
    burners.start(orders("deaf"))
    heard(burners, "ready", 1)
    burners.begin()
    burners.stop()
    burners.close()

    assert children() == set()


def test_what_cannot_be_started_is_news(tmp_path: Path) -> None:
    burners = ProcessBurners(command=(str(tmp_path / "none"), "x"))
    burners.start(orders("load"))
    (news,) = burners.news(1.0)
    burners.close()

    assert news.failure is not None
    assert "could not be started" in news.failure.message
