"""The verifier finds each kind of violation; every test here plants one in a run that has none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import asyncpg
import pytest

from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.verify import (
    Confirmed,
    Crashed,
    Delivered,
    Described,
    Entry,
    History,
    Mixture,
    Operation,
    Promise,
    Publication,
    Restarted,
    Transaction,
    Workload,
    of_native,
    verify,
)
from aiorepl.verify.tables import shown

KEYS = {"accounts": ("id",), "entries": ("n",)}
FIRST = {"id": 1, "version": 1, "note": "a", "doc": "long"}
SECOND = {"id": 1, "version": 2, "note": "b", "doc": "long"}
THIRD = {"id": 2, "version": 3, "note": "b", "doc": "long"}
INITIAL = {"id": 9, "version": 1, "note": "i", "doc": "long"}


def written() -> History:
    """An insert, an update, an aborted transaction, a changed key, and a truncate with two inserts."""
    insert = Operation("insert", "accounts", (1,), FIRST)
    update = Operation("update", "accounts", (1,), SECOND, untouched=frozenset({"doc"}))
    moved = Operation("update", "accounts", (2,), THIRD, moved=(1,), untouched=frozenset({"doc"}))
    entries = [Operation("truncate", "entries")]
    entries += [Operation("insert", "entries", (n,), {"n": n}) for n in (1, 2)]
    return History(
        keys=KEYS,
        initial={"accounts": {(9,): INITIAL}, "entries": {(0,): {"n": 0}}},
        transactions=[
            Transaction(1, 1, 701, [insert], "committed", LSN(100), LSN(110)),
            Transaction(2, 1, 702, [update], "committed", LSN(110), LSN(120)),
            Transaction(1, 2, 703, [insert], "aborted"),
            Transaction(2, 2, 704, [moved], "committed", LSN(130), LSN(140)),
            Transaction(1, 3, 705, entries, "committed", LSN(140), LSN(150)),
        ],
    )


def change(lsn: int, ordinal: int, xid: int, kind: str, table: str, **more: object) -> Delivered:
    """Make a delivery."""
    return Delivered(LSN(lsn), ordinal, xid, kind, (table,), **more)


INSERT = change(100, 0, 701, "insert", "accounts", key={"id": 1}, new=FIRST)
UPDATE = change(
    110,
    0,
    702,
    "update",
    "accounts",
    key={"id": 1},
    new={"id": 1, "version": 2, "note": "b"},
    unchanged=frozenset({"doc"}),
)
MOVE = change(130, 0, 704, "update", "accounts", key={"id": 1}, new=THIRD, old={"id": 1})
TRUNCATE = change(140, 0, 705, "truncate", "entries")
ENTRIES = [change(140, n, 705, "insert", "entries", new={"n": n}) for n in (1, 2)]
GOOD: list[Entry] = [INSERT, UPDATE, Confirmed(LSN(120)), MOVE, TRUNCATE, *ENTRIES, Confirmed(LSN(150))]
FINAL = {"accounts": {(9,): INITIAL, (2,): THIRD}, "entries": {(1,): {"n": 1}, (2,): {"n": 2}}}


def violations(log: list[Entry], **promise: object) -> list[str]:
    """Verify a log."""
    return verify(written(), log, Promise(**promise), final=FINAL).violations


def at(place: int, *entries: Entry, instead: int = 0) -> list[Entry]:
    """Put entries into the good log, in place of this many."""
    return [*GOOD[:place], *entries, *GOOD[place + instead :]]


def test_a_run_without_violations():
    """A log that keeps all promises has none, and everything in it was compared."""
    verdict = verify(written(), GOOD, Promise(exactly_once=True), final=FINAL)

    assert ([], 4, 6, 0) == (verdict.violations, verdict.transactions, verdict.changes, verdict.duplicates)


def test_duplicates_after_a_restart():
    """After a restart, whole transactions may come again that are not confirmed."""
    log = at(6, Restarted(), TRUNCATE, ENTRIES[0], Restarted(), MOVE, TRUNCATE, ENTRIES[0])

    assert [] == violations(log)
    assert 5 == verify(written(), log).duplicates


def test_duplicates_after_a_crash_of_the_server():
    """A server that crashed may have forgotten a position, so what was confirmed there may come again."""
    assert [] == violations(
        at(4, Crashed(), Restarted(), UPDATE, MOVE, Confirmed(LSN(110)), Confirmed(LSN(130)))
    )


@pytest.mark.parametrize(
    ("log", "found"),
    [
        pytest.param(
            at(0, instead=1), "transaction 1 of writer 1 (xid 701) is missing", id="a lost transaction"
        ),
        pytest.param(at(5, instead=1), "1 of its changes were not delivered", id="a lost change"),
        pytest.param(at(6, instead=1), "1 of its changes were not delivered", id="a torn transaction"),
        pytest.param(
            at(2, change(125, 0, 799, "insert", "accounts", new=FIRST)),
            "nobody wrote xid 799",
            id="an invented one",
        ),
        pytest.param(
            at(3, change(125, 0, 703, "insert", "accounts", new=FIRST)),
            "(xid 703) was rolled back",
            id="an aborted one",
        ),
        pytest.param(
            at(6, replace(ENTRIES[1], xid=702), instead=1),
            "has xid 702, but the commit is that of transaction 3 of writer 1",
            id="a change of another transaction",
        ),
        pytest.param(
            at(0, replace(INSERT, key={"id": 2}), instead=1), "is not what transaction 1", id="another key"
        ),
        pytest.param(at(0, UPDATE, INSERT, instead=2), "0/64-0 of accounts came after", id="another order"),
        pytest.param(at(4, ENTRIES[0], TRUNCATE, instead=2), "came after", id="another order within one"),
        pytest.param(
            at(0, replace(INSERT, commit_lsn=LSN(115)), replace(UPDATE, commit_lsn=LSN(105)), instead=2),
            "came after",
            id="other LSNs",
        ),
        pytest.param(
            at(0, replace(INSERT, commit_lsn=LSN(112)), replace(UPDATE, commit_lsn=LSN(113)), instead=2),
            "committed from 0/64 to 0/6E, not at 0/70",
            id="an LSN that the writer excludes",
        ),
        pytest.param(at(1, INSERT), "came again without a restart", id="a duplicate without a reason"),
        pytest.param(
            at(4, Restarted(), UPDATE, MOVE),
            "came again, although 0/78 was confirmed",
            id="a duplicate below the position",
        ),
        pytest.param(
            at(7, Restarted(), ENTRIES[0], ENTRIES[1]),
            "without the beginning of its transaction",
            id="a torn duplicate",
        ),
        pytest.param(at(4, Restarted(), MOVE, ENTRIES[0]), "came after", id="a repetition that skips"),
        pytest.param(
            at(7, Restarted(), MOVE, ENTRIES[0]),
            "was left out before insert",
            id="a repetition that skips later",
        ),
        pytest.param(
            at(4, Restarted(), replace(MOVE, new=FIRST)),
            "came again with other contents",
            id="another duplicate",
        ),
        pytest.param(
            at(1, Confirmed(LSN(111))), "durable only after 0/6F was confirmed", id="confirmed too early"
        ),
        pytest.param(
            at(3, Confirmed(LSN(119))), "moved back from 0/78 to 0/77", id="confirmed less than before"
        ),
        pytest.param(
            at(0, replace(INSERT, new=SECOND), instead=1), "is not what transaction 1", id="another row"
        ),
        pytest.param(
            at(0, replace(INSERT, kind="read"), instead=1), "is not what transaction 1", id="another kind"
        ),
        pytest.param(
            at(1, replace(UPDATE, unchanged=frozenset({"doc", "note"})), instead=1),
            "is not what transaction 1",
            id="a column that was changed and not sent",
        ),
        pytest.param(
            at(1, replace(UPDATE, new={"id": 1, "version": 2}), instead=1),
            "is not what",
            id="a column that is absent",
        ),
        pytest.param(
            at(3, replace(MOVE, old=None), instead=1),
            "is not what transaction 2",
            id="a changed key's old one",
        ),
        pytest.param(
            at(0, change(99, 0, 0, "read", "accounts", new=FIRST)),
            "is not the row that the table had there",
            id="a row of a snapshot before its time",
        ),
        pytest.param(
            at(2, change(115, 0, 0, "read", "accounts", new=FIRST)),
            "is not the row that the table had there",
            id="an old row of a snapshot",
        ),
    ],
)
def test_violations(log, found):
    """Each of them is found, and named."""
    assert any(found in violation for violation in violations(log)), violations(log)


def described(lsn: int, columns: str = "id version note doc", **more: object) -> Described:
    """Make a schema change of ``accounts``; by default the first one after a start."""
    return Described(LSN(lsn), 0, "accounts", frozenset(columns.split()), **{"first": True, **more})


ENTRIES_DESCRIBED = Described(LSN(140), 1, "entries", frozenset({"n"}), first=True)
WIDER = "id version note doc extra"
ADDED = described(130, WIDER, first=False, added=frozenset({"extra"}))
WIDE_MOVE = replace(MOVE, new={**THIRD, "extra": 7})
# A column is added before the third change.
ANNOUNCED = [described(100), INSERT, UPDATE, ADDED, WIDE_MOVE, ENTRIES_DESCRIBED, *ENTRIES]


@pytest.mark.parametrize(
    ("log", "found"),
    [
        pytest.param(ANNOUNCED, None, id="none"),
        pytest.param(
            [*ANNOUNCED[:5], Restarted(), described(110), UPDATE, ADDED, WIDE_MOVE, *ANNOUNCED[5:]],
            None,
            id="a restart",
        ),
        pytest.param(
            [*ANNOUNCED[:5], UPDATE, ADDED, WIDE_MOVE, *ANNOUNCED[5:]], None, id="a call that is repeated"
        ),
        pytest.param(
            [described(100), INSERT, UPDATE, WIDE_MOVE, ADDED, *ANNOUNCED[5:]],
            "has other columns than the schema change 0/64-0 says: extra",
            id="a row late",
        ),
        pytest.param(
            [described(100), INSERT, replace(ADDED, commit_lsn=LSN(110)), UPDATE, *ANNOUNCED[4:]],
            "has other columns than the schema change 0/6E-0 says: extra",
            id="a row early",
        ),
        pytest.param(
            [*ANNOUNCED[:3], *ANNOUNCED[4:]],
            "has other columns than the schema change 0/64-0 says: extra",
            id="a missing one",
        ),
        pytest.param(ANNOUNCED[1:], "comes before a schema change describes its table", id="no first one"),
        pytest.param(
            [*ANNOUNCED[:5], Restarted(), *ANNOUNCED[6:]],
            "comes before a schema change describes its table",
            id="none after a restart",
        ),
        pytest.param(
            [*ANNOUNCED[:3], replace(ADDED, added=frozenset()), *ANNOUNCED[4:]],
            "does not name what has changed since 0/64-0",
            id="no difference",
        ),
        pytest.param(
            [*ANNOUNCED[:3], replace(ADDED, dropped=frozenset({"note"})), *ANNOUNCED[4:]],
            "does not name what has changed since 0/64-0",
            id="another difference",
        ),
        pytest.param(
            [replace(described(100), first=False), *ANNOUNCED[1:]],
            "is not marked as first, but no schema change of the table precedes it",
            id="a difference from nothing",
        ),
    ],
)
def test_schema_changes(log, found):
    """A schema change that comes a row late or early, or not at all, is found."""
    promise = Promise(described=True, repeats=True, defaults={"accounts": {"extra": 7}})
    told = verify(written(), [*log[:-2], TRUNCATE, *log[-2:]], promise).violations

    assert not told if found is None else any(found in one for one in told), told


@pytest.mark.parametrize(
    ("first", "again"), [(ENTRIES, ENTRIES[1:]), (ENTRIES[1:], ENTRIES)], ids=["left out", "late"]
)
def test_a_repetition_with_other_optional_changes(first, again):
    """A consumer may learn meanwhile that a table has a parent, and then decide otherwise about changes that come again."""
    log = [INSERT, UPDATE, MOVE, TRUNCATE, *first, Restarted(), INSERT, UPDATE, MOVE, TRUNCATE, *again]

    def optional(operation) -> bool:
        return operation.table == "entries" and operation.kind == "insert"

    assert not verify(written(), log, Promise(optional=optional)).violations
    assert verify(written(), log, Promise()).violations


@pytest.mark.parametrize(
    ("confirmed", "exactly_once", "found"), [(100, True, False), (135, True, True), (100, False, True)]
)
def test_a_schema_change_whose_copy_is_dropped(confirmed, exactly_once, found):
    """A target that drops copies has a schema change once, before the start that sends it again with the rows after it."""
    restarted = [Confirmed(LSN(confirmed)), Restarted()]
    log = [*ANNOUNCED[:4], *restarted, WIDE_MOVE, ENTRIES_DESCRIBED, *ENTRIES[:-2], TRUNCATE, *ENTRIES[-2:]]
    promise = Promise(described=True, exactly_once=exactly_once, defaults={"accounts": {"extra": 7}})

    told = [one for one in verify(written(), log, promise).violations if "schema change" in one]
    assert found == bool(told), told


def test_where_exactly_once_is_promised():
    """A restart does not excuse a duplicate there."""
    assert ["update 0/82-0 of accounts came twice, where exactly once is promised"] == violations(
        at(4, Restarted(), MOVE), exactly_once=True
    )


def test_versions_that_the_order_contradicts():
    """The versions of a row prove the commit order without any LSN."""
    history = written()
    for one in history.transactions:
        one.earliest, one.latest = LSN(0), None
    log = [replace(UPDATE, commit_lsn=LSN(99)), *(entry for entry in GOOD if entry is not UPDATE)]

    assert any("made version 2" in violation for violation in verify(history, log).violations)


def test_a_writer_that_was_overtaken_by_itself():
    """A writer's transactions come in its order."""
    history = written()
    history.transactions[1].number, history.transactions[3].number = 2, 1

    assert any(
        "later transaction of its writer" in violation for violation in verify(history, GOOD).violations
    )


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda rows: rows["accounts"].pop((9,)), "1 are not in the source"),
        (lambda rows: rows["accounts"].update({(8,): INITIAL}), "1 rows are missing"),
        (lambda rows: rows["accounts"].update({(2,): FIRST}), "1 have other values"),
    ],
    ids=["invented", "missing", "other"],
)
def test_final_tables(spoil: Callable[[dict], object], found: str):
    """What the changes add up to is compared with the tables."""
    final = {table: dict(rows) for table, rows in FINAL.items()}
    spoil(final)

    assert any(found in violation for violation in verify(written(), GOOD, final=final).violations)


