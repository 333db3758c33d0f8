"""Tests that certify a format against the contract of ``aiorepl.formats.format.Format``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from aiorepl.formats.format import Format
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.conformance.event import Event, identity
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.conformance.scenario import FULL, ITEMS, LARGE, ODD, TABLES, TYPES, WIDE, Scenario
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.slices import Slice

DESTINATION: Final = "conformance"
_SPECIAL: Final = (
    *(("float8", 701, text) for text in ("NaN", "Infinity", "-Infinity", "-0", "1e-300", "5e-324")),
    *(("float4", 700, text) for text in ("NaN", "Infinity", "1e-45", "3.4028235e+38")),
    *(("numeric", 1700, text) for text in ("NaN", "0.000", "-0.5", "9" * 400, f"0.{'1' * 400}")),
    *(("date", 1082, text) for text in ("infinity", "-infinity", "4714-11-24 BC", "5874897-12-31")),
    *(
        ("timestamp", 1114, text)
        for text in ("infinity", "0044-03-15 12:00:00 BC", "9999-12-31 23:59:59.999999")
    ),
    *(("timestamptz", 1184, text) for text in ("-infinity", "2026-11-21 13:25:00.5+00")),
    *(("time", 1083, text) for text in ("00:00:00", "24:00:00")),
    ("text", 25, "x" * 1_000_000),
    ("bytea", 17, "\\x"),
)


class _Made(NamedTuple):
    change: Change
    key: bytes | None
    event: bytes
    headers: Mapping[str, str]


class FormatConformance:
    """Tests a format with rows of every kind and type, with DDL between rows, and after a restart. Derive a class, and run pytest.

    ::

        class TestMyFormat(FormatConformance):
            def make_format(self):
                return MyFormat()                    # a new format, as after a restart

            def read(self, event, headers):          # what a consumer reads
                return Event.from_native(my_reader(event))
    """

    kinds: ClassVar[frozenset[str]] = frozenset({"insert", "read", "update", "delete", "truncate", "message"})
    """The kinds of change that have events. The format may drop others."""

    rejected: ClassVar[frozenset[str]] = frozenset()
    """PostgreSQL's texts of values that the format refuses with ``DataError``, such as ``"NaN"``."""

    def make_format(self) -> Format:
        """Return a new format. The formats of one test share external state, such as a registry."""
        raise NotImplementedError("define make_format: return a new format")

    def read(self, event: bytes, headers: Mapping[str, str]) -> Event:
        """Return an event as a consumer reads it. ``new`` lacks the columns whose values were not sent; NULL is ``None``."""
        raise NotImplementedError("define read: return an Event, with kind, table and new")

    def same(self, value: Any, text: str, type_name: str) -> bool:
        """Return whether a value from ``read`` equals the value that PostgreSQL prints as ``text``."""
        return bool(value == text)

    def test_every_kind(self) -> None:
        """Every row change has an event of its kind, table and identity; keys of one row are equal."""
        scenario = Scenario()
        for made in self._made(scenario.everything(self.kinds, TABLES) + scenario.snapshots()):
            assert made.change.kind in self.kinds | {"schema"}, f"{made.change.kind} has an event"
            event = self.read(made.event, made.headers)
            assert event.kind == made.change.kind, f"{made.change.kind} is read as {event.kind}"
            if isinstance(made.change, RowChange):
                change = made.change
                assert event.identity == identity(change), f"{change!r} is read with another identity"
                assert event.table == (change.schema, change.table), f"{change!r} is read as {event.table}"
                assert change.kind == "delete" or event.new is not None, (
                    f"{change!r} is read without its new row"
                )
                assert not change.relation.key or made.key is not None, f"{change!r} has no key"

    def test_keys(self) -> None:
        """Insert, update and key-only delete of a row have equal keys, and another row has a different key."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        slices = scenario.commit(
            items.insert("1", "a", LARGE), items.update("1", "b", UNCHANGED), items.delete("1", None, None)
        )
        keys = [made.key for made in self._made(slices + scenario.commit(items.insert("2", "a", None)))]
        assert len(set(keys[:3])) == 1, "the changes of one row have different keys"
        assert keys[3] != keys[0], "two rows have the same key"

    def test_unchanged_and_null(self) -> None:
        """NULL, the empty text and a large value that was not sent stay different."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        slices = scenario.commit(
            items.insert("1", "", None), items.update("1", None, UNCHANGED), items.update("1", "NULL", LARGE)
        )
        first, second, third = (self._new(made) for made in self._made(slices))
        assert self.same(first["note"], "", "text"), "an empty text is read otherwise"
        assert (first["large"], second["note"]) == (None, None), "NULL is not read as None"
        assert "large" not in second, "a value that was not sent is read as a value"
        assert self.same(third["note"], "NULL", "text"), "the text NULL is read otherwise"
        assert self.same(third["large"], LARGE, "text"), "a large text is read otherwise"

    def test_every_type(self) -> None:
        """A value and a NULL of every built-in type are read, from columns in text and in binary format."""
        written = []
        for binary in (False, True):
            scenario = Scenario(binary=binary)
            table, values = scenario.table(TYPES), [scenario.sample(sample) for sample in SAMPLES]
            slices = scenario.commit(
                table.insert(scenario.int(1), *values), table.insert(scenario.int(2), *(None for _ in values))
            )
            made, null = self._made(slices)
            row, nothing = self._new(made), self._new(null)
            for number, sample in enumerate(SAMPLES):
                read = row[f"c{number}"]
                assert self.same(read, sample.text, sample.type_name), f"{sample.type_name} is read otherwise"
                assert nothing[f"c{number}"] is None, f"NULL of {sample.type_name} is read otherwise"
            written.append((row, made.key))
        assert written[0] == written[1], "columns in text and in binary are read differently"

    def test_special_values(self) -> None:
        """Infinity, NaN, years far away and very long values are read, or refused by an error without the value."""
        stream = Stream()
        for number, (type_name, oid, text) in enumerate(_SPECIAL):
            table = stream.table(f"special{number}", column("id", 23, key=True), column("v", oid))
            stream.transaction(table.insert("1", text))
            slices = stream.slices()
            try:
                (made,) = self._made(slices)
            except ValueError:
                assert text in self.rejected, f"{type_name} {text[:40]} is refused"
                continue
            assert text not in self.rejected, f"{type_name} {text[:40]} is not refused"
            assert self.same(self._new(made)["v"], text, type_name), (
                f"{type_name} {text[:40]} is read otherwise"
            )

    def test_odd_names_and_wide_rows(self) -> None:
        """Names with quotes, dots, blanks and non-ASCII letters, and rows of 300 columns, are read."""
        scenario = Scenario()
        odd, wide = scenario.table(ODD), scenario.table(WIDE)
        columns = [str(number) for number in range(1, len(WIDE.columns))]
        slices = scenario.commit(odd.insert("1", "a", None, "c"), wide.insert("1", *columns))
        first, second = (self._new(made) for made in self._made(slices))
        assert len(first) == len(ODD.columns), "columns with odd names are missing"
        assert [value is None for value in first.values()] == [False, False, True, False]
        assert len(second) == len(WIDE.columns), "columns of a wide row are missing"

    def test_a_schema_change_in_the_middle(self) -> None:
        """Rows before and after added, renamed, retyped and dropped columns, and a renamed table, are read by their own columns."""
        stream, read = Stream(), []
        form = self.make_format()
        identifier, text = column("id", 23, key=True), column("a")
        versions: Sequence[tuple[str, tuple[Any, ...], tuple[str, ...]]] = (
            ("t", (identifier, text), ("1", "x")),
            ("t", (identifier, text, column("b")), ("2", "x", "y")),
            ("t", (identifier, column("c"), column("b")), ("3", "x", "y")),
            ("t", (identifier, column("c", 23), column("b")), ("4", "7", "y")),
            ("u", (column("b"), identifier), ("y", "5")),
        )
        table = None
        for name, columns, values in versions:
            table = (
                stream.table(name, *columns)
                if table is None
                else stream.table(name, *columns, replaces=table)
            )
            stream.transaction(table.insert(*values))
            ((event, new),) = [
                (self.read(made.event, made.headers), self._new(made))
                for made in self._made(stream.slices(), form)
            ]
            read.append((event.table, set(new)))
        expected = [(("public", name), {each.name for each in columns}) for name, columns, _ in versions]
        assert expected == read, "rows are read by another version of their table"

    def test_determinism(self) -> None:
        """A new format writes the same keys, events and headers, also if it begins in the middle."""
        scenario = Scenario()
        slices = scenario.everything(self.kinds, TABLES) + scenario.items(3)
        whole, again = list(self._made(slices)), list(self._made(slices))
        assert [made[1:] for made in whole] == [made[1:] for made in again], "a restart changes the bytes"
        middle = len(slices) // 2
        rest = list(self._made(slices[middle:]))
        assert [made[1:] for made in whole[len(whole) - len(rest) :]] == [made[1:] for made in rest], (
            "the bytes depend on earlier changes"
        )

    def test_whole_old_rows(self) -> None:
        """Updates and deletes under REPLICA IDENTITY FULL have events."""
        scenario = Scenario()
        full = scenario.table(FULL)
        slices = scenario.commit(full.update("1", "b", old=("1", "a")), full.delete("1", "b", full=True))
        assert [self.read(made.event, made.headers).kind for made in self._made(slices)] == [
            "update",
            "delete",
        ]

    def test_lines(self) -> None:
        """Events of a format with ``is_text`` have no line end, and need neither ``prepare`` nor ``to``, which sinks of lines do not call."""
        form = self.make_format()
        bare = type(form).prepare is Format.prepare and type(form).to is Format.to
        assert bare or not form.is_text, "is_text is set, but the format has prepare or to"
        scenario = Scenario()
        items = scenario.table(ITEMS)
        for made in self._made(scenario.commit(items.insert("1", "a\nb\r\u2028c", None))):
            assert not self.make_format().is_text or b"\n" not in made.event, "an event has a line end"

    def _new(self, made: _Made) -> Mapping[str, Any]:
        new = self.read(made.event, made.headers).new
        assert new is not None, f"{made.change!r} is read without its new row"
        return new

    def _made(self, slices: Sequence[Slice], form: Format | None = None) -> Iterator[_Made]:
        """Prepare and make the events of slices. All but ``prepare`` runs without an event loop, because it does no I/O."""
        form = (form or self.make_format()).to(DESTINATION)
        with asyncio.Runner() as runner:
            for change in (change for part in slices for change in part.changes):
                for piece in form.split(change):
                    runner.run(form.prepare(piece))
                    yield _Made(piece, form.key(piece), form.event(piece), form.headers(piece))
