"""The kit's tables, and transactions on them.

Every text value contains ``SECRET``, so that the kit finds it wherever it leaks.
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
class SampleTable:
    """A table of the kit.

    :param columns: name, type name and type oid of each.
    :param key: the columns of the replica identity; empty under FULL or NOTHING.
    :param replica_identity: as in pg_class: ``d``, ``f`` or ``n``.
    """

    schema: str
    name: str
    columns: tuple[tuple[str, str, int], ...]
    key: tuple[str, ...] = ()
    replica_identity: str = "d"

    @property
    def ddl(self) -> str:
        """CREATE SCHEMA and CREATE TABLE IF NOT EXISTS, in PostgreSQL's syntax."""
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

ITEMS: Final = SampleTable("public", "items", (("id", *_INT), ("note", *_TEXT), ("large", *_TEXT)), ("id",))
PAIRS: Final = SampleTable("public", "pairs", (("a", *_INT), ("b", *_TEXT), ("n", *_INT)), ("a", "b"))
FULL: Final = SampleTable("public", "full_rows", (("id", *_INT), ("note", *_TEXT)), (), "f")
KEYLESS: Final = SampleTable("public", "keyless", (("id", *_INT), ("note", *_TEXT)), (), "n")
ODD: Final = SampleTable(
    'Odd "Schema".v1',
    "tä ble.'x' 表",
    (("Id.1", *_INT), ('sélect "x"', *_TEXT), ("new", *_TEXT), ("%s {0} $1", *_TEXT)),
    ("Id.1",),
)
WIDE: Final = SampleTable(
    "public", "wide", tuple((f"c{n}", *(_TEXT if n else _INT)) for n in range(300)), ("c0",)
)
TYPES: Final = SampleTable(
    "public",
    "types",
    (
        ("id", *_INT),
        *((f"c{number}", sample.type_name, sample.oid) for number, sample in enumerate(SAMPLES)),
    ),
    ("id",),
)
TABLES: Final = (ITEMS, PAIRS, FULL, KEYLESS, ODD, WIDE, TYPES)
"""Every table of the kit; ``ddl`` creates one if the sink does not."""


