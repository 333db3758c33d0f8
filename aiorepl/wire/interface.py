"""The interface of both connections to a slot: the walsender (``connection``) and the SQL functions (``sql``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiorepl.errors import ServerNotice
from aiorepl.lsn import LSN
from aiorepl.wire.frames import Received


class Restart:
    """An item of the SQL interface: the following frames begin at the slot's position again."""


class Connection(Protocol):
    """The methods that a session uses."""

    server_version: int
    # Why the connection is not secure, as a predicate ("is not encrypted"); None if the server is verified or local.
    exposure: str | None
    # Whether a pooler is in front of the server.
    pooled: bool

    async def query(self, sql: str) -> list[dict[str, str | None]]: ...
    async def identify_system(self) -> System: ...
    async def timeline_history(self, timeline: int) -> str | None: ...
    async def create_slot(
        self,
        name: str,
        *,
        temporary: bool = ...,
        two_phase: bool = ...,
        failover: bool = ...,
        snapshot: str = ...,
    ) -> CreatedSlot: ...
    async def drop_slot(self, name: str, *, wait: bool = ...) -> None: ...
    async def start_replication(
        self, slot: str, lsn: LSN, options: Mapping[str, str], *, confirmed: LSN | None = ...
    ) -> None: ...
    async def receive(self) -> Sequence[Received | Restart]: ...
    def on_reply_request(self, callback: Callable[[], None]) -> None: ...
    def on_notice(self, callback: Callable[[ServerNotice], None]) -> None: ...
    def send_status(self, received: LSN, flushed: LSN, applied: LSN, *, reply: bool = ...) -> None: ...
    async def stop(self) -> None: ...
    async def close(self) -> None: ...
    def abort(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def heard(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class System:
    """The result of IDENTIFY_SYSTEM."""

    system_identifier: str
    timeline: int
    xlogpos: LSN
    database: str


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """The result of CREATE_REPLICATION_SLOT.

    The stream begins at ``consistent_point``. ``snapshot_name`` names the exported snapshot of that moment, if the caller
    requested it; the snapshot is valid until the connection runs another command.
    """

    name: str
    consistent_point: LSN
    snapshot_name: str | None
