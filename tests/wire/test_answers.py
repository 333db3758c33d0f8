"""The parts of a server's answers, and of our statuses: rows, errors, status updates."""

from __future__ import annotations

import contextlib
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import FIELDS, ProtocolError, ServerError, ServerNotice
from aiorepl.wire import frames

EVERY = {letter: f"text of {letter}" for letter in FIELDS}


def test_every_field_of_an_error(backend):
    """Each letter of the protocol is an attribute of the error."""
    error = ServerError(frames.error_fields(backend.error(**EVERY)[5:]))

    assert {name: f"text of {letter}" for letter, name in FIELDS.items()} == {
        name: getattr(error, name) for name in FIELDS.values()
    }
    assert "text of M (SQLSTATE text of C); text of H" == error.text == str(error)


def test_no_field_is_promised(backend):
    """Every field of an error may be missing; its attribute is None."""
    error = ServerError(frames.error_fields(backend.error()[5:]))

    assert {None} == {getattr(error, name) for name in FIELDS.values()}
    assert "the server sent no message" == str(error)


@pytest.mark.parametrize("letter", FIELDS)
def test_one_field_alone(backend, letter):
    """An error may have any one field alone."""
    notice = ServerNotice(frames.error_fields(backend.error("N", **{letter: "told"})[5:]))

    assert ["told"] == [
        getattr(notice, name) for name in FIELDS.values() if getattr(notice, name) is not None
    ]
    assert "told" == getattr(notice, FIELDS[letter])


def test_unknown_fields(backend):
    """An unknown field is ignored, as the protocol requires, and stays in ``fields``."""
    error = ServerError(frames.error_fields(backend.error(S="ERROR", z="new", M="told")[5:]))

    assert ("ERROR", "told", "new") == (error.severity_localized, error.message, error.fields["z"])


def test_text_that_is_not_utf8():
    """The text of an error may have any encoding, because none was negotiated yet; it is shown with escapes."""
    assert {"M": r"caf\xe9"} == frames.error_fields(b"Mcaf\xe9\0\0")


def test_errors_travel(backend):
    """An error can be pickled with its fields, as Spark and multiprocessing do."""
    error = pickle.loads(pickle.dumps(ServerError(frames.error_fields(backend.error(**EVERY)[5:]))))

    assert ("text of C", EVERY) == (error.sqlstate, error.fields)


def test_what_can_quote_rows_is_not_shown():
    """``str`` and ``repr`` leave out detail, context and internal query, which can quote rows."""
    error = ServerError({"M": "duplicate key", "D": "Key (a)=(s3cr3t)", "W": "s3cr3t", "q": "s3cr3t"})

    assert "s3cr3t" not in f"{error} {error!r} {error.text}"
    assert "Key (a)=(s3cr3t)" == error.detail


@given(st.binary(max_size=80))
def test_error_fields_of_any_bytes(body):
    """Any bytes are parsed to fields without an exception."""
    assert all(isinstance(text, str) for text in frames.error_fields(body).values())


def rows_of(data: bytes) -> list[bytes]:
    """Return the bodies of a RowDescription and of DataRows."""
    bodies = []
    while data[:1] in (b"T", b"D"):
        length = 1 + int.from_bytes(data[1:5], "big")
        bodies.append(data[5:length])
        data = data[length:]
    return bodies


def test_rows(backend):
    """Names and values are text; NULL is None, not the empty string."""
    head, *rows = rows_of(backend.rows(["a", "Größe"], ["1", None], ["", "x" * 70_000]))

    assert ["a", "Größe"] == frames.row_description(head)
    assert [["1", None], ["", "x" * 70_000]] == [frames.data_row(row) for row in rows]


def test_rows_without_columns(backend):
    """A SELECT without columns has rows."""
    head, row = rows_of(backend.rows([], []))

    assert ([], []) == (frames.row_description(head), frames.data_row(row))


def test_rows_that_are_not_utf8():
    """Bytes of an SQL_ASCII database that are not UTF-8 become escapes."""
    assert [r"caf\xe9"] == frames.data_row(b"\0\1\0\0\0\4caf\xe9")


@pytest.mark.parametrize("trailing", [b"\0", b"more"])
def test_rows_cut_short_or_too_long(backend, trailing):
    """A row or description whose length does not fit its content raises an error with its name."""
    head, row = rows_of(backend.rows(["a", "bc"], ["1", None]))

    for name, read, body in (
        ("RowDescription", frames.row_description, head),
        ("DataRow", frames.data_row, row),
    ):
        for damaged in [*(body[:cut] for cut in range(len(body))), body + trailing]:
            with pytest.raises(ProtocolError) as caught:
                read(damaged)
            assert name == caught.value.message


@given(st.binary(max_size=80))
def test_rows_of_any_bytes(body):
    """Any bytes are a row or a ProtocolError."""
    for read in (frames.row_description, frames.data_row):
        with contextlib.suppress(ProtocolError):
            assert isinstance(read(body), list)


@pytest.mark.parametrize(
    "values", [(1, 2, 3, 4), (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**63 - 1), (0, 0, 0, -(2**63))]
)
@pytest.mark.parametrize("reply", [True, False])
def test_status_update(values, reply):
    """A Standby Status Update has these bytes, in its CopyData frame."""
    received, flushed, applied, now = values

    data = frames.status_update(received, flushed, applied, now, reply=reply)

    assert (b"d", 38) == struct.unpack(">cI", data[:5])
    assert (b"r", *values, reply) == struct.unpack(">cQQQq?", data[5:])
    assert 39 == len(data)


def test_query():
    """The length of a simple query counts bytes, not characters."""
    assert b"Q\0\0\0\x08\xc3\xa9a\0" == frames.query("éa")
