"""Until when a journal of a real server is complete: on an idle database, beside a long transaction, and with a clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import Pipeline
from aiorepl.journal import JournalReader
from aiorepl.journal.times import Times
from aiorepl.source.heartbeat import Heartbeat
from aiorepl.transactions.transaction import from_datetime, to_datetime
from tests.waiting import until

CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

/* PostgreSQL takes commit times from this function. The file has an offset in seconds. */
int gettimeofday(struct timeval *now, void *zone)
{
    char text[32] = {0};
    int done = syscall(SYS_gettimeofday, now, zone), file = open(getenv("AIOREPL_CLOCK"), O_RDONLY);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0)
            now->tv_sec += atol(text);
        close(file);
    }
    return done;
}
"""


class Journal:
    """The times of the journal that a pipeline writes."""

    def __init__(self, folder: Path, pipeline: Pipeline) -> None:
        self._reader = JournalReader(folder)
        self._pipeline = pipeline

    @property
    def times(self) -> Times:
        return self._reader.chain().state.times

    async def past(self, moment: datetime, work: Callable[[], Awaitable[object]] | None = None) -> Times:
        """Wait until the journal is complete until after a moment.

        :param work: called again and again.
        """
        goal = from_datetime(moment)

        async def look() -> Times:
            if work is not None:
                await work()
            return self.times

        return await until(look, lambda times: times.until is not None and times.until > goal)

    async def beats(self, count: int = 5) -> None:
        """Wait for some more heartbeats."""
        before = self._pipeline.statistics().heartbeat.sent
        await until(lambda: self._pipeline.statistics().heartbeat.sent, lambda sent: sent >= before + count)

    async def at_its_end(self, lsn: int) -> None:
        """Wait until the journal has reached an LSN."""
        await until(lambda: self._reader.chain().end_lsn, lambda end: end >= lsn)


@contextlib.asynccontextmanager
async def captured(published, folder: Path, dsn: str | None = None) -> AsyncIterator[Journal]:
    source = published.source(dsn, heartbeat_interval=0.05)
    async with Pipeline(source, [], journal=folder) as pipeline:
        await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent)
        yield Journal(folder, pipeline)


def now() -> datetime:
    return datetime.now(UTC)


async def test_an_idle_database(published, tmp_path):
    """Heartbeats alone move the time, also after a restart. The journal gets no segment for that."""
    await published.create_slot()
    folder = tmp_path / "journal"
    for _ in range(2):
        async with captured(published, folder) as journal:
            began = now()
            await journal.past(began)
            found = await journal.past(began + timedelta(milliseconds=300))
        assert to_datetime(found.until) <= now()
    assert JournalReader(folder).chain().segments() == []


async def test_a_transaction_that_runs(published, tmp_path):
    """A transaction that writes holds the time at its beginning, also for a role without privileges; readers do not matter."""
    await published.create_slot()
    role = f"r_{published.slot[-20:]}"
    await published.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'")
    dsn = published.dsn.replace(published.dsn.split("//")[1].split("@")[0], f"{role}:x")
    async with captured(published, tmp_path / "journal", dsn) as journal:
        await journal.past(now())
        other = await asyncpg.connect(published.dsn)
        try:
            reading = other.transaction(isolation="repeatable_read")
            await reading.start()
            await other.fetch("SELECT * FROM items")
            await journal.past(now())
            await reading.rollback()
            writing = other.transaction()
            await writing.start()
            await other.execute("INSERT INTO items VALUES (1)")
            began = now()
            await journal.beats()
            await published.execute("INSERT INTO items VALUES (2)")
            await journal.at_its_end(await published.wal())
            await journal.beats()
            assert to_datetime(journal.times.until) <= began
            await writing.commit()
        finally:
            await other.close()
        assert (await journal.past(now())).late == 0
    await published.execute(f"DROP ROLE {role}")


async def test_a_prepared_transaction(clock, publish, tmp_path):
    """It holds the time until it is committed or rolled back."""
    published = await publish(clock[0].dsn)
    await published.create_slot()
    async with captured(published, tmp_path / "journal") as journal:
        await journal.past(now())
        await published.execute("BEGIN; INSERT INTO items VALUES (1); PREPARE TRANSACTION 'p'")
        began = now()
        await journal.beats()
        await journal.at_its_end(await published.wal())
        await journal.beats()
        assert to_datetime(journal.times.until) <= began
        await published.execute("COMMIT PREPARED 'p'")
        assert (await journal.past(now())).late == 0


