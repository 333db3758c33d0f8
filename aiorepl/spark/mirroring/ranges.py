"""Divides the keys of a large batch into ranges, one for each part, so that the merge of a part rewrites few of the target's files. Pure.

The ranges are of the first key column. They have about equal numbers of changes; a value with more changes than one range holds
is divided among several ranges by a hash of the whole key. Pickled to executors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_STRIDE: Final = 500
"""A sample has one value of this many."""


def sample(values: pa.Array) -> pa.Array:
    """Return evenly spaced values of a column, sorted.

    The result is empty only if ``values`` is, or if its type has no order. It is a copy: it shares no memory with ``values``.
    """
    if pa.types.is_nested(values.type) or pa.types.is_interval(values.type):
        return pa.array([], values.type)
    present = values.drop_null()
    ordered = present.take(pc.sort_indices(present))
    return ordered.take(pa.array(range(min(len(ordered), _STRIDE) // 2, len(ordered), _STRIDE), pa.int64()))


class Ranges:
    """Ranges of the values of a column, numbered from 0.

    :param bounds: ascending; a range ends before a bound.
    """

    def __init__(self, bounds: pa.Array) -> None:
        self._bounds = bounds

    @classmethod
    def of(cls, samples: Iterable[pa.Array], count: int) -> Ranges:
        """Make ``count`` ranges with about equal numbers of values.

        :param samples: results of ``sample``, at least one.
        """
        values = pa.concat_arrays(samples)
        if not len(values):
            return cls(values)
        ordered = values.take(pc.sort_indices(values))
        places = [number * len(ordered) // count for number in range(1, count)]
        return cls(ordered.take(pa.array(places, pa.int64())))

    def places(self, values: Any) -> tuple[pa.Array, pa.Array]:
        """Return for each value the number of its first range, and how many ranges have the value."""
        first = pa.repeat(pa.scalar(0, pa.int32()), len(values))
        count = pa.repeat(pa.scalar(1, pa.int32()), len(values))
        for bound in self._bounds:
            first = pc.add(first, _counted(pc.greater(values, bound)))
            count = pc.add(count, _counted(pc.equal(values, bound)))
        return first, count


def _counted(mask: Any) -> Any:
    return pc.fill_null(mask, False).cast(pa.int32())
