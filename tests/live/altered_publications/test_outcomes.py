"""The comparison finds losses, duplicates and inventions. No server is needed."""

from __future__ import annotations

import pytest

from aiorepl.testing import messages as build
from tests.live.altered_publications.outcomes import Delivered, Sent
from tests.live.altered_publications.recording import Recorded

COMMIT_LSN, END_LSN = 0x100, 0x108


def frames(*rows: tuple[int, str], whole: bool = True) -> list[tuple[int, bytes]]:
    """Return the messages of a plain transaction.

    :param rows: the LSN and the key of each row.
    """
    relation = build.relation(oid=7, name="t", columns=[build.column("id", key=True)])
    return [
        (0, build.begin(final_lsn=COMMIT_LSN, xid=3)),
        (0, relation),
        *((lsn, build.insert(relation=7, new=[key])) for lsn, key in rows),
        *[(END_LSN, build.commit(commit_lsn=COMMIT_LSN, end_lsn=END_LSN))] * whole,
    ]


def delivered(*keys: str, complete: bool = True) -> Delivered:
    """Return the transaction as a sink has it."""
    events = [("I", "public.t", 7, None, (("id", key.encode()),)) for key in keys]
    return Delivered({COMMIT_LSN: events} if keys else {}, {COMMIT_LSN} if complete else set())


FIRST = frames((0x20, "1"), (0x30, "2"), whole=False)
AGAIN = frames((0x20, "1"), (0x28, "9"), (0x30, "2"), (0x40, "3"))


def problems(connections: list[Recorded], *got: Delivered, journaled: bool = False) -> list[str]:
    """Return the differences between the connections and the deliveries."""
    return list(Sent(connections, journaled=journaled).problems(list(got), until=0x1000))


@pytest.mark.parametrize("keys", ["1 2 3", "1 9 2 3"])
def test_allowed(keys):
    """A transaction that was received in part may continue after any of its changes, with the changes of the next connection."""
    assert [] == problems([Recorded(0, 0, 0, FIRST), Recorded(0, 0, 0, AGAIN)], delivered(*keys.split()))


@pytest.mark.parametrize("keys", ["1 2", "1 3", "2 3", "1 2 2 3", "1 9 9 2 3", "1 2 9 3", "1 2 3 4", ""])
def test_not_allowed(keys):
    """A loss, a duplicate, another order and an invention are each reported."""
    assert 1 == len(problems([Recorded(0, 0, 0, FIRST), Recorded(0, 0, 0, AGAIN)], delivered(*keys.split())))


@pytest.mark.parametrize(
    ("start", "confirmed", "lost"),
    [(0, 0, False), (END_LSN, 0, True), (0, END_LSN, True)],
    ids=["decoded again to nothing", "start is later", "confirmed"],
)
def test_lost(start, confirmed, lost):
    """A transaction that was sent may be missing only if the server decoded it again for a later connection, and sent nothing."""
    second = Recorded(start, 1, confirmed, [], seen=0x1000)

    found = problems([Recorded(0, 0, 0, AGAIN, seen=END_LSN), second], delivered(complete=False), Delivered())

    assert lost is bool(found)


def test_other_contents_from_a_journal():
    """A journal that delivers a transaction again delivers the same changes."""
    once, again = Recorded(0, 0, 0, frames((0x20, "1"))), Recorded(0, 1, 0, frames((0x20, "2")))

    assert [] == problems([once, again], delivered("1"), delivered("2"))
    assert 1 == len(problems([once, again], delivered("1"), delivered("2"), journaled=True))
