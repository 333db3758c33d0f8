"""Random ALTER TABLEs of columns beside a mask, described with the columns' numbers in the catalog, or without some of them.

The model has each column's identity. A column that was masked once must not arrive in the clear, unless the sink stops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from aiorepl import PermanentError, Selection
from aiorepl.pgoutput.relations import Attribute
from aiorepl.source.catalog.tables import CatalogTable, TableCatalog
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.memory import SelectionMemory

NAMES = "abcde"
MASKED = ("a", "b")
SELECTION = Selection(mask=tuple(f"public.t.{name}?" for name in MASKED), secret="s")
DDL = ("rename", "rename", "add", "drop", "hide", "show")


class Model:
    """A table whose columns change. A value is the number of its column. In the catalog all numbers are one higher: the key has 1.

    :ivar columns: the names by number, in the order of the numbers.
    :ivar listed: the numbers of the published columns.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.columns = {1: "a", 2: "c"}
        self.listed = {1, 2}
        self.last = 2
        self._stream = Stream()
        self._table = None

    def alter(self) -> None:
        """Rename, add or drop a column, or change the publication's list of columns."""
        kind, free = self.chance.choice(DDL), sorted(set(NAMES) - set(self.columns.values()))
        number = self.chance.choice(list(self.columns))
        if kind == "rename" and free:
            self.columns[number] = self.chance.choice(free)
        elif kind == "add" and free:
            self.last += 1
            self.columns[self.last] = self.chance.choice(free)
            self.listed.add(self.last)
        elif kind == "drop" and len(self.columns) > 1:
            del self.columns[number]
        elif kind == "hide":
            self.listed.discard(number)
        elif kind == "show":
            self.listed.add(number)

    @property
    def published(self) -> dict[int, str]:
        """The published columns."""
        return {number: name for number, name in self.columns.items() if number in self.listed}

    @property
    def catalog(self) -> TableCatalog:
        """What a start finds."""
        columns = {0: "key", **self.columns}
        return TableCatalog(
            [
                CatalogTable(
                    16385, "public", "t", tuple(columns.values()), numbers=tuple(each + 1 for each in columns)
                )
            ]
        )

    def row(self, numbers: Mapping[str, int]) -> Slice:
        """Describe the table, and insert a row."""
        columns = [column("key", 23, key=True), *map(column, self.published.values())]
        self._table = self._stream.table("t", *columns, replaces=self._table)
        self._stream.transaction(self._table.insert("1", *map(str, self.published)))
        part = self._stream.slices()[-1]
        relation = part.changes[0].relation
        relation.attributes.update(
            {name: Attribute(number + 1) for name, number in {"key": 0, **numbers}.items() if numbers}
        )
        return part


@pytest.mark.parametrize("known", [True, False], ids=["all numbers", "some numbers"])
def test_random_columns(known):
    """With all numbers, the sink stops if a masked column would be shown, or may be replaced, and not otherwise."""
    for seed in range(200):
        run(seed, known=known)


def run(seed: int, *, known: bool) -> None:
    """Run a program until the sink stops.

    :param known: whether the numbers of all columns are.
    """
    chance = random.Random(seed)
    model, memory = Model(chance), SelectionMemory(SELECTION.rules)
    memory.begin(model.catalog)
    filtering = StreamFilter(SELECTION, "s", model.catalog, memory)
    masked = {number for number, name in model.columns.items() if name in MASKED}
    # A description that was accepted stays so until the next start.
    accepted: list[dict[int, str]] = []
    # The visible columns of the description before it.
    visible = set(model.columns) - masked
    for _ in range(12):
        for _ in range(chance.randint(1, 3)):
            model.alter()
        shown = {
            number for number, name in model.published.items() if number in masked and name not in MASKED
        }
        numbers = {name: number for number, name in model.published.items() if known or chance.random() < 0.5}
        part = model.row({"key": 0} | numbers if known else numbers)
        if chance.random() < 0.3:
            # Another start, which has the memory of the one before.
            again = SelectionMemory(SELECTION.rules)
            again.load(memory.to_json())
            memory, filtering = again, StreamFilter(SELECTION, "s", TableCatalog(), again)
            accepted.clear()
        try:
            (change,) = filtering.apply(part).changes
        except PermanentError:
            replaced = masked.difference(model.published) and set(model.published).difference(visible)
            assert shown or replaced or not known, seed
            return
        clear = {int(value) for name, value in change.new.items() if name != "key" and len(value) < 64}
        assert not known or clear.isdisjoint(masked) or model.published in accepted, seed
        if model.published not in accepted:
            accepted.append(model.published)
            visible = clear
        masked |= {number for number, name in model.published.items() if name in MASKED}


