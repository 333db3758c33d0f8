"""The chunk ledger: which chunks are done is a function of the ledger and of the consumers' positions."""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import replace

import orjson
import pytest

from aiorepl import LSN
from aiorepl.errors import ConfigurationError, DamagedJournal, PermanentError, SlotError
from aiorepl.lsn import ZERO
from aiorepl.position import Position
from aiorepl.snapshot.chunks import KeyRange, SnapshotPlan, TablePlan, block_ranges
from aiorepl.snapshot.ledger import ledger as ledger_module
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.ledger.ledger import ChunkLedger, dump, initial_ledger, load
from aiorepl.storage import local
from aiorepl.storage.checked_json import seal

POINT = LSN(0x2000000)
SOURCE = Position("7", 1, "s", POINT)
A = TablePlan(1, "public", "a", None, 100, block_ranges(3, 1))
B = TablePlan(2, "public", "b", 5, 100, (KeyRange(None, ("5",)), KeyRange(("5",), None)), ("id",))
PLAN = SnapshotPlan((A, B))
BASE = PLAN.base(POINT)


@pytest.fixture
def ledger() -> ChunkLedger:
    """The ledger of an initial snapshot of two tables in five chunks."""
    return initial_ledger(SOURCE, PLAN, POINT)


def test_chunks_of_an_initial_snapshot(ledger):
    """Chunk n is done at the end of its transaction; all are where the stream begins."""
    done = [ledger.chunks_done(LSN(BASE + n)) for n in range(7)]
    assert [0, 1, 2, 3, 4, 5, 5] == done
    assert 5 == ledger.chunks_done(POINT)
    assert [False, True, True] == [ledger.complete(LSN(lsn)) for lsn in (BASE + 4, BASE + 5, POINT)]


def test_positions_below_the_consistent_point(ledger):
    """A position within the initial snapshot is the beginning of the stream; others are unchanged."""
    assert POINT == ledger.stream_position(BASE)
    assert POINT == ledger.stream_position(LSN(POINT - 1))
    assert [BASE - 1, POINT, POINT + 1] == [
        ledger.stream_position(LSN(lsn)) for lsn in (BASE - 1, POINT, POINT + 1)
    ]
    again = initial_ledger(SOURCE, PLAN, POINT, previous=LSN(100), truncates=True)
    assert POINT == again.stream_position(LSN(100)) == again.stream_position(LSN(BASE - 1))
    assert [0, 0, 1] == [again.chunks_done(LSN(lsn)) for lsn in (100, BASE, BASE + 1)]


def test_there_is_no_room(ledger):
    """The positions must come after those that are there already."""
    initial_ledger(SOURCE, PLAN, POINT, previous=LSN(BASE - 1))
    with pytest.raises(ConfigurationError, match="does not fit"):
        initial_ledger(SOURCE, PLAN, POINT, previous=LSN(BASE - 1), truncates=True)


def test_what_is_left_is_handed_over(ledger):
    """The rest is read by table; positions of the stream then say nothing about it, only LSNs that it gets."""
    handed = ledger.left_out(A, "no permission").hand_over(LSN(BASE + 4))
    assert [("public.a", "failed", []), ("public.b", "reading", [2])] == [
        (str(table), table.status, table.parts) for table in handed.tables
    ]
    b = handed.unfinished[0]
    assert not handed.complete(LSN(POINT + 1000))
    delivered = handed.with_progress(b.with_chunk(2, LSN(POINT + 500)))
    assert [[], False, True] == [
        delivered.unfinished[0].parts,
        *(delivered.complete(LSN(POINT + after)) for after in (500, 501)),
    ]
    assert [2] == delivered.rewound(LSN(POINT + 500)).unfinished[0].parts
    assert ["public.a"] == [str(table) for table in delivered.durable(LSN(POINT + 501)).tables]
    assert delivered == delivered.durable(LSN(BASE + 4))
    assert POINT == delivered.stream_position(LSN(BASE + 4))


def test_a_table_that_is_read_again_anyway(ledger):
    """It is queued once, and its chunks are not handed over; those of a part of its rows do not replace them."""
    again = ledger.left_out(A, None)
    assert again == again.left_out(A, None)
    handed = again.hand_over(LSN(BASE))
    assert [("public.a", None), ("public.b", B)] == [(str(table), table.plan) for table in handed.unfinished]
    partial = ledger.with_table(A.oid, "public", "a", "id > 5").hand_over(LSN(BASE))
    assert ["public.a", "public.a", "public.b"] == [str(table) for table in partial.unfinished]


