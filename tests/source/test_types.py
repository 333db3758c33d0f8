"""Looking up altered composite types: which transactions are older than an alteration, and failed or cancelled look-ups."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import LSN, ConnectionLost, DataError
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.source.catalog.types import Snapshot, TypeWatch
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.spooled_changes import SpooledChanges
from aiorepl.values import TypeInfo, Types

COMP = 90001
ROW = [COMP, "public", "comp", "c", 0, ","]


def comp(*names: str) -> list:
    """The catalog's row of a composite type with these text attributes."""
    return [*ROW, list(names), [25] * len(names)]


class Catalog:
    """A source with prepared query results, which can block."""

    def __init__(self, *names: str) -> None:
        self.snapshot = "100:100:"
        self.end = "0/10000"
        """An LSN after every commit that is visible."""
        self.row = comp(*names)
        self.xids = [50]
        """The transactions that altered the last attributes."""
        self.commands = [0]
        """The commands of these transactions."""
        self.counted = (3, 0)
        """The transaction and the command that changed the number of attributes last."""
        self.replayed = "0/0"
        self.unfrozen = (3, 1000)
        """The first transaction whose rows are not frozen, and the first that is not assigned."""
        self.until_blocked = -1
        """This many queries are answered, then one blocks; -1: none blocks."""
        self.blocked = asyncio.Event()
        self.error: Exception | None = None
        self.opened = self.terminated = 0

    async def connect_sql(self):
        self.opened += 1
        return self

    async def fetch(self, query, *arguments, timeout):
        if self.until_blocked == 0:
            self.blocked.set()
            await asyncio.Event().wait()
        self.until_blocked -= 1
        if self.error is not None:
            raise self.error
        if "cmin" not in query:
            return [(self.snapshot, self.end, *self.row)]
        # The last attribute was altered in each of the transactions, as far as the look-up can tell.
        names, count = self.row[6], len(self.row[6])
        xids = [3] * (count - len(self.xids)) + self.xids
        commands = [self.commands[0]] * (count - len(self.commands)) + self.commands
        return [
            (
                self.snapshot,
                self.end,
                self.replayed,
                COMP,
                number,
                name,
                25,
                False,
                xid,
                command,
                *self.counted,
                3,
                0,
                *self.unfrozen,
            )
            for number, (name, xid, command) in enumerate(
                zip(names, xids[-count:], commands[-count:], strict=True), 1
            )
        ]

    def terminate(self):
        self.terminated += 1


class Reads:
    """An assembler of a table with a composite column, and a watch over its types."""

    def __init__(self, *names: str, **options) -> None:
        self.catalog = Catalog(*names)
        self.watch = TypeWatch(self.catalog)
        known = TypeInfo(COMP, "public", "comp", "c", fields=tuple((name, 25) for name in names))
        self.decoder = Decoder(Streaming.ON)
        self.assembler = Assembler(Types([known]), **options)
        described = [build.column("id", 23), build.column("c", COMP)]
        self.lsn = 16
        self.feed(build.relation(oid=7, name="t", columns=described))

    def feed(self, *payloads: bytes):
        return self.assembler.feed([self.decoder.decode(payload) for payload in payloads])

    def rows(self, *rows: tuple[int, str]):
        """The slices of a transaction for each xid, with one row of this composite value."""
        slices = []
        for xid, text in rows:
            self.lsn += 16
            slices += self.feed(
                build.begin(final_lsn=self.lsn, xid=xid),
                build.insert(relation=7, new=["1", text]),
                build.commit(commit_lsn=self.lsn, end_lsn=self.lsn + 8),
            )
        return slices

    async def settled(self, *rows: tuple[int, str]) -> list[list[str]]:
        """The attribute names of the composite values."""
        slices = await self.watch.settle(self.assembler, self.rows(*rows))
        return [list(change.new["c"]) for part in slices for change in part.changes]


