"""A system other than Linux: one sentence that names WSL 2, and no traceback."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import scrubbed_environment

#: What the standard library lacks on Windows, as far as a command could touch it.
WINDOWS = """
for module in ("fcntl", "grp", "pwd", "resource", "select", "syslog", "termios", "tty"):
    sys.modules[module] = None
for module, pattern in (
    (os, "uname|fork.*|posix_.*|pidfd.*|sched_.*|(get|set)(e|res)?[ug]id|getgroups|O_(NO|CLO|DIR).*"
         "|register_at_fork|WNOHANG|mkfifo|memfd_create|pread|statvfs|killpg|getpgid|getpgrp"),
    (_signal, "SIG(HUP|KILL|QUIT|TSTP|PIPE|USR.|CHLD|CONT|STOP)|pthread_.*|sig(wait|pend).*"
              "|setitimer|set_wakeup_fd"),
):
    for name in [name for name in vars(module) if re.fullmatch(pattern, name)]:
        delattr(module, name)
"""
PROGRAM = """
import _signal, os, re, sys
from pathlib import Path
{before}
sys.platform = {platform!r}
from gpucheck.__main__ import main
main()
"""


@pytest.mark.parametrize(("platform", "before"), [("darwin", ""), ("win32", WINDOWS)])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("list",),
        ("list", "--json"),
        ("detect", "--json"),
        ("bench", "--quick"),
        ("place", "--count", "1", "--", "true"),
        ("memlimit", "30%"),
    ],
    ids=" ".join,
)
def test_one_sentence_says_that_this_is_not_linux(
    words: tuple[str, ...], platform: str, before: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, platform=platform), *words],
        capture_output=True,
        text=True,
        env=scrubbed_environment(),
        check=False,
    )

    assert ended.returncode == 4, ended.stderr
    first = ended.stderr.splitlines()[0]
    assert first == f"gpucheck: gpucheck runs on Linux and WSL 2, not on {platform}."
    if "--json" in words:
        document = json.loads(ended.stdout)
        assert (document["exit_code"], document["error"]["code"]) == (4, "not-linux")
    else:
        assert ended.stdout == ""
