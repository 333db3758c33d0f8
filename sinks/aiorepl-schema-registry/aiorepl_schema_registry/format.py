"""What both formats do: ask the registry for the id of each schema before the first event that needs it, and write the wire format."""

from __future__ import annotations

import copy
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Literal, Self

from aiorepl.errors import ConfigurationError, TransientError
from aiorepl.formats.format import Format, by_table, only_table
from aiorepl.pgoutput.relations import Relation
from aiorepl.position import Position
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.values.registry import Types
from aiorepl.values.types import NAME_ONLY, TypeInfo
from aiorepl_schema_registry.envelope import Envelopes
from aiorepl_schema_registry.registry import Registry, Visit
from aiorepl_schema_registry.shapes import Choices, Shape
from aiorepl_schema_registry.tables import Table, Writer
from aiorepl_sinks.formats.changed_keys import by_key

Encoder = Callable[[Mapping[str, Any]], bytes]
"""Returns the data of an event or a key, from its fields."""

Subject = Literal["topic", "record", "topic_record"]
"""The subject of a schema: the topic with ``-value`` or ``-key``, the record's name, or both joined by ``-``."""

_NAMESPACE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class RegistryFormat(Format):
    """The base of both formats. ``to`` returns the format for a topic, because a subject may depend on it."""

    content_type = "application/octet-stream"
    is_text = False
    kind: ClassVar[str]
    """The type of schema, as the registry names it."""
    index: ClassVar[bytes]
    """The bytes between the schema's id and the data."""

    @classmethod
    def defaults(cls, position: Position) -> dict[str, Any]:
        return {"name": position.slot, "database": position.database or ""}

    def __init__(
        self, registry: Registry, choices: Choices, envelopes: Envelopes, *, subject: Subject
    ) -> None:
        super().__init__()
        if _NAMESPACE.fullmatch(choices.namespace) is None:
            raise ConfigurationError(
                f"format {self.kind.lower()}: namespace must be names of ASCII letters, digits and underscores, joined by dots"
            )
        self._registry = registry
        self._choices = choices
        self._envelopes = envelopes
        self._subject = subject
        self._topic: str | None = None
        self._topics: dict[str, Self] = {}
        self._tables: dict[int, Table] = {}
        # One entry for each version of a table, so that a batch may have rows of several.
        self._writers: dict[Shape, Writer] = {}
        self._truncates: dict[str, Writer] = {}

    @abstractmethod
    async def schema(self, visit: Visit, subject: str, shape: Shape) -> tuple[int, Encoder]:
        """Return the id of the schema of a shape, and the encoder. Register the schema if it is missing."""

    @abstractmethod
    def encoder(self, shape: Shape) -> Encoder:
        """Return an encoder of events without rows."""

    @abstractmethod
    def describes(self, text: str, full_name: str) -> bool:
        """Whether the text of a schema is that of the record ``full_name``."""

    def split(self, change: Change) -> tuple[Change, ...]:
        """Split a truncate by table, and an update of the key into a delete and an insert.

        Changes of schemas have no event: their rows name another schema of the registry. Changes of publications have none either.
        """
        if isinstance(change, (SchemaChange, PublicationChange, Resync)):
            return ()
        return by_table(change) if isinstance(change, Truncate) else by_key(change)

    def to(self, destination: str) -> Self:
        """Return the format for a topic. Memory grows with the number of topics, unless the subject is the record."""
        if self._subject == "record":
            return self
        found = self._topics.get(destination)
        if found is None:
            found = self._topics[destination] = copy.copy(self)
            found._topic = destination
            found._tables, found._writers, found._truncates = {}, {}, {}
        return found

    async def prepare(self, change: Change) -> None:
        """Ask the registry for the schemas of a change, and register those that are missing."""
        if isinstance(change, Truncate):
            shape = _described(only_table(change), self._choices)
            if shape.full_name not in self._truncates:
                async with self._registry.visit() as visit:
                    self._truncates[shape.full_name] = await self._any_version(visit, shape)
            return
        if isinstance(change, RowChange):
            table = self._table(change.layout)
            if table.write_row is None or (table.write_key is None and table.identity is not None):
                await self._register(table.row, table.identity)
                self._give_writers(table)
        else:
            await self._register(self._choices.message())

    async def _register(self, *shapes: Shape | None) -> None:
        missing = [shape for shape in shapes if shape is not None and shape not in self._writers]
        if missing:
            async with self._registry.visit() as visit:
                for shape in missing:
                    self._writers[shape] = await self._registered(visit, shape)

    def event(self, change: Change) -> bytes:
        """Return the event in the wire format.

        :raises DataError: a value has no form in the schema; the message names the column.
        """
        if isinstance(change, RowChange):
            table = self._table(change.layout)
            write = _prepared(table.write_row)
            return write({**table.rows(change), **self._envelopes.of(change, change.schema, change.table)})
        if isinstance(change, Truncate):
            relation = only_table(change)
            write = _prepared(self._truncates.get(_described(relation, self._choices).full_name))
            none: dict[str, Any] = {"before": None, "after": None, "unchanged": []}
            return write({**none, **self._envelopes.of(change, relation.schema, relation.name)})
        if isinstance(change, Message):
            return _prepared(self._writers.get(self._choices.message()))(self._envelopes.message(change))
        raise TypeError(f"{self.kind} has no event for {type(change).__name__}")

    def key(self, change: Change) -> bytes | None:
        """Return the key of a row's event in the wire format; ``None`` if no column identifies the row."""
        if not isinstance(change, RowChange):
            return None
        table = self._table(change.layout)
        return None if table.identity is None else _prepared(table.write_key)(table.key(change))

    def _table(self, layout: Layout) -> Table:
        table = self._tables.get(layout.relation.oid)
        if table is None or table.layout is not layout:
            table = self._tables[layout.relation.oid] = Table(layout, self._choices)
            self._give_writers(table)
        return table

    def _give_writers(self, table: Table) -> None:
        """Set the writers of a table, so that a row need not look them up by all of its columns."""
        table.write_row = self._writers.get(table.row)
        table.write_key = None if table.identity is None else self._writers.get(table.identity)

    async def _registered(self, visit: Visit, shape: Shape) -> Writer:
        return self._writer_of(*await self.schema(visit, self._subject_of(shape), shape))

    async def _any_version(self, visit: Visit, shape: Shape) -> Writer:
        """Return the writer of truncates: without rows, the bytes are the same under every version of the table."""
        latest = await visit.latest(self._subject_of(shape))
        if latest is None or not self.describes(latest[1], shape.full_name):
            return await self._registered(visit, shape)
        return self._writer_of(latest[0], self.encoder(Shape(shape.package, shape.record)))

    def _writer_of(self, identifier: int, encode: Encoder) -> Writer:
        head = b"\0" + identifier.to_bytes(4, "big") + self.index
        return lambda fields: head + encode(fields)

    def _subject_of(self, shape: Shape) -> str:
        if self._subject == "record":
            return shape.full_name
        if self._topic is None:
            raise TypeError("a subject with the topic needs the topic: call to(topic) first")
        if self._subject == "topic_record":
            return f"{self._topic}-{shape.full_name}"
        return f"{self._topic}-{'key' if shape.record == 'Key' else 'value'}"


def _prepared(writer: Writer | None) -> Writer:
    if writer is None:
        # A type became known between ``prepare`` and here; the retry prepares the change again.
        raise TransientError("schema registry: the change was not prepared")
    return writer


def _described(relation: Relation, choices: Choices) -> Shape:
    """Return the shape of a truncated table, of whose types only the names may be known."""
    sent = (TypeInfo(each.oid, each.namespace, each.name, NAME_ONLY) for each in relation.types)
    return choices.row(relation, Types(sent))
