"""``until`` and two-phase commit: the last record may be a PREPARE, COMMIT PREPARED or ROLLBACK PREPARED."""

from __future__ import annotations

import json

import pytest

from aiorepl import LSN, Pipeline
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.faults import MemorySink

HOW = ["COMMIT", "ROLLBACK"]


class Preparing(MemorySink):
    """A sink that takes prepared transactions when they are prepared."""

    supports_prepared = True

    def kinds(self):
        """The kinds of the delivered changes; rows with their keys."""
        form = NativeFormat(boundaries=True)
        events = [json.loads(line) for batch in self.batches for line in form.events(batch.slices)]
        return [event["key"]["id"] if event["kind"] == "insert" else event["kind"] for event in events]


async def prepare(published):
    """A transaction that is prepared and undecided."""
    await published.execute("BEGIN", "INSERT INTO items VALUES (1)", "PREPARE TRANSACTION 'p'")


@pytest.mark.parametrize("interface", ["walsender", "sql"])
@pytest.mark.parametrize("how", HOW)
async def test_how_it_ended_is_the_last_record(published, how, interface):
    """The last record is included once, with either interface; later ones are left for the next run."""
    source = published.source(two_phase=True, interface=interface)
    sink = Preparing()
    await Pipeline(source, [sink], until="now").run()
    await prepare(published)
    await Pipeline(source, [sink], until="now").run()
    assert ["begin", 1, "prepare"] == sink.kinds()
    await published.execute(f"{how} PREPARED 'p'")
    end = await published.wal()
    await published.execute("INSERT INTO items VALUES (2)")
    await Pipeline(source, [sink], until=end).run()
    decided = f"{how.lower()}_prepared"
    assert ["begin", 1, "prepare", decided] == sink.kinds()
    await Pipeline(source, [sink], until="now").run()
    assert ["begin", 1, "prepare", decided, "begin", 2, "commit"] == sink.kinds()


@pytest.mark.parametrize("how", HOW)
async def test_it_ends_after_until(published, how):
    """A decision after ``until`` is not delivered."""
    source = published.source(two_phase=True)
    sink = Preparing()
    await Pipeline(source, [sink], until="now").run()
    await prepare(published)
    # Decoded before its decision, because the server sends no rows of a transaction that is rolled back by then.
    await Pipeline(source, [sink], until="now").run()
    end = await published.wal()
    await published.execute(f"{how} PREPARED 'p'")
    await Pipeline(source, [sink], until=end).run()
    assert ["begin", 1, "prepare"] == sink.kinds()
    await Pipeline(source, [sink], until=LSN(await published.wal())).run()
    assert ["begin", 1, "prepare", f"{how.lower()}_prepared"] == sink.kinds()


@pytest.mark.parametrize("how", HOW)
async def test_held_until_the_commit(published, how):
    """A sink without support for prepares gets the rows with the commit; a final rollback is confirmed."""
    source = published.source(two_phase=True)
    sink = MemorySink()
    await Pipeline(source, [sink], until="now").run()
    await prepare(published)
    await published.execute(f"{how} PREPARED 'p'")
    end = await published.wal()
    await Pipeline(source, [sink], until=end).run()
    assert ([1] if how == "COMMIT" else []) == [change.key["id"] for change in sink.changes]
    assert end <= await published.confirmed()


@pytest.mark.parametrize("interface", ["walsender", "sql"])
async def test_with_a_journal(published, tmp_path, interface):
    """A transaction that is rolled back by the last record is removed from the journal."""
    source = published.source(two_phase=True, interface=interface)
    await Pipeline(source, [MemorySink()], journal=str(tmp_path), until="now").run()
    await prepare(published)
    await Pipeline(source, [MemorySink()], journal=str(tmp_path), until="now").run()
    kept = list((tmp_path / "prepared").iterdir())
    assert kept
    await published.execute("ROLLBACK PREPARED 'p'")
    await Pipeline(source, [MemorySink()], journal=str(tmp_path), until=await published.wal()).run()
    assert [] == [path for path in kept if path.exists()]
