"""Reduction and merge: a target has what its mode says, however the changes were cut, repeated or interrupted."""

from __future__ import annotations

import datetime as dt
import itertools
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.iceberg import IcebergTarget
from aiorepl.spark.lake.table import MODES, Commit, Run
from aiorepl.spark.mirroring.reducing import Found
from aiorepl.spark.mirroring.reduction import reduce_changes

pytestmark = pytest.mark.by_day

SOURCE = pa.schema(
    [("a", pa.int32()), ("b", pa.string()), ("n", pa.int64()), ("x", pa.string()), ("y", pa.string())]
)
KEYS = ("a", "b")
SCHEMA = pa.schema(
    [
        *SOURCE,
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_ordinal", pa.int64()),
        ("_xid", pa.int64()),
        ("_commit_ts", pa.timestamp("us", tz="UTC")),
        ("_unchanged", pa.list_(pa.string())),
    ]
)
TOASTED = ("x", "y")
EPOCH = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

Key = tuple[int, str]
KEY = st.tuples(st.integers(0, 2), st.sampled_from("pq"))
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "move", "move", "delete", "read", "truncate", "commit"]),
        KEY,
        KEY,
        st.sets(st.sampled_from(TOASTED)),
    ),
    max_size=25,
)


@dataclass
class World:
    """The source table, what it sent, and what targets must have."""

    rows: dict[Key, dict[str, Any]] = field(default_factory=dict)
    sent: list[list[dict[str, Any]]] = field(default_factory=list)
    soft: dict[Key, dict[str, Any]] = field(default_factory=dict)
    versions: list[dict[str, Any]] = field(default_factory=list)
    lsn: int = 100
    ordinal: int = 0
    serial: int = 0

    def do(self, action: str, key: Key, other: Key, unsent: set[str]) -> None:
        if action == "commit":
            self.lsn, self.ordinal = self.lsn + 10, 0
            return
        self.serial += 1
        value = {
            "n": self.serial,
            "x": f"x{self.serial}",
            "y": None if self.serial % 5 == 0 else f"y{self.serial}",
        }
        there = key in self.rows
        if action == "truncate":
            self.emit(self.change("truncate", None, {}))
            for gone in list(self.rows):
                self.end(gone)
        elif action == "delete" and there:
            self.emit(self.change("delete", key, {}))
            self.end(key)
        elif action == "read" and there:
            row = dict(self.rows[key])
            self.emit(self.change("read", key, row))
            self.begin(key, row)
        elif action == "move" and there and other not in self.rows:
            row = {**value, **{name: self.rows[key][name] for name in unsent}}
            sent = {name: row[name] for name in row if name not in unsent}
            self.emit(self.change("delete", key, {}), self.change("insert", other, sent, unsent))
            self.end(key)
            self.begin(other, row)
        elif action == "put" and there:
            row = {**value, **{name: self.rows[key][name] for name in unsent}}
            sent = {name: row[name] for name in row if name not in unsent}
            self.emit(self.change("update", key, sent, unsent))
            self.begin(key, row)
        elif action == "put":
            self.emit(self.change("insert", key, value))
            self.begin(key, value)
        self.ordinal += 1

    @property
    def position(self) -> dict[str, int]:
        return {"_commit_lsn": self.lsn, "_ordinal": self.ordinal}

    @property
    def time(self) -> dt.datetime:
        return EPOCH + dt.timedelta(seconds=self.lsn)

    def change(
        self, op: str, key: Key | None, sent: dict[str, Any], unsent: set[str] = frozenset()
    ) -> dict[str, Any]:
        names = dict.fromkeys(SOURCE.names)
        identity = {} if key is None else dict(zip(KEYS, key, strict=True))
        return {
            **names, **identity, **sent, "_op": op, **self.position,
            "_xid": 7, "_commit_ts": self.time, "_unchanged": sorted(unsent) or None,
        }  # fmt: skip

    def emit(self, *changes: dict[str, Any]) -> None:
        self.sent.append(list(changes))

    def whole(self, key: Key, row: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(KEYS, key, strict=True)), **row, **self.position}

    def begin(self, key: Key, row: dict[str, Any]) -> None:
        self.close(key)
        self.rows[key] = {name: row[name] for name in ("n", "x", "y")}
        whole = self.whole(key, self.rows[key])
        self.rows[key] |= {}
        self.soft[key] = {**whole, "_deleted": False}
        self.versions.append(
            {**whole, "_valid_from": self.time, "_valid_to": None, "_valid_to_lsn": None, "_valid_to_ordinal": None,
             "_is_current": True}
        )  # fmt: skip

    def end(self, key: Key) -> None:
        self.close(key)
        self.soft[key] |= {**self.position, "_deleted": True}
        del self.rows[key]

    def close(self, key: Key) -> None:
        for version in self.versions:
            if version["_is_current"] and (version["a"], version["b"]) == key:
                version |= {
                    "_valid_to": self.time, "_valid_to_lsn": self.lsn, "_valid_to_ordinal": self.ordinal, "_is_current": False
                }  # fmt: skip

    def expected(self, mode: str) -> list[dict[str, Any]]:
        if mode == "current":
            return [
                {name: row[name] for name in row if name != "_deleted"}
                for row in self.soft.values()
                if not row["_deleted"]
            ]
        if mode == "soft_delete":
            return list(self.soft.values())
        if mode == "history":
            return self.versions
        return [change for changes in self.sent for change in changes]