def test_order_by_key():
    """Changes of other keys may overtake, those of a key may not."""
    other = at(0, TRUNCATE, *ENTRIES, INSERT, UPDATE, MOVE, instead=8)

    assert [] == violations(other, order="key")
    assert any(
        "came after a later change of its key" in violation
        for violation in violations(at(0, UPDATE, INSERT, instead=2), order="key")
    )


def test_order_by_the_key_of_events():
    """An update that changes a key has an order among the changes of the old key, and none among those of the new one."""
    later = replace(UPDATE, key={"id": 2}, commit_lsn=LSN(135), new={"id": 2}, old=None)

    assert not any("later change" in found for found in violations([later, *GOOD], order="event key"))
    assert any("later change" in found for found in violations([later, *GOOD], order="key"))
    assert any("later change" in found for found in violations([MOVE, *GOOD], order="event key"))


def test_rows_of_a_snapshot():
    """Rows that are as new as the stream is where they come are right, and a consumer may begin with them."""
    initial = change(90, 0, 0, "read", "accounts", new=INITIAL)
    entries = change(91, 0, 0, "read", "entries", new={"n": 0})

    assert [] == violations([initial, entries, *GOOD], snapshot=True)
    assert any("1 rows are missing" in violation for violation in violations([entries, *GOOD], snapshot=True))


