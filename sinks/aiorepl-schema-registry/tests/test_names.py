"""Names of columns are escaped so that they stay different."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from aiorepl_schema_registry import escaped, unescaped

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=63)


@given(NAMES | st.text("_xA0F.é", min_size=1))
@example("_x2E_")
@example("_x5F_x2E_")
@example("__x2E_")
@example("_x0:")
@example("1st")
def test_names_return(name):
    """An escaped name is a name of Avro and Protobuf, and its own name returns."""
    made = escaped(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", made)
    assert unescaped(made) == name


def test_ordinary_names_stay():
    """Names that are allowed already are not changed."""
    assert [escaped(name) for name in ("id", "_x", "Id", "max_x1", "a_xyz_")] == [
        "id",
        "_x",
        "Id",
        "max_x1",
        "a_xyz_",
    ]
    assert escaped("Id.1") == "Id_x2E_1"
