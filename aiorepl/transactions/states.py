"""Which message may follow which: the assembler's rules as a table.

Theory of operation. The stream is a sequence of transactions in commit order. A plain one is Begin, content,
Commit, and nothing may stand between its messages but its own. Outside of transactions stand Relation and Type
messages (descriptions that a later transaction uses) and messages that are not transactional, which belong to
no transaction and are delivered at once. A row outside of a transaction, a second Begin or a Commit that names
another commit than its Begin did mean that bytes were lost or misread: the guard's sentence says what was broken,
and nothing after it is delivered or acknowledged.

Only this file says what is legal; the assembler only does what follows from it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation, Type


class State(enum.Enum):
    """Where the assembler stands."""

    BETWEEN = "between transactions"
    PLAIN = "in a transaction"


# (state, message) to the state that follows. What is missing is illegal, and GUARDS says why.
TRANSITIONS: Final[Mapping[State, Mapping[type, State]]] = MappingProxyType(
    {
        State.BETWEEN: {
            m.Begin: State.PLAIN,
            m.Message: State.BETWEEN,
            Relation: State.BETWEEN,
            Type: State.BETWEEN,
        },
        State.PLAIN: {
            m.Origin: State.PLAIN,
            m.Message: State.PLAIN,
            m.Insert: State.PLAIN,
            m.Update: State.PLAIN,
            m.Delete: State.PLAIN,
            m.Truncate: State.PLAIN,
            Relation: State.PLAIN,
            Type: State.PLAIN,
            m.Commit: State.BETWEEN,
        },
    }
)

_OUTSIDE: Final = "arrived outside of a transaction"
_UNASKED: Final = "arrived though it was not asked for: this connection handles plain transactions"

GUARDS: Final[Mapping[tuple[State, type], str]] = MappingProxyType(
    {
        (State.BETWEEN, m.Commit): "arrived without Begin",
        (State.BETWEEN, m.Origin): _OUTSIDE,
        (State.BETWEEN, m.Insert): _OUTSIDE,
        (State.BETWEEN, m.Update): _OUTSIDE,
        (State.BETWEEN, m.Delete): _OUTSIDE,
        (State.BETWEEN, m.Truncate): _OUTSIDE,
        (State.PLAIN, m.Begin): "arrived before the transaction before it committed",
    }
)


def guard(state: State, message: type) -> str:
    """Why ``message`` is illegal in ``state``."""
    return GUARDS.get((state, message), _UNASKED)
