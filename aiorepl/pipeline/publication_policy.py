"""What a pipeline does about changes of its publications, and how many there were. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Self

from aiorepl.durations import Duration, seconds_of
from aiorepl.errors import ConfigurationError
from aiorepl.transactions.publication_changes import Difference

OnNewTable = Literal["snapshot", "warn", "ignore"]
OnPartitionChange = Literal["resnapshot", "warn"]
DEFAULT: Final = "warn"

LEFT: Final = ("partition_detached", "partition_dropped", "partition_truncated")
"""The differences after which sinks have rows that a partitioned table no longer has."""


@dataclass(frozen=True, slots=True)
class PublicationPolicy:
    """What a pipeline does about changes of its publications.

    :param interval: seconds between two looks at the catalog; ``None``: no looks.
    """

    interval: float | None
    on_new_table: OnNewTable
    on_partition_change: OnPartitionChange

    def __post_init__(self) -> None:
        for name in ("on_new_table", "on_partition_change"):
            if self.interval is None and getattr(self, name) != DEFAULT:
                raise ConfigurationError(f"{name} needs publication_interval: without it nothing is noticed")

    @classmethod
    def of(
        cls, interval: Duration | None, on_new_table: OnNewTable, on_partition_change: OnPartitionChange
    ) -> Self:
        """Return the policy for the options of a ``Pipeline``.

        :raises ConfigurationError: an option is invalid, or needs ``interval``.
        """
        seconds = None if interval is None else seconds_of("publication_interval", interval)
        return cls(seconds, on_new_table, on_partition_change)

    @property
    def reads(self) -> bool:
        """Whether tables may be read."""
        return self.on_new_table == "snapshot" or self.on_partition_change != "warn"

    def acts(self, found: Difference) -> bool:
        """Whether tables are read because of a difference."""
        if found.what == "table_added":
            return self.on_new_table == "snapshot"
        if self.on_partition_change == "warn":
            return False
        return found.what == "partition_attached" or (found.what in LEFT and found.root_oid != 0)


@dataclass(slots=True)
class PublicationStatistics:
    """The watch on the publications so far.

    :param changes: the number of changes by kind, such as ``partition_attached``.
    :param looks: how often the catalog was read.
    :param failed: how often it could not be read, or the result could not be stored.
    :param error: the last error; ``None`` if the last look has succeeded.
    """

    changes: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    failed: int = 0
    error: str | None = None
