"""Checks the options of a pipeline that depend on each other. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pipeline.publication_policy import PublicationPolicy
from aiorepl.pipeline.slot_losses import OnSlotLost
from aiorepl.retry import RetryPolicy
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.source.source import Source
from aiorepl.transforms.selection import Selection

if TYPE_CHECKING:
    from aiorepl.journal.retention import Retention
    from aiorepl.storage.opening import Location
    from aiorepl.storage.store import Store

NO_TABLES: Final = (
    "a pipeline with a temporary slot cannot read tables, because changes to the rows may be missing: let the sink read the tables when it gets a "
    "Resync, or use a permanent slot"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """The options of a ``Pipeline`` that depend on each other, or that its parts use. See the docstring of ``Pipeline``.

    :param policy: ``publication_interval``, ``on_new_table`` and ``on_partition_change``.
    :raises ConfigurationError: the options contradict each other.
    """

    source: Source
    journal: Location | Store | None
    snapshot: bool | SnapshotOptions
    retention: Retention | str | None
    compact: bool
    journal_selection: Selection | None
    resnapshot: bool
    accept_gap: bool
    on_slot_lost: OnSlotLost
    state_dir: str | os.PathLike[str] | None
    policy: PublicationPolicy
    max_resnapshots_per_day: int
    until: LSN | Literal["now"] | None
    reconnect: RetryPolicy | None
    shutdown_timeout: float
    batches: BatchPolicy
    retry: RetryPolicy
    buffer_bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.source, Source):
            raise ConfigurationError(
                f"source must be an aiorepl.Source(dsn, slot=…, publication=…), not {type(self.source).__name__}"
            )
        if self.journal is None:
            self._require_no_journal()
        else:
            self._require_journal()
        if (self.snapshot or self.resnapshot) and self.folder is None:
            raise ConfigurationError(
                "a snapshot needs a journal, or a folder for its plan: set snapshot=SnapshotOptions(state=…), or state in [snapshot] of a "
                "file"
            )
        if self.resnapshot and self.accept_gap:
            raise ConfigurationError(
                "resnapshot and accept_gap exclude each other: a new snapshot has no gap"
            )
        if self.on_slot_lost == "resnapshot" and (
            self.folder is None or self.source.temporary or not self.source.has_catalog
        ):
            raise ConfigurationError(
                "on_slot_lost needs a permanent slot, and a journal or a folder: set state in the options of the snapshot ([snapshot] in a "
                "file), or state_dir"
            )

    @property
    def reading(self) -> SnapshotOptions:
        """The options of the snapshot, or their defaults."""
        return self.snapshot if isinstance(self.snapshot, SnapshotOptions) else SnapshotOptions()

    @property
    def folder(self) -> Location | Store | None:
        """The journal or folder that keeps the pipeline's state across restarts."""
        return self.journal or self.reading.state or self.state_dir

    def require_compatible(self, deliveries: Mapping[str, ResolvedDelivery], *, resyncs: bool) -> None:
        """Check the options against the deliveries of the sinks.

        :param deliveries: the deliveries by sink name.
        :param resyncs: whether a lost connection leaves a gap in the stream.
        :raises ConfigurationError: an option that a delivery needs is missing, there is neither a sink nor a journal, or a temporary slot
            excludes an option.
        """
        if not deliveries and self.journal is None:
            raise ConfigurationError("a pipeline needs at least one sink, or a journal")
        if self.policy.interval is None and any(each.publication_changes for each in deliveries.values()):
            raise ConfigurationError("publication_changes needs publication_interval")
        if resyncs:
            self._require_resync(deliveries)

    def _require_resync(self, deliveries: Mapping[str, ResolvedDelivery]) -> None:
        if self.journal is not None:
            raise ConfigurationError(
                "a journal needs a permanent slot, because a temporary slot loses changes with its connection: use a permanent slot, or leave "
                "out the journal"
            )
        if self.snapshot or self.resnapshot or self.policy.reads:
            raise ConfigurationError(NO_TABLES)
        for name, delivery in deliveries.items():
            if not delivery.sink.takes_resync:
                raise ConfigurationError(
                    f"sink {name} does not take a Resync, and a temporary slot loses changes with its connection: use a permanent slot, or "
                    "let a lost connection end the stream (reconnect=None); in a sink of your own, set takes_resync = True, and load the state "
                    "again after each Resync"
                )

    def _require_no_journal(self) -> None:
        if self.retention is not None:
            raise ConfigurationError("retention needs a journal")
        if self.compact:
            raise ConfigurationError("compact needs a journal")
        if self.journal_selection is not None:
            raise ConfigurationError(
                "journal_selection needs a journal: without a journal, set the selection of each sink"
            )

    def _require_journal(self) -> None:
        if self.reading.state is not None or self.state_dir is not None:
            raise ConfigurationError(
                "the plan of a snapshot is in the journal's folder: leave out state and state_dir"
            )
        if self.compact and find_spec("pyarrow") is None:
            raise ConfigurationError("compact needs pyarrow: pip install 'aiorepl[parquet]'")
        selection = self.journal_selection
        if selection is not None and (selection.tables or selection.kinds):
            raise ConfigurationError(
                "the selection of a journal takes drop, mask and keep, but no tables or kinds, because a journal has whole transactions: change "
                "the publication (ALTER PUBLICATION … SET TABLE …, or SET (publish = '…') for kinds), or set tables and kinds in the selections "
                "of the sinks"
            )
