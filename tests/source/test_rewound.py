"""A sink loses accepted data while another sink has a part of a transaction."""

from __future__ import annotations

import asyncio

from aiorepl import BatchPolicy, Pipeline, Source, TransientError
from aiorepl.retry import RetryPolicy
from aiorepl.testing import messages as build
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.walsender import AwaitStatus, Cut, Data, ScriptedWalsender
from tests.wire.scripted import QUICK

SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.02)
COMMIT = Data(build.commit(commit_lsn=0x100, end_lsn=0x108), 0x108)


def rows(*rows: tuple[int, int]) -> list[Data]:
    """Return the messages of a transaction, without its commit.

    :param rows: the LSN and the key of each row.
    """
    relation = build.relation(oid=7, name="t", columns=[build.column("id", key=True)])
    inserts = [Data(build.insert(relation=7, new=[str(key)]), lsn) for lsn, key in rows]
    return [Data(build.begin(final_lsn=0x100, xid=3)), Data(relation), *inserts]


class Forgetful(MemorySink):
    """Loses its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.Event()

    async def write(self, batch) -> None:
        """Keep a batch, except the first one."""
        await super().write(batch)
        if not self.lost.is_set():
            self.lost.set()
            self.batches.clear()
            raise TransientError("lost", rewind=True)


async def test_decoded_differently():
    """The other sink gets each change once, although the server omits a change when it decodes the transaction again."""
    kept, forgetful = MemorySink(), Forgetful()
    again = [*rows((32, 1), (48, 3), (56, 4), (64, 5)), COMMIT]
    scripts = [
        # The statuses come after the loss. The second connection sends the transaction to its end; the third one sends it again for the
        # forgetful sink.
        [*rows((32, 1), (40, 2), (48, 3)), AwaitStatus(flushed=0), AwaitStatus(flushed=0), Cut()],
        again,
        [*again, AwaitStatus(flushed=0x108)],
    ]
    async with ScriptedWalsender(*scripts, answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p")
        sinks = {"kept": kept, "forgetful": forgetful}
        batches = BatchPolicy(max_bytes=1, flush_seconds=0.01)
        async with (
            asyncio.timeout(60),
            Pipeline(source, sinks, reconnect=SOON, batches=batches, buffer_bytes=1) as pipeline,
        ):
            await server.status(lambda status: status.flushed >= 0x108)
            assert 1 == pipeline.statistics().sinks["forgetful"].rewinds

    assert ["1", "2", "3", "4", "5"] == [change.new["id"] for change in kept.changes]
    assert ["1", "3", "4", "5"] == [change.new["id"] for change in forgetful.changes]
