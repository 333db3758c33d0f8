"""Makes Arrow arrays of constants without importing pandas. Pure.

``pa.array`` and ``pa.scalar`` import pandas, which takes as long as the rest of a Spark worker's start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

import pyarrow as pa


def texts(values: Iterable[str]) -> pa.Array:
    """Return texts as an array."""
    return binaries(value.encode() for value in values).view(pa.string())


def binaries(values: Iterable[bytes]) -> pa.Array:
    """Return bytes as an array."""
    data = list(values)
    ends = array("i", accumulate(map(len, data), initial=0))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(pa.binary(), len(data), buffers)
