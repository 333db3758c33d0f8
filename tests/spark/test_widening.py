"""Types that hold the values of two descriptions, and casts between them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aiorepl.formats.arrow.widening import casts
from aiorepl.spark.lake.columns import wider

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


def test_structs_are_cast_by_name():
    """An attribute that a value does not have is null, at any depth."""
    values = pa.array([[{"a": 1, "b": "x"}, None], None], pa.list_(struct(a=INT, b=TEXT)))
    wanted = pa.list_(struct(c=TEXT, a=BIG))
    assert casts(values.type, wanted)
    assert values.cast(wanted).to_pylist() == [[{"c": None, "a": 1}, None], None]
    assert not casts(struct(a=BIG), struct(a=INT))
