"""Logical messages that nobody asked for, and those of aiorepl itself."""

from __future__ import annotations

import pytest

from aiorepl.testing import messages as build
from aiorepl.transactions.control_messages import SIGNAL, WATERMARK

BEGIN, COMMIT = build.begin(final_lsn=0x10, xid=3), build.commit(commit_lsn=0x10, end_lsn=0x20)
INSERT = build.insert(relation=7, new=["1", "a"])
NOTE = build.message(lsn=0x8, prefix="audit", content=b"who")


def alone(prefix: str) -> bytes:
    return build.message(transactional=False, lsn=0x30, prefix=prefix)


def test_messages_that_were_not_asked_for(wired, shape):
    """Users' messages are dropped, and the other changes have the ordinals that they would have without them."""
    silent = wired(messages=False)
    assert [(0x10, [0, 1], True, 0x20)] == shape(silent.feed(BEGIN, NOTE, INSERT, NOTE, INSERT, COMMIT))
    assert [] == silent.feed(alone("ping"), alone("aiorepl"))


def test_messages_in_a_streamed_transaction(wired, shape):
    """Dropped messages take no room in a transaction in progress."""
    silent = wired(messages=False)
    silent.feed(
        build.stream_start(xid=3, first_segment=True),
        build.message(lsn=0x8, prefix="audit", xid=3),
        build.insert(relation=7, new=["1", "a"], xid=3),
        build.stream_stop(),
    )
    slices = silent.feed(build.stream_commit(xid=3, commit_lsn=0x10, end_lsn=0x20))
    assert [(0x10, [0], True, 0x20)] == shape(slices)


@pytest.mark.parametrize("prefix", [WATERMARK, SIGNAL])
def test_control_messages(wired, prefix):
    """Watermarks and signals pass, unless they are transactional, which ours never are."""
    silent = wired(messages=False)
    (part,) = silent.feed(alone(prefix))
    assert (0x30, prefix) == (part.end_lsn, part.changes[0].prefix)
    (part,) = silent.feed(BEGIN, build.message(lsn=0x8, prefix=prefix), COMMIT)
    assert [] == list(part.changes)
