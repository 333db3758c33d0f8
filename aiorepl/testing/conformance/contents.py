"""Contents of rows: NULL and empty strings, unchanged values, odd names, many columns, every type."""

from __future__ import annotations

import pytest

from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.conformance.base import Conformance, skip_without
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.conformance.scenario import ITEMS, LARGE, ODD, SECRET, TYPES, WIDE, Scenario
from aiorepl.transactions.slices import Slice


class Contents(Conformance):
    """Values arrive unchanged."""

    def test_null_and_empty(self) -> None:
        """NULL, the empty string and texts that resemble them stay different."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        values = ("", None, "NULL", "null", "\\N", " ", "\\", '"', "\t\r\n", "0")
        rows = (items.insert(str(number), text, text) for number, text in enumerate(values))
        self._arrives(scenario, scenario.commit(*rows), "NULLs and empty strings")

    def test_an_unchanged_value(self) -> None:
        """A large value that the server did not send is left as it is; it does not become NULL."""
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
        """Schemas, tables and columns may have quotes, dots, spaces, SQL keywords and non-ASCII letters in their names."""
        skip_without(ODD in self.tables, "that its sink takes ODD")
        scenario = Scenario()
        odd = scenario.table(ODD)
        slices = scenario.commit(odd.insert("1", "a", "b", "c"), odd.insert("2", None, "", "表"))
        slices += scenario.commit(odd.update("1", "x", "y", None), odd.delete("2", None, None, None))
        self._arrives(scenario, slices, "odd names")

    def test_odd_texts(self) -> None:
        """Quotes, control characters, characters beyond the BMP and template syntax arrive unchanged."""
        scenario = Scenario()
        items = scenario.table(ITEMS)
        texts = ("'; DROP TABLE items; --", "\x01\x1f\x7f", "🐘 ünï \u2028", "{0} %s $1 :x", "a" * 70000)
        rows = (items.insert(str(number), f"{SECRET} {text}", None) for number, text in enumerate(texts))
        self._arrives(scenario, scenario.commit(*rows), "odd texts")

    def test_wide_rows(self) -> None:
        """Rows of 300 columns arrive."""
        skip_without(WIDE in self.tables, "that its sink takes WIDE")
        scenario = Scenario()
        wide = scenario.table(WIDE)
        columns = [str(number) for number in range(1, len(WIDE.columns))]
        slices = scenario.commit(wide.insert("1", *columns), wide.insert("2", *(None for _ in columns)))
        self._arrives(scenario, slices, "wide rows")

    @pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
    def test_every_type(self, binary: bool) -> None:
        """A value and a NULL of every built-in type arrive, from columns in text and in binary format."""
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
