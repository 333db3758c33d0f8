"""The conditions of snapshots that read differing rows again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.conditions import require_simple
from aiorepl.spark.verifying.checksums import Row
from aiorepl.wire.commands import identifier

_MOST_KEYS = 500


def conditions(columns: Sequence[str], rows: Sequence[Row], *, ordered: bool) -> list[str | None]:
    """Return conditions that select these rows of a range, and possibly others between them.

    :param columns: the key's columns.
    :param rows: rows of the source.
    :param ordered: whether the source sorts the first column's values in the order of ``Row.order``.
    :returns: the conditions; ``None`` selects all rows, if no condition can name the keys.
    """
    name = identifier(columns[0])
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
    for other, of_rows in zip(columns[1:], zip(*(row.others for row in rows), strict=True), strict=False):
        listed = {value for value in of_rows if value is not None}
        if len(listed) <= _MOST_KEYS and None not in of_rows:
            more = f"{identifier(other)} IN ({', '.join(map(_constant, sorted(listed)))})"
            found = [f"{each} AND {more}" for each in found]
    try:
        for each in found:
            require_simple(each)
    except ConfigurationError:
        return [None]
    return list(found)


def _constant(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
