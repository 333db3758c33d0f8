"""The time until which a journal is complete is never claimed too early, also if clocks jump."""

from __future__ import annotations

import logging
import random

import orjson
import pytest

from aiorepl.errors import DamagedJournal
from aiorepl.journal import JournalReader
from aiorepl.journal.times import NO_TIMES, HeartbeatSnapshots, Proofs, Times, after_all
from aiorepl.lsn import LSN
from aiorepl.storage.checked_json import seal
from aiorepl.testing.messages import column
from tests.growing_journal import GrowingJournal


def test_proofs_wait_for_the_transactions_that_run():
    """A time is proven once every transaction has ended that ran then. Without one, it is proven at once."""
    heartbeats = HeartbeatSnapshots()
    assert heartbeats.proven(100, 7, 7) == 100
    # 7 runs, and 8 and 9 begin meanwhile.
    assert heartbeats.proven(110, 7, 8) is None
    assert heartbeats.proven(120, 7, 10) is None
    assert heartbeats.proven(130, 8, 10) == 110
    assert heartbeats.proven(140, 10, 10) == 140
    assert heartbeats.proven(150, 10, 11) is None
    heartbeats.forget()
    assert heartbeats.proven(160, 11, 12) is None


def test_a_clock_that_went_back_proves_less():
    """Times that are to come once more are not proven when the transactions of that snapshot end."""
    heartbeats = HeartbeatSnapshots()
    assert heartbeats.proven(100, 7, 8) is None
    assert heartbeats.proven(900, 7, 9) is None
    assert heartbeats.proven(110, 9, 9) == 110


def test_many_snapshots_are_thinned():
    """A transaction that runs for days holds the time back, but the memory is bounded, and the time goes on after it."""
    heartbeats = HeartbeatSnapshots()
    assert {heartbeats.proven(time, 1, time + 2) for time in range(5000)} == {None}
    assert len(heartbeats._open) <= 1024
    assert heartbeats.proven(5000, 4999, 5002) > 4990
    proofs = Proofs()
    for at in range(5000):
        proofs.add(LSN(at), at)
    assert len(proofs._ahead) <= 1024
    assert proofs.reached(LSN(4999)) == 4999
    assert proofs.reached(LSN(9999)) is None


def test_times():
    """The time never goes back. Transactions before it are late: counted, with the earliest time and the last LSN."""
    times = NO_TIMES.after(5, LSN(1)).proven(100).proven(90).proven(None)
    assert times == Times(100)
    assert times.after(100, LSN(1)) is times
    late = times.after(99, LSN(2)).after(40, LSN(3)).after(60, LSN(4))
    assert late == Times(100, 3, 40, LSN(4))
    assert late.proven(200) == Times(200, 3, 40, LSN(4))
    assert Times.from_json(late.to_json()) == late
    assert Times.from_json(NO_TIMES.to_json()) == Times.from_json(None) == NO_TIMES
    with pytest.raises(TypeError):
        Times.from_json(["1", 0, None, "0/0"])


class Server:
    """A server's clock and transactions: each takes its commit time some steps before its commit record is written."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.real, self.offset, self.xid, self.lsn = 1000, 0, 10, 0
        self.running: dict[int, int | None] = {}
        self.ended = 9
        self.wal: list[tuple[int, int]] = []

    @property
    def clock(self) -> int:
        return self.real + self.offset

    def step(self) -> None:
        draw = self.random.random
        self.real += self.random.randrange(3)
        if draw() < 0.5:
            self.running[self.xid] = None
            self.xid += 1
        for xid in list(self.running):
            if self.running[xid] is None:
                if draw() < 0.2:
                    self.running[xid] = self.clock
            elif draw() < 0.3:
                self.lsn += 1
                self.wal.append((self.lsn, self.running.pop(xid)))
                self.ended = max(self.ended, xid)

    def heartbeat(self) -> tuple[int, int, int, int]:
        """The time, the snapshot's first xid, the xid after all running ones, and the position, each a moment later."""
        now, xmax = self.clock, self.ended + 1
        xmin = min([xmax, *self.running])
        self.step()
        after = after_all(xmax, list(self.running))
        self.step()
        self.lsn += 1
        return now, xmin, after, self.lsn