def test_delivered_chunks_keep_their_positions(ledger):
    """Those that are not durable when the rest is handed over are done at the positions that they were delivered with."""
    handed = ledger.hand_over(LSN(BASE + 1), 4)
    a, b = handed.tables
    assert ([], [2]) == (a.parts, b.parts)
    assert [2, 3] == handed.rewound(LSN(BASE + 1)).tables[0].parts
    assert [3] == handed.rewound(LSN(BASE + 2)).tables[0].parts
    assert [b.durable(POINT)] == list(handed.durable(POINT).tables)


def test_a_table_is_read_again(ledger):
    """On request, beside others; a new request replaces a failed table, and a new plan begins again."""
    requested = ledger.left_out(A, "x").with_table(1, "public", "a", "id > 5").with_table(2, "public", "b")
    assert [("id > 5", False), (None, False)] == [(table.where, table.complete) for table in requested.tables]
    first, second = requested.tables
    planned = first.planned(A).with_chunk(1, LSN(5)).durable(LSN(6)).with_chunk(3, LSN(9))
    assert ([2], [1, 2, 3]) == (planned.parts, planned.planned(A).parts)
    assert (second,) == requested.without(first).tables


def test_the_file_says_the_same(ledger):
    """Every field is kept; a file of rows' bounds is private, and a damaged one says what to do."""
    handed = ledger.left_out(A, "x").hand_over(LSN(BASE + 4)).with_table(9, "public", "c", "x = 1")
    b = handed.tables[1].with_chunk(2, LSN(POINT + 500))
    handed = replace(handed.with_progress(b), durable_lsn=LSN(BASE + 3))
    for each in (ledger, handed, ChunkLedger(SOURCE.at(LSN(0)))):
        assert each == load(dump(each), "here")
    with pytest.raises(DamagedJournal, match=r"here is damaged.*resnapshot"):
        load(dump(ledger).replace(b'"base"', b'"bass"'), "here")


def test_what_was_written_before_is_not_written_again(ledger):
    """A table that was written and then changed is written as it is now."""
    now = ledger.hand_over(LSN(BASE + 4))
    number = now.tables[0].id
    for change in (
        lambda table: table.with_sweep(),
        lambda table: table.with_chunk(2, LSN(POINT + 500)),
        lambda table: table.rewound(POINT),
        lambda table: table.with_chunk(2, LSN(POINT + 600)),
        lambda table: table.durable(LSN(POINT + 601)),
        lambda table: table.failed("x"),
        lambda table: table.planned(B),
        lambda table: replace(table, plan=None),
    ):
        dump(now)
        now = now.with_progress(change(now.table(number)))
        assert now == load(dump(now), "here")


def test_a_write_encodes_only_what_changed(monkeypatch):
    """Many small tables cost as many encodings, not as many for each of them: the ledger is written for each table."""
    encoded = Counter()
    encode = ledger_module._dump_table

    def counted(table):
        encoded[table.oid] += 1
        return encode(table)

    monkeypatch.setattr(ledger_module, "_dump_table", counted)
    plan = SnapshotPlan(tuple(TablePlan(oid, "public", f"t{oid}", 1, 1, (None,)) for oid in range(1, 301)))
    now = initial_ledger(SOURCE, plan, POINT).hand_over(ZERO)
    dump(now)
    for table in now.tables:
        now = now.with_progress(table.with_chunk(1, LSN(POINT + table.id))).durable(LSN(POINT + table.id))
        dump(now)
    assert {2} == set(encoded.values())


async def test_it_is_kept_in_a_private_file(ledger, tmp_path):
    """The ledger is in a file that only its owner can read; a ledger of another cluster is rejected."""
    file = LedgerFile(tmp_path / "state", "s")
    assert await file.read(SOURCE) is None
    await file.write(ledger)
    await file.update(lambda ledger: ledger.with_tables([(7, "public", "t7")], replaces=True))
    left_out = await file.update(lambda ledger: ledger.left_out(A, "x"))
    again = LedgerFile(tmp_path / "state", "s")
    assert left_out == await again.read(SOURCE)
    (path,) = (tmp_path / "state").glob("s.*")
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    with pytest.raises(SlotError, match="cluster 7"):
        await again.read(replace(SOURCE, system_identifier="8"))


