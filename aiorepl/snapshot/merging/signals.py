"""Signals: logical messages by which users control the snapshots of a running pipeline. Pure.

::

    SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{"slot": "orders", "snapshot": ["public.orders"]}')

Every role that can connect to the database can write such a message, and a condition is evaluated by the pipeline's role. So a
condition of a signal is limited to comparisons of columns with constants (``conditions``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.snapshot.conditions import require_simple
from aiorepl.transactions.control_messages import fields_of

_MOST_TABLES: Final = 1000
_ACTIONS: Final = ("snapshot", "pause", "resume", "cancel")


@dataclass(frozen=True, slots=True)
class Signal:
    """A request that came through the stream.

    :param action: ``snapshot``, ``pause``, ``resume`` or ``cancel``.
    :param tables: the tables to be read, or whose reading is cancelled, as ``schema.table``.
    :param where: a condition that selects the rows to be read; ``None``: all rows.
    :param lsn: the end of the message, which identifies the request if the stream is read again.
    """

    action: str
    tables: tuple[str, ...]
    where: str | None
    lsn: LSN

    @classmethod
    def parse(cls, content: bytes, slot: str, lsn: LSN) -> Signal | None:
        """Parse the content of a message; ``None`` if it is for another slot.

        :raises ConfigurationError: the content is no signal; says why, without quoting it.
        """
        try:
            fields = fields_of(content)
        except ValueError:
            raise ConfigurationError("is not a JSON object") from None
        if not isinstance(fields.get("slot"), str):
            raise ConfigurationError("names no slot")
        if fields["slot"] != slot:
            return None
        actions = [action for action in _ACTIONS if action in fields]
        if len(actions) != 1 or fields.keys() - {"slot", "where", actions[0]}:
            raise ConfigurationError(f"must have slot, and one of {', '.join(_ACTIONS)}")
        action, where = actions[0], fields.get("where")
        names = fields[action] if action in ("snapshot", "cancel") else []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigurationError(f"{action} must be a list of tables, as schema.table")
        if action in ("snapshot", "cancel") and not names:
            raise ConfigurationError(f"{action} names no table")
        if len(names) > _MOST_TABLES:
            raise ConfigurationError(f"{action} names more than {_MOST_TABLES} tables: write several signals")
        if where is not None:
            if action != "snapshot" or not isinstance(where, str):
                raise ConfigurationError("where must be a text beside snapshot")
            require_simple(where)
        return cls(action, tuple(names), where, lsn)


def content(slot: str, action: str, tables: tuple[str, ...] = (), where: str | None = None) -> str:
    """Return the content of a signal.

    :raises ConfigurationError: a pipeline would reject it.
    """
    fields: dict[str, Any] = {
        "slot": slot,
        action: list(tables) if action in ("snapshot", "cancel") else True,
    }
    if where is not None:
        fields["where"] = where
    try:
        text = orjson.dumps(fields)
    except TypeError:
        raise ConfigurationError("a name, or where, is not UTF-8") from None
    Signal.parse(text, slot, LSN(0))
    return text.decode()