def test_xids_of_32_bits():
    """Running xids are compared across the end of the 32 bits, and may be before or after the snapshot's."""
    epoch = 5 * 2**32
    assert after_all(epoch + 10, []) == epoch + 10
    assert after_all(epoch + 10, [3, 12]) == epoch + 13
    assert after_all(epoch - 2, [2**32 - 1]) == epoch
    assert after_all(epoch - 2, [4]) == epoch + 5
    assert after_all(epoch + 4, [2**32 - 3]) == epoch + 4


@pytest.mark.parametrize("seed", range(40))
def test_a_steady_clock(seed):
    """Whatever a heartbeat proves is true: no later transaction has an earlier commit time. And the time moves on."""
    server, heartbeats, proven = Server(seed), HeartbeatSnapshots(), []
    for _ in range(400):
        server.step()
        if server.random.random() < 0.3:
            now, xmin, after, lsn = server.heartbeat()
            if (until := heartbeats.proven(now, xmin, after)) is not None:
                proven.append((lsn, until))
    for lsn, until in proven:
        assert all(at < lsn for at, time in server.wal if time < until)
    assert proven[-1][1] > server.real - 120


@pytest.mark.parametrize("seed", range(40))
def test_clocks_that_jump(seed):
    """If the clock jumps, exactly the transactions that contradict the promise are counted as late, and a jump forward claims nothing."""
    server, heartbeats, times, late = Server(seed), HeartbeatSnapshots(), NO_TIMES, []
    seen = 0
    for number in range(600):
        server.step()
        if number % 150 == 149:
            server.offset = server.random.choice([-500, -20, 0, 30, 5000])
        if server.random.random() < 0.3:
            now, xmin, after, _ = server.heartbeat()
            until = heartbeats.proven(now, xmin, after)
            for lsn, time in server.wal[seen:]:
                if times.until is not None and time < times.until:
                    late.append((time, lsn))
                times = times.after(time, LSN(lsn))
            seen = len(server.wal)
            # This process's clock is right.
            times = times.proven(None if until is None else min(until, server.real))
            assert times.until is None or times.until <= server.real
    assert times.late == len(late)
    if late:
        assert (times.late_since, times.late_lsn) == (min(late)[0], late[-1][1])


T = column("id", 23, key=True)
BASE = 800_000_000_000_000


def test_the_journal_records_the_times(tmp_path, caplog):
    """Segments have the time of their end, the position that of now. A restart goes on; a late transaction is counted once, and logged."""
    journal = GrowingJournal(tmp_path / "journal")
    stream = journal.stream
    t = stream.table("t", T)
    reader = JournalReader(journal.folder)
    ends = [stream.transaction(t.insert("1"), commit_time=BASE + 10)]
    journal.write(proofs={ends[0]: BASE + 20, LSN(ends[0] + 1): BASE + 30})
    assert reader.times_at(reader.chain(), ends[0]).until == BASE + 20
    # A message between transactions: the database is idle.
    idle = stream.message("aiorepl")
    with caplog.at_level(logging.WARNING, "aiorepl.journal"):
        ends.append(stream.transaction(t.insert("2"), commit_time=BASE + 15))
        ends.append(stream.transaction(t.insert("3"), commit_time=BASE + 17))
        journal.write(proofs={idle: BASE + 40})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the clock of the server went back" in caplog.text
    journal.write()
    chain = reader.chain()
    assert chain.state.times == reader.times_at(chain, ends[2])
    found = chain.state.times
    assert (found.until, found.late, found.late_since) == (BASE + 40, 2, BASE + 15)
    # The segment of before keeps its time.
    assert reader.times_at(chain, ends[0]).until == BASE + 20


def test_a_snapshot_is_never_late(tmp_path):
    """The chunks of a snapshot are not transactions of the server."""
    journal = GrowingJournal(tmp_path / "journal")
    t = journal.stream.table("t", T)
    end = journal.stream.transaction(t.insert("1"), commit_time=BASE)
    journal.write(proofs={end: BASE * 2})
    journal.stream.snapshot(t, t.insert("2"))
    journal.write()
    assert JournalReader(journal.folder).chain().state.times == Times(BASE * 2)


def test_damage(tmp_path):
    """Times that are no numbers are a damaged journal."""
    journal = GrowingJournal(tmp_path / "journal")
    journal.stream.transaction(journal.stream.table("t", T).insert("1"))
    journal.write()
    path = journal.folder / "position.json"
    fields = orjson.loads(path.read_bytes().splitlines()[0])
    path.write_bytes(seal({**fields, "times": ["x", 0, None, "0/0"]}))
    with pytest.raises(DamagedJournal, match="a time is not a number"):
        JournalReader(journal.folder).chain()
