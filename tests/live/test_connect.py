"""``aiorepl.connect``: transactions are pulled and acknowledged by the consumer."""

from __future__ import annotations

import pytest

import aiorepl
from aiorepl import LSN, UNCHANGED, Delete, Insert, Message, Truncate, Update
from tests.waiting import until


def connect(published, **options):
    return aiorepl.connect(published.dsn, slot=published.slot, publication="p", **options)


@pytest.mark.both_loops
async def test_transactions_and_changes(published):
    """Every transaction has its header, and every change its kind and rows by column."""
    await published.create_slot()
    await published.commit(
        "INSERT INTO items VALUES (1, 'one')",
        "UPDATE items SET note = NULL",
        "DELETE FROM items",
        "TRUNCATE items",
        "SELECT pg_logical_emit_message(true, 'hello', 'world')",
    )
    await published.execute("INSERT INTO items VALUES (2)")
    headers = await published.headers()

    async with connect(published, until="now", messages=True) as stream:
        received = [(tx, [change async for change in tx]) async for tx in stream]
    assert headers == [
        {
            "xid": tx.xid,
            "commit_lsn": str(tx.commit_lsn),
            "commit_time": tx.commit_time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        for tx, _ in received
    ]
    (_, (insert, update, delete, truncate, message)), (_, (last,)) = received
    kinds = [type(change) for change in (insert, update, delete, truncate, message, last)]
    assert [Insert, Update, Delete, Truncate, Message, Insert] == kinds
    assert ("public", "items", {"id": 1, "note": "one"}, None) == (
        insert.schema,
        insert.table,
        dict(insert.new),
        insert.old,
    )
    assert ({"id": 1, "note": None}, {"id": 1}) == (dict(update.new), dict(update.key))
    assert (None, {"id": 1}) == (delete.new, dict(delete.old))
    assert ["items"] == [relation.name for relation in truncate.relations]
    assert ("hello", b"world", True) == (message.prefix, message.content, message.transactional)


async def test_only_what_is_acknowledged_is_confirmed(published):
    """Unacknowledged transactions are sent again; after an ack the stream continues with the next one."""
    await published.create_slot()
    await published.execute(*(f"INSERT INTO items VALUES ({i})" for i in range(3)))

    async def read(acknowledge):
        async with connect(published, until="now") as stream:
            ids = []
            async for tx in stream:
                ids += [change.key["id"] async for change in tx]
                if ids[-1] in acknowledge:
                    await stream.ack(tx)
            return ids

    assert [[0, 1, 2], [0, 1, 2], [2], []] == [await read(some) for some in ([], [0, 1], [2], [])]


async def test_ack_of_a_transaction_that_was_not_read(published):
    """A transaction that was not read to its end cannot be acknowledged."""
    await published.create_slot()
    await published.commit("INSERT INTO items VALUES (1)", "INSERT INTO items VALUES (2)")

    async with connect(published, until="now") as stream:
        async for tx in stream:
            with pytest.raises(ValueError, match="read a transaction to its end"):
                await stream.ack(tx)
            await tx.skip()
            await stream.ack(tx)
            assert stream.confirmed == tx.end_lsn


async def test_ack_of_a_transaction_of_another_stream(published):
    """Its end is not one of this stream, and confirms nothing here."""
    await published.create_slot()
    await published.execute("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    await published.execute("INSERT INTO items VALUES (1)")

    other = aiorepl.connect(published.dsn, slot="other", publication="p")
    async with connect(published) as stream, other:
        before = stream.confirmed
        transaction = await anext(aiter(other))
        await transaction.skip()
        with pytest.raises(ValueError, match="the stream that it was read from"):
            await stream.ack(transaction)
        assert before == stream.confirmed
        await other.ack(transaction)


async def test_ack_after_the_end_of_the_stream(published):
    """Nothing would be confirmed, so the call fails."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")

    async with connect(published) as stream:
        transaction = await anext(aiter(stream))
        await transaction.skip()
        before = stream.confirmed
    with pytest.raises(RuntimeError, match="the stream is closed"):
        await stream.ack(transaction)
    assert before == stream.confirmed


async def test_unread_changes_are_skipped(published):
    """The next transaction begins at its first change, however far the previous one was read."""
    await published.create_slot()
    for start in (0, 10):
        await published.execute(f"INSERT INTO items SELECT generate_series({start}, {start + 9})")

    async with connect(published, until="now") as stream:
        assert [0, 10] == [(await anext(tx)).key["id"] async for tx in stream]


async def test_quiet_wal_is_confirmed_while_the_consumer_waits(published):
    """WAL without changes is confirmed if every transaction before it is acknowledged, and not otherwise."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    async with connect(published) as stream:
        tx = await anext(stream)
        await tx.skip()
        begin = stream.confirmed
        await published.execute("CREATE TABLE other (id int)", "INSERT INTO items VALUES (2)")
        second = await anext(stream)
        assert begin == stream.confirmed < tx.end_lsn

        await second.skip()
        await stream.ack(second)
        await published.execute("DROP TABLE other", "INSERT INTO items VALUES (3)")
        third = await anext(stream)
        assert second.end_lsn <= stream.confirmed < third.commit_lsn + 1


async def test_unchanged_is_not_null(published):
    """A large value that was not sent is ``UNCHANGED``."""
    await published.execute(
        "ALTER TABLE items ADD n int",
        "INSERT INTO items SELECT 1, string_agg(md5(i::text), '') FROM generate_series(1, 300) i",
    )
    await published.create_slot()
    await published.execute("UPDATE items SET n = 1")

    async with connect(published, until="now") as stream:
        (change,) = [change async for tx in stream async for change in tx]
    assert change.new["note"] is UNCHANGED
    assert ("note",) == change.unchanged


async def test_a_temporary_slot(published):
    """A temporary slot is dropped with its connection."""
    count = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{published.slot}'"
    async with connect(published, create_slot=True, temporary=True, reconnect=None) as stream:
        assert 1 == await published.connection.fetchval(count)
        await published.execute("INSERT INTO items VALUES (1)")
        async for tx in stream:
            assert [1] == [change.key["id"] async for change in tx]
            break
    await until(lambda: published.connection.fetchval(count), lambda found: found == 0)


async def test_an_error_in_the_body_ends_the_connection(published):
    """The slot is free after an exception in the block."""
    await published.create_slot()
    with pytest.raises(ZeroDivisionError):
        async with connect(published):
            raise ZeroDivisionError
    await until(published.walsender, lambda pid: pid is None)
    assert LSN(0) < await published.confirmed()