def test_rows_of_a_snapshot_that_are_read_again():
    """Rows of an interrupted snapshot need not come again where they were; changes of the stream must."""
    row = change(122, 0, 0, "read", "accounts", new=SECOND)
    again = change(125, 0, 0, "read", "accounts", new=SECOND)
    log = [INSERT, UPDATE, row, Restarted(), UPDATE, again, MOVE, TRUNCATE, *ENTRIES]

    assert [] == violations(log)
    assert violations([INSERT, UPDATE, MOVE, Restarted(), INSERT, again, MOVE, TRUNCATE, *ENTRIES])


def test_a_masked_column_comes_as_it_is():
    """A mask that does not hide is a violation."""
    masked = {"accounts": frozenset({"note"})}
    hidden = [
        replace(entry, new={**entry.new, "note": "…"})
        if isinstance(entry, Delivered) and entry.new and "note" in entry.new
        else entry
        for entry in GOOD
    ]

    assert [] == violations(hidden, masked=masked)
    assert violations(GOOD, masked=masked)


def test_what_the_database_contradicts():
    """A database that lost a transaction after it had said that it committed is no ground for a verdict."""
    history = written()

    with pytest.raises(AioreplError, match="transaction 3 of writer 1 was"):
        history.resolve([(1, 1), (2, 1), (2, 2)])


