"""The options of a snapshot."""

from __future__ import annotations

import os
from dataclasses import dataclass

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.option_fields import Bytes, Seconds

_BLOCK = 8192


@checked("snapshot")
@dataclass(frozen=True)
class SnapshotOptions:
    """How a snapshot is read, and how much it may burden the server.

    :param connections: how many connections read chunks at the same time. The snapshot needs one more, which holds locks.
    :param chunk_bytes: the size of a chunk, in bytes of the table's file.
    :param in_flight_bytes: how many bytes of rows may wait in memory until the chunks before them were delivered.
    :param max_rows_per_second: the most rows that are read per second, by all connections together; ``None``: no limit.
    :param statement_timeout: the most seconds that reading one chunk may take; ``None``: no limit.
    :param lock_timeout: the most seconds to wait for the lock of a table. The initial snapshot also ends early if another session,
        which alters or truncates a table, waits that long for a lock of the snapshot; ``None``: no limit for either.
    :param max_wal_bytes: how many bytes of WAL the exported snapshot may make the server keep. Past it the rest is read under
        snapshots of its own; ``None``: no limit.
    :param state: the folder for the plan of the snapshot. Needed without a journal.
    :raises ConfigurationError: a value is out of range.
    """

    connections: int = 2
    chunk_bytes: Bytes[int] = Bytes(16 * 1024 * 1024)
    in_flight_bytes: Bytes[int] = Bytes(64 * 1024 * 1024)
    max_rows_per_second: int | None = None
    statement_timeout: Seconds[float | None] = Seconds(None)
    lock_timeout: Seconds[float | None] = Seconds(30.0)
    max_wal_bytes: Bytes[int | None] = Bytes(None)
    state: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.chunk_bytes < _BLOCK:
            raise ConfigurationError(
                f"snapshot: chunk_bytes is {self.chunk_bytes}, but must be at least {_BLOCK}, a block of PostgreSQL"
            )
        for name in ("statement_timeout", "lock_timeout"):
            seconds: float | None = getattr(self, name)
            if seconds is not None and seconds < 0.001:
                raise ConfigurationError(
                    f"snapshot: {name} is {seconds}, but must be at least 0.001 seconds; None for no limit"
                )
