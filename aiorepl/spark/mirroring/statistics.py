"""The state of a mirror and of its tables, for its status page. Without row data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from aiorepl.journal.chain import Chain
from aiorepl.lsn import LSN
from aiorepl.spark.mirroring.state import SavedState
from aiorepl.spark.reading.metrics import BYTES, MILLISECONDS, lag

MirrorState = Literal["starting", "running", "retrying", "stopped"]


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """One table of a mirror.

    :param lsn: the table has every transaction that ended up to this LSN.
    :param batch: the last batch that changed the table; ``None`` if the table was not written yet.
    :param bytes_behind: the bytes of the journal's segments after ``lsn``; ``None`` if the journal cannot be read.
    :param seconds_behind: the age of the first of these segments.
    :param problem: why the table is set aside; ``None`` if it is not.
    """

    name: str
    lsn: LSN
    batch: int | None
    bytes_behind: int | None
    seconds_behind: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MirrorStatistics:
    """A mirror, since its start.

    :param restarts: how often the query was restarted.
    :param last_error: why the query ended the last time; ``None`` if it has not ended.
    :param journal: the end of the journal's last segment; ``None`` if it cannot be read.
    :param journal_error: why the journal cannot be read.
    :param lsn: where the last batch ended; ``None`` before the first batch of a new target.
    :param bytes_behind: the bytes of the journal's segments after ``lsn``; ``None`` if either is unknown.
    :param tables: the tables; set-aside tables come first.
    """

    name: str
    state: MirrorState
    restarts: int
    last_error: str | None
    journal: LSN | None = None
    journal_error: str | None = None
    lsn: LSN | None = None
    bytes_behind: int | None = None
    tables: Sequence[MirroredTable] = ()


def tables_of(state: SavedState, chain: Chain | None, now: float) -> list[MirroredTable]:
    """Describe the tables of a mirror.

    :param chain: the journal; ``None`` if it cannot be read.
    :param now: the time in seconds since 1970.
    """
    lags: dict[LSN, tuple[int | None, float]] = {}

    def described(name: str, lsn: LSN, batch: int | None, problem: str | None = None) -> MirroredTable:
        if lsn not in lags:
            found = None if chain is None else lag(chain, lsn, now)
            lags[lsn] = (None, 0.0) if found is None else (found[BYTES], found[MILLISECONDS] / 1000)
        return MirroredTable(name, lsn, batch, *lags[lsn], problem)

    batches = {table: written.batch if written.oid else None for table, written in state.tables.items()}
    return [
        *(
            described(str(table), each.position.lsn, batches.get(table), each.problem)
            for table, each in sorted(state.aside.items())
        ),
        *(described(str(table), state.lsn, batches[table]) for table in sorted(batches.keys() - state.aside)),
    ]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