def test_transactions_that_a_promotion_lost():
    """A promoted standby may lack transactions that had committed: then they must not be delivered. It cannot add one."""
    history = written()
    history.resolve([(1, 1), (2, 1), (2, 2)], promoted=True)
    assert any("was rolled back" in text for text in verify(history, GOOD).violations)

    history.resolve([(1, 1), (2, 1), (2, 2)])
    with pytest.raises(AioreplError, match="transaction 3 of writer 1 was"):
        history.resolve([(1, 1), (2, 1), (2, 2), (1, 3)], promoted=True)


def test_unknown_outcomes():
    """The ledger decides on transactions whose end their writer did not learn."""
    history = written()
    for one in history.transactions:
        one.outcome = "unknown"
    history.resolve([(1, 1), (2, 1), (2, 2), (1, 3)])

    assert [] == verify(history, GOOD, final=FINAL).violations


def test_outcomes_that_stay_unknown():
    """A transaction whose outcome stays unknown may be delivered or not, but not in part."""
    history = written()
    history.transactions[4].outcome = "unknown"

    assert [] == verify(history, GOOD).violations
    assert [] == verify(history, GOOD[:4]).violations
    assert any(
        "1 of its changes were not delivered" in text for text in verify(history, at(6, instead=1)).violations
    )


