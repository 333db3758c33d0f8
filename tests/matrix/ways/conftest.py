"""A server with the whole scenario behind it, and a slot for each way to read it."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.faults import MemorySink

NAME = "matrix é"
ORIGIN = "matrix origin é"


class Stage:
    """The scenario after it was run on a server.

    ``expected`` are its events as they must come; ``lines`` what the plainest way made of it.
    """

    def __init__(self, server: Any, scenario: Any, ways: list[Any]) -> None:
        self.dsn = server.dsn_for(NAME)
        self.version: int = server.version
        self.end = LSN(0)
        self.publications: tuple[str, ...] = ()
        self.expected: list[dict[str, Any]] = []
        self.lines: list[bytes] = []
        self.began: dict[Any, LSN] = {}
        self._admin = server.dsn
        self._read: dict[Any, MemorySink] = {}
        self._scenario = scenario
        self._plainest = replace(ways[0], reader="plainest")
        self._slots = {way: f"matrix_{place}" for place, way in enumerate([self._plainest, *ways])}

    async def set(self) -> None:
        """Run the scenario between the slots and the first reading."""
        await self._ask(f'CREATE DATABASE "{NAME}"', dsn=self._admin)
        await self._run(self._scenario.setup)
        await self._ask(f"SELECT pg_replication_origin_create('{ORIGIN}')")
        self.publications = tuple(name for (name,) in await self._ask("SELECT pubname FROM pg_publication"))
        await self._ask("SELECT pg_create_logical_replication_slot('matrix_server', 'pgoutput')")
        if self.version >= 15:
            await self._ask(
                "SELECT pg_create_logical_replication_slot('matrix_prepared', 'pgoutput', false, true)"
            )
        for way in self._slots:
            await self._create_slot(way)
        async with self._live():
            await self._run(self._scenario.statements)
            ((end,),) = await self._ask("SELECT pg_current_wal_insert_lsn()::text")
            self.end = LSN.parse(end)
        headers = await self._headers()
        assert len(headers) == len(self._scenario.expected), (
            "the scenario does not say what the server decodes"
        )
        self.expected = [event | head for event, head in zip(self._scenario.expected, headers, strict=True)]
        self.lines = await self.read(self._plainest)

    def source(self, way: Any, **options: Any) -> Source:
        """What to ask for to read a way."""
        return Source(
            self.dsn_of(way),
            slot=self._slots[way],
            publication=self.publications,
            proto_version=way.proto,
            streaming=way.streaming,
            binary=way.binary,
            two_phase=way.prepared != "no",
            messages=self.version >= 14,
            origin=way.origin,
            interface=way.route,
            **options,
        )

    def dsn_of(self, way: Any) -> str:
        """A DSN whose sessions decode as the way says."""
        settings = "logical_decoding_work_mem=64kB"
        if way.at == "once":
            settings += "&debug_logical_replication_streaming=immediate"
        return f"{self.dsn}?{settings}"

    async def read(self, way: Any) -> list[bytes]:
        """The lines that a way gives; with boundaries where prepared transactions are told."""
        sink = self._read.get(way) or sink_for(way)
        if way not in self._read:
            await Pipeline(self.source(way), [sink], until=self.end).run()
        native = NativeFormat(boundaries=way.prepared == "told")
        return [line for batch in sink.batches for line in native.events(batch.slices)]

    async def peek(self, options: dict[str, str]) -> list[bytes]:
        """What the server itself decodes, from a slot that stays where it is."""
        slot = "matrix_prepared" if "two_phase" in options else "matrix_server"
        arguments = [part for pair in options.items() for part in pair]
        rows = await self._ask(
            "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, VARIADIC $2::text[])",
            slot,
            arguments,
        )
        return [data for (data,) in rows]

    @contextlib.asynccontextmanager
    async def _live(self) -> AsyncIterator[None]:
        """Read what happens in the body, by the ways that do."""
        sinks = {way: sink_for(way) for way in self._slots if way.reader == "live"}
        async with contextlib.AsyncExitStack() as running:
            pipelines = [Pipeline(self.source(way), [sink]) for way, sink in sinks.items()]
            for pipeline in pipelines:
                await running.enter_async_context(pipeline)
            yield
            async with asyncio.timeout(90):
                while any(pipeline.statistics().flushed < self.end for pipeline in pipelines):
                    await asyncio.sleep(0.02)
        self._read = sinks

    async def _create_slot(self, way: Any) -> None:
        source = self.source(way)
        connection = await source.open()
        try:
            created = await connection.create_slot(source.slot, two_phase=source.two_phase)
            self.began[way] = created.consistent_point
        finally:
            await connection.close()

    async def _headers(self) -> list[dict[str, Any]]:
        """What each event's transaction says of itself, by the bytes of the oldest protocol version."""
        options = {"proto_version": "1", "publication_names": names(self.publications)}
        if self.version >= 14:
            options["messages"] = "true"
        headers: list[dict[str, Any]] = []
        transaction: dict[str, Any] = {}
        ordinal = 0
        for data in await self.peek(options):
            if data[:1] == b"B":
                lsn, time, xid = struct.unpack("!xqqI", data)
                moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)
                transaction = {
                    "xid": xid,
                    "commit_lsn": str(LSN(lsn)),
                    "commit_time": f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}",
                }
                ordinal = 0
            elif data[:2] == b"M\0":
                headers.append({"lsn": str(LSN(int.from_bytes(data[2:10], "big")))})
            elif data[:1] in (b"I", b"U", b"D", b"T", b"M"):
                headers.append(transaction | {"ordinal": ordinal})
                ordinal += 1
        return headers

    async def _run(self, statements: list[tuple[str, str]]) -> None:
        sessions: dict[str, asyncpg.Connection] = {}
        try:
            for session, statement in statements:
                if session not in sessions:
                    sessions[session] = await asyncpg.connect(self.dsn)
                await sessions[session].execute(statement)
        finally:
            for connection in sessions.values():
                await connection.close()

    async def _ask(self, query: str, *arguments: Any, dsn: str | None = None) -> list[Any]:
        connection = await asyncpg.connect(
            dsn or self.dsn, server_settings={"logical_decoding_work_mem": "64kB"}
        )
        try:
            return await connection.fetch(query, *arguments)
        finally:
            await connection.close()


def sink_for(way: Any) -> MemorySink:
    """A sink that takes prepared transactions when the way is to be told of them."""
    sink = MemorySink()
    sink.supports_prepared = way.prepared == "told"
    return sink


def names(publications: tuple[str, ...]) -> str:
    """Publication names as the server's own function wants them."""
    return ",".join('"' + name.replace('"', '""') + '"' for name in publications)


@pytest.fixture(scope="session")
def stages(servers: Any, ways_of: Any, scenario_of: Any) -> Iterator[Callable[[int], Stage]]:
    """``stages(16)``: the scenario on a server of that version, run when it is first asked for.

    The server has no other tests: with the stage's slots, no later slot could get another ``catalog_xmin``.
    """
    ready: dict[int, Stage] = {}
    with contextlib.ExitStack() as started:

        def stage(version: int) -> Stage:
            if version not in ready:
                server = started.enter_context(servers.new(version))
                made = Stage(server, scenario_of(version), ways_of(version))
                asyncio.run(made.set())
                ready[version] = made
            return ready[version]

        yield stage


@pytest.fixture
def stage(version: int, stages: Callable[[int], Stage]) -> Stage:
    """The scenario on the test's server."""
    return stages(version)
