"""Two pipelines read the same random transactions, one directly and one through a journal. Their connections are cut all the time.

python -m tests.live.altered_publications.program 18 4      # the server's version, and one seed or more
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from aiorepl import UNCHANGED, Batch, Pipeline, RetryPolicy, Sink, Source
from aiorepl.retry import may_pass
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.proxy import CuttingProxy
from tests.live.altered_publications import decoding
from tests.live.altered_publications.outcomes import Delivered, Sent
from tests.live.altered_publications.recording import Recorder
from tests.live.altered_publications.workload import PUBLISHED, SETUP, Writer

SETTINGS = {"max_prepared_transactions": "20", "logical_decoding_work_mem": "64kB"}
_WRITERS = 3
_SOON = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.1)
_CATCHES_UP = 120.0
# The value in the row of the last transaction.
END = "end"
# The server itself fails with this message after a relation was rewritten or dropped, in SQL functions as well
# (``ReorderBufferProcessTXN``).
_OF_SERVERS = "could not map filenumber"


class Collected(Sink):
    """Keeps the changes that it gets from each pipeline."""

    def __init__(self) -> None:
        self.delivered: list[Delivered] = []
        self.ended: int | None = None
        """The commit LSN of the last transaction, once it was delivered."""

    async def write(self, batch: Batch) -> None:
        """Keep the changes."""
        got = self.delivered[-1]
        for part in batch.slices:
            header = part.transaction
            if header is None:
                got.messages |= {int(change.lsn): _event(change) for change in part.changes}
                continue
            events = got.transactions.setdefault(header.commit_lsn, [])
            for change in part.changes:
                if change.ordinal != len(events):
                    got.wrong.append(
                        f"{header.commit_lsn}: ordinal {change.ordinal} after {len(events)} changes"
                    )
                events.append(_event(change))
                if change.kind == "insert" and change.new.get("v") == END:
                    self.ended = header.commit_lsn
            if part.last:
                got.complete.add(header.commit_lsn)


def _event(change: Any) -> decoding.Event:
    if change.kind == "message":
        return "M", change.prefix, bytes(change.content)
    if change.kind == "truncate":
        return "T", tuple(sorted(f"{one.schema}.{one.name}" for one in change.relations))
    relation, old, new = change.relation, None, None
    if change.raw_old is not None:
        old = tuple((relation.names[at], _value(change.raw_old[at])) for at in change.old_indexes)
    if change.raw_new is not None:
        new = tuple(zip(relation.names, map(_value, change.raw_new), strict=True))
    return change.kind[0].upper(), f"{relation.schema}.{relation.name}", relation.oid, old, new


def _value(raw: Any) -> Any:
    if raw is UNCHANGED:
        return decoding.UNCHANGED
    return raw if raw is None else bytes(raw)


@dataclass
class Reader:
    """One slot, and its pipelines, which run one after the other.

    :param options: the options of the source of every pipeline.
    :param streaming: the values of ``streaming`` from which each pipeline takes one.
    """

    recorder: Recorder
    sinks: dict[str, Collected]
    options: dict[str, Any]
    streaming: list[Any]
    journal: Path | None
    failure: BaseException | None = None
    pipeline: Pipeline = field(init=False)
    task: asyncio.Task[Any] = field(init=False)

    async def start(self, chance: random.Random) -> None:
        """Start the next pipeline. Try again if its connection is cut, or if the server has not noticed an earlier cut."""
        source = Source(**self.options, streaming=chance.choice(self.streaming))
        while True:
            for sink in self.sinks.values():
                sink.delivered.append(Delivered())
            self.pipeline = Pipeline(source, self.sinks, journal=self.journal, reconnect=_SOON)
            self.task = asyncio.create_task(self.pipeline.run())
            started = asyncio.create_task(self.pipeline.started())
            await asyncio.wait({started, self.task}, return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            error = self.task.exception() if self.task.done() else None
            if not isinstance(error, Exception) or not may_pass(error):
                return
            self.recorder.incarnation += 1

    async def stop(self) -> None:
        """Stop the pipeline, and keep its error."""
        self.pipeline.stop()
        await asyncio.wait({self.task})
        self.failure = self.task.exception()
        self.recorder.incarnation += 1

    def problems(self) -> Iterator[str]:
        """Compare the sinks with the messages of the walsenders. Yield the differences."""
        sent = Sent(self.recorder.connections, journaled=self.journal is not None)
        if self.failure is not None and _OF_SERVERS not in str(self.failure):
            yield f"{self.options['slot']} ended: {self.failure!r}"
        for name, sink in self.sinks.items():
            for problem in sent.problems(sink.delivered, until=sink.ended):
                yield f"{self.options['slot']}, sink {name}: {problem}"


class Program:
    """A random program in a new database.

    :param seed: determines all choices.
    :param transactions: how many transactions each writer begins.
    """

    def __init__(self, server: EmbeddedServer, seed: int, transactions: int = 150) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._name = f"altered_{seed}"
        self._transactions = transactions
        self.readers: list[Reader] = []

    async def run(self) -> list[str]:
        """Run the program, and return the differences."""
        async with AsyncExitStack() as stack:
            client = await self._database(stack)
            proxy = await stack.enter_async_context(CuttingProxy("127.0.0.1", self._server.port))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aiorepl-altered-")))
            for kind in ("direct", "journal"):
                recorder = await stack.enter_async_context(Recorder(proxy.port))
                self.readers.append(self._reader(kind, recorder, folder))
            for reader in self.readers:
                await reader.start(self._chance)
            await self._write(proxy)
            await self._catch_up(client)
            for reader in self.readers:
                await reader.stop()
        return [problem for reader in self.readers for problem in reader.problems()]

    @property
    def summary(self) -> str:
        """The numbers of changes, connections and pipelines that were compared."""
        counts = []
        for reader in self.readers:
            sink = next(iter(reader.sinks.values()))
            changes = sum(len(events) for got in sink.delivered for events in got.transactions.values())
            sent = Sent(reader.recorder.connections, journaled=reader.journal is not None)
            counts.append(
                f"{changes} changes by {len(reader.recorder.connections)} connections of {len(sink.delivered)} pipelines, "
                f"{sent.disagreements} transactions decoded differently"
            )
        return "; ".join(counts)

    async def _database(self, stack: AsyncExitStack) -> asyncpg.Connection:
        admin = await asyncpg.connect(self._server.dsn)
        stack.push_async_callback(admin.close)
        await admin.execute(f"CREATE DATABASE {self._name}")
        stack.push_async_callback(_drop, admin, self._server.dsn_for(self._name), self._name)
        if self._server.version >= 16 and self._chance.random() < 0.6:
            setting = "debug_logical_replication_streaming = immediate"
            await admin.execute(f"ALTER DATABASE {self._name} SET {setting}")
        client = await asyncpg.connect(self._server.dsn_for(self._name))
        stack.push_async_callback(client.close)
        for statement in SETUP:
            await client.execute(statement)
        tables = PUBLISHED if self._server.version >= 15 else "anchor, t0, t1, t2, x"
        await client.execute(f"CREATE PUBLICATION p FOR TABLE {tables}")
        return client

    def _reader(self, kind: str, recorder: Recorder, folder: Path) -> Reader:
        chance, version = self._chance, self._server.version
        dsn = self._server.dsn_for(self._name).replace(f":{self._server.port}", f":{recorder.port}")
        options: dict[str, Any] = {
            # The recorder cannot read TLS.
            "dsn": f"{dsn}{'&' if '?' in dsn else '?'}sslmode=disable",
            "slot": f"{self._name}_{kind}",
            "publication": "p",
            "create_slot": True,
            "messages": version >= 14,
        }
        if version >= 16 and chance.random() < 0.4:
            options["origin"] = "none"
        if kind == "direct":
            return Reader(recorder, {"only": Collected()}, options, _streaming(version), None)
        options["two_phase"] = version >= 15 and chance.random() < 0.5
        sinks = {"first": Collected(), "second": Collected()}
        return Reader(recorder, sinks, options, _streaming(version), folder / "journal")

    async def _write(self, proxy: CuttingProxy) -> None:
        """Run the writers. Meanwhile, cut connections and restart pipelines."""
        chance, dsn = self._chance, self._server.dsn_for(self._name)
        seeds = [chance.random() for _ in range(_WRITERS)]
        writers = [
            Writer(random.Random(seed), f"{self._name}_{number}", self._server.version)
            for number, seed in enumerate(seeds)
        ]
        writing = asyncio.gather(*(one.write(dsn, self._transactions) for one in writers))
        while not writing.done():
            before = proxy.received
            size = chance.choice([100, 3_000, 50_000, 300_000])
            while not writing.done() and proxy.received < before + size:
                await asyncio.sleep(0.01)
            if chance.random() < 0.7:
                proxy.cut_after(chance.choice([1, 100, 3_000, 50_000]))
                continue
            reader = chance.choice(self.readers)
            await reader.stop()
            if reader.failure is not None:
                writing.cancel()
                break
            await reader.start(chance)
        await asyncio.gather(writing, return_exceptions=True)

    async def _catch_up(self, client: asyncpg.Connection) -> None:
        """Write a last transaction, and wait until every sink has it, or its pipeline has ended."""
        for (gid,) in await client.fetch(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ):
            await client.execute(f"COMMIT PREPARED '{gid}'")
        await client.execute("ALTER PUBLICATION p SET TABLE anchor")
        await client.execute("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
        await client.execute(f"INSERT INTO anchor (v) VALUES ('{END}')")
        async with asyncio.timeout(_CATCHES_UP):
            while any(
                not reader.task.done() and any(sink.ended is None for sink in reader.sinks.values())
                for reader in self.readers
            ):
                await asyncio.sleep(0.02)


def _streaming(version: int) -> list[Any]:
    return ["off"] if version < 14 else ["on", "on", "off"] if version < 16 else ["on", "parallel", "off"]


async def _drop(admin: asyncpg.Connection, dsn: str, name: str) -> None:
    """Drop the database with its slots, prepared transactions and origins."""
    client = await asyncpg.connect(dsn)
    for (gid,) in await client.fetch("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        await client.execute(f"ROLLBACK PREPARED '{gid}'")
    await client.close()
    slots = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = $1"
    while found := await admin.fetch(slots, name):
        for slot, pid in found:
            if pid is None:
                await admin.execute("SELECT pg_drop_replication_slot($1)", slot)
        await asyncio.sleep(0.02)
    await admin.execute(
        "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE starts_with(roname, $1)",
        name,
    )
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def main() -> int:
    """Run programs from the command line. Return 1 if there is a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", type=int)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--transactions", type=int, default=150)
    options = parser.parse_args()
    wrong = 0
    with EmbeddedServer(options.version, settings=SETTINGS) as server:
        for seed in options.seeds:
            program = Program(server, seed, options.transactions)
            found = asyncio.run(program.run())
            wrong += len(found)
            sys.stdout.write(f"{seed}: {program.summary}, {len(found)} wrong\n")
            sys.stdout.writelines(f"  {problem}\n" for problem in found)
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
