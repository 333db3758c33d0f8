"""The identity of a stream over pg_upgrade, from one cluster to the next. Pure.

pg_upgrade makes a new cluster: another system identifier, timeline 1, and WAL that begins after the old cluster's. From PostgreSQL 17
on, the new cluster has a new slot of the same name. pg_upgrade refuses to run while a slot has unread changes.

An ``Upgrade`` is the proof that the new slot continues the stream of the old slot. Positions then name the new cluster as if the old
cluster had been promoted: the same system identifier, and a later timeline that begins at the end of the old cluster's WAL. So
positions, journals and checkpoints stay as they are, and the rules for promotions apply (``source.continuity``).

Source: ``create_logical_replication_slots`` and ``copy_xact_xlog_xid`` in pg_upgrade.c; ``check_old_cluster_for_valid_slots`` in check.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines
from aiorepl.storage.checked_json import integer, lsn, seal, text, unseal

Tables = Mapping[str, Any]
"""The published tables by oid: name, file and columns."""

_REMEDY: Final = "Put a copy of the file back; without the file, the new cluster is another source, and positions of the old cluster are refused"


@dataclass(frozen=True, slots=True)
class OldCluster:
    """The old cluster, recorded by ``prepare`` after the pipeline had stopped.

    :param system_identifier: the cluster's own system identifier.
    :param presented: the system identifier in positions: that of the stream's first cluster.
    :param timelines: the timelines in positions, counted on over earlier upgrades.
    :param confirmed: the slot's confirmed LSN.
    :param end: the end of the cluster's WAL.
    """

    system_identifier: str
    presented: str
    version: int
    slot: str
    two_phase: bool
    database: str
    timelines: Timelines
    confirmed: LSN
    end: LSN
    tables: Tables


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The new cluster, recorded by ``adopt`` after the proof.

    :param begins: the confirmed LSN of the new slot.
    """

    system_identifier: str
    begins: LSN


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One run of pg_upgrade.

    :param new: ``None`` until ``adopt`` has proven that the new cluster continues the stream.
    """

    old: OldCluster
    new: NewCluster | None = None

    def adopted_by(self, system_identifier: str, begins: LSN) -> Upgrade:
        """Return this upgrade with the proven new cluster.

        :param begins: the confirmed LSN of the new slot.
        """
        return replace(self, new=NewCluster(system_identifier, begins))

    def joins(self, position: Position, slot: Position) -> bool:
        """Whether no transaction lies between ``position`` and ``slot``.

        The old slot had not been confirmed beyond ``position``, and pg_upgrade found no change to decode after the confirmed LSN. The new
        slot has not moved since the proof.

        :param position: a position of the old cluster.
        :param slot: the present position of the new slot.
        """
        return (
            self.new is not None
            and position.timeline <= self.old.timelines.current
            and self.old.confirmed <= position.lsn <= self.old.end
            and slot.lsn == self.new.begins
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The system identifier and the timelines of a cluster in positions.

    :param upgrade: the upgrade that made this cluster; ``None`` without an upgrade.
    """

    system_identifier: str
    timelines: Timelines
    upgrade: Upgrade | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The upgrades of a stream, the oldest first."""

    upgrades: tuple[Upgrade, ...] = ()

    @property
    def unproven(self) -> Upgrade | None:
        """The last upgrade, if ``adopt`` has not yet proven its new cluster."""
        return self.upgrades[-1] if self.upgrades and self.upgrades[-1].new is None else None

    @property
    def proven(self) -> tuple[Upgrade, ...]:
        """The upgrades with a proven new cluster."""
        return tuple(upgrade for upgrade in self.upgrades if upgrade.new is not None)

    def identify(self, system_identifier: str, timelines: Timelines) -> Identity:
        """Return the identity of a cluster in positions.

        :param system_identifier: the cluster's own identifier.
        :param timelines: the cluster's own timelines.
        """
        for upgrade in self.proven:
            assert upgrade.new is not None
            if upgrade.new.system_identifier == system_identifier:
                return Identity(upgrade.old.presented, _after(upgrade.old, timelines), upgrade)
        return Identity(system_identifier, timelines)

    def dump(self) -> bytes:
        """Make the bytes of the file."""
        return seal({"upgrades": [_dump(upgrade) for upgrade in self.upgrades]})

    @classmethod
    def load(cls, data: bytes, location: str) -> Lineage:
        """Parse the output of ``dump``.

        :raises JournalError: the file is damaged.
        """
        return unseal(data, location, _lineage, remedy=_REMEDY, advice=_REMEDY)


def read_lineage(file: Path | None) -> Lineage:
    """Read the file of a source's upgrades. A missing file means no upgrade. Blocks.

    :raises JournalError: the file is damaged.
    :raises OSError: the file cannot be read.
    """
    if file is None:
        return Lineage()
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return Lineage()
    return Lineage.load(data, str(file))


def _after(old: OldCluster, own: Timelines) -> Timelines:
    """Return the timelines of the old cluster and then those of the new cluster. The numbers of the new ones continue the old numbers."""
    last = old.timelines.current
    before = old.timelines.history(last)
    ours = own.history(own.current)
    renumbered = [(last + timeline, left) for timeline, left in ours or ()]
    return Timelines(
        last + own.current,
        [*(before or ()), (last, old.end), *renumbered],
        known=before is not None and ours is not None,
    )


def _dump(upgrade: Upgrade) -> dict[str, Any]:
    old, new = upgrade.old, upgrade.new
    history = old.timelines.history(old.timelines.current)
    return {
        "old": {
            "system_identifier": old.system_identifier,
            "presented": old.presented,
            "version": old.version,
            "slot": old.slot,
            "two_phase": old.two_phase,
            "database": old.database,
            "timeline": old.timelines.current,
            "history": None if history is None else [[timeline, str(left)] for timeline, left in history],
            "confirmed": str(old.confirmed),
            "end": str(old.end),
            "tables": old.tables,
        },
        "new": None
        if new is None
        else {"system_identifier": new.system_identifier, "begins": str(new.begins)},
    }


def _lineage(fields: Mapping[str, Any]) -> Lineage:
    return Lineage(tuple(_upgrade(each["old"], each["new"]) for each in fields["upgrades"]))


def _upgrade(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> Upgrade:
    history = old["history"]
    ancestors = [(int(timeline), LSN.parse(left)) for timeline, left in history or ()]
    return Upgrade(
        OldCluster(
            text(old, "system_identifier"),
            text(old, "presented"),
            integer(old, "version"),
            text(old, "slot"),
            bool(old["two_phase"]),
            text(old, "database"),
            Timelines(integer(old, "timeline"), ancestors, known=history is not None),
            lsn(old, "confirmed"),
            lsn(old, "end"),
            dict(old["tables"]),
        ),
        None if new is None else NewCluster(text(new, "system_identifier"), lsn(new, "begins")),
    )
