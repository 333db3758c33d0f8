"""The state of a mirror of many tables: its query, its position, and the tables that are set aside.

``_aiorepl/mirror.json`` in the target is replaced once a batch has reached all tables. So two mirrors cannot write to one target,
and readers know which batches are complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiorepl.durable import reason
from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.journal.segments import BlockPosition
from aiorepl.journal.times import Times
from aiorepl.lsn import LSN, ZERO
from aiorepl.position import Position
from aiorepl.spark.mirroring.complete import Complete, CompleteFile
from aiorepl.storage.checked_json import integer, lsn, seal, text, unseal
from aiorepl.storage.document import Document
from aiorepl.storage.store import Store, Superseded
from aiorepl.table_name import TableName
from aiorepl.transforms.memory import SelectionMemory
from aiorepl.transforms.selection import Selection

FOLDER: Final = "_aiorepl"
FILE: Final = "mirror.json"
_LAYOUT: Final = 1
_UINT32: Final = 2**32 - 1
_NOWHERE: Final = BlockPosition(ZERO)
_REMEDY: Final = (
    "Put back a copy of the file; if there is none, start over with an empty target and a new checkpoint"
)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A table that could not be written.

    :param position: the end of the last batch that the table has.
    :param part: with ``block``, the place within a transaction where that batch ended.
    :param problem: why the table could not be written.
    """

    position: Position
    part: int
    block: int
    problem: str

    @property
    def place(self) -> BlockPosition:
        """The position in the journal."""
        return BlockPosition(self.position.lsn, self.part, self.block)


class Written(NamedTuple):
    """The last batch that was written to a table.

    :param oid: the table's oid; 0 for a table that begins again.
    :param batch: the number of the batch.
    :param key: the marks of the key's columns, as ``key_marks`` returns them; empty without a selection.
    :param types: by column, the type of the mirror's option ``types``.
    """

    oid: int
    batch: int
    key: Mapping[str, str] = MappingProxyType({})
    types: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SavedState:
    """The contents of ``mirror.json``.

    :param source: the slot and cluster of the journal.
    :param query: the id of the streaming query, from its checkpoint.
    :param checkpoint: the checkpoint's location, for errors.
    :param batch: the number of the last batch that reached all tables; -1 if none has.
    :param lsn: all tables, except those set aside, have every transaction that ended up to this LSN.
    :param end: where the last batch ended.
    :param planned: the end of the last batch whose application has begun. Some tables may have changes of this batch, so it is
        repeated with this end.
    :param patterns: the patterns of tables with which the batch was planned.
    :param tables: the tables that were written.
    :param selection: the memory of the mirror's selection, as ``SelectionMemory.to_json`` returns it.
    :param complete: how far the tables are complete.
    """

    source: Position
    query: str
    checkpoint: str
    batch: int = -1
    lsn: LSN = ZERO
    end: BlockPosition = _NOWHERE
    planned: BlockPosition = _NOWHERE
    patterns: tuple[str, ...] = ()
    tables: Mapping[TableName, Written] = field(default_factory=dict)
    aside: Mapping[TableName, SetAside] = field(default_factory=dict)
    selection: tuple[Any, ...] = ()
    complete: Complete = field(default_factory=Complete)

    @property
    def application(self) -> str:
        """The application of the mirror's commits."""
        return f"aiorepl-{self.query}"

    @property
    def known(self) -> set[TableName]:
        """All tables of the mirror, including those that are set aside."""
        return {*self.tables, *self.aside}

    def beginning_again(self, table: TableName) -> SavedState:
        """Return the state after a restart of ``table`` with an empty target."""
        complete = self.complete.restarted(table, self.lsn)
        return replace(self, tables={**self.tables, table: Written(0, 0)}, complete=complete)


