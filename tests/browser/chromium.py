"""Chromium, driven through its DevTools protocol over a pipe: no network, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

#: Programs that speak the protocol, the first one found is used.
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--no-first-run", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Tab:
    """One tab: commands and their answers, and what happened meanwhile."""

    def __init__(self, out: int, into: int) -> None:
        self._out, self._into = out, into
        self._buffer, self._count = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._out, 1 << 20)
            if not part:
                raise RuntimeError("chromium has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def attach(self) -> None:
        """Open a tab and listen to its console, its network and its log."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, path: Path) -> list[str]:
        """Open a file; return what it complained of, and every request that left it."""
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())
        # What the page does in two frames has been done, and was reported.
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return [text for event in self.events if (text := _complaint(event, path))]

    def show(
        self, width: int, height: int, *, dark: bool = False, media: str = "", phone: bool = False
    ) -> None:
        """Set the window, the colour scheme and the medium."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, as JSON has it."""
        found = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def screenshot(self, path: Path, *, most: int = 6000) -> None:
        """Write the whole page as a PNG, at most `most` pixels of its height."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(most, size["height"])}
        found = self.ask(
            *("Page.captureScreenshot",),
            format="png",
            captureBeyondViewport=True,
            clip={**clip, "scale": 1},
        )
        path.write_bytes(base64.b64decode(found["data"]))


def _complaint(event: Mapping[str, Any], path: Path) -> str:
    """Return what is wrong with an event, an empty text if nothing is."""
    found = event.get("params", _NOTHING)
    match event.get("method"):
        case "Log.entryAdded":
            return f"log: {found['entry']['text']}"
        case "Runtime.exceptionThrown":
            return f"exception: {found['exceptionDetails']['text']}"
        case "Runtime.consoleAPICalled":
            return f"console: {found['type']}"
        case "Network.requestWillBeSent":
            url = found["request"]["url"]
            return "" if url == path.as_uri() else f"request: {url[:200]}"
    return ""


def find_chromium() -> str | None:
    """Return the path of Chromium, None if it is not installed."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@contextmanager
def browser(program: str, more: Sequence[str] = ()) -> Iterator[Tab]:
    """Start Chromium with a profile of its own and yield a tab; end it afterwards."""
    to_child, into = os.pipe()
    out, from_child = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:

        def arrange() -> None:
            # The protocol's descriptors are 3 (to Chromium) and 4 (from it).
            kept = os.dup(from_child)
            os.dup2(to_child, 3)
            os.dup2(kept, 4)

        running = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=arrange,
            pass_fds=(3, 4, to_child, from_child),
        )
        try:
            os.close(to_child)
            os.close(from_child)
            tab = Tab(out, into)
            tab.attach()
            yield tab
        finally:
            running.kill()
            running.wait()
            os.close(out)
            os.close(into)