@pytest.mark.parametrize("numbered", [True, False])
def test_a_name_that_is_used_again(numbered):
    """RENAME and ADD under the old name: the column's number tells, and without it the new name before the masked one."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")

    def row():
        numbers = {name: number for number, name in model.published.items()} if numbered else {}
        return list(filtering.apply(model.row(numbers)).changes)

    assert row()
    model.columns = {1: "e", 2: "c", 3: "a"}
    model.listed = {1, 2, 3}
    with pytest.raises(
        PermanentError, match=r"public\.t\.a.* was renamed to public\.t\.e|e is new and may be public\.t\.a"
    ):
        row()


def test_names_that_are_as_before():
    """DROP c, RENAME a TO c, ADD a: only the numbers tell that c is the masked column."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")
    model.columns = {1: "c", 2: "a"}
    assert list(filtering.apply(model.row({"c": 1, "a": 2})).changes)
    model.columns = {2: "c", 3: "a"}
    model.listed = {2, 3}
    with pytest.raises(PermanentError, match=r"public\.t\.a, .* was renamed to public\.t\.c"):
        filtering.apply(model.row({"c": 2, "a": 3}))


def test_names_that_were_altered_in_the_same_transaction():
    """The numbers of these columns are unknown then, and known for the others: each may be the masked column."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")
    model.columns = {1: "c", 2: "a"}
    assert list(filtering.apply(model.row({"c": 1, "a": 2})).changes)
    part = model.row({})
    part.changes[0].relation.attributes["key"] = Attribute(1)
    with pytest.raises(PermanentError, match=r"public\.t\.c .* may be public\.t\.a"):
        filtering.apply(part)


def test_a_visible_column_that_is_renamed():
    """Its number was visible before, so no masked column is in doubt, although the new name precedes one."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")
    model.columns = {1: "c", 2: "a"}
    assert list(filtering.apply(model.row({"c": 1, "a": 2})).changes)
    model.columns = {1: "d", 2: "a"}
    (change,) = filtering.apply(model.row({"d": 1, "a": 2})).changes
    assert "1" == change.new["d"]
    assert 64 == len(change.new["a"])


@pytest.mark.parametrize(
    ("before", "after"), [({}, {"c": 1}), ({"c": 2, "a": 1}, {})], ids=["unknown before", "unknown after"]
)
def test_a_number_that_is_unknown_on_one_side(before, after):
    """DROP c, RENAME a TO c, when the catalog does not tell all numbers: c is visible in both descriptions, and may be the masked column."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")
    part = model.row(before)
    part.changes[0].relation.attributes["key"] = Attribute(1)
    assert list(filtering.apply(part).changes)
    model.columns = {1: "c"}
    with pytest.raises(PermanentError, match=r"public\.t\.\w+ is new and may be public\.t\.a"):
        filtering.apply(model.row(after))


def test_a_column_that_is_dropped_without_numbers():
    """A stream without any number goes by names: the sink goes on."""
    model = Model(random.Random(0))
    filtering = StreamFilter(SELECTION, "s")
    assert list(filtering.apply(model.row({})).changes)
    model.columns = {2: "c"}
    assert list(filtering.apply(model.row({})).changes)


def test_numbers_that_nobody_knew_before():
    """An older memory has only names. After the next start, which knows all numbers, a masked column is shown under no other name."""
    refused = 0
    for seed in range(500):
        chance = random.Random(seed)
        model = Model(chance)
        for _ in range(chance.randint(0, 4)):
            model.alter()
        before = dict(model.published)
        memory = SelectionMemory(SELECTION.rules)
        assert list(StreamFilter(SELECTION, "s", TableCatalog(), memory).apply(model.row({})).changes)
        masked = {number for number, name in before.items() if name in MASKED}
        for _ in range(chance.randint(0, 4)):
            model.alter()
        again = SelectionMemory(SELECTION.rules)
        again.load(memory.to_json())
        numbers = {name: number for number, name in model.published.items()}
        try:
            (change,) = StreamFilter(SELECTION, "s", TableCatalog(), again).apply(model.row(numbers)).changes
        except PermanentError:
            refused += 1
            assert before != model.published or list(before) != list(range(1, len(before) + 1)), seed
            continue
        clear = {int(value) for name, value in change.new.items() if name != "key" and len(value) < 64}
        assert clear.isdisjoint(masked), (seed, before, model.published)
    assert 0 < refused < 400


@pytest.mark.parametrize("dropped", [False, True])
def test_a_dropped_first_column(dropped):
    """An older memory has only names. After DROP key and renames, each name belongs to the next column, and no name is missing."""
    model = Model(random.Random(0))
    model.columns = {1: "c", 2: "a", 3: "d"}
    model.listed = {1, 2, 3, 4}
    memory = SelectionMemory(SELECTION.rules)
    assert list(StreamFilter(SELECTION, "s", TableCatalog(), memory).apply(model.row({})).changes)
    again = SelectionMemory(SELECTION.rules)
    again.load(memory.to_json())
    part = model.row({"c": 1, "a": 2, "d": 3})
    if dropped:
        numbers = {"key": 2, "c": 3, "a": 4, "d": 5}
        part.changes[0].relation.attributes.update({name: Attribute(each) for name, each in numbers.items()})
    filtering = StreamFilter(SELECTION, "s", TableCatalog(), again)
    if dropped:
        with pytest.raises(PermanentError, match=r"is new and may be public\.t\.a"):
            filtering.apply(part)
    else:
        assert list(filtering.apply(part).changes)