def test_a_saved_history(tmp_path):
    """A history survives its file."""
    written().save(tmp_path / "history")

    assert written() == History.load(tmp_path / "history")


def test_native_events():
    """Events are read as they are; long values become digests."""
    line = (
        '{"kind":"update","schema":"s","table":"accounts","xid":702,"commit_lsn":"0/6E","ordinal":0,"commit_time":"2026-11-21T08:00:00.5Z",'
        '"origin":null,"key":{"id":1},"new":{"id":1,"note":"%s"},"old":null,"unchanged":["doc"]}' % ("x" * 65)
    )
    (read,) = of_native(['{"kind":"begin"}', line])

    assert ("update", ("accounts",), LSN(110), frozenset({"doc"}), 500_000) == (
        read.kind,
        read.tables,
        read.commit_lsn,
        read.unchanged,
        read.time.microsecond,
    )
    assert "md5:" == read.new["note"][:4]


def test_a_history_that_is_not_whole(tmp_path):
    """A history that lost its end is refused, wherever it was cut off."""
    file = tmp_path / "history"
    history = written()
    history.final = FINAL
    history.save(file)
    whole = file.read_bytes()
    assert len(history.transactions) == len(History.load(file).transactions)

    for size in range(len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(ConfigurationError, match="is not a complete history"):
            History.load(file)


def test_events_of_other_schemas():
    """They are left out, also from a TRUNCATE of several tables."""
    event = {"commit_lsn": "0/64", "ordinal": 0, "xid": 701, "kind": "insert", "table": "t", "new": {"id": 1}}
    tables = [{"schema": name, "table": name} for name in ("other", "s")]
    truncate = {"commit_lsn": "0/64", "ordinal": 1, "xid": 701, "kind": "truncate", "tables": tables}
    lines = [json.dumps(each) for each in ({**event, "schema": "other"}, {**event, "schema": "s"}, truncate)]

    assert [("insert", ("t",)), ("truncate", ("s",))] == [
        (each.kind, each.tables) for each in of_native(lines, "s")
    ]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"op": "c"}', '{"kind": "insert", "schema": "s", "table": "t"}']
)
def test_lines_that_are_no_native_events(line):
    """The error has the number of the line."""
    with pytest.raises(ConfigurationError, match="line 2 is not a native event"):
        list(of_native(['{"kind": "begin"}', line]))


