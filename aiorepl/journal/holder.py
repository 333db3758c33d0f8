"""Identifies who writes a journal, or reads it under a name: in errors, and to distinguish two processes.

A host's name and a process id can be reused, so the identity is random.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from aiorepl.storage.checked_json import integer, text


@dataclass(frozen=True, slots=True)
class Holder:
    """A writer, or a reader with a cursor.

    :param identity: a random text, which also distinguishes two objects of one process.
    :param since: when the holder began, in seconds since 1970.
    """

    identity: str
    host: str
    process: int
    since: int

    @classmethod
    def own(cls) -> Self:
        """Make an identity for an object of this process."""
        return cls(secrets.token_hex(8), socket.gethostname(), os.getpid(), int(time.time()))

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, for ``from_json``."""
        return {
            "identity": self.identity,
            "host": self.host,
            "process": self.process,
            "since": self.since,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Parse the output of ``to_json``.

        :raises Exception: a field is wrong.
        """
        since = integer(fields, "since", 2**36)
        return cls(text(fields, "identity"), text(fields, "host"), integer(fields, "process"), since)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since, UTC)
        return f"host {self.host}, process {self.process}, since {since:%Y-%m-%d %H:%M:%S} UTC"
