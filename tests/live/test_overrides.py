"""Starts that are refused, and the two ways to continue: with a gap, or with the tables loaded again."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from aiorepl import (
    LSN,
    BatchPolicy,
    ConfigurationError,
    Delete,
    Insert,
    Pipeline,
    SlotError,
    Truncate,
    Update,
)
from aiorepl.journal.reader import JournalReader
from aiorepl.source.continuity import Gap
from aiorepl.testing.faults import MemorySink

SOON = BatchPolicy(flush_seconds=0.1)


def mirror(changes):
    """The ids in a mirror of the changes."""
    rows = set()
    for change in changes:
        match change:
            case Truncate():
                rows.clear()
            case Insert() | Update():
                rows.add(change.new["id"])
            case Delete():
                rows.discard(change.key["id"])
    return rows


def deliver(published, sink, **options):
    """Run to the end of WAL."""
    return Pipeline(published.source(), {"s": sink}, until="now", batches=SOON, **options).run()


async def drop(published):
    """Drop the slot, as an administrator might."""
    await published.connection.fetchval("SELECT pg_drop_replication_slot($1)", published.slot)


async def test_a_slot_that_was_made_anew_is_refused(published):
    """A recreated slot begins later: the error names the ways to continue, and nothing is delivered."""
    sink = MemorySink(keeps_position=True)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, sink)
    await drop(published)
    await published.execute("INSERT INTO items VALUES (2)")

    with pytest.raises(SlotError, match=r"begins at .*--resnapshot.*--accept-gap"):
        await deliver(published, sink)
    assert [1] == [change.key["id"] for change in sink.changes]


async def test_a_gap_that_is_accepted(published, caplog):
    """Log and statistics have the gap's LSNs; the sink continues after it, at the next start as well."""
    sink = MemorySink(keeps_position=True)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, sink)
    lost_after = sink.position.lsn
    await drop(published)
    await published.execute("INSERT INTO items VALUES (2)")
    await published.create_slot()
    begin = await published.confirmed()
    await published.execute("INSERT INTO items VALUES (3)")

    pipeline = Pipeline(published.source(), {"s": sink}, until="now", batches=SOON, accept_gap=True)
    with caplog.at_level(logging.WARNING, "aiorepl.gaps"):
        await pipeline.run()
    assert (Gap("sink s", lost_after, begin),) == pipeline.statistics().gaps
    assert (
        f"sink s continues at {begin}: transactions committed after {lost_after} are missing, as accepted"
        in caplog.messages
    )
    await published.execute("INSERT INTO items VALUES (4)")
    await deliver(published, sink)
    assert [1, 3, 4] == [change.key["id"] for change in sink.changes]


async def test_a_gap_of_the_journal(published, tmp_path):
    """A gap is refused, or accepted and recorded in the journal; sinks read on across it."""
    sink, journal = MemorySink(), str(tmp_path)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, sink, journal=journal)
    lost_after = JournalReader(journal).position().lsn
    await drop(published)
    await published.execute("INSERT INTO items VALUES (2)")
    await published.create_slot()
    begin = await published.confirmed()
    with pytest.raises(SlotError, match=f"journal .* is at {lost_after}, but slot .* begins at {begin}"):
        await deliver(published, sink, journal=journal)

    # Two starts, because the first may end before any change arrives; it has recorded the gap by then.
    await Pipeline(
        published.source(), {"s": sink}, until=begin, batches=SOON, journal=journal, accept_gap=True
    ).run()
    await published.execute("INSERT INTO items VALUES (3)")
    await deliver(published, sink, journal=journal)
    late = MemorySink()
    await Pipeline(published.source(), {"late": late}, until="now", batches=SOON, journal=journal).run()
    assert [(lost_after, begin)] == JournalReader(journal).gaps()
    assert [1, 3] == [change.key["id"] for change in sink.changes]
    assert [1, 3] == [change.key["id"] for change in late.changes]


