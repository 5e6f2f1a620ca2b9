"""Redaction of gpucheck's documents, which are published with a card's figures."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from gpucheck.inventory.snapshot import REDACTED, Redactor

#: Device names of TensorFlow, which look like paths.
_DEVICE_NAME = re.compile(r"((?:/(?:job|replica|task|device|gpu|cpu):[\w*]+)+)", re.I)
_NO_PERSON = "root"


class DocumentRedactor:
    """Stand-ins for hosts, users, GPUs and paths, the same ones in all documents of a run."""

    def __init__(self) -> None:
        self._names = Redactor()
        self._names.hosts.name(socket.gethostname())
        self._know_user(getpass.getuser())

    def document(self, document: Any) -> Any:
        """Return a document without names and paths; a redacted snapshot stays as it is."""
        if isinstance(document, dict) and "result" in document:
            result = document["result"]
            if isinstance(result, dict) and result.get("redacted") is True:
                return document
        for each in _objects(document):
            self._learn(each)
        return self._changed(document)

    def text(self, text: str) -> str:
        """Return a text without the names known so far, and without paths."""
        pieces = _DEVICE_NAME.split(text)  # every second one is the name of a device
        changed = [
            piece if place % 2 else self._names.everything(piece)
            for place, piece in enumerate(pieces)
        ]
        return "".join(changed)

    def _learn(self, found: Mapping[str, Any]) -> None:
        host = found.get("host")
        if isinstance(host, dict) and host.get("name"):
            self._names.hosts.name(host["name"])
        self._know_user(found.get("user"))
        if found.get("serial"):
            self._names.serials.name(str(found["serial"]))
        for key in ("uuid", "mig_uuid"):
            uuid = found.get(key)
            if isinstance(uuid, str):
                kind = self._names.migs if uuid.startswith("MIG-") else self._names.gpus
                kind.name(uuid)

    def _know_user(self, user: object) -> None:
        if isinstance(user, str) and user and user != _NO_PERSON:
            self._names.users.name(user)

    def _changed(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._changed(item) for item in value]
        if not isinstance(value, dict):
            return value
        changed = {key: self._changed(item) for key, item in value.items()}
        # A short name is found by its key alone: it is part of other words.
        host = value.get("host")
        if isinstance(host, dict) and host.get("name"):
            changed["host"]["name"] = self._names.hosts.name(host["name"])
        if value.get("user") not in (None, _NO_PERSON):
            changed["user"] = self._names.users.of(value["user"])
        if "pid" in value:  # whatever the process is called by its owner
            changed |= {key: REDACTED for key in ("name", "command") if value.get(key)}
        return changed


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
