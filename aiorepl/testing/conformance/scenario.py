"""What the kit commits: tables, and transactions on them, told to a stream.

Every text that could be a secret has ``SECRET`` in it, so that it is found wherever it leaks to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from aiorepl.delivery.batching import Batcher
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing import messages as build
from aiorepl.testing import stream
from aiorepl.testing.conformance.samples import SAMPLES, Sample
from aiorepl.testing.messages import Binary, Value
from aiorepl.transactions.slices import Slice

SECRET: Final = "s3cr3t"
LARGE: Final = f"{SECRET} large " + "x" * 3000


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the kit.

    :param columns: names, and the names and oids of their types.
    :param key: the columns of the replica identity; none where it is FULL or NOTHING.
    :param replica_identity: as in pg_class: ``d``, ``f`` or ``n``.
    """

    schema: str
    name: str
    columns: tuple[tuple[str, str, int], ...]
    key: tuple[str, ...] = ()
    replica_identity: str = "d"

    @property
    def ddl(self) -> str:
        """CREATE SCHEMA and CREATE TABLE, if they are not there, in PostgreSQL's words."""
        columns = [f"{_quoted(name)} {type_name}" for name, type_name, _ in self.columns]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, self.key))})")
        schema = _quoted(self.schema)
        return (
            f"CREATE SCHEMA IF NOT EXISTS {schema};\n"
            f"CREATE TABLE IF NOT EXISTS {schema}.{_quoted(self.name)} ({', '.join(columns)})"
        )

    def __str__(self) -> str:
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"


_INT, _TEXT = ("int4", 23), ("text", 25)

ITEMS: Final = Table("public", "items", (("id", *_INT), ("note", *_TEXT), ("large", *_TEXT)), ("id",))
PAIRS: Final = Table("public", "pairs", (("a", *_INT), ("b", *_TEXT), ("n", *_INT)), ("a", "b"))
FULL: Final = Table("public", "full_rows", (("id", *_INT), ("note", *_TEXT)), (), "f")
KEYLESS: Final = Table("public", "keyless", (("id", *_INT), ("note", *_TEXT)), (), "n")
ODD: Final = Table(
    'Odd "Schema".v1',
    "tä ble.'x' 表",
    (("Id.1", *_INT), ('sélect "x"', *_TEXT), ("new", *_TEXT), ("%s {0} $1", *_TEXT)),
    ("Id.1",),
)
WIDE: Final = Table("public", "wide", tuple((f"c{n}", *(_TEXT if n else _INT)) for n in range(300)), ("c0",))
TYPES: Final = Table(
    "public",
    "types",
    (
        ("id", *_INT),
        *((f"c{number}", sample.type_name, sample.oid) for number, sample in enumerate(SAMPLES)),
    ),
    ("id",),
)
TABLES: Final = (ITEMS, PAIRS, FULL, KEYLESS, ODD, WIDE, TYPES)
"""Every table that the kit writes to; ``ddl`` creates one where the sink does not."""


class Scenario:
    """Transactions that were committed on a source, and how they would be sent.

    :param binary: columns of types other than text are sent in their binary form.
    """

    def __init__(self, *, binary: bool = False) -> None:
        self.stream = stream.Stream(binary=binary, slot="conformance")
        self.binary = binary
        self._tables: dict[Table, stream.Table] = {}
        self._ids = count(1)

    @property
    def context(self) -> SinkContext:
        """What a sink is opened with, at the beginning."""
        return SinkContext("conformance", self.stream.position)

    def table(self, table: Table) -> stream.Table:
        """The table; it is described when it is first asked for."""
        if table not in self._tables:
            columns = [build.column(name, oid, key=name in table.key) for name, _, oid in table.columns]
            self._tables[table] = self.stream.table(
                table.name, *columns, namespace=table.schema, replica_identity=table.replica_identity
            )
        return self._tables[table]

    def items(self, rows: int = 1, note: str = "note") -> list[Slice]:
        """A transaction that inserts so many new rows into ``ITEMS``."""
        return self.commit(*(self.item(f"{note} {number}") for number in range(rows)))

    def item(self, note: str | None = "note") -> bytes:
        """One new row of ``ITEMS``."""
        text = None if note is None else f"{SECRET} {note}"
        return self.table(ITEMS).insert(self.int(next(self._ids)), text, None)

    def int(self, number: int) -> Value:
        """A column of type int4."""
        return Binary(number.to_bytes(4, "big", signed=True)) if self.binary else str(number)

    def sample(self, sample: Sample) -> Value:
        """A column of the sample's type."""
        return Binary.fromhex(sample.binary) if self.binary else sample.text

    def commit(self, *contents: bytes, at_once: bool = False) -> list[Slice]:
        """A transaction of these; ``at_once``: its commit record begins where the stream ends."""
        self.stream.transaction(*contents, at_once=at_once)
        return self.stream.slices()

    def message(self, content: bytes = b"") -> bytes:
        """A transactional message."""
        return build.message(lsn=self.stream.position.lsn, prefix="conformance", content=content)

    def everything(self, kinds: Iterable[str], tables: Sequence[Table]) -> list[Slice]:
        """Transactions with all that can happen to the rows of ``tables``, and what else of ``kinds`` there is."""
        items, pairs = map(self.table, (ITEMS, PAIRS))
        one, two, three = map(self.int, (1_000_001, 1_000_002, 1_000_003))
        kinds = set(kinds)
        note = f"{SECRET} changed"
        told = self.commit(
            items.insert(one, f"{SECRET} first", LARGE),
            items.insert(two, "", None),
            items.insert(three, None, ""),
            items.update(one, note, UNCHANGED),
            items.delete(two, None, None),
        )
        told += self.items(3)
        told += self.commit(
            pairs.insert(one, f"{SECRET} b", one),
            pairs.insert(two, f"{SECRET} b", two),
            pairs.update(one, f"{SECRET} c", three, key=(one, f"{SECRET} b", None)),
            items.update(self.int(1_000_004), note, UNCHANGED, key=(one, None, None)),
        )
        if FULL in tables:
            full = self.table(FULL)
            told += self.commit(
                full.insert(one, note),
                full.insert(one, note),
                full.insert(two, None),
                full.update(one, f"{SECRET} other", old=(one, note)),
                full.delete(two, None, full=True),
            )
        if KEYLESS in tables:
            keyless = self.table(KEYLESS)
            told += self.commit(keyless.insert(one, note), keyless.insert(one, note))
        if "message" in kinds:
            told += self.commit(self.message(b"inside"), self.item(), self.message(b"\x00\xff"))
            self.stream.message("conformance", b"between")
            told += self.stream.slices()
            # Its rows were written before the message, and its commit record begins where the message ends.
            told += self.commit(self.item(), at_once=True)
        if "truncate" in kinds:
            told += self.commit(pairs.truncate(), pairs.insert(one, f"{SECRET} d", one))
        return told + self.items(2)


def batches(slices: Sequence[Slice], limit: int) -> list[Batch]:
    """Slices as the engine batches them where a batch is full at ``limit`` bytes."""
    batcher = Batcher(limit)
    made: list[Batch] = []
    for part in slices:
        batcher.add(part)
        if batcher.full and (batch := batcher.take()) is not None:
            made.append(batch)
    while (batch := batcher.take()) is not None:
        made.append(batch)
    if batcher.has_partial:
        made.append(batcher.take_partial())
    return made


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