async def test_tables_that_are_loaded_again(published, tmp_path):
    """The slot is recreated and the load comes after the journal's end; mirrors lose rows that were deleted in the gap."""
    sink, journal = MemorySink(), str(tmp_path)
    await published.execute("CREATE TABLE others (id int PRIMARY KEY REFERENCES items)")
    await published.execute("INSERT INTO items VALUES (1), (2)")
    await deliver(published, sink, journal=journal, snapshot=True)
    assert {1, 2} == mirror(sink.changes)
    end = JournalReader(journal).position().lsn
    await drop(published)
    await published.execute("DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (3)")

    await deliver(published, sink, journal=journal, resnapshot=True)
    await published.execute("INSERT INTO items VALUES (4)")
    await deliver(published, sink, journal=journal)
    assert {2, 3, 4} == mirror(sink.changes)
    assert {2, 3, 4} == {row["id"] for row in await published.connection.fetch("SELECT id FROM items")}
    (truncate,) = [change for change in sink.changes if isinstance(change, Truncate)]
    assert ["items", "others"] == [relation.name for relation in truncate.relations]
    identities = [(change.transaction.commit_lsn, change.ordinal) for change in sink.changes]
    assert sorted(set(identities)) == identities
    assert truncate.transaction.commit_lsn >= end


async def test_loaded_again_though_the_slot_is_there(published, tmp_path):
    """A usable slot is dropped and recreated as well; a slot in use is not."""
    sink, journal = MemorySink(), str(tmp_path)
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, sink, journal=journal, snapshot=True)
    await published.execute("INSERT INTO items VALUES (2)")
    await deliver(published, sink, journal=journal, resnapshot=True)
    assert {1, 2} == mirror(sink.changes)
    begin = await published.confirmed()

    async with Pipeline(published.source(), [MemorySink()]):
        with pytest.raises(SlotError, match="in use by process"):
            await deliver(published, sink, journal=journal, resnapshot=True)
    assert begin <= await published.confirmed()


async def test_the_journal_of_another_cluster_drops_no_slot(published, tmp_path, reseal):
    """A slot of the same name in another cluster is not dropped."""
    journal = str(tmp_path)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, MemorySink(), journal=journal)
    for file in tmp_path.glob("*.json"):
        reseal(file, '"system_identifier":"', '"system_identifier":"9')
    created = await published.confirmed()

    with pytest.raises(SlotError, match="the journal holds a position of cluster 9"):
        await deliver(published, MemorySink(), journal=journal, resnapshot=True)
    assert created == await published.confirmed()


@pytest.mark.parametrize("change", ["slot", "cluster"])
async def test_the_journal_of_another_source_has_no_slot_made(published, tmp_path, change, reseal):
    """A wrong slot name or server is refused before a slot is created there."""
    journal = str(tmp_path)
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await deliver(published, MemorySink(), journal=journal)
    source = published.source()
    if change == "slot":
        source = replace(source, slot=f"{published.slot[:50]}_other")
    else:
        for file in tmp_path.glob("*.json"):
            reseal(file, '"system_identifier":"', '"system_identifier":"9')
        await drop(published)

    with pytest.raises(SlotError, match=f"the journal holds a position of (the )?{change} "):
        await Pipeline(source, [MemorySink()], journal=journal, until="now").run()
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    assert 0 == await published.connection.fetchval(query, source.slot)


async def test_a_position_that_the_server_has_not_reached(published):
    """A server that was restored, or promoted without its last transactions, is refused."""
    sink = MemorySink(keeps_position=True)
    await published.create_slot()
    await deliver(published, sink)
    sink.position = sink.position.at(LSN(sink.position.lsn + (1 << 40)))
    with pytest.raises(SlotError, match="the server lost its last transactions"):
        await deliver(published, sink, accept_gap=True)


async def test_a_lost_slot(limited, tmp_path):
    """A slot whose WAL was removed is refused with the ways to continue; loading the tables again works."""
    sink, journal = MemorySink(), str(tmp_path)
    await limited.execute("INSERT INTO items VALUES (1)")
    await deliver(limited, sink, journal=journal, snapshot=True)
    await limited.lose_slot()
    with pytest.raises(SlotError, match=r"is lost .*--resnapshot.*--accept-gap"):
        await deliver(limited, sink, journal=journal, accept_gap=True)
    await limited.execute("INSERT INTO items VALUES (3)")
    await deliver(limited, sink, journal=journal, resnapshot=True)
    assert {1, 3} == mirror(sink.changes)


def test_choices_that_exclude_each_other(published):
    """Contradicting options are refused before anything is connected."""
    with pytest.raises(ConfigurationError, match="needs a journal"):
        Pipeline(published.source(), [MemorySink()], resnapshot=True)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        Pipeline(published.source(), [MemorySink()], journal="j", resnapshot=True, accept_gap=True)
