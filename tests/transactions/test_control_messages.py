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


@pytest.mark.parametrize("prefix", [WATERMARK, SIGNAL])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_transactional_control_message(wired, shape, caplog, prefix, streamed):
    """It has no effect, and its content neither arrives nor is logged. It keeps its ordinal, so that positions stay valid."""
    loud, xid = wired(messages=True), 3 if streamed else None
    content = b'{"slot": "s", "snapshot": ["public.people"], "where": "email = \'secret\'"}'
    sent = build.message(lsn=0x8, prefix=prefix, content=content, xid=xid)
    row = build.insert(relation=7, new=["1", "a"], xid=xid)
    if streamed:
        begun, stopped = build.stream_start(xid=3, first_segment=True), build.stream_stop()
        loud.feed(begun, sent, row, stopped)
        slices = loud.feed(build.stream_commit(xid=3, commit_lsn=0x10, end_lsn=0x20))
    else:
        slices = loud.feed(BEGIN, sent, row, COMMIT)

    assert [(0x10, [0, 1], True, 0x20)] == shape(slices)
    message = next(iter(slices[0].changes))
    assert (prefix, b"") == (message.prefix, message.content)
    assert build.message(lsn=0x8, prefix=prefix, xid=xid) == message.message.payload
    assert "transactional = false" in caplog.text
    assert "secret" not in caplog.text


def test_a_warning_without_messages(wired, caplog):
    """A pipeline that does not ask for messages warns, too; messages of users are no reason for a warning."""
    wired(messages=False).feed(BEGIN, NOTE, build.message(lsn=0x8, prefix=SIGNAL, content=b"{}"), COMMIT)

    assert 1 == len(caplog.records)
