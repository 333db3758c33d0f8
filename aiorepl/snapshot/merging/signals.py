"""Signals: logical messages by which users control the snapshots of a running pipeline. Pure.

::

    SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{"slot": "orders", "snapshot": ["public.orders"]}')

Every role that can connect to the database can write such a message, and a condition is evaluated by the pipeline's role. So a
condition of a signal is limited to comparisons of columns with constants.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.transactions.control_messages import fields_of

_MOST_TABLES: Final = 1000
_ACTIONS: Final = ("snapshot", "pause", "resume", "cancel")
_TOKEN: Final = re.compile(
    r"""\s+
      | (?P<name> [A-Za-z_][A-Za-z0-9_]* | "(?:[^"]|"")+" )
      | (?P<constant> '(?:[^'\\]|'')*' | [0-9]+(?:\.[0-9]+)? )
      | (?P<operator> <= | >= | <> | != | = | < | > )
      | (?P<other> [(),-] )
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(
    ("and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "ilike")
)
# Keywords that begin an expression which is more than a comparison, without parentheses after a name.
_RESERVED: Final = frozenset(
    [
        "select",
        "with",
        "values",
        "table",
        "from",
        "union",
        "intersect",
        "except",
        "case",
        "cast",
        "array",
        "row",
        "exists",
        "any",
        "all",
        "some",
        "collate",
        "current_user",
        "session_user",
        "user",
        "current_role",
    ]
)


@dataclass(frozen=True, slots=True)
class Signal:
    """A request that came through the stream.

    :param action: ``snapshot``, ``pause``, ``resume`` or ``cancel``.
    :param tables: the tables to be read, or whose reading is cancelled, as ``schema.table``.
    :param where: a condition of the rows to be read; ``None``: all rows.
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


def require_simple(where: str) -> None:
    """Check that a condition compares columns with constants, and calls no functions.

    :raises ConfigurationError: it may do more.
    """
    problem = ConfigurationError(
        "where may only compare columns with constants, by =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT and "
        "parentheses; for other conditions call Pipeline.resnapshot"
    )
    at, depth, before = 0, 0, ""
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or "\0" in match[0]:
            raise problem
        at = match.end()
        piece = match[0]
        if piece.isspace():
            continue
        word = piece.lower() if match["name"] and not piece.startswith('"') else ""
        if word in _RESERVED:
            raise problem
        if piece == "(":
            # After a name it would be a call.
            if before == "name":
                raise problem
            depth += 1
        elif piece == ")":
            depth -= 1
        # "--" begins a comment, and a minus belongs to a number.
        elif piece == "-" and before == "-":
            raise problem
        # Two names in a row are a type and a constant, or an alias; "date '…'" would call an input function.
        if before == "name" and (match["constant"] or (match["name"] and word not in _KEYWORDS)):
            raise problem
        if depth < 0:
            raise problem
        before = "keyword" if word in _KEYWORDS else "name" if match["name"] else piece
    if depth or not before:
        raise problem