def world(actions: list) -> World:
    made = World()
    for action in actions:
        made.do(*action)
    return made


def table(events: list[list[dict[str, Any]]]) -> pa.Table:
    return pa.Table.from_pylist([change for event in events for change in event], schema=SCHEMA)


def normal(rows: list[dict[str, Any]]) -> list[tuple]:
    """Rows in an order of their own, for comparisons."""
    return sorted(
        (tuple(sorted((name, str(value)) for name, value in row.items())) for row in rows),
    )


class Died(Exception):
    """Stands for a process that was killed."""


class MortalDelta(DeltaTarget):
    """A Delta table whose writer dies in some attempts, before or after the commit."""

    attempts = itertools.count(-1_000_000)

    def _attempt(self, *given: Any) -> Any:
        number = next(self.attempts)
        if number == 0:
            raise Died
        found = super()._attempt(*given)
        if number == 1:
            raise Died
        return found


class MortalIceberg(IcebergTarget):
    """An Iceberg table whose writer dies in some attempts, before or after the commit."""

    attempts = itertools.count(-1_000_000)

    @contextmanager
    def _attempt(self, *given: Any) -> Iterator[Any]:
        number = next(self.attempts)
        with super()._attempt(*given) as batch:
            yield batch
            if number == 0:
                raise Died
        if number == 1:
            raise Died


def mortal(folder: str, kind: str, mode: Any) -> MortalDelta | MortalIceberg:
    if kind != "iceberg":
        return MortalDelta(f"{folder}/t", mode, deletion_vectors=kind == "delta with vectors")
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}")
    return MortalIceberg(catalog, ("n", "t"), mode)


def rows_of(target: MortalDelta | MortalIceberg) -> list[dict[str, Any]]:
    version = target.newest()
    assert version is not None
    return pa.Table.from_batches(version.batches(version.schema().names), version.schema()).to_pylist()


@pytest.mark.parametrize("kind", ["delta", "delta with vectors", "iceberg"])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    actions=ACTIONS,
    cuts=st.sets(st.integers(0, 25), max_size=3),
    dies=st.integers(0, 6),
    again=st.booleans(),
)
def test_every_way_of_applying(mode, kind, actions, cuts, dies, again) -> None:
    """Batches cut anywhere, with a death around any commit, give what the model has; so does a lost checkpoint."""
    made = world(actions)
    with tempfile.TemporaryDirectory() as folder:
        target = mortal(folder, kind, mode)
        target.apply(Commit("columns", 0, LSN(0)), (), SOURCE)
        target.attempts = itertools.count(-dies)
        apply(target, made, cuts, "first")
        assert normal(rows_of(target)) == normal(made.expected(mode))
        if again:
            apply(target, made, {7}, "second")
            assert normal(rows_of(target)) == normal(made.expected(mode))


