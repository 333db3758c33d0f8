"""PostgreSQL logical replication for Python: consume a database's changes with asyncio or on Spark.

``connect`` opens a slot for one consumer, ``Pipeline`` delivers a slot to sinks, and ``aiorepl.spark`` reads the journal
of a pipeline. Every name, and the packages ``formats``, ``monitoring``, ``spark`` and ``testing``, are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorepl.lazy import importer

if TYPE_CHECKING:
    from aiorepl import formats as formats
    from aiorepl import monitoring as monitoring
    from aiorepl import spark as spark
    from aiorepl import testing as testing
    from aiorepl.delivery.batching import BatchPolicy
    from aiorepl.delivery.config import Delivery, SinkSpec
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
        SchemaChanged,
        ServerError,
        SinkError,
        SlotError,
        SlotLost,
        TransientError,
    )
    from aiorepl.formats.format import event_id
    from aiorepl.formats.routing import Routing
    from aiorepl.invalidations import Invalidated, Invalidations
    from aiorepl.lsn import LSN
    from aiorepl.pgoutput.messages import CommitPrepared, Prepare, RollbackPrepared, StreamPrepare
    from aiorepl.pgoutput.relations import Relation
    from aiorepl.pgoutput.tuples import UNCHANGED, Unchanged
    from aiorepl.pipeline.pipeline import Pipeline
    from aiorepl.pipeline.running_sinks import SinkChanges
    from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics
    from aiorepl.position import Position
    from aiorepl.retry import RetryPolicy
    from aiorepl.router import Router
    from aiorepl.sink import Batch, Rejection, RoutingKey, Sink, SinkContext, SyncSink
    from aiorepl.snapshot.options import SnapshotOptions
    from aiorepl.source.followed import JournalStream, follow
    from aiorepl.source.source import Source
    from aiorepl.source.stream import ReplicationStream, connect
    from aiorepl.source.transaction_stream import ReplicationTransaction
    from aiorepl.storage.objects.location import ObjectStore
    from aiorepl.transactions.changes import (
        Change,
        Delete,
        Insert,
        Message,
        Read,
        RowChange,
        Truncate,
        Update,
    )
    from aiorepl.transactions.lazy_changes import TableRows
    from aiorepl.transactions.publication_changes import PublicationChange
    from aiorepl.transactions.resync import Resync
    from aiorepl.transactions.rows import Row
    from aiorepl.transactions.schema_changes import SchemaChange
    from aiorepl.transactions.slices import Slice
    from aiorepl.transactions.transaction import SnapshotChunk, Transaction
    from aiorepl.transforms.encryption import decryptor
    from aiorepl.transforms.selection import Selection

    __version__: str

_NAMES = {
    "aiorepl.delivery.batching": ("BatchPolicy",),
    "aiorepl.delivery.dead_letters": ("DeadLetters",),
    "aiorepl.delivery.config": ("Delivery", "SinkSpec"),
    "aiorepl.pipeline.statistics": ("PipelineState", "PipelineStatistics"),
    "aiorepl.pipeline.pipeline": ("Pipeline",),
    "aiorepl.pipeline.running_sinks": ("SinkChanges",),
    "aiorepl.retry": ("RetryPolicy",),
    "aiorepl.router": ("Router",),
    "aiorepl.transforms.encryption": ("decryptor",),
    "aiorepl.transforms.selection": ("Selection",),
    "aiorepl.snapshot.options": ("SnapshotOptions",),
    "aiorepl.source.source": ("Source",),
    "aiorepl.source.followed": ("JournalStream", "follow"),
    "aiorepl.source.stream": ("ReplicationStream", "connect"),
    "aiorepl.source.transaction_stream": ("ReplicationTransaction",),
    "aiorepl.errors": (
        "AioreplError",
        "ConfigurationError",
        "ConnectionFailed",
        "ConnectionLost",
        "DataError",
        "JournalError",
        "PermanentError",
        "ProtocolError",
        "SchemaChanged",
        "ServerError",
        "SinkError",
        "SlotError",
        "SlotLost",
        "TransientError",
    ),
    "aiorepl.formats.format": ("event_id",),
    "aiorepl.formats.routing": ("Routing",),
    "aiorepl.invalidations": ("Invalidated", "Invalidations"),
    "aiorepl.lsn": ("LSN",),
    "aiorepl.storage.objects.location": ("ObjectStore",),
    "aiorepl.pgoutput.messages": ("CommitPrepared", "Prepare", "RollbackPrepared", "StreamPrepare"),
    "aiorepl.pgoutput.relations": ("Relation",),
    "aiorepl.pgoutput.tuples": ("UNCHANGED", "Unchanged"),
    "aiorepl.position": ("Position",),
    "aiorepl.sink": ("Batch", "Rejection", "RoutingKey", "Sink", "SinkContext", "SyncSink"),
    "aiorepl.transactions.changes": (
        "Change",
        "Delete",
        "Insert",
        "Message",
        "Read",
        "RowChange",
        "Truncate",
        "Update",
    ),
    "aiorepl.transactions.lazy_changes": ("TableRows",),
    "aiorepl.transactions.publication_changes": ("PublicationChange",),
    "aiorepl.transactions.resync": ("Resync",),
    "aiorepl.transactions.rows": ("Row",),
    "aiorepl.transactions.schema_changes": ("SchemaChange",),
    "aiorepl.transactions.slices": ("Slice",),
    "aiorepl.transactions.transaction": ("SnapshotChunk", "Transaction"),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES = ("formats", "monitoring", "spark", "testing")

__all__ = [  # noqa: RUF022 - by theme
    "connect",
    "decryptor",
    "ReplicationStream",
    "ReplicationTransaction",
    "follow",
    "JournalStream",
    "Pipeline",
    "SnapshotOptions",
    "ObjectStore",
    "PipelineState",
    "PipelineStatistics",
    "SinkChanges",
    "Source",
    "BatchPolicy",
    "RetryPolicy",
    "Delivery",
    "DeadLetters",
    "Selection",
    "Router",
    "Invalidations",
    "Invalidated",
    "Routing",
    "RoutingKey",
    "Sink",
    "SyncSink",
    "SinkSpec",
    "SinkContext",
    "Batch",
    "Rejection",
    "Slice",
    "Transaction",
    "SnapshotChunk",
    "TableRows",
    "Change",
    "RowChange",
    "Row",
    "Insert",
    "Read",
    "Update",
    "Delete",
    "Truncate",
    "Message",
    "SchemaChange",
    "PublicationChange",
    "Resync",
    "SchemaChanged",
    "event_id",
    "Relation",
    "Prepare",
    "StreamPrepare",
    "CommitPrepared",
    "RollbackPrepared",
    "UNCHANGED",
    "Unchanged",
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
    "SlotLost",
    "TransientError",
]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name
    _load = importer(__name__, _MODULE_OF | {name: f"aiorepl.{name}" for name in _PACKAGES})

    def __getattr__(name: str) -> object:
        if name != "__version__":
            return _load(name)
        from importlib.metadata import version  # slower to import than this module

        return version("aiorepl")


def __dir__() -> list[str]:
    return sorted((*__all__, *_PACKAGES))
