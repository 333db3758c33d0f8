"""Rows as databases have them: NULL and empty, unchanged, wide, oddly named, of every type."""

from __future__ import annotations

import pytest

from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.conformance.scenario import ITEMS, LARGE, ODD, SECRET, TYPES, WIDE, Scenario
from aiorepl.transactions.slices import Slice


class Contents(Conformance):
    """What stands in a row is what arrives."""

    def test_null_and_empty(self) -> None:
        """NULL, the empty string and what looks like either are different things."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        values = ("", None, "NULL", "null", "\\N", " ", "\\", '"', "\t\r\n", "0")
        rows = (items.insert(str(number), text, text) for number, text in enumerate(values))
        self._arrives(scenario, scenario.commit(*rows), "NULLs and empty strings")

    def test_an_unchanged_value(self) -> None:
        """A large value that the server did not send, for it did not change, is left as it is: it is not NULL."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        slices = scenario.commit(items.insert("1", f"{SECRET} a", LARGE), items.insert("2", None, LARGE))
        slices += scenario.commit(
            items.update("1", f"{SECRET} b", UNCHANGED), items.update("2", "", UNCHANGED)
        )
        # Within one transaction, and with a key that changes.
        slices += scenario.commit(
            items.insert("3", None, LARGE),
            items.update("3", "", UNCHANGED),
            items.update("4", "", UNCHANGED, key=("3", None, None)),
        )
        self._arrives(scenario, slices, "an update with an unchanged value")

    def test_odd_names(self) -> None:
        """Of schemas, tables and columns: quotes, dots, spaces, words of SQL, letters of all scripts."""
        skip_without(ODD in self.tables, "that its sink takes ODD")
        scenario = Scenario()
        odd = scenario.table(ODD)
        slices = scenario.commit(odd.insert("1", "a", "b", "c"), odd.insert("2", None, "", "表"))
        slices += scenario.commit(odd.update("1", "x", "y", None), odd.delete("2", None, None, None))
        self._arrives(scenario, slices, "odd names")

    def test_odd_texts(self) -> None:
        """Quotes, control characters, letters outside of the basic plane, text that looks like a template."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        texts = ("'; DROP TABLE items; --", "\x01\x1f\x7f", "🐘 ünï \u2028", "{0} %s $1 :x", "a" * 70000)
        rows = (items.insert(str(number), f"{SECRET} {text}", None) for number, text in enumerate(texts))
        self._arrives(scenario, scenario.commit(*rows), "odd texts")

    def test_wide_rows(self) -> None:
        """Three hundred columns."""
        skip_without(WIDE in self.tables, "that its sink takes WIDE")
        scenario = Scenario()
        wide = scenario.table(WIDE)
        columns = [str(number) for number in range(1, len(WIDE.columns))]
        slices = scenario.commit(wide.insert("1", *columns), wide.insert("2", *(None for _ in columns)))
        self._arrives(scenario, slices, "wide rows")

    @pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
    def test_every_type(self, binary: bool) -> None:
        """A value of each built-in type, and NULL; columns come as text, or in binary where the user has asked."""
        skip_without(TYPES in self.tables, "that its sink takes TYPES")
        scenario = Scenario(binary=binary)
        table = scenario.table(TYPES)
        values = [scenario.sample(sample) for sample in SAMPLES]
        slices = scenario.commit(
            table.insert(scenario.int(1), *values), table.insert(scenario.int(2), *(None for _ in values))
        )
        slices += scenario.commit(table.update(scenario.int(2), *values))
        self._arrives(scenario, slices, "values of every type")

    def _arrives(self, scenario: Scenario, slices: list[Slice], what: str) -> None:
        async def life() -> None:
            async with self.opened(scenario) as (sink, _):
                await self.write(sink, slices)

        self.live(life)
        self.live(lambda: self.expect(slices, after=what))