def apply(target, made, cuts, application) -> None:
    edges = sorted({0, len(made.sent), *(cut for cut in cuts if cut < len(made.sent))})
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        changes = table(made.sent[start:end])
        commit = Commit(application, number, LSN(changes["_commit_lsn"][-1].as_py()))
        while not target.applied(application, number):
            reduced = reduce_changes(changes, KEYS, target.mode)
            try:
                target.apply(commit, [Run(KEYS, reduced.parts(200), reduced.truncates)])
            except Died:
                continue
            if not reduced.table.num_rows and not reduced.truncates:
                break


def test_structs_and_far_dates(tmp_path) -> None:
    """Attributes that are added to a composite reach the target, also beside dates that Python does not have."""
    far, old = 3_789_391, pa.struct([("a", pa.int32())])
    new = pa.struct([("a", pa.int32()), ("b", pa.struct([("z", pa.string())]))])
    target = DeltaTarget(str(tmp_path / "t"))

    def apply(number: int, kind: pa.DataType, *rows: tuple[Any, ...]) -> None:
        source = pa.schema([("id", pa.int32()), ("c", kind), ("x", pa.string()), ("d", pa.date32())])
        values = list(zip(*rows, strict=True))
        given = [
            pa.array(values[3], pa.int32()).cast(field.type)
            if field.name == "d"
            else pa.array(column, field.type)
            for field, column in zip(source, values, strict=False)
        ]
        count = len(rows)
        metadata = [values[4], [100 * number] * count, [0] * count, [1] * count, [EPOCH] * count, values[5]]
        schema = pa.schema([*source, *[SCHEMA.field(name) for name in SCHEMA.names[len(SOURCE) :]]])
        arrays = [
            *given,
            *(pa.array(each, kind) for each, kind in zip(metadata, schema.types[4:], strict=True)),
        ]
        reduced = reduce_changes(pa.table(arrays, schema=schema), ("id",), "current")
        run = Run(("id",), reduced.parts(2**20))
        target.apply(Commit("q", number, LSN(100 * number)), [run], source)

    apply(1, old, (1, {"a": 1}, "kept", far, "insert", []))
    apply(2, new, (2, {"a": 2, "b": {"z": "q"}}, None, None, "insert", []))
    apply(3, new, (1, None, None, None, "delete", []), (9, {"a": 1, "b": None}, None, far, "insert", ["x"]))
    version = target.newest()
    assert version is not None
    found = pa.Table.from_batches(version.batches(["id", "c", "x"])).sort_by("id").to_pylist()
    assert found == [
        {"id": 2, "c": {"a": 2, "b": {"z": "q"}}, "x": None},
        {"id": 9, "c": {"a": 1, "b": None}, "x": "kept"},
    ]


def test_what_executors_return_of_large_changes() -> None:
    """Without truncates and moves, executors return a sample of the keys, and not the memory of the rows."""
    count = 100_000
    columns = {
        "id": pa.array(range(count)),
        "_op": pa.array(["insert"] * count),
        "_commit_lsn": pa.array([1] * count),
        "_ordinal": pa.array(range(count)),
        "_commit_ts": pa.nulls(count, pa.timestamp("us", tz="UTC")),
        "_unchanged": pa.nulls(count, pa.list_(pa.string())),
    }
    found = Found.of(pa.table(columns), ("id",))
    assert not found.linked.num_rows
    assert found.linked.column_names == ["id", "_commit_lsn", "_ordinal"]
    assert len(pickle.dumps(found)) < 10_000
