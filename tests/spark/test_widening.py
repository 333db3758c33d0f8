"""Types that hold the values of two descriptions, and casts between them."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from aiorepl.formats.arrow.number_texts import number_texts
from aiorepl.formats.arrow.widening import casts
from aiorepl.spark.lake.columns import wider
from aiorepl.spark.lake.rows import in_type

SMALL, INT, BIG, TEXT = pa.int16(), pa.int32(), pa.int64(), pa.string()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (INT, BIG, BIG),
        (BIG, SMALL, BIG),
        (pa.date32(), TEXT, None),
        (pa.float64(), pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(5, 0), pa.decimal128(7, 2)),
        (pa.decimal128(38, 0), pa.decimal128(38, 38), TEXT),
        (pa.list_(INT), pa.list_(BIG), pa.list_(BIG)),
        (pa.list_(INT), INT, None),
        (struct(a=INT, b=TEXT), struct(c=TEXT, a=BIG), struct(a=BIG, b=TEXT, c=TEXT)),
        (struct(a=struct(b=INT)), struct(a=struct(c=INT)), struct(a=struct(b=INT, c=INT))),
        (struct(a=pa.date32()), struct(a=TEXT), None),
        (pa.list_(struct(a=INT)), pa.list_(struct(b=INT)), pa.list_(struct(a=INT, b=INT))),
    ],
    ids=str,
)
def test_wider(one, other, both):
    """The common type has the values of both; there is none for other types."""
    found = wider(one, other)
    assert (found is None) == (both is None)
    if found is not None:
        assert str(found).replace("item", "element") == str(both).replace("item", "element")


def test_numbers_become_text():
    """Numbers have PostgreSQL's text, not Arrow's, also in arrays."""
    decimals = pa.array([Decimal("0.00000001"), None, Decimal("-10.5")], pa.decimal128(12, 8))
    texts = ["0.00000001", None, "-10.50000000"]
    assert in_type(decimals, TEXT).to_pylist() == texts
    values = decimals.to_pylist()
    lists = pa.array([values[:2], [], None, values[2:]], pa.list_(decimals.type))
    wanted = [texts[:2], [], None, texts[2:]]
    assert in_type(lists, pa.list_(TEXT)).to_pylist() == wanted
    chunks = in_type(pa.chunked_array([lists.slice(1), lists]), pa.list_(TEXT))
    assert chunks.to_pylist() == wanted[1:] + wanted
    assert in_type(pa.array([True, None]), TEXT).to_pylist() == ["true", None]
    floats = pa.array([1e-05, 1e15, float("nan"), -float("inf"), 100.0])
    assert number_texts(floats).to_pylist() == ["1e-05", "1e+15", "NaN", "-Infinity", "100"]
    assert number_texts(pa.array([0.1, 1e6], pa.float32())).to_pylist() == ["0.1", "1e+06"]


def test_structs_are_cast_by_name():
    """An attribute that a value does not have is null, at any depth."""
    values = pa.array([[{"a": 1, "b": "x"}, None], None], pa.list_(struct(a=INT, b=TEXT)))
    wanted = pa.list_(struct(c=TEXT, a=BIG))
    assert casts(values.type, wanted)
    assert values.cast(wanted).to_pylist() == [[{"c": None, "a": 1}, None], None]
    assert not casts(struct(a=BIG), struct(a=INT))
