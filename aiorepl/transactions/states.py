"""Which message may follow which: the assembler's rules as a table.

The stream is a sequence of units, each of which occupies the connection until it ends:

* a *plain* transaction, Begin … Commit. It has committed already, so its content is delivered as it arrives.
* a *prepared* transaction, Begin Prepare … Prepare. It may still commit or roll back.
* a *block* of a transaction in progress, Stream Start … Stream Stop. Blocks of several transactions alternate.

Between units, other messages decide the outcome of kept transactions: Stream Commit, Stream Abort and Stream
Prepare for a streamed transaction, Commit Prepared and Rollback Prepared for a prepared one. Relation and Type messages
may also occur there, and logical messages that are not transactional, which are delivered at once. Older
servers also send a Prepare there, without Begin Prepare, for a transaction without changes.

Transactions are identified by xid while they are streamed, and by gid, xid and the end of the PREPARE once they are
prepared. The table cannot say whether a message names a transaction that is kept; ``InProgress`` checks that, with the
guard ``UNKNOWN``.

A message out of order means that bytes were lost or misread. The guard's text says which rule was broken, and nothing
after that message is delivered or acknowledged. The rules are only in this file; the assembler follows them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation, Type


class AssemblerState(enum.Enum):
    """The assembler's state."""

    BETWEEN = "between transactions"
    PLAIN = "in a transaction"
    PREPARING = "in a prepared transaction"
    BLOCK = "in a stream block"

    # Members are singletons. Enum's own hash is a Python function and costs a small transaction a tenth of its time here.
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

# (state, message) to the next state. A pair that is missing is illegal, and ``guard`` says why.
TRANSITIONS: Final[Mapping[AssemblerState, Mapping[type, AssemblerState]]] = MappingProxyType(
    {
        AssemblerState.BETWEEN: {
            m.Begin: AssemblerState.PLAIN,
            m.BeginPrepare: AssemblerState.PREPARING,
            m.StreamStart: AssemblerState.BLOCK,
            **dict.fromkeys(_BETWEEN, AssemblerState.BETWEEN),
        },
        AssemblerState.PLAIN: {
            m.Commit: AssemblerState.BETWEEN,
            **dict.fromkeys(_CONTENT, AssemblerState.PLAIN),
        },
        AssemblerState.PREPARING: {
            m.Prepare: AssemblerState.BETWEEN,
            **dict.fromkeys(_CONTENT, AssemblerState.PREPARING),
        },
        AssemblerState.BLOCK: {
            m.StreamStop: AssemblerState.BETWEEN,
            **dict.fromkeys(_CONTENT, AssemblerState.BLOCK),
        },
    }
)

_OUTSIDE: Final = "arrived outside of a transaction"
_GUARDS: Final[Mapping[tuple[AssemblerState, type], str]] = MappingProxyType(
    {
        (AssemblerState.BETWEEN, m.Commit): "arrived without Begin",
        (AssemblerState.BETWEEN, m.StreamStop): "arrived without Stream Start",
        **{
            (AssemblerState.BETWEEN, kind): _OUTSIDE
            for kind in (m.Origin, m.Insert, m.Update, m.Delete, m.Truncate)
        },
        (AssemblerState.PLAIN, m.Begin): "arrived before the previous transaction committed",
        (AssemblerState.PREPARING, m.BeginPrepare): "arrived before the previous transaction was prepared",
        (AssemblerState.BLOCK, m.StreamStart): "arrived before the previous block ended",
    }
)
UNKNOWN: Final = "names a transaction that is not in progress"


def guard(state: AssemblerState, message: type) -> str:
    """Say why ``message`` is illegal in ``state``."""
    return _GUARDS.get((state, message), f"arrived {state.value}, where it is not allowed")
