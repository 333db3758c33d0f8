"""The kit passes sinks that mirror tables, and finds those whose rows differ."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import UNCHANGED, Sink
from aiorepl.testing.conformance import MirrorConformance
from aiorepl.testing.conformance.samples import SAMPLES

pytestmark = pytest.mark.by_day


class Mirror(Sink):
    """Rows by their keys, put in place by flush."""

    def __init__(self, target):
        self.target = target
        self.gathered = []

    async def write(self, batch):
        await asyncio.sleep(0)
        self.gathered += batch.changes

    async def flush(self):
        await asyncio.sleep(0)
        self.target.check()
        for change in self.gathered:
            self.apply(change)
        self.target.answer()
        self.gathered = []

    def apply(self, change):
        """Apply changes by upserts."""
        if change.kind in ("message", "schema"):
            return
        if change.kind == "truncate":
            for relation in change.relations:
                self.target.rows[relation.schema, relation.name] = {}
            return
        rows = self.target.rows.setdefault((change.schema, change.table), {})
        before = rows.pop(self.key(change), {})
        if change.kind != "delete":
            row = {**before, **self.columns(change)}
            rows[tuple(row[name] for name in change.key)] = row

    def key(self, change):
        """The old one if it changed."""
        old = change.raw_old is not None
        row = self.columns(change, change.raw_old, change.old_kinds) if old else self.columns(change)
        return tuple(row[name] for name in change.key)

    def columns(self, change, raw=None, kinds=None):
        """Return the sent columns as text, binary ones in hexadecimal."""
        names = change.relation.names
        if raw is None:
            raw, kinds = change.raw_new, change.new_kinds
        kinds = kinds or b"t" * len(raw)
        return {
            name: value if value is None else value.hex() if kind == ord("b") else value.decode()
            for name, value, kind in zip(names, raw, kinds, strict=True)
            if value is not UNCHANGED
        }


class TestMirror(MirrorConformance):
    """Rows of tables that have keys."""

    tables = tuple(table for table in MirrorConformance.tables if table.key)
    sink: type[Sink] = Mirror

    def make_sink(self):
        return self.sink(self.target)

    def rows(self, table):
        return list(self.target.rows.get((table.schema, table.name), {}).values())

    def lost_answer(self):
        return self.target.lost_answer()

    def same(self, type_name, expected, found):
        """Binary columns are kept as they came."""
        binary = {sample.text: sample.binary for sample in SAMPLES if sample.type_name == type_name}
        number = type_name == "int4" and int(expected).to_bytes(4, "big", signed=True).hex()
        return found in (expected, binary.get(expected), number)

    def outage(self):
        return self.target.outage()


# Sinks that are wrong in one way.


class MirrorNullForUnchanged(Mirror):
    """Overwrites what was not sent."""

    def columns(self, change, raw=None, kinds=None):
        return {**dict.fromkeys(change.relation.names), **super().columns(change, raw, kinds)}


class MirrorForgetsTheOldKey(Mirror):
    """Leaves the row under its old key when a key changes."""

    def apply(self, change):
        if change.kind == "update" and change.old is not None:
            rows = self.target.rows.setdefault((change.schema, change.table), {})
            row = {**rows.get(self.key(change), {}), **self.columns(change)}
            rows[tuple(row[name] for name in change.key)] = row
        else:
            super().apply(change)


class MirrorIgnoresTruncate(Mirror):
    """Says it does not."""

    def apply(self, change):
        if change.kind != "truncate":
            super().apply(change)


def case_of(sink: type) -> type:
    """The tests of a sink."""
    return type(f"Case{sink.__name__}", (TestMirror,), {"sink": sink})


OPEN = "test_a_restart_with_an_older_confirmation test_what_is_flushed_is_there"


@pytest.mark.parametrize(
    ("sink", "tests", "says"),
    [
        (
            MirrorNullForUnchanged,
            f"test_an_unchanged_value test_rows_of_a_snapshot {OPEN}",
            "rows differ, in large (text)",
        ),
        (MirrorForgetsTheOldKey, f"test_an_unchanged_value {OPEN}", "rows, not"),
        (MirrorIgnoresTruncate, OPEN, "it has 3 rows, not 1"),
    ],
)
def test_what_is_wrong_is_found(failures, sink, tests, says):
    """The tests about a defect find it, no others do, and their messages describe it."""
    found = failures(case_of(sink))
    assert set(tests.split()) == set(found)
    assert all(says in text for text in found.values())