@pytest.mark.parametrize(
    ("text", "visible", "invisible"),
    [
        ("10:10:", [3, 9, 2**32 - 1], [10, 11, 2**31 + 9]),
        ("7:10:7,9", [3, 6, 8], [7, 9, 10]),
        (f"{2**32 + 5}:{2**32 + 8}:{2**32 + 5}", [2**32 - 1, 4, 7], [5, 8]),
        ("7:10:*", [3, 6], [7, 8, 9, 10]),
    ],
    ids=["all", "in progress", "second epoch", "standby"],
)
def test_snapshots(text, visible, invisible):
    """A snapshot sees transactions that ended before it, also when xids wrap around."""
    snapshot = Snapshot(text, LSN(100))

    assert [True] * len(visible) == [snapshot.sees(xid, LSN(99)) for xid in visible]
    assert [False] * len(invisible) == [snapshot.sees(xid, LSN(99)) for xid in invisible]
    # Of transactions that committed later, some have xids that seem to precede the snapshot: one in two after two billion.
    assert [False] * len(visible) == [snapshot.sees(xid, LSN(100)) for xid in visible]


async def test_nothing_altered():
    """Slices are returned unchanged, and without composite values no query is made."""
    reads = Reads("a", "b")
    reads.catalog.xids = []
    slices = reads.rows((90, "(1,2)"))
    assert slices is await reads.watch.settle(reads.assembler, slices)

    none = Reads("a", "b")
    none.feed(build.relation(oid=7, name="t", columns=[build.column("id", 23), build.column("c", 25)]))
    await none.watch.settle(none.assembler, none.rows((90, "x")))

    assert (1, 0) == (reads.catalog.opened, none.catalog.opened)


async def test_each_by_its_time():
    """Transactions that an earlier look-up saw, or older than the alteration, have the old names, even in later reads; all
    others have the new ones.
    """
    reads = Reads("a", "b")
    assert [["a", "b"]] == await reads.settled((90, "(1,2)"))
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "100:120:", comp("z", "b"), [50, 110]
    reads.catalog.end = str(LSN(reads.lsn + 9 * 16))

    assert [["a", "b"]] * 3 == await reads.settled((95, "(1,2)"), (99, "(1,2)"), (104, "(1,2)"))
    assert [["a", "b"], ["z", "b"]] == await reads.settled((109, "(1,2)"), (111, "(1,2)"))
    assert [["a", "b"], ["z", "b"]] == await reads.settled((108, "(1,2)"), (119, "(1,2)"))
    # A transaction of which the look-up did not see that it had committed.
    assert [["z", "b"], ["a", "b"]] == await reads.settled((120, "(1,2)"), (107, "(1,2)"))
    # After a commit at this LSN or later, no commit follows that the look-up saw.
    assert [["z", "b"], ["z", "b"]] == await reads.settled((121, "(1,2)"), (107, "(1,2)"))
    assert [["z", "b"]] == await reads.settled((107, "(1,2)"))


async def test_several_alterations():
    """Each transaction has the names between the alterations before and after it."""
    reads = Reads("a")
    await reads.settled((90, "(1)"))
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "120:120:", comp("y"), [110]
    assert [["a"]] == await reads.settled((100, "(1)"))
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "140:140:", comp("z"), [130]

    assert [["a"], ["y"], ["z"]] == await reads.settled((109, "(1)"), (115, "(1)"), (131, "(1)"))


async def test_what_fits():
    """A row whose number of attributes fits only another description is read by that one; a row that fits none raises when
    it is read.
    """
    reads = Reads("a", "b")
    await reads.settled((90, "(1,2)"))
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "120:120:", comp("a", "b", "c"), [110]

    assert [["a", "b", "c"], ["a", "b"]] == await reads.settled((105, "(1,2,3)"), (115, "(1,2)"))
    (part,) = await reads.watch.settle(reads.assembler, reads.rows((116, "(1)")))
    with pytest.raises(DataError, match=r"public\.t\.c: .* the type has changed"):
        part.changes[0].new["c"]


