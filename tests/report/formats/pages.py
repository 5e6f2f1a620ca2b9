"""Reader of the pages that the HTML format writes: it refuses whatever could act or load."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

#: Elements that a page may have; all of them only show.
ELEMENTS = frozenset(
    {
        *("html", "head", "meta", "title", "style", "body", "header", "main", "section", "footer"),
        *("h1", "h2", "h3", "p", "b", "span", "div", "ul", "li", "dl", "dt", "dd", "pre", "code"),
        *("details", "summary"),
        *("table", "thead", "tbody", "tr", "th", "td", "figure", "figcaption"),
        *("svg", "g", "path", "defs", "use", "clippath", "rect", "text", "desc"),
    }
)
VOID = frozenset({"meta"})
#: Attributes with a value that a browser follows; only places in the page itself are allowed.
_REFERENCES = frozenset({"href", "xlink:href", "src", "clip-path", "fill", "stroke"})


class Page(HTMLParser):
    """Page as a browser understands it: its texts, attributes and policy."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.metas: dict[str, str] = {}
        self.style = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open, self._open
        assert source.startswith("<!DOCTYPE html>\n")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element, unless it may not be there."""
        assert tag in ELEMENTS, tag
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name != "style", value
            if name in _REFERENCES and value is not None and re.search(r"[:(]", value):
                assert re.fullmatch(r"(#|url\(#|var\(--)[\w-]+\)?", value), (name, value)
            self.attributes.append((tag, name, value or ""))
        if tag == "meta":
            found = {name: value or "" for name, value in attrs}
            self.metas[found.get("http-equiv", found.get("name", ""))] = found.get("content", "")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element without content."""
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the element that is open."""
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Take a text."""
        if self._open and self._open[-1] == "style":
            self.style += data
        elif data.strip():
            self.texts.append(data.strip())

    def handle_comment(self, data: str) -> None:
        """Refuse a comment: the format writes none."""
        raise AssertionError(data)

    @property
    def text(self) -> str:
        """Return the visible text, a line for each piece."""
        return "\n".join(self.texts)

    def assert_inert(self) -> None:
        """Check that the policy refuses scripts and requests, and permits just this style."""
        digest = base64.b64encode(hashlib.sha256(self.style.encode()).digest()).decode()
        policy = self.metas["Content-Security-Policy"]
        assert policy.split("; ") == [
            "default-src 'none'",
            f"style-src 'sha256-{digest}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
        assert not re.search(r"url\(|@import|expression", self.style)
        assert self.source.isprintable() or set(_unprintable(self.source)) <= {"\n"}


def _unprintable(text: str) -> list[str]:
    return [char for char in text if not char.isprintable()]
