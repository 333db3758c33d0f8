"""The conditions of snapshots that read differing rows again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.merging.signals import require_simple
from aiorepl.spark.verifying.checksums import Row
from aiorepl.wire.commands import identifier

_MOST_KEYS = 500


def conditions(column: str, rows: Sequence[Row], *, ordered: bool) -> list[str | None]:
    """Return conditions that select these rows of a range, and possibly others between them.

    :param column: the key's first column.
    :param rows: rows of the source.
    :param ordered: whether the source orders the column's values in the same way.
    :returns: the conditions; ``None`` selects all rows, if no condition can name the keys.
    """
    name = identifier(column)
    texts = {row.first: row.order for row in rows if row.first is not None}
    values = sorted(texts, key=lambda text: (texts[text], text))
    if not values:
        return []
    if ordered:
        found = [f"{name} >= {_constant(values[0])} AND {name} <= {_constant(values[-1])}"]
    else:
        found = [
            f"{name} IN ({', '.join(map(_constant, values[at : at + _MOST_KEYS]))})"
            for at in range(0, len(values), _MOST_KEYS)
        ]
    try:
        for each in found:
            require_simple(each)
    except ConfigurationError:
        return [None]
    return list(found)


def _constant(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
