"""Numbers as PostgreSQL prints them; Arrow prints some decimals and floating-point numbers differently. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from aiorepl.values.floats import float4_text, float8_text


def number_texts(array: Any) -> pa.Array:
    """Return the texts of an array of numbers. Integers and other types are cast to text."""
    if pa.types.is_decimal(array.type):
        texts = [None if value is None else f"{value:f}" for value in array.to_pylist()]
    elif pa.types.is_floating(array.type):
        text = float4_text if array.type == pa.float32() else float8_text
        texts = [None if value is None else text(value) for value in array.to_pylist()]
    else:
        return array.cast(pa.string())
    return pa.array(texts, pa.string())
