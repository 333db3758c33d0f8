"""Which description of a relation holds for which transaction, while streams of several are interleaved."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build


class Transcript:
    """A decoder driven by what happens on the server. Table 7 is described by the names of its columns."""

    def __init__(self) -> None:
        self.decoder = Decoder(Streaming.ON)

    def block(self, xid: int, *payloads: bytes) -> list[Any]:
        """One stream block of ``xid``."""
        self.decoder.decode(build.stream_start(xid=xid, first_segment=False))
        decoded = [self.decoder.decode(payload) for payload in payloads]
        self.decoder.decode(build.stream_stop())
        return decoded

    def commit(self, xid: int) -> None:
        """The stream of ``xid`` commits."""
        self.decoder.decode(build.stream_commit(xid=xid, commit_lsn=1, end_lsn=2))

    def prepare(self, xid: int) -> None:
        """The stream of ``xid`` is prepared."""
        self.decoder.decode(build.stream_prepare(prepare_lsn=1, end_lsn=2, xid=xid, gid="g"))

    def abort(self, xid: int, subxid: int) -> None:
        """``subxid`` rolls back."""
        self.decoder.decode(build.stream_abort(xid=xid, subxid=subxid))

    def plain(self, payload: bytes) -> Any:
        """A message outside of blocks."""
        return self.decoder.decode(payload)

    def seen_by(self, xid: int | None) -> tuple[str, ...]:
        """Return table 7 as a streamed or plain transaction sees it; empty if it was never described."""
        if xid is not None:
            self.decoder.decode(build.stream_start(xid=xid, first_segment=False))
        found = self.decoder.views.current.get(7)
        if xid is not None:
            self.decoder.decode(build.stream_stop())
        return () if found is None else found.names


@pytest.fixture
def transcript() -> Transcript:
    """A stream with streaming on."""
    return Transcript()


def described(columns: str, xid: int | None = None) -> bytes:
    """Table 7 with columns of one letter each."""
    return build.relation(oid=7, name="t", columns=[build.column(name) for name in columns], xid=xid)


def test_a_plain_description_holds_for_all(transcript):
    """A description outside of blocks is valid there and in every block."""
    transcript.plain(described("ab"))

    assert ("a", "b") == transcript.seen_by(None) == transcript.seen_by(5)


def test_the_last_description_wins(transcript):
    """After ALTER TABLE rows read by the new description, and messages read before keep the old one."""
    transcript.plain(described("ab"))
    before = transcript.plain(build.insert(relation=7, new=["1", "2"]))
    transcript.plain(described("abc"))
    after = transcript.plain(build.insert(relation=7, new=["1", "2", "3"]))

    assert [("a", "b"), ("a", "b", "c")] == [before.relation.names, after.relation.names]


def test_a_streamed_description_is_its_transactions_own(transcript):
    """A description in a stream block is valid for its transaction only."""
    transcript.plain(described("ab"))
    transcript.block(5, described("abc", xid=5))

    assert ("a", "b", "c") == transcript.seen_by(5)
    assert ("a", "b") == transcript.seen_by(6) == transcript.seen_by(None)


def test_a_streamed_description_of_a_new_table(transcript):
    """A table created in a transaction in progress does not exist for others."""
    transcript.block(5, described("a", xid=5))

    assert [("a",), (), ()] == [transcript.seen_by(5), transcript.seen_by(6), transcript.seen_by(None)]


def test_commit_makes_it_common(transcript):
    """At its commit a stream's descriptions hold for all, also for streams that were open before."""
    transcript.plain(described("ab"))
    transcript.block(6, build.truncate(relations=[7], xid=6))
    transcript.block(5, described("abc", xid=5), described("abcd", xid=5))

    transcript.commit(5)

    assert ("a", "b", "c", "d") == transcript.seen_by(None) == transcript.seen_by(6)


def test_a_prepare_makes_it_common(transcript):
    """At its prepare a stream's descriptions hold for all, also the first one of a table."""
    transcript.plain(described("a"))
    transcript.block(5, described("ab", xid=5), build.relation(oid=8, name="u", columns=[], xid=5))

    transcript.prepare(5)

    assert ("a", "b") == transcript.seen_by(None)
    assert transcript.plain(build.insert(relation=8, new=[])).relation.name == "u"


def test_a_prepare_without_what_was_aborted(transcript):
    """A description of an aborted subtransaction does not become common at the prepare."""
    transcript.plain(described("a"))
    transcript.block(5, described("ab", xid=5), described("abc", xid=51))
    transcript.abort(5, 51)

    transcript.prepare(5)

    assert ("a", "b") == transcript.seen_by(None)


def test_a_late_prepare_brings_nothing_old_back(transcript):
    """A description that became common after the stream's own stays when the stream is prepared."""
    transcript.block(5, described("a", xid=5))
    transcript.block(6, described("ab", xid=6))
    transcript.commit(6)

    transcript.prepare(5)

    assert ("a", "b") == transcript.seen_by(None)


def test_a_late_commit_brings_nothing_old_back(transcript):
    """A description that came later, by whatever way, is not replaced by an older one at a commit."""
    transcript.block(5, described("a", xid=5))
    transcript.plain(described("ab"))

    transcript.commit(5)

    assert ("a", "b") == transcript.seen_by(None)


def test_abort_drops_it(transcript):
    """A transaction that rolls back takes its descriptions with it, even if its xid is met again."""
    transcript.plain(described("ab"))
    transcript.block(5, described("abc", xid=5))

    transcript.abort(5, 5)

    assert ("a", "b") == transcript.seen_by(None) == transcript.seen_by(5)


def test_a_subtransaction_takes_only_its_own(transcript):
    """Rolling a subtransaction back brings the description before it back, in its own transaction alone."""
    transcript.plain(described("a"))
    transcript.block(5, described("ab", xid=5), described("abc", xid=51), described("abcd", xid=52))
    transcript.block(6, described("ax", xid=6))

    transcript.abort(5, 52)
    assert ("a", "b", "c") == transcript.seen_by(5)
    transcript.abort(5, 51)
    assert ("a", "b") == transcript.seen_by(5)
    assert [("a", "x"), ("a",)] == [transcript.seen_by(6), transcript.seen_by(None)]

    transcript.commit(5)
    assert ("a", "b") == transcript.seen_by(None)


def test_an_abort_of_the_unknown(transcript):
    """A subtransaction that described nothing, of a stream never seen, rolls back without harm."""
    transcript.plain(described("a"))

    transcript.abort(8, 81)
    transcript.abort(8, 8)

    assert ("a",) == transcript.seen_by(None)


def test_a_plain_description_between_blocks(transcript):
    """A stream lays its own descriptions over the common ones as they are when each block begins."""
    transcript.plain(described("a"))
    transcript.block(5, build.relation(oid=8, name="u", columns=[], xid=5))

    transcript.plain(described("ab"))

    assert ("a", "b") == transcript.seen_by(5)


def test_types_follow_the_same_rule(transcript):
    """A type named in a transaction in progress is attached to that transaction's relations alone, until commit."""
    relation = {"oid": 7, "name": "t", "columns": [build.column("m", 99)]}
    (_, inside) = transcript.block(
        5, build.type_(oid=99, name="mood", xid=5), build.relation(**relation, xid=5)
    )
    outside = transcript.plain(build.relation(**relation))
    transcript.commit(5)
    after = transcript.plain(build.relation(**relation))

    assert [["mood"], [], ["mood"]] == [[known.name for known in r.types] for r in (inside, outside, after)]
