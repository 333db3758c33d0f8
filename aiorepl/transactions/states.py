"""Which message may follow which: the assembler's rules as a table.

Theory of operation. The stream is a sequence of units, each of which has the connection to itself while it lasts:

* a *plain* transaction, Begin … Commit. It is committed already; its content is delivered as it comes.
* a *prepared* transaction, Begin Prepare … Prepare. It may still go either way.
* a *block* of a transaction in progress, Stream Start … Stream Stop. Blocks of several transactions alternate.

Between units stand the messages that decide about what waits: Stream Commit, Stream Abort and Stream Prepare about a
transaction that came in blocks, Commit Prepared and Rollback Prepared about a prepared one. So do Relation and Type
messages, and logical messages that are not transactional, which belong to no transaction and are delivered at once.
Older servers send a Prepare there too, without Begin Prepare, for a transaction without changes.

What waits is known by xid while it streams and by gid once it is prepared. Whether a message names something that
waits is not in this table, for it has no end; ``Waiting`` in the assembler keeps that, and refuses with ``UNKNOWN``.

A message out of order means that bytes were lost or misread. The guard's sentence says what was broken, and nothing
behind it is delivered or acknowledged. Only this file says what is legal; the assembler only does what follows from it.
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
    PREPARING = "in a prepared transaction"
    BLOCK = "in a stream block"

    # Each is there once. Enum's own hash is Python's and costs a small transaction a tenth of its time here.
    __hash__ = object.__hash__


_CONTENT: Final = (m.Origin, m.Message, m.Insert, m.Update, m.Delete, m.Truncate, Relation, Type)
_BETWEEN: Final = (
    m.Message,
    Relation,
    Type,
    m.Prepare,
    m.StreamCommit,
    m.StreamAbort,
    m.StreamPrepare,
    m.CommitPrepared,
    m.RollbackPrepared,
)

# (state, message) to the state that follows. What is missing is illegal, and ``guard`` says why.
TRANSITIONS: Final[Mapping[State, Mapping[type, State]]] = MappingProxyType(
    {
        State.BETWEEN: {
            m.Begin: State.PLAIN,
            m.BeginPrepare: State.PREPARING,
            m.StreamStart: State.BLOCK,
            **dict.fromkeys(_BETWEEN, State.BETWEEN),
        },
        State.PLAIN: {m.Commit: State.BETWEEN, **dict.fromkeys(_CONTENT, State.PLAIN)},
        State.PREPARING: {m.Prepare: State.BETWEEN, **dict.fromkeys(_CONTENT, State.PREPARING)},
        State.BLOCK: {m.StreamStop: State.BETWEEN, **dict.fromkeys(_CONTENT, State.BLOCK)},
    }
)

_OUTSIDE: Final = "arrived outside of a transaction"
_GUARDS: Final[Mapping[tuple[State, type], str]] = MappingProxyType(
    {
        (State.BETWEEN, m.Commit): "arrived without Begin",
        (State.BETWEEN, m.StreamStop): "arrived without Stream Start",
        **{(State.BETWEEN, kind): _OUTSIDE for kind in (m.Origin, m.Insert, m.Update, m.Delete, m.Truncate)},
        (State.PLAIN, m.Begin): "arrived before the transaction before it committed",
        (State.PREPARING, m.BeginPrepare): "arrived before the transaction before it was prepared",
        (State.BLOCK, m.StreamStart): "arrived before the block before it ended",
    }
)
UNKNOWN: Final = "names a transaction that is not in progress"


def guard(state: State, message: type) -> str:
    """Why ``message`` is illegal in ``state``."""
    return _GUARDS.get((state, message), f"arrived {state.value}, where it has no place")