@pytest.fixture
def clock(servers, monkeypatch):
    """A server whose clock can be set, and a function that sets it, in seconds from the right time."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, which makes the library that sets the server's clock")
    # Not in ``tmp_path``, which the server's user cannot enter.
    with tempfile.TemporaryDirectory(prefix="aiorepl-clock-") as folder:
        Path(folder).chmod(0o755)
        source, library, offset = (Path(folder) / name for name in ("clock.c", "clock.so", "offset"))
        source.write_text(CLOCK)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        offset.write_text("0")

        def jump(seconds: int) -> None:
            fresh = offset.with_suffix(".new")
            fresh.write_text(str(seconds))
            fresh.replace(offset)

        with monkeypatch.context() as patch:
            patch.setenv("AIOREPL_CLOCK", str(offset))
            patch.setenv("LD_PRELOAD", str(library))
            server = servers.new(
                18, track_commit_timestamp="on", wal_sender_timeout="0", max_prepared_transactions="2"
            )
            server.start()
        try:
            yield server, jump
        finally:
            server.stop()


async def committed(published, key: int) -> datetime:
    """Write a row, and return its commit time by the server."""
    await published.execute(f"INSERT INTO items VALUES ({key})")
    return await published.connection.fetchval(
        "SELECT pg_xact_commit_timestamp(xmin) FROM items WHERE id = $1", key
    )


async def test_a_clock_that_jumps(clock, publish, tmp_path):
    """A jump forward claims nothing about the future, and contradicts nothing when it is undone. A jump back makes transactions late."""
    server, jump = clock
    published = await publish(server.dsn)

    async def flush() -> None:
        # After a jump back, the server's WAL writer is idle for as long as the jump was, and only commits flush WAL.
        await published.execute("UPDATE items SET note = note WHERE id = 1")

    hour = timedelta(hours=1)
    await published.create_slot()
    async with captured(published, tmp_path / "journal") as journal:
        await journal.past(now())

        jump(2 * 3600)
        assert await committed(published, 1) > now() + hour
        await journal.beats()
        await journal.at_its_end(await published.wal())
        assert to_datetime(journal.times.until) <= now()

        jump(0)
        assert await committed(published, 2) < now()
        assert (await journal.past(now(), flush)).late == 0

        jump(-3600)
        before = journal.times.until
        first = await committed(published, 3)
        second = await committed(published, 4)
        assert first < second < now() - hour / 2
        found = await until(lambda: journal.times, lambda times: times.late == 2)
        assert to_datetime(found.late_since) == first
        await journal.beats()
        assert before <= journal.times.until <= from_datetime(now())

        jump(0)
        assert (await journal.past(now(), flush)).late == 2


async def test_a_role_that_may_not_see_other_sessions(published, tmp_path, slot_name, caplog):
    """Heartbeats are sent all the same, and one warning says what to grant; the journal is complete until no known time."""
    role = f"blind_{slot_name}"
    await published.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        "REVOKE SELECT ON pg_catalog.pg_stat_activity FROM PUBLIC",
    )
    try:
        parts = urlsplit(published.dsn)
        dsn = parts._replace(netloc=f"{role}:x@{parts.hostname}:{parts.port}").geturl()
        source = published.source(dsn, heartbeat_interval=0.05)
        async with Pipeline(source, journal=tmp_path / "journal") as pipeline:
            await until(lambda: pipeline.statistics().heartbeat, lambda beats: beats.sent >= 5)
            assert pipeline.statistics().heartbeat.failed == 0
        assert JournalReader(tmp_path / "journal").chain().state.times.until is None
    finally:
        await published.execute(f"DROP ROLE {role}", "GRANT SELECT ON pg_catalog.pg_stat_activity TO PUBLIC")
    (warning,) = [each.getMessage() for each in caplog.records if each.name == "aiorepl.heartbeat"]
    assert "GRANT SELECT ON pg_catalog.pg_stat_activity" in warning


async def test_commit_times_of_an_origin(published, tmp_path, slot_name, caplog):
    """A transaction that another server's changes made has the commit time of there. It is late, and the warning does not blame the clock."""
    await published.create_slot()
    origin = f"o_{slot_name}"
    async with captured(published, tmp_path / "journal") as journal:
        await journal.past(now())
        await published.execute(
            f"SELECT pg_replication_origin_create('{origin}')",
            f"SELECT pg_replication_origin_session_setup('{origin}')",
            "BEGIN; SELECT pg_replication_origin_xact_setup('0/1', now() - interval '1 hour'); INSERT INTO items VALUES (1); COMMIT",
            "SELECT pg_replication_origin_session_reset()",
            f"SELECT pg_replication_origin_drop('{origin}')",
        )
        found = await until(lambda: journal.times, lambda times: times.late)
        assert to_datetime(found.late_since) < now() - timedelta(minutes=59)
    (warning,) = [each.getMessage() for each in caplog.records if each.name == "aiorepl.journal"]
    assert f"the origin {origin}" in warning
    assert "clock" not in warning


async def test_a_server_that_does_not_send_the_stream(published):
    """Heartbeats on it prove nothing: an old primary may still run beside the new one, and its LSNs and transactions are not those of the stream."""
    await published.create_slot()
    proven: list[tuple[int, int]] = []
    heartbeat = Heartbeat(
        published.source(heartbeat_interval=0.05), lambda lsn, time: proven.append((lsn, time))
    )
    running = asyncio.create_task(heartbeat.run())
    await until(lambda: heartbeat.statistics.sent, lambda sent: sent >= 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert heartbeat.statistics.failed == 0
    assert proven == []
