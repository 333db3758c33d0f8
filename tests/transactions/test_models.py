"""Rows as objects of a user's classes. Whatever does not fit is an error that names table and column, and never the value."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NewType, Optional

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.tuples import UNCHANGED, Unchanged
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange
from aiorepl.values import Types
from aiorepl.values.types import TypeInfo

BOOL, INT4, TEXT, DATE, TIMESTAMP, NUMERIC, PLACE = 16, 23, 25, 1082, 1114, 1700, 99
OrderId = NewType("OrderId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@pytest.fixture
def order():
    """Return a function that makes a change of the table ``shop`` with these columns: name to type and text."""

    def change(kind: str = "insert", key: tuple[str, ...] = ("id",), **columns: tuple[int, Any]) -> RowChange:
        described = [build.column(name, oid, key=name in key) for name, (oid, _) in columns.items()]
        values = [value for _, value in columns.values()]
        row = {"insert": build.insert, "update": build.update}.get(kind)
        types = Types([TypeInfo(PLACE, "public", "place", "c", fields=(("x", INT4), ("y", INT4)))])
        decoder, assembler = Decoder(), Assembler(types)
        payloads = [
            build.relation(oid=9, name="shop", columns=described),
            build.begin(final_lsn=16, xid=3),
            build.delete(relation=9, old=values) if row is None else row(relation=9, new=values),
            build.commit(commit_lsn=16, end_lsn=32),
        ]
        (part,) = assembler.feed([decoder.decode(payload) for payload in payloads])
        (found,) = part.changes
        return found

    return change


@dataclass(frozen=True)
class Order:
    id: int
    note: str | None = None


class PydanticOrder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True)
    id: int
    note: str | None = None


class StructOrder(msgspec.Struct, frozen=True):
    id: int
    note: str | None = None


MODELS = pytest.mark.parametrize("model", [Order, PydanticOrder, StructOrder])


@MODELS
def test_a_row_becomes_an_object(order, model):
    change = order(id=(INT4, "7"), note=(TEXT, "fragile"), more=(TEXT, "not in the model"))
    assert change.into(model) == change.new.into(model) == model(id=7, note="fragile")
    assert order(id=(INT4, "7"), note=(TEXT, None)).into(model) == model(id=7)


@MODELS
def test_a_default_stands_for_a_column_that_the_table_does_not_have(order, model):
    assert order(id=(INT4, "7")).into(model) == model(id=7)


@MODELS
@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": (INT4, None)}, "id"),
        ({"id": (TEXT, "s3cret")}, "id"),
        ({"id": (INT4, "1"), "note": (INT4, "5319")}, "note"),
        ({"other": (INT4, "5319")}, "id"),
        ({"id": (INT4, "1"), "note": (TEXT, UNCHANGED)}, "note"),
    ],
    ids=["null", "type", "optional", "missing", "unchanged"],
)
def test_what_does_not_fit(order, model, columns, named):
    with pytest.raises(DataError, match=f"public.shop: .*{named}.*{model.__name__}") as caught:
        order("update", key=("id", "other"), **columns).into(model)
    assert not {"s3cret", "5319"} & set(str(caught.value).replace(":", " ").split())
    assert caught.value.__cause__ is None


@MODELS
def test_an_old_key_is_not_filled_with_defaults(order, model):
    """A default in place of a column that was not sent would be invented."""
    change = order("delete", id=(INT4, "7"), note=(TEXT, None))
    with pytest.raises(DataError, match="the old row does not have: set REPLICA IDENTITY FULL"):
        change.into(model)

    @dataclass
    class Key:
        id: int

    assert change.into(Key) == Key(7)


def test_pydantic_has_aliases(order):
    class Aliased(pydantic.BaseModel):
        number: int = pydantic.Field(alias="id")
        text: str = pydantic.Field(validation_alias=pydantic.AliasChoices("remark", "note"))
        deep: int = pydantic.Field(default=0, validation_alias=pydantic.AliasPath("parts", 0))

    found = order(id=(INT4, "7"), note=(TEXT, "a")).into(Aliased)
    assert (found.number, found.text, found.deep) == (7, "a", 0)


def test_pydantic_may_take_every_column(order):
    class Open(pydantic.BaseModel, extra="allow"):
        id: int

    assert order(id=(INT4, "7"), note=(TEXT, "a")).into(Open).model_extra == {"note": "a"}


def test_an_error_of_a_validator_is_not_quoted(order):
    class Checked(pydantic.BaseModel):
        id: int

        @pydantic.field_validator("id")
        @classmethod
        def small(cls, value: int) -> int:
            raise ValueError(f"{value} is large")

    with pytest.raises(
        DataError, match=r"^public.shop: id \(value_error\): the row does not fit the model .*Checked$"
    ):
        order(id=(INT4, "5319")).into(Checked)


def test_msgspec_has_names(order):
    class Renamed(msgspec.Struct, rename={"number": "id"}):
        number: int

    assert order(id=(INT4, "7"), note=(TEXT, UNCHANGED)).into(Renamed) == Renamed(7)


@dataclass
class Place:
    x: int
    y: int | None


@dataclass
class Everything:
    id: OrderId
    paid: bool
    day: date
    at: datetime
    total: Decimal
    colour: Colour | None
    size: Literal["S", "M"]
    place: Optional[Place]  # noqa: UP045 - the older spelling
    anything: Any
    named: str = field(metadata={"column": "other name"})
    large: str | Unchanged = ""
    computed: str = field(init=False, default="here")


def everything(order: Any, **changed: Any) -> Everything:
    columns = {
        "id": (INT4, "7"),
        "paid": (BOOL, "t"),
        "day": (DATE, "2026-11-27"),
        "at": (TIMESTAMP, "2026-11-27 01:02:03"),
        "total": (NUMERIC, "1.50"),
        "colour": (TEXT, "red"),
        "size": (TEXT, "S"),
        "place": (PLACE, "(1,)"),
        "anything": (TEXT, None),
        "other name": (TEXT, "b"),
        "large": (TEXT, UNCHANGED),
    }
    return order("update", **{**columns, **changed}).into(Everything)


def test_types_of_a_dataclass(order):
    found = everything(order)
    assert found == Everything(
        OrderId(7), True, date(2026, 11, 27), datetime(2026, 11, 27, 1, 2, 3), Decimal("1.50"), Colour.RED, "S",
        Place(1, None), None, "b", UNCHANGED,
    )  # fmt: skip
    assert found.large is UNCHANGED
    assert everything(order, colour=(TEXT, None), place=(PLACE, None)).place is None


@pytest.mark.parametrize(
    "changed",
    [
        {"id": (BOOL, "t")},
        {"paid": (INT4, "1")},
        {"day": (DATE, "infinity")},
        {"day": (TIMESTAMP, "2026-11-27 01:02:03")},
        {"at": (DATE, "2026-11-27")},
        {"total": (INT4, "1")},
        {"colour": (TEXT, "green")},
        {"size": (INT4, "1")},
        {"place": (TEXT, "(1,)")},
        {"place": (PLACE, "(,2)")},
        {"large": (TEXT, None)},
    ],
    ids=str,
)
def test_what_does_not_fit_a_dataclass(order, changed):
    (name,) = changed
    with pytest.raises(
        DataError, match=rf"^public.shop: column {name} has .*, which does not fit Everything\.{name}: "
    ):
        everything(order, **changed)


class NotRead:
    id: int


@dataclass
class NotThere:
    id: "Missing"  # type: ignore[name-defined] # noqa: F821, UP037


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NotRead, "NotRead is no model: use a dataclass, a pydantic model or a msgspec struct"),
        (NotThere, "the annotations of NotThere cannot be read: name 'Missing' is not defined"),
        (list[int], "a model is a class"),
        (Order(1), "a model is a class, not Order"),
    ],
    ids=["class", "annotation", "generic", "object"],
)
def test_what_is_no_model(order, model, message):
    with pytest.raises(ConfigurationError, match=message):
        order(id=(INT4, "7")).into(model)


def test_columns_without_a_field_are_not_decoded(order):
    """A value that cannot be read does not matter to a model that lacks its column."""
    assert order(id=(INT4, "7"), note=(INT4, "bad")).into(NarrowOrder) == NarrowOrder(7)


@dataclass
class NarrowOrder:
    id: int


def test_a_class_is_examined_once(order, monkeypatch):
    assert order(id=(INT4, "7")).into(NarrowOrder) == NarrowOrder(7)
    monkeypatch.setattr("aiorepl.transactions.models._dataclass", None)
    assert order(id=(INT4, "8")).into(NarrowOrder) == NarrowOrder(8)


class PostInitStruct(msgspec.Struct):
    note: str

    def __post_init__(self):
        raise ValueError(f"bad {self.note}")


class DocumentModel(pydantic.BaseModel):
    note: dict[str, int]


class DocumentStruct(msgspec.Struct):
    note: dict[str, int]


@pydantic.dataclasses.dataclass
class PydanticDataclass:
    note: pydantic.constr(max_length=3)


@dataclass
class PostInit:
    note: Any

    def __post_init__(self):
        raise KeyError(self.note)


class Raising(enum.Enum):
    ONE = "one"

    @classmethod
    def _missing_(cls, value):
        raise KeyError(value)


@dataclass
class WithEnum:
    note: Raising


JSONB = 3802


@pytest.mark.parametrize(
    ("model", "column"),
    [
        (PostInitStruct, (TEXT, "s3cret")),
        (DocumentModel, (JSONB, '{"s3cret": "x"}')),
        (DocumentStruct, (JSONB, '{"s3cret": "x"}')),
        (PydanticDataclass, (TEXT, "s3cret")),
        (PostInit, (TEXT, "s3cret")),
        (WithEnum, (TEXT, "s3cret")),
    ],
)
def test_no_error_of_a_users_class_has_a_value(order, model, column):
    with pytest.raises(DataError, match=rf"^public\.shop: .*{model.__name__}") as caught:
        order(id=(INT4, "7"), note=column).into(model)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_enum_or_text(order):
    @dataclass
    class Loose:
        note: Colour | str

    assert order(id=(INT4, "7"), note=(TEXT, "green")).into(Loose).note == "green"
    assert order(id=(INT4, "7"), note=(TEXT, "red")).into(Loose).note is Colour.RED


def test_any_is_not_unchanged(order):
    @dataclass
    class Loose:
        note: Any

    with pytest.raises(DataError, match="was not sent"):
        order("update", id=(INT4, "7"), note=(TEXT, UNCHANGED)).into(Loose)


def test_a_name_with_an_alias_takes_no_other_column(order):
    class Aliased(pydantic.BaseModel, extra="forbid"):
        id: int = pydantic.Field(alias="order_id")

    assert order(id=(INT4, "7"), order_id=(INT4, "8")).into(Aliased).id == 8