class StateFile:
    """Reads and replaces the state of one target.

    :param store: the target.
    """

    def __init__(self, store: Store) -> None:
        self._document = Document(store.within(FOLDER), FILE, _dump, _load)
        self._complete = CompleteFile(store.within(FOLDER))

    @property
    def location(self) -> str:
        """The file's location, for errors."""
        return self._document.location

    def load(self) -> SavedState | None:
        """Read the state; ``None`` if the target is new.

        :raises JournalError: the file is damaged, or cannot be read.
        """
        return self._document.load()

    def complete(self, state: SavedState) -> Complete:
        """Return how far the tables are complete, which may be beyond the last batch.

        :raises JournalError: a file is damaged, or cannot be read.
        """
        times = self._complete.times(state.query, state.lsn)
        return state.complete if times is None else replace(state.complete, times=times)

    def publish(self, state: SavedState, times: Times | None = None) -> bool:
        """Write ``complete.json``.

        :param times: the commit times of the journal, which has nothing after the state; ``None``: those of the last batch.
        :returns: whether it was written.
        """
        complete = state.complete if times is None else replace(state.complete, times=times)
        return self._complete.write(state.query, state.lsn, complete, state.known)

    def claim(self, source: Position, query: str, checkpoint: str) -> SavedState:
        """Return the state of this query; create it if the target is new.

        :raises ConfigurationError: another query writes this target.
        :raises SlotError: the target has the tables of another source.
        :raises JournalError: the state is damaged, or cannot be read or written.
        """
        state = self.load()
        if state is None:
            return self.save(SavedState(source, query, checkpoint))
        self.require_own(state, source, query)
        return state

    def require_own(self, state: SavedState, source: Position, query: str) -> None:
        """Check that the target belongs to a query.

        :raises ConfigurationError: another query writes this target.
        :raises SlotError: the target has the tables of another source.
        """
        state.source.require_same_source(source, f"the target with {self.location}")
        if state.query != query:
            raise ConfigurationError(
                f"the target with {self.location} belongs to the mirror with the checkpoint {state.checkpoint}, which is not this "
                "query's, or was deleted: use that checkpoint, or another target. If it is lost, start over with an empty target"
            )

    def save(self, state: SavedState) -> SavedState:
        """Replace the state. It is durable on return.

        :raises JournalError: another process has replaced it, or it cannot be written.
        """
        try:
            self._document.replace(state)
        except Superseded:
            raise JournalError(
                f"another process has changed {self.location}: only one process may run a mirror"
            ) from None
        except OSError as error:
            raise JournalError(f"{self.location} cannot be written: {reason(error)}") from error
        return state


def _dump(state: SavedState) -> bytes:
    return seal(
        {
            "layout": _LAYOUT,
            "source": state.source.to_json(),
            "query": state.query,
            "checkpoint": state.checkpoint,
            "batches": state.batch + 1,
            "lsn": str(state.lsn),
            "end": _dump_place(state.end),
            "planned": _dump_place(state.planned),
            "patterns": state.patterns,
            "tables": [
                [table.schema, table.name, each.oid, each.batch, dict(each.key), dict(each.types)]
                for table, each in state.tables.items()
            ],
            "aside": [
                [table.schema, table.name, each.position.to_json(), each.part, each.block, each.problem]
                for table, each in state.aside.items()
            ],
            "selection": state.selection,
            "complete": state.complete.to_json(),
        }
    )


def _load(data: bytes, location: str) -> SavedState:
    return unseal(data, location, _state, remedy=_REMEDY)


def _state(fields: Mapping[str, Any]) -> SavedState:
    if (found := integer(fields, "layout")) != _LAYOUT:
        raise ValueError(f"its layout is {found}, and this version knows {_LAYOUT}: use a newer version")
    return SavedState(
        Position.from_json(fields["source"]),
        text(fields, "query"),
        text(fields, "checkpoint"),
        integer(fields, "batches") - 1,
        lsn(fields, "lsn"),
        _place(fields["end"]),
        _place(fields["planned"]),
        tuple(text({"pattern": each}, "pattern") for each in fields["patterns"]),
        {
            _table(schema, name): Written(
                _number(oid), integer({"batch": batch}, "batch"), _texts(key), _texts(types)
            )
            for schema, name, oid, batch, key, types in fields["tables"]
        },
        {
            _table(schema, name): SetAside(
                Position.from_json(position),
                _number(part),
                _number(block),
                text({"problem": problem}, "problem"),
            )
            for schema, name, position, part, block, problem in fields["aside"]
        },
        _selection(fields["selection"]),
        Complete.from_json(fields["complete"]),
    )


def _selection(tables: Any) -> tuple[Any, ...]:
    # Loaded here, so that a malformed memory is reported as a damaged state.
    SelectionMemory(Selection().rules).load(tables)
    return tuple(tables)


def _texts(found: Any) -> dict[str, str]:
    return {column: text(found, column) for column in found}


def _dump_place(place: BlockPosition) -> list[Any]:
    return [str(place.lsn), place.part, place.block]


def _place(found: Any) -> BlockPosition:
    at, part, block = found
    return BlockPosition(lsn({"lsn": at}, "lsn"), _number(part), _number(block))


def _table(schema: str, name: str) -> TableName:
    return TableName(text({"schema": schema}, "schema"), text({"name": name}, "name"))


def _number(value: Any) -> int:
    return integer({"a number": value}, "a number", _UINT32)
