"""PostgreSQL logical replication for Python: consume a database's changes with asyncio, or on Spark.

``connect`` gives one consumer the transactions of a slot; ``Pipeline`` runs sinks; ``aiorepl.spark`` reads a
pipeline's journal. Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiorepl.delivery.batching import BatchPolicy
    from aiorepl.delivery.config import Delivery
    from aiorepl.delivery.dead_letters import DeadLetters
    from aiorepl.errors import (
        AioreplError,
        ConfigurationError,
        ConnectionFailed,
        ConnectionLost,
        DataError,
        JournalError,
        PermanentError,
        ProtocolError,
        ServerError,
        SinkError,
        SlotError,
        TransientError,
    )
    from aiorepl.formats.routing import Routing
    from aiorepl.lsn import LSN
    from aiorepl.pgoutput.messages import CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
    from aiorepl.pgoutput.relations import Relation
    from aiorepl.pgoutput.tuples import UNCHANGED
    from aiorepl.pipeline.pipeline import Pipeline
    from aiorepl.pipeline.statistics import PipelineStatistics
    from aiorepl.position import Position
    from aiorepl.retry import RetryPolicy
    from aiorepl.sink import Batch, Rejection, Sink, SinkContext, SyncSink
    from aiorepl.source.source import Source
    from aiorepl.source.stream import ReplicationStream, ReplicationTransaction, connect
    from aiorepl.transactions.changes import Change, Delete, Insert, Message, RowChange, Truncate, Update
    from aiorepl.transactions.schema_changes import SchemaChange
    from aiorepl.transactions.transaction import Slice, Transaction
    from aiorepl.transforms.selection import Selection

_HOMES = {
    "aiorepl.delivery.batching": ("BatchPolicy",),
    "aiorepl.delivery.dead_letters": ("DeadLetters",),
    "aiorepl.delivery.config": ("Delivery",),
    "aiorepl.pipeline.statistics": ("PipelineStatistics",),
    "aiorepl.pipeline.pipeline": ("Pipeline",),
    "aiorepl.retry": ("RetryPolicy",),
    "aiorepl.transforms.selection": ("Selection",),
    "aiorepl.source.source": ("Source",),
    "aiorepl.source.stream": ("ReplicationStream", "ReplicationTransaction", "connect"),
    "aiorepl.errors": (
        "AioreplError",
        "ConfigurationError",
        "ConnectionFailed",
        "ConnectionLost",
        "DataError",
        "JournalError",
        "PermanentError",
        "ProtocolError",
        "ServerError",
        "SinkError",
        "SlotError",
        "TransientError",
    ),
    "aiorepl.formats.routing": ("Routing",),
    "aiorepl.lsn": ("LSN",),
    "aiorepl.pgoutput.messages": ("CommitPrepared", "Prepare", "RollbackPrepared", "StreamPrepare"),
    "aiorepl.pgoutput.relations": ("Relation",),
    "aiorepl.pgoutput.tuples": ("UNCHANGED",),
    "aiorepl.position": ("Position",),
    "aiorepl.sink": ("Batch", "Rejection", "Sink", "SinkContext", "SyncSink"),
    "aiorepl.transactions.changes": (
        "Change",
        "Delete",
        "Insert",
        "Message",
        "RowChange",
        "Truncate",
        "Update",
    ),
    "aiorepl.transactions.schema_changes": ("SchemaChange",),
    "aiorepl.transactions.transaction": ("Slice", "Transaction"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - by theme
    "connect",
    "ReplicationStream",
    "ReplicationTransaction",
    "Pipeline",
    "PipelineStatistics",
    "Source",
    "BatchPolicy",
    "RetryPolicy",
    "Delivery",
    "DeadLetters",
    "Selection",
    "Routing",
    "Sink",
    "SyncSink",
    "SinkContext",
    "Batch",
    "Rejection",
    "Slice",
    "Transaction",
    "Change",
    "RowChange",
    "Insert",
    "Update",
    "Delete",
    "Truncate",
    "Message",
    "SchemaChange",
    "Relation",
    "Prepare",
    "StreamPrepare",
    "CommitPrepared",
    "RollbackPrepared",
    "UNCHANGED",
    "LSN",
    "Position",
    "AioreplError",
    "ConfigurationError",
    "ConnectionFailed",
    "ConnectionLost",
    "DataError",
    "JournalError",
    "PermanentError",
    "ProtocolError",
    "ServerError",
    "SinkError",
    "SlotError",
    "TransientError",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes longer to import than all that stands here

        return version("aiorepl")
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'aiorepl' has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
