"""For pipelines that read from a scripted server: its transactions, and a sink that keeps their rows."""

from __future__ import annotations

from aiorepl import Batch, Sink
from aiorepl.testing import messages as build
from aiorepl.testing.walsender import Data

RELATION = build.relation(oid=7, name="orders", columns=[build.column("id", 23, key=True)])
# The server asks for a status three times a second, so that no test waits for one.
QUICK = {
    "pg_settings": [
        {"name": "wal_level", "setting": "logical"},
        {"name": "wal_sender_timeout", "setting": "900"},
    ]
}


class Remember(Sink):
    """A sink that keeps the keys of its rows."""

    def __init__(self) -> None:
        self.ids: list[object] = []
        self.closed = False

    async def write(self, batch: Batch) -> None:
        self.ids += [change.new["id"] for change in batch.changes]

    async def close(self) -> None:
        self.closed = True


def transaction(number: int, rows: int = 1, *, commit: int | None = None) -> list[Data]:
    """Return a transaction whose commit record is at 0x100 times ``number``, and ends 0x80 later.

    The keys of its rows are 100 times ``number``, and so on.

    :param commit: what its commit message says instead.
    """
    at = 0x100 * number
    payloads = [
        build.begin(final_lsn=at, xid=number),
        RELATION,
        *(build.insert(relation=7, new=[str(100 * number + row)]) for row in range(rows)),
        build.commit(commit_lsn=at if commit is None else commit, end_lsn=at + 0x80),
    ]
    return [Data(payload, start=at, end=at) for payload in payloads]