async def test_a_power_failure_does_not_restore_the_intent(ledger, tmp_path, monkeypatch):
    """Once the ledger is written, the record of the intended slot is gone durably: with it, the ledger would not be read."""
    durable: set[str] = set()

    def sync(folder):
        durable.clear()
        durable.update(path.name for path in folder.iterdir())

    monkeypatch.setattr(local, "sync_folder", sync)
    file = LedgerFile(tmp_path, "s")
    await file.intend(truncates=False)
    assert "s.snapshot-intent" in durable
    await file.write(ledger)

    assert "s.snapshot" in durable
    assert "s.snapshot-intent" not in durable


async def test_a_paused_process_cannot_overwrite_it(ledger, tmp_path):
    """A process whose slot another process has taken does not overwrite the ledger of that process."""
    paused, other = LedgerFile(tmp_path, "s"), LedgerFile(tmp_path, "s")
    await paused.write(ledger)
    await other.read(SOURCE)
    written = await other.update(lambda ledger: ledger.left_out(A, "x"))
    with pytest.raises(PermanentError, match=r"another process has written s.snapshot in .*: stop the other"):
        await paused.update(lambda ledger: ledger.left_out(A, "y"))
    assert written == await LedgerFile(tmp_path, "s").read(SOURCE)


async def test_deferred_changes(tmp_path):
    """The bytes that are written for each table do not grow with the number of tables, and no change waits for long."""
    bytes_per_table = []
    for count in (160, 1600):
        file = LedgerFile(tmp_path / str(count), "s")
        plans = tuple(TablePlan(oid, "public", f"t{oid}", 1, 1, (None,)) for oid in range(1, count + 1))
        await file.write(initial_ledger(SOURCE, SnapshotPlan(plans), POINT).hand_over(ZERO))
        written, path = 0, tmp_path / str(count) / "s.snapshot"
        inode, waiting = path.stat().st_ino, 0
        for table in file.ledger.tables:
            changed = table.with_chunk(1, LSN(POINT + table.id))
            await file.defer(lambda ledger, changed=changed: ledger.with_progress(changed))
            assert changed == file.ledger.table(table.id)
            found = path.stat()
            waiting = waiting + 1 if found.st_ino == inode else 0
            written += found.st_size if found.st_ino != inode else 0
            inode = found.st_ino
            assert waiting < count / 16
        bytes_per_table.append(written / count)
        await file.update(lambda ledger: replace(ledger, paused=True))
        assert file.ledger == await LedgerFile(tmp_path / str(count), "s").read(SOURCE)
    assert bytes_per_table[1] < 1.3 * bytes_per_table[0]


async def test_few_tables_are_written_at_once(ledger, tmp_path):
    """With few tables, each change is durable on return."""
    file = LedgerFile(tmp_path, "s")
    await file.write(ledger)
    changed = await file.defer(lambda ledger: ledger.left_out(A, "x"))
    assert changed == await LedgerFile(tmp_path, "s").read(SOURCE)


def test_tables_that_a_journal_has(ledger):
    """Complete readings are forgotten, also after a restart; readings of another ledger have other names."""
    left = ledger.hand_over(BASE)
    first, second = left.tables
    names = {left.reading(first), left.reading(second)}
    restarted = load(dump(left), "a file")
    assert (second,) == restarted.without_complete({left.reading(first)}).tables
    assert restarted == restarted.without_complete(())
    other = initial_ledger(SOURCE, PLAN, POINT).hand_over(BASE)
    assert names.isdisjoint(map(other.reading, other.tables))
    assert other == other.without_complete(names)


def test_an_old_copy_of_a_ledger(ledger):
    """A ledger that was restored from a backup gives no table the identity of a reading that the journal has."""
    left = ledger.hand_over(BASE)
    (later,) = left.with_tables([(3, "public", "c")]).tables[-1:]
    complete = {left.reading(later), "another-99"}
    restored = load(dump(left), "a file").without_complete(complete).with_tables([(4, "public", "d")])
    assert left.tables == restored.tables[:-1]
    assert restored == restored.without_complete(complete)


def test_a_ledger_of_an_earlier_version(ledger):
    """A ledger without a name gets a new one, the same at each start: its file may not be written before a table is complete."""
    fields = orjson.loads(dump(ledger).splitlines()[0])
    del fields["name"]
    read = load(seal(fields), "a file")
    assert ledger == replace(read, name=ledger.name)
    assert read.name != ledger.name
    assert read == load(seal(fields), "a file")
    other = {**fields, "last_id": fields["last_id"] + 1}
    assert read.name != load(seal(other), "a file").name
