"""Random tables, rows and selections: a sink reads the whole row without the dropped and with the masked columns."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.messages import Binary, Value, column
from aiorepl.testing.stream import Stream
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.selection import Selection

BOOL, INT4, TEXT = 16, 23, 25
VALUES = {
    BOOL: st.booleans(),
    INT4: st.integers(-(2**31), 2**31 - 1),
    TEXT: st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
}
NAMES = "abcdef"


def text_of(value: Any) -> str:
    """Return PostgreSQL's text of a value."""
    return {True: "t", False: "f"}[value] if isinstance(value, bool) else str(value)


def sent(value: Any, binary: bool) -> Value:
    """Return a value as the server sends it."""
    if value is None or value is UNCHANGED:
        return value
    if not binary:
        return text_of(value)
    if isinstance(value, bool):
        return Binary([value])
    return Binary(struct.pack(">i", value) if isinstance(value, int) else value.encode())


@st.composite
def streams(draw: st.DrawFn) -> tuple[Stream, list[str]]:
    """Draw changes of a table with any columns and replica identity, and its columns' names."""
    oids = draw(st.lists(st.sampled_from([BOOL, INT4, TEXT]), min_size=1, max_size=6))
    names = list(NAMES[: len(oids)])
    identity = draw(st.sampled_from("dinf"))
    flags = [identity == "f" or (identity != "n" and draw(st.booleans())) for _ in oids]
    # An update or delete needs a key: without one, PostgreSQL refuses it.
    kinds = ["insert", "update", "delete"] if any(flags) else ["insert"]
    binary = draw(st.booleans())
    stream = Stream(binary=binary)
    columns = [column(*each, key=flag) for *each, flag in zip(names, oids, flags, strict=True)]
    table = stream.table("t", *columns, replica_identity=identity)

    def row(*, toast: bool = False, keys: bool = False) -> list[Value]:
        values = []
        for oid, flag in zip(oids, flags, strict=True):
            options = [st.none(), VALUES[oid]]
            if toast and oid == TEXT:
                options.append(st.just(UNCHANGED))
            value = draw(st.none() if keys and not flag else st.one_of(options))
            # A server may send some columns of a row as text, where a type has no binary form.
            values.append(sent(value, binary and draw(st.booleans())))
        return values

    contents = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5)):
        if kind == "insert":
            contents.append(table.insert(*row(toast=True)))
        elif kind == "delete":
            contents.append(table.delete(*row(keys=identity != "f"), full=identity == "f"))
        elif identity == "f":
            contents.append(table.update(*row(toast=True), old=row()))
        else:
            rekeyed = draw(st.booleans())
            contents.append(table.update(*row(toast=True), key=row(keys=True) if rekeyed else None))
    stream.transaction(*contents)
    return stream, names


def expected(row: Mapping[str, Any] | None, drop: set[str], mask: set[str]) -> dict[str, Any] | None:
    """Return the expected row, computed independently."""
    if row is None:
        return None
    return {
        name: hmac.new(b"secret", text_of(value).encode(), hashlib.sha256).hexdigest()
        if name in mask and value is not None and value is not UNCHANGED
        else value
        for name, value in row.items()
        if name not in drop
    }


@given(streams(), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_rows_and_events(given_stream, drop, mask):
    """In rows and native events, a selection equals dropping and masking in the whole row."""
    stream, names = given_stream
    (part,) = stream.slices()
    selection = Selection(
        drop=tuple(f"public.t.{name}" for name in sorted(drop)),
        mask=tuple(f"*.*.{name}" for name in sorted(mask)),
        secret="secret",
    )

    selected = StreamFilter(selection).apply(part)

    whole, less = NativeFormat(), NativeFormat()
    for before, after in zip(part.changes, selected.changes, strict=True):
        old, new = expected(before.old, drop, mask), expected(before.new, drop, mask)
        # A key of which nothing is left is none.
        key = expected(before.key, drop, mask) or None
        unchanged = tuple(name for name in before.unchanged if name not in drop)
        assert (key, old, new, unchanged) == (after.key, after.old, after.new, after.unchanged)
        assert [name for name in names if name not in drop] == list(after.relation.names)

        event = orjson.loads(whole.event(before))
        event |= {name: expected(event[name], drop, mask) for name in ("old", "new", "key")}
        event |= {"key": None if key is None else event["key"], "unchanged": list(unchanged)}
        assert event == orjson.loads(less.event(after))


@given(streams(), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)))
def test_selecting_twice(given_stream, drop, mask):
    """Dropping first and masking then gives the same bytes as both at once."""
    stream, _ = given_stream
    (part,) = stream.slices()
    dropped = tuple(f"*.*.{name}" for name in sorted(drop))
    masked = tuple(f"*.*.{name}" for name in sorted(mask))

    once = StreamFilter(Selection(drop=dropped, mask=masked, secret="secret")).apply(part)
    twice = StreamFilter(Selection(mask=masked, secret="secret")).apply(
        StreamFilter(Selection(drop=dropped)).apply(part)
    )

    assert [change.message.payload for change in once.changes] == [
        change.message.payload for change in twice.changes
    ]
    assert [change.relation.payload for change in once.changes] == [
        change.relation.payload for change in twice.changes
    ]
    assert once.size == twice.size
