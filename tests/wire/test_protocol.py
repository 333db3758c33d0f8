"""Queries over the asyncio protocol: rows, errors, losses, and a connection that stays usable."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl.errors import ConnectionLost, ProtocolError, ServerError
from aiorepl.wire.frames import query

MIB = 1024 * 1024


async def test_a_query(peer, backend):
    """A query is written at once and returns its rows by name; then the connection is ready for the next."""
    answer = backend.rows(["a", "b"], ["1", None], ["2", "x"])

    assert [{"a": "1", "b": None}, {"a": "2", "b": "x"}] == await peer.answer(answer)
    assert [{"c": "3"}] == await peer.answer(backend.rows(["c"], ["3"]), sql="SELECT 2")
    assert [query("SELECT 1"), query("SELECT 2")] == peer.transport.written


async def test_an_answer_in_bytes(peer, backend):
    """An answer may come byte by byte."""
    answer = backend.rows(["a"], ["1"])

    assert [{"a": "1"}] == await peer.answer(*(bytes([byte]) for byte in answer))
    assert len(answer) == peer.protocol.bytes_received


async def test_an_error_leaves_the_connection_usable(peer, backend):
    """After an error the next query starts clean."""
    rows = backend.rows(["a"], ["1"])

    with pytest.raises(ServerError, match="no such thing") as caught:
        await peer.answer(
            rows[: -len(backend.READY)], backend.error(C="42704", M="no such thing"), backend.READY
        )

    assert "42704" == caught.value.sqlstate
    assert [{"b": "2"}] == await peer.answer(backend.rows(["b"], ["2"]))


async def test_a_fatal_error(peer, backend):
    """If the server says why it hangs up, that is the error, not the lost connection."""
    running = await peer.start(peer.protocol.query("SELECT 1"))
    peer.send(backend.error(S="FATAL", C="57P01", M="terminating connection"))
    peer.transport.abort()

    with pytest.raises(ServerError, match="terminating connection"):
        await running
    with pytest.raises(ServerError, match="terminating connection"):
        await peer.protocol.query("SELECT 1")


async def test_a_huge_error(peer, backend):
    """The beginning of a huge error is raised, and the connection stays usable."""
    with pytest.raises(ServerError, match="too long") as caught:
        await peer.answer(backend.error(C="54000", M="too long", D="x" * 20 * MIB), backend.READY)

    assert "54000" == caught.value.sqlstate
    assert len(str(caught.value.fields)) < MIB
    assert [{"b": "2"}] == await peer.answer(backend.rows(["b"], ["2"]))


async def test_an_answer_without_end(peer, backend):
    """The rows of an answer are collected up to a limit."""
    rows = backend.rows(["a"], ["x" * MIB])
    head, row = rows[: rows.index(b"D")], rows[rows.index(b"D") : rows.index(b"D") + MIB + 11]
    with pytest.raises(ProtocolError, match="the answer has more than"):
        await peer.answer(head, *([row] * 20))


async def test_a_notice(peer, backend):
    """Notices go to the callback, and change nothing else."""
    notices = []
    peer.protocol.on_notice = notices.append

    rows = await peer.answer(backend.error("N", S="WARNING", M="look out") + backend.rows(["a"], ["1"]))

    assert [("WARNING", "look out")] == [(notice.severity_localized, notice.message) for notice in notices]
    assert [{"a": "1"}] == rows


async def test_one_query_at_a_time(peer, backend):
    """A second query, or one during CopyBoth, raises an error and is not written."""
    running = await peer.start(peer.protocol.query("SELECT 1"))

    with pytest.raises(ConnectionLost, match="busy, not ready"):
        await peer.protocol.query("SELECT 2")
    peer.send(backend.COPY_BOTH)
    await running
    with pytest.raises(ConnectionLost, match="copy, not ready"):
        await peer.protocol.query("SELECT 2")
    assert 1 == len(peer.transport.written)


async def test_a_row_unlike_its_description(peer, backend):
    """A row with other columns than its description is an error."""
    answer = backend.rows(["a"], ["1", "2"])

    with pytest.raises(ProtocolError, match="DataRow: does not have the columns of its RowDescription"):
        await peer.answer(answer)


async def test_the_rest_of_a_message(peer, backend):
    """If what comes first is the rest of a message, whose beginning was read before, the connection is lost, and may be opened
    again; later, bytes that are no frame are an error of the server.
    """
    rest = backend.error(S="FATAL", C="57P01", M="terminating connection due to administrator command")
    with pytest.raises(ConnectionLost, match="disturbed while it was opened"):
        await peer.answer(rest[rest.index(b"terminating") :])


@pytest.mark.parametrize("part", [b"", b"T\0\0"])
async def test_a_loss_during_a_query(peer, backend, part):
    """A query whose connection is lost raises, and returns no rows."""
    running = await peer.start(peer.protocol.query("SELECT 1"))
    peer.send(backend.rows(["a"], ["1"])[: -len(backend.READY)] + part)
    peer.transport.abort()

    with pytest.raises(ConnectionLost, match="the server closed the connection"):
        await running


async def test_a_cancelled_query(peer, backend):
    """After a cancelled query the next one waits for the first answer, and gets its own rows."""
    running = await peer.start(peer.protocol.query("SELECT 1"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    peer.send(backend.rows(["a"], ["1"]))

    assert [{"b": "2"}] == await peer.answer(backend.rows(["b"], ["2"]))