class Scenario:
    """Transactions that were committed on a source.

    :param binary: send columns in binary format, except for text.
    """

    def __init__(self, *, binary: bool = False) -> None:
        self.stream = stream.Stream(binary=binary, slot="conformance")
        self.binary = binary
        self._tables: dict[SampleTable, stream.StreamTable] = {}
        self._ids = count(1)

    @property
    def context(self) -> SinkContext:
        """The context to open a sink with, at the beginning of the stream."""
        return SinkContext("conformance", self.stream.position)

    def table(self, table: SampleTable) -> stream.StreamTable:
        """Return a table of the stream; the first call describes it."""
        if table not in self._tables:
            columns = [build.column(name, oid, key=name in table.key) for name, _, oid in table.columns]
            self._tables[table] = self.stream.table(
                table.name, *columns, namespace=table.schema, replica_identity=table.replica_identity
            )
        return self._tables[table]

    def items(self, rows: int = 1, note: str = "note") -> list[Slice]:
        """Commit a transaction that inserts new rows into ``ITEMS``."""
        return self.commit(*(self.item(f"{note} {number}") for number in range(rows)))

    def item(self, note: str | None = "note") -> bytes:
        """Return an Insert of a new row into ``ITEMS``."""
        text = None if note is None else f"{SECRET} {note}"
        return self.table(ITEMS).insert(self.int(next(self._ids)), text, None)

    def int(self, number: int) -> Value:
        """Return a value of type int4."""
        return Binary(number.to_bytes(4, "big", signed=True)) if self.binary else str(number)

    def sample(self, sample: Sample) -> Value:
        """Return the value of a sample."""
        return Binary.fromhex(sample.binary) if self.binary else sample.text

    def commit(self, *contents: bytes, at_once: bool = False) -> list[Slice]:
        """Commit a transaction with these messages; ``at_once`` as in ``Stream.transaction``."""
        self.stream.transaction(*contents, at_once=at_once)
        return self.stream.slices()

    def message(self, content: bytes = b"") -> bytes:
        """Return a transactional logical decoding message."""
        return build.message(lsn=self.stream.position.lsn, prefix="conformance", content=content)

    def everything(self, kinds: Iterable[str], tables: Sequence[SampleTable]) -> list[Slice]:
        """Commit transactions with every kind of row change to ``tables``, and the other ``kinds`` of change."""
        items, pairs = map(self.table, (ITEMS, PAIRS))
        one, two, three = map(self.int, (1_000_001, 1_000_002, 1_000_003))
        kinds = set(kinds)
        note = f"{SECRET} changed"
        slices = self.commit(
            items.insert(one, f"{SECRET} first", LARGE),
            items.insert(two, "", None),
            items.insert(three, None, ""),
            items.update(one, note, UNCHANGED),
            items.delete(two, None, None),
        )
        slices += self.items(3)
        slices += self.commit(
            pairs.insert(one, f"{SECRET} b", one),
            pairs.insert(two, f"{SECRET} b", two),
            pairs.update(one, f"{SECRET} c", three, key=(one, f"{SECRET} b", None)),
            items.update(self.int(1_000_004), note, UNCHANGED, key=(one, None, None)),
        )
        if FULL in tables:
            full = self.table(FULL)
            slices += self.commit(
                full.insert(one, note),
                full.insert(one, note),
                full.insert(two, None),
                full.update(one, f"{SECRET} other", old=(one, note)),
                full.delete(two, None, full=True),
            )
        if KEYLESS in tables:
            keyless = self.table(KEYLESS)
            slices += self.commit(keyless.insert(one, note), keyless.insert(one, note))
        if "message" in kinds:
            slices += self.commit(self.message(b"inside"), self.item(), self.message(b"\x00\xff"))
            self.stream.message("conformance", b"between")
            slices += self.stream.slices()
            # The transaction's rows precede the message in the WAL, and its commit record begins at the end of
            # the message.
            slices += self.commit(self.item(), at_once=True)
        if "truncate" in kinds:
            slices += self.commit(pairs.truncate(), pairs.insert(one, f"{SECRET} d", one))
        return slices + self.items(2)

    def snapshots(self) -> list[Slice]:
        """Deliver an initial snapshot, changes, and another snapshot of a table that the target then has."""
        items, pairs = map(self.table, (ITEMS, PAIRS))
        keys = [self.int(number) for number in range(2_000_001, 2_000_007)]
        old, new = f"{SECRET} old", f"{SECRET} new"
        self.stream.snapshot(
            items, *(items.insert(key, old, LARGE) for key in keys[:3]), last_of_table=False, last=False
        )
        self.stream.snapshot(items, items.insert(keys[3], None, ""), number=2, last=False)
        self.stream.snapshot(pairs)
        self.stream.transaction(
            items.update(keys[0], new, UNCHANGED),
            items.delete(keys[1], None, None),
            items.insert(keys[4], new, None),
        )
        # The first row was changed, the second was deleted, the third is the same, and the last is new.
        rows = [items.insert(key, f"{SECRET} again", None) for key in (keys[0], keys[1])]
        rows += [items.insert(keys[2], old, LARGE), items.insert(keys[5], "", LARGE)]
        self.stream.snapshot(items, *rows, last_of_table=False, last=False)
        self.stream.snapshot(items, number=2)
        self.stream.transaction(items.update(keys[5], new, UNCHANGED), items.delete(keys[2], None, None))
        return self.stream.slices()


def batches(slices: Sequence[Slice], limit: int) -> list[Batch]:
    """Batch slices as the engine does with ``max_bytes=limit``."""
    batcher = Batcher(limit)
    result: list[Batch] = []
    for part in slices:
        batcher.add(part)
        if batcher.full and (batch := batcher.take()) is not None:
            result.append(batch)
    while (batch := batcher.take()) is not None:
        result.append(batch)
    if batcher.has_partial:
        result.append(batcher.take_partial())
    return result


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
