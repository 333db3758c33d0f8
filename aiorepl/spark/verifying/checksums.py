"""Order-independent checksums of rows by key range, and the comparison of rows one by one. Pure."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from aiorepl.spark.verifying.canonical import Canonical, joined, joined_sql
from aiorepl.wire.commands import identifier, literals

Bound = int | str
"""The first column of a key: a number, or a text compared by its bytes."""


class Sum(NamedTuple):
    """The checksum of a range: the number of rows, and the sum of their hashes."""

    rows: int = 0
    hashes: int = 0


class Row(NamedTuple):
    """A row of the source or of the lake, identified by its key.

    :param first: PostgreSQL's text of the key's first column; ``None`` for a row of the lake.
    :param order: the key's first column, as a bound.
    :param others: PostgreSQL's texts of the key's other columns.
    """

    key: str
    hash: int
    order: Bound | None
    first: str | None
    others: tuple[str | None, ...] = ()


class Share(NamedTuple):
    """One of ``shares`` parts of a range that has too many rows to compare at once, divided by a hash of the key."""

    number: int
    shares: int

    def has(self, key: str) -> bool:
        """Whether the row with this key belongs to the share."""
        digest = hashlib.sha256(key.encode()).digest()[:4]
        return self.shares == 1 or int.from_bytes(digest, "big") % self.shares == self.number

    @property
    def condition(self) -> str:
        """The condition of ``has`` in SQL, for a column ``key``."""
        digest = "encode(substr(sha256(convert_to(key, 'UTF8')), 1, 4), 'hex')"
        return f"('x' || {digest})::bit(32)::bigint % {self.shares} = {self.number}"


ALL = Share(0, 1)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The columns by which a table is compared.

    :param keys: the columns that identify a row.
    :param columns: by name, the canonical form of each column, including the keys.
    :param bounds: the lower bounds of the ranges of the key's first column, ascending. The first range has none.
    :param texts: PostgreSQL's texts of the bounds.
    :param modes: the columns of the lake's mode that tell which rows exist; none of them is a column of the source.
    """

    keys: tuple[str, ...]
    columns: Mapping[str, Canonical]
    bounds: Sequence[Bound] = ()
    texts: Sequence[str] = ()
    modes: Sequence[str] = ()

    @property
    def first(self) -> str:
        """The SQL of the key's first column, in the form of a bound."""
        return self._order(self.keys[0])

    @property
    def selected(self) -> str:
        """The SQL that selects a row's range, the text of its key, and its hash."""
        form = self.columns[self.keys[0]]
        bounds = f"ARRAY[{literals(map(str, self.bounds))}]::{'numeric' if form.number else 'text'}[]"
        number = f"coalesce(width_bucket({self.first}, {bounds}), 0)" if self.bounds else "0"
        keys = joined_sql([self._sql(name) for name in self.keys])
        row = joined_sql([self._sql(name) for name in self.columns])
        digest = f"encode(substr(sha256(convert_to({row}, 'UTF8')), 1, 8), 'hex')"
        return f"{number} AS number, {keys} AS key, ('x' || {digest})::bit(64)::bigint AS hash"

    def _order(self, name: str) -> str:
        form = self.columns[name]
        return f"({self._sql(name)})::numeric" if form.number else f'({self._sql(name)}) COLLATE "C"'

    def _sql(self, name: str) -> str:
        return self.columns[name].sql(f"t.{identifier(name)}")

    def rows(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Row]]:
        """Yield each row of the lake with the number of its range."""
        texts = {name: form.texts(batch[name]) for name, form in self.columns.items()}
        keys = joined([texts[name] for name in self.keys], batch.num_rows).to_pylist()
        whole = joined(list(texts.values()), batch.num_rows).to_pylist()
        number = self.columns[self.keys[0]].number
        bounds: Sequence[Any] = self.bounds if number else [_bytes(each) for each in self.bounds]
        for key, row, first in zip(keys, whole, texts[self.keys[0]].to_pylist(), strict=True):
            order = None if first is None else int(first) if number else first
            place = 0 if order is None else bisect_right(bounds, order if number else _bytes(order))
            yield place, Row(key, _hash(row), order, None)


def _bytes(text: Any) -> bytes:
    return str(text).encode()


def _hash(row: str) -> int:
    return int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big", signed=True)


@dataclass(slots=True)
class LakeSums:
    """The lake's checksums.

    :param sums: by range, the checksum of the rows that were not changed since the snapshot.
    :param changed: the ranges with rows that were changed since the snapshot.
    """

    sums: defaultdict[int, Sum] = field(default_factory=lambda: defaultdict(Sum))
    changed: set[int] = field(default_factory=set)

    def add(self, place: int, row: Row, *, since: bool) -> None:
        """Add a row.

        :param since: whether the row was changed since the snapshot.
        """
        if since:
            self.changed.add(place)
        else:
            before = self.sums[place]
            self.sums[place] = Sum(before.rows + 1, before.hashes + row.hash)


def suspects(source: Mapping[int, Sum], lake: LakeSums) -> set[int]:
    """Return the ranges whose rows have to be compared one by one."""
    return {
        place
        for place in {*source, *lake.sums, *lake.changed}
        if place in lake.changed or source.get(place, Sum()) != lake.sums.get(place, Sum())
    }


@dataclass(frozen=True, slots=True)
class Differences:
    """The rows of a range that differ.

    :param missing: rows that the lake does not have; may include rows that were deleted since the snapshot.
    :param different: rows that have other values in the lake; here with the source's values.
    :param extra: rows that only the lake has, and second rows with a key of the source.
    :param doubled: the source's rows whose key the lake has more than once.
    :param changing: the number of rows that were changed since the snapshot, and are not compared.
    """

    missing: tuple[Row, ...] = ()
    different: tuple[Row, ...] = ()
    extra: tuple[Row, ...] = ()
    doubled: tuple[Row, ...] = ()
    changing: int = 0


@dataclass(slots=True)
class LakeRows:
    """The lake's rows of a range.

    :param hashes: by key, the hash of each row that was not changed since the snapshot.
    :param doubled: by key, the hashes of further rows with this key.
    :param since: the keys of rows that were changed since the snapshot.
    """

    hashes: dict[str, int] = field(default_factory=dict)
    doubled: dict[str, list[int]] = field(default_factory=dict)
    since: set[str] = field(default_factory=set)

    def add(self, row: Row, *, since: bool) -> None:
        """Add a row; ``since`` as in ``LakeSums``."""
        if since:
            self.since.add(row.key)
        elif row.key in self.hashes:
            self.doubled.setdefault(row.key, []).append(row.hash)
        else:
            self.hashes[row.key] = row.hash


def differences(source: Iterable[Row], lake: LakeRows) -> Differences:
    """Compare the rows of a range."""
    missing, different, doubled, seen = [], [], [], set()
    for row in source:
        seen.add(row.key)
        if row.key in lake.since:
            continue
        if row.key in lake.doubled:
            doubled.append(row)
        if row.key not in lake.hashes:
            missing.append(row)
        elif row.hash not in (lake.hashes[row.key], *lake.doubled.get(row.key, ())):
            different.append(row)
    extra = [Row(key, digest, None, None) for key, digest in lake.hashes.items() if key not in seen]
    extra += [Row(key, digest, None, None) for key, each in lake.doubled.items() for digest in each]
    extra = [row for row in extra if row.key not in lake.since]
    return Differences(tuple(missing), tuple(different), tuple(extra), tuple(doubled), len(lake.since))