async def test_before_the_first_look_up():
    """Without an earlier look-up the last transaction that touched the type counts as its alteration."""
    reads = Reads("a", "b")
    reads.catalog.row, reads.catalog.xids = comp("z", "b"), [50, 80]

    assert [["a", "b"], ["z", "b"]] == await reads.settled((79, "(1,2)"), (81, "(1,2)"))


async def test_a_look_up_of_long_ago():
    """If a type was not looked up for two billion transactions, later rows still have its new names."""
    reads = Reads("a", "b")
    assert [["a", "b"]] == await reads.settled((90, "(1,2)"))
    now = 2**31 + 1000
    reads.catalog.snapshot, reads.catalog.end = f"{now}:{now}:", "0/20000"
    reads.catalog.row, reads.catalog.xids = comp("z", "b"), [50, now - 100]
    reads.catalog.unfrozen, reads.lsn = (now - 10_000, now), 0x10000

    assert [["a", "b"], ["z", "b"]] == await reads.settled((now - 200, "(1,2)"), (now - 50, "(1,2)"))


async def test_two_transactions_of_one_xid():
    """What is known of a transaction does not count for a later one with the same xid, as a promoted standby may assign it."""
    reads = Reads("a", "b")
    reads.catalog.xids, reads.catalog.commands, reads.catalog.counted = [110, 110], [0, 5], (110, 5)
    reads.catalog.snapshot, reads.catalog.end = "120:120:", "0/10000"
    # The first transaction commits at the LSN up to which WAL was replayed, which does not have the numbers of all commands.
    reads.catalog.replayed = str(LSN(reads.lsn + 16))

    replayed, later = await reads.watch.settle(reads.assembler, reads.rows((110, "(1,2)"), (110, "(1,2)")))

    with pytest.raises(DataError, match="altered in transaction 110 or later"):
        replayed.changes[0].new["c"]
    assert ["a", "b"] == list(later.changes[0].new["c"])


async def test_in_the_spool(tmp_path):
    """Rows of a spooled transaction are read by the types of its time, each time they are read."""
    reads = Reads("a", "b", budget=1, spool=Spool(tmp_path))
    await reads.settled((90, "(1,2)"))
    streamed = []
    for xid in (105, 115):
        streamed += reads.feed(
            build.stream_start(xid=xid, first_segment=True),
            *[build.insert(relation=7, new=["1", "(1,2)"], xid=xid)] * 3,
            build.stream_stop(),
            build.stream_commit(xid=xid, commit_lsn=16, end_lsn=24),
        )
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "120:120:", comp("z", "b"), [110]

    slices = await reads.watch.settle(reads.assembler, streamed)

    assert all(isinstance(part.changes, SpooledChanges) for part in slices)
    for _ in range(2):
        names = [(part.transaction.xid, list(change.new["c"])) for part in slices for change in part.changes]
        assert [(105, ["a", "b"])] * 3 + [(115, ["z", "b"])] * 3 == names


@pytest.mark.parametrize("query", range(2))
async def test_a_cancelled_look_up(query):
    """After a look-up that was cancelled at any query, a repeated call has the same result."""
    reads = Reads("a", "b")
    await reads.settled((90, "(1,2)"))
    reads.catalog.snapshot, reads.catalog.row, reads.catalog.xids = "120:120:", comp("z", "b"), [110]
    slices = reads.rows((105, "(1,2)"), (115, "(1,2)"))
    reads.catalog.until_blocked = query
    task = asyncio.ensure_future(reads.watch.settle(reads.assembler, slices))
    await reads.catalog.blocked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reads.catalog.until_blocked = -1

    early, late = await reads.watch.settle(reads.assembler, slices)

    assert [["a", "b"], ["z", "b"]] == [list(part.changes[0].new["c"]) for part in (early, late)]
    assert (2, 1) == (reads.catalog.opened, reads.catalog.terminated)


async def test_a_failed_look_up():
    """A failed query closes the connection and raises an error of this package."""
    reads = Reads("a", "b")
    reads.catalog.error = ConnectionResetError()

    with pytest.raises(ConnectionLost):
        await reads.settled((90, "(1,2)"))

    assert 1 == reads.catalog.terminated
