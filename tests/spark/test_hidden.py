"""A row's masks are the same in a message, in a block of a journal, and in a file of the history."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.collected import CollectedRows
from aiorepl.formats.arrow.hidden import HiddenFile, masked
from aiorepl.formats.arrow.row_collector import BlockScanner
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark.reading.selected import hide
from aiorepl.testing import messages as build
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.messages import Binary, column
from aiorepl.testing.stream import Stream
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.methods import Method, mask_of
from aiorepl.transforms.selection import Selection

SECRET = "s3cr3t"
ANY = Selection(mask=("*.*.*",), keep=("*.*.id",), secret=SECRET)
ID = column("id", 20, key=True)
LIMITS = [
    (20, -1, ["-9223372036854775808", "9223372036854775807"]),
    (16, -1, ["t", "f"]),
    (701, -1, ["NaN", "Infinity", "-Infinity", "1e-300", "0.1", "1e+20", "-0"]),
    (700, -1, ["0.1", "3.4028235e+38"]),
    (1082, -1, ["2026-02-28", "0001-01-01", "10000-01-01", "0044-03-15 BC", "infinity", "-infinity"]),
    (1114, -1, ["2026-11-22 01:02:03", "1969-12-31 23:59:59.999999", "infinity", "4713-01-01 00:00:00 BC"]),
    (1184, -1, ["2026-11-22 01:02:03.1+00", "-infinity"]),
    (1700, (7 << 16 | 2) + 4, ["-12345.67", "0.00", "NaN"]),
    (1700, -1, ["NaN", "1.50"]),
    (17, -1, ["\\x", "\\x00ff"]),
    (25, -1, ["", "größe", "a" * 300]),
]


def forms(columns, messages, selection, identity="d", attributes=None, *, file=True):
    """Return the rows of some messages in three masked forms: as messages, from a block, and from a file of the history."""
    stream = Stream(binary=True)
    table = stream.table("t", *columns, replica_identity=identity)
    stream.transaction(*(make(table) for make in messages))
    (part,) = stream.slices()
    by_value = list(StreamFilter(selection).apply(part).changes)

    changes = part.changes
    layout = changes[0].layout
    layout.relation.attributes.update(attributes or {})
    names = [("public", "t")]
    actions = [selection.rules.action(names, name) for name in layout.relation.names]
    hidden = hide(selection, layout.relation, actions)
    payloads = [change.message.payload for change in changes]
    whole = _batch(CollectedRows(layout), payloads)
    in_block = _batch(CollectedRows(layout, hidden), payloads)
    return (
        by_value,
        in_block,
        HiddenFile(hidden, layout.relation, whole.schema).convert(whole) if file else None,
    )


def _batch(rows, payloads):
    collector = rows.collector()
    frames = (build.begin(final_lsn=100, xid=5), *payloads)
    block = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    oid = int.from_bytes(payloads[0][1:5], "big")
    scanner = BlockScanner(block, 0, 0, 0, 0)
    assert scanner.scan({oid: collector}) == 0
    found = rows.batch(collector)
    found.validate(full=True)
    return found


def columns_of(batch: pa.RecordBatch, *names: str) -> list[dict[str, Any]]:
    return batch.select(list(names)).to_pylist()


def agree(oid: int, modifier: int, values: list[Any]) -> None:
    """Check that the three forms have equal masks, and that block and history have the same columns."""
    columns = [ID, column("v", oid, type_modifier=modifier)]
    rows = [lambda table, n=n, value=value: table.insert(str(n), value) for n, value in enumerate(values)]
    by_value, in_block, in_file = forms_of(columns, rows)
    expected = [{"v": change.new["v"]} for change in by_value]
    assert columns_of(in_block, "v") == expected
    if in_file is not None:
        assert columns_of(in_file, "v") == expected
        assert in_file.schema.equals(in_block.schema, check_metadata=True)
        assert in_file["_unrepresentable"].null_count == len(values)


def forms_of(columns, rows):
    try:
        return forms(columns, rows, ANY)
    except ConfigurationError:
        return (*forms(columns, rows, ANY, file=False),)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type_name)
def test_every_type(sample):
    """A value of any type has the same mask in every form, whether it was sent as text or in binary."""
    text, binary = sample.text, Binary(bytes.fromhex(sample.binary))
    agree(sample.oid, -1, [text, None, binary, text])
    agree(sample.oid, -1, [binary, text, None])


@pytest.mark.parametrize(("oid", "modifier", "texts"), LIMITS)
def test_values_at_the_limits_of_their_types(oid, modifier, texts):
    """Values at the limits of their types, and beyond those of Arrow, have the same mask in every form."""
    agree(oid, modifier, [*texts, None, *texts])


def test_random_values():
    """Random values have the same mask in every form, for the types that the history does not have as text."""
    chance = random.Random(7)
    for _ in range(300):
        days = chance.randrange(-2_400_000, 40_000_000)
        moment = chance.randrange(-(2**57), 2**62)
        for oid, raw in (
            (1082, days.to_bytes(4, "big", signed=True)),
            (1114, moment.to_bytes(8, "big", signed=True)),
            (1184, moment.to_bytes(8, "big", signed=True)),
            (20, chance.randbytes(8)),
            (23, chance.randbytes(4)),
            (701, chance.randbytes(8)),
            (700, chance.randbytes(4)),
            (17, chance.randbytes(chance.randrange(9))),
        ):
            agree(oid, -1, [Binary(raw), None])


def test_slices_of_arrays():
    """The mask of a value does not depend on the slice of an array, with and without nulls."""
    mask = mask_of(Method(), b"key", "")
    texts = ["a", None, "", "ü", "b" * 9, None, "c", "d", "e", "f"]
    whole = masked(pa.array(texts), mask).to_pylist()
    assert whole == [None if text is None else mask(text.encode()).decode() for text in texts]
    for start in range(len(texts) + 1):
        for size in range(len(texts) - start + 1):
            assert masked(pa.array(texts).slice(start, size), mask).to_pylist() == whole[start : start + size]
    assert masked(pa.nulls(3, pa.string()), mask).to_pylist() == [None] * 3


@pytest.mark.parametrize("identity", ["d", "f"])
def test_updates_with_hidden_columns(identity):
    """Old rows and missing values are masked. A value that was not sent is not masked, and dropped columns leave no name behind."""
    columns = [column("id", 23, key=True), column("day", 1082), column("gone"), column("note")]
    old = ["1", "infinity", "planted-gone", "planted-note"]
    rows = [
        lambda t: t.insert(*old),
        lambda t: (
            t.update("1", "2026-01-01", UNCHANGED, UNCHANGED, old=old)
            if identity == "f"
            else t.update("1", "2026-01-01", UNCHANGED, UNCHANGED)
        ),
    ]
    selection = Selection(mask=("*.*.id", "*.*.day", "*.*.note"), drop=("*.*.gone",), secret=SECRET)
    known = {"day": Attribute(2, "1999-01-01", True), "note": Attribute(4, "planted-missing", True)}

    by_value, in_block, in_file = forms(columns, rows, selection, identity, known)

    assert in_file.schema.equals(in_block.schema, check_metadata=True)
    assert in_file.to_pylist() == in_block.to_pylist()
    insert, update = in_block.to_pylist()
    assert insert["day"] == by_value[0].new["day"] != "infinity"
    assert insert["id"] == by_value[0].new["id"] == update["id"]
    if identity == "f":
        assert (update["_unchanged"], update["note"]) == ([], insert["note"])
        assert update["_before"] == {name: insert[name] for name in ("id", "day", "note")}
    else:
        assert (update["_unchanged"], update["note"]) == (["note"], None)
    for batch in (in_block, in_file):
        assert "planted" not in str(batch.to_pydict()) + str(batch.schema)


def test_nothing_shows_the_secret():
    """The objects that hold the key do not show it."""
    columns = [ID, column("v")]
    stream = Stream()
    stream.transaction(stream.table("t", *columns).insert("1", "a"))
    (change,) = next(iter(stream.slices())).changes
    hidden = hide(ANY, change.layout.relation, [ANY.rules.action([("public", "t")], n) for n in ("id", "v")])
    assert SECRET not in repr(hidden) + repr(ANY)