@pytest.mark.server
async def test_a_server_that_restarts_at_the_end(database, monkeypatch):
    """The history is still complete, although no connection succeeds at first."""
    workload = Workload(database, seed=1, mixture=Mixture(keys=2), schema="verify_restart")
    await workload.create()
    connect = asyncpg.connect
    failures = iter([ConnectionRefusedError, asyncpg.AdminShutdownError, asyncpg.CannotConnectNowError])

    async def unavailable(*arguments: object, **options: object) -> object:
        for failure in failures:
            raise failure("the server restarts")
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncpg, "connect", unavailable)
    last = await workload.mark()
    failures = iter([ConnectionRefusedError])

    assert last in (await workload.finish()).final["ledger"]


def test_messages():
    """A transactional message has an ordinal among the rows; without it, or with other contents, that is a violation."""
    history = History(keys={"ledger": ("writer", "number")})
    row = {"writer": 1, "number": 1}
    message = Operation("message", "aiorepl_verify", new={"content": "aGVsbG8="})
    history.transactions = [
        Transaction(1, 1, 700, [Operation("insert", "ledger", (1, 1), row), message], "committed")
    ]
    first = Delivered(LSN(100), 0, 700, "insert", ("ledger",), row, row)
    second = Delivered(LSN(100), 1, 700, "message", ("aiorepl_verify",), new={"content": "aGVsbG8="})
    assert [] == verify(history, [first, second]).violations
    assert verify(history, [first]).violations
    assert verify(history, [first, replace(second, new={"content": "b3RoZXI="})]).violations


def test_children_of_masked_and_selected_parents():
    """Rows of attached children are masked as the parent's; a sink that selects the parent may get the others or not."""
    columns = {"id": 1, "g": 1, "stamp": "1.1", "secret": "secret 1"}
    history = History(keys={"leaf_1_0": ("id", "g")})
    before = Operation("insert", "leaf_1_0", (2, 1), {**columns, "id": 2, "secret": None})
    attached = Operation("insert", "leaf_1_0", (1, 1), columns, parent="tree")
    history.transactions = [Transaction(1, 1, 700, [before, attached], "committed")]
    promise = Promise(
        masked={"tree": frozenset({"secret"})},
        expected=lambda operation: operation if operation.parent else None,
        optional=lambda operation: not operation.parent,
    )
    clear = Delivered(LSN(100), 1, 700, "insert", ("leaf_1_0",), {"id": 1, "g": 1}, columns)
    masked = replace(clear, new={**columns, "secret": "9f2c"})
    loaded = Delivered(LSN(100), 0, 700, "insert", ("leaf_1_0",), {"id": 2, "g": 1}, before.new)
    assert [] == verify(history, [masked], promise).violations
    assert [] == verify(history, [loaded, masked], promise).violations
    assert verify(history, [clear], promise).violations
    assert verify(history, [loaded], promise).violations


