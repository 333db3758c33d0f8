"""The plugin options of START_REPLICATION, and which server versions support them.

Source: "Logical Streaming Replication Parameters" (PostgreSQL 10 to 19); ``parse_output_parameters`` in
pgoutput.c.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aiorepl.errors import ConfigurationError


class Streaming(enum.Enum):
    """Whether transactions are sent while they are still in progress."""

    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"


def best_version(server: int) -> int:
    """Return the highest protocol version of a server, by its major version.

    :raises ConfigurationError: the server has no pgoutput.
    """
    if server < 10:
        raise ConfigurationError(f"PostgreSQL {server} has no pgoutput; logical replication begins with 10")
    return {14: 2, 15: 3}.get(server, 1 if server < 14 else 4)


# The option, the minimum protocol version, and the minimum PostgreSQL version.
_STREAMING, _TWO_PHASE, _PARALLEL = (
    ("streaming=on", 2, 14),
    ("two_phase", 3, 15),
    ("streaming=parallel", 4, 16),
)
_BINARY, _MESSAGES, _ORIGIN = ("binary", 1, 14), ("messages", 1, 14), ("origin", 1, 16)


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The options of pgoutput.

    :param publications: publication names, as in the catalog.
    :param proto_version: 1 to 4, or ``None`` for the highest version that the server supports.
    :param origin: ``"any"``, ``"none"`` (only changes made on this server), or ``None`` for the server's default.
    :param control_messages: request logical messages if the server supports them, for watermarks and signals.
    """

    publications: tuple[str, ...]
    proto_version: int | None = None
    streaming: Streaming = Streaming.OFF
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: str | None = None
    control_messages: bool = False

    def __post_init__(self) -> None:
        if not self.publications or not all(self.publications):
            raise ConfigurationError("name at least one publication")
        if self.proto_version not in (None, 1, 2, 3, 4):
            raise ConfigurationError(f"proto_version {self.proto_version} does not exist: it is 1 to 4")
        if self.origin not in (None, "any", "none"):
            raise ConfigurationError(f"origin {self.origin!r} does not exist: it is any or none")

    def negotiate(self, server: int) -> dict[str, str]:
        """Return the plugin options for a server of this major version, in the order of PostgreSQL's documentation.

        :raises ConfigurationError: the server does not support an option; the message names the version that does.
        """
        best = best_version(server)
        version = best if self.proto_version is None else self.proto_version
        if version > best:
            first = {2: 14, 3: 15, 4: 16}[version]
            raise ConfigurationError(
                f"proto_version {version} needs PostgreSQL {first} or later; this server is {server}"
            )
        options_used = (
            (self.streaming is Streaming.ON, _STREAMING),
            (self.streaming is Streaming.PARALLEL, _PARALLEL),
            (self.two_phase, _TWO_PHASE),
            (self.binary, _BINARY),
            (self.messages, _MESSAGES),
            (self.origin is not None, _ORIGIN),
        )
        for used, (name, minimum, first) in options_used:
            if used and server < first:
                raise ConfigurationError(f"{name} needs PostgreSQL {first} or later; this server is {server}")
            if used and version < minimum:
                raise ConfigurationError(f"{name} needs proto_version {minimum} or later, not {version}")
        options = {
            "proto_version": str(version),
            "publication_names": ",".join(_quoted(name) for name in self.publications),
        }
        if self.binary:
            options["binary"] = "true"
        if self.messages or (self.control_messages and server >= _MESSAGES[2]):
            options["messages"] = "true"
        if self.streaming is not Streaming.OFF:
            options["streaming"] = self.streaming.value
        if self.two_phase:
            options["two_phase"] = "true"
        if self.origin is not None:
            options["origin"] = self.origin
        return options


def _quoted(identifier: str) -> str:
    """Quote a name for SplitIdentifierString, so that case, commas and spaces are kept."""
    return '"' + identifier.replace('"', '""') + '"'