def test_rows_that_only_a_snapshot_has():
    """The stream leaves out a transaction with a replication origin, and a later snapshot has its rows, as they were written."""
    history = written()
    echo = Operation("insert", "echoes", (1,), {"n": 1, "stamp": "3.1"})
    history.keys["echoes"] = ("n",)
    history.transactions.append(Transaction(3, 1, 706, [echo], "committed", LSN(120), origin=True))
    final = FINAL | {"echoes": {(1,): echo.new}}
    published = Publication(origins=False)

    def found(*entries: Entry) -> list[str]:
        promise = Promise(snapshot=False)
        return verify(
            published.history(history), at(3, *entries), promise, final=published.tables(final, history)
        ).violations

    row = change(125, -1, 0, "read", "echoes", new=dict(echo.new))
    assert [] == found()
    assert {} == published.tables(final, published.history(history))["echoes"]
    assert [] == found(row)
    assert found(replace(row, new={"n": 1, "stamp": "3.2"}))
    assert found(replace(row, new={"n": 2, "stamp": "3.1"}))
    assert found(replace(row, commit_lsn=LSN(115)))
    assert found(replace(row, kind="insert", xid=706, ordinal=0))


def test_tables_that_join_the_publication():
    """Rows from before a table was added to the publication, or from after it was dropped, must not be delivered, and the others must."""
    history = written()
    history.keys["guest_1"] = ("id", "g")
    rows = [{"id": number, "g": 0, "stamp": "3.1", "secret": None} for number in (1, 2)]
    hidden = Operation("insert", "guest_1", (1, 0), rows[0], unpublished=True)
    shown = Operation("insert", "guest_1", (2, 0), rows[1])
    history.transactions.append(Transaction(3, 1, 706, [hidden, shown], "committed", LSN(120)))
    final = FINAL | {"guest_1": {(1, 0): rows[0], (2, 0): rows[1]}}
    published = Publication(named=True)

    def found(*entries: Entry) -> list[str]:
        known = published.history(history)
        return verify(known, at(3, *entries), final=published.tables(final, known)).violations

    delivered = change(125, 0, 706, "insert", "guest_1", key={"id": 2, "g": 0}, new=rows[1])
    assert [] == found(delivered)
    assert found()
    assert found(change(125, 0, 706, "insert", "guest_1", key={"id": 1, "g": 0}, new=rows[0]))
    assert found(
        change(125, 0, 706, "insert", "guest_1", key={"id": 1, "g": 0}, new=rows[0]),
        replace(delivered, ordinal=1),
    )


def test_rows_under_the_name_of_the_root():
    """With ``publish_via_partition_root``, rows of partitions have the name of the partitioned table."""
    row = {"id": 1, "g": 0, "stamp": "3.1"}
    insert = Operation("insert", "parts_0", (1, 0), row)
    history = History(keys={"parts_0": ("id", "g")}, initial={"parts_0": {}, "parts_1": {}})
    history.transactions = [Transaction(3, 1, 706, [insert], "committed", LSN(120))]
    history.final = {"parts_0": {(1, 0): row}, "parts_1": {}}
    known = Publication(roots=True).history(history)
    delivered = change(125, 0, 706, "insert", "parts", key={"id": 1, "g": 0}, new=row)

    assert [] == verify(known, [delivered], final=known.final).violations
    assert verify(known, [replace(delivered, tables=("parts_0",))], final=known.final).violations


def test_composites_that_become_wider():
    """A place is compared by the fields that it has from the beginning; without these it is another one."""
    assert '(1,"a b")' == shown("items", "place", '(1,"a b",)') == shown("items", "place", '(1,"a b")')
    assert "(1,b)" != shown("items", "place", "(1,a,b)")
    assert "(1,a,b)" == shown("accounts", "note", "(1,a,b)")


@pytest.mark.server
async def test_an_error_ends_writers_that_wait_for_locks(database):
    """Writers that wait for locks as long as it takes do not delay an error."""
    workload = Workload(
        database, seed=1, mixture=Mixture(keys=2, schema_changes=False, early=True), schema="verify_locked"
    )
    await workload.create()
    holder = await asyncpg.connect(database)
    tables = await holder.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'verify_locked'")
    await holder.execute("BEGIN")
    for table in tables:
        await holder.execute(f"LOCK TABLE verify_locked.{table['tablename']} IN ACCESS SHARE MODE")

    with pytest.raises(KeyError):
        async with asyncio.timeout(40), workload:
            while not await holder.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.02)
            raise KeyError
    await holder.close()
