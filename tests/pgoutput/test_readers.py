"""Every reader, fed the whole message: each field says what its builder was given."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.tuples import TupleData
from aiorepl.testing import messages as build


def said(message: Any) -> dict[str, Any]:
    """Return the fields of a message under the keywords of its builder."""
    if isinstance(message, Relation):
        names: tuple[str, ...] = ("oid", "namespace", "name", "replica_identity", "columns", "xid")
    elif isinstance(message, Type):
        names = ("oid", "namespace", "name", "xid")
    elif isinstance(message, m.RowMessage):
        rows = [name for name in ("new", "old", "old_kind") if name != "old_kind" or hasattr(message, "old")]
        names = ("relation", "xid", *(name for name in rows if hasattr(message, name)))
    else:
        names = tuple(name for name in message._fields if name != "payload")
    return {name: plain(getattr(message, name)) for name in names}


def plain(value: Any) -> Any:
    """Return a value in the form that builders take."""
    if isinstance(value, TupleData):
        return value.split()
    if isinstance(value, Relation):
        return value.oid
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def test_every_message_has_samples(samples):
    """All nineteen messages are among the samples, each with its type's first byte."""
    assert set("BCORYIUDTMSEcAbPKrp") == {chr(sample.payload[0]) for sample in samples}


def test_fields(sample):
    """Each field of a message has the value that it was built with, and there are no others."""
    message = sample.decoder().decode(sample.payload)

    fields = said(message)
    assert sample.kind is type(message)
    assert sample.fields == {name: fields[name] for name in sample.fields}
    assert fields.keys() - sample.fields.keys() <= {"xid"}


def test_a_message_owns_its_bytes(content):
    """A message that refers to its bytes keeps them, for consumers that hold it long."""
    payload = content.payload

    message = content.decoder().decode(payload)

    assert getattr(message, "payload", payload) is payload


def test_no_xid_outside_of_a_block(content):
    """Outside of a stream block content carries no xid, and none is made up."""
    message: Any = content.decoder().decode(content.payload)

    assert message.xid is None


def test_origin_belongs_to_the_block_it_stands_in():
    """Origin has no xid of its own in the bytes: inside a block it is the streamed transaction's."""
    decoder = Decoder(Streaming.ON)
    decoder.decode(build.stream_start(xid=5, first_segment=True))

    assert m.Origin(1, "north", 5) == decoder.decode(build.origin(commit_lsn=1, name="north"))


def test_names_that_are_not_utf8():
    """A database in SQL_ASCII converts nothing: such a name stays readable, and distinct from others."""
    payload = build.type_(oid=99, name="caf?").replace(b"?", b"\xe9")

    described = Decoder().decode(payload)

    assert isinstance(described, Type)
    assert r"caf\xe9" == described.name


def test_relations_are_immutable(samples):
    """A relation does not change while a slow consumer holds it."""
    described = Decoder().decode(samples[0].payload)

    with pytest.raises(AttributeError):
        described.name = "other"
    assert isinstance(hash(described), int)


def test_a_relation_knows_the_types_it_names():
    """The Type messages before a relation travel with it, so that it can be read elsewhere by itself."""
    decoder = Decoder()
    mood = decoder.decode(build.type_(oid=99, name="mood"))
    decoder.decode(build.type_(oid=98, name="unrelated"))
    columns = [build.column("a", 99), build.column("b", 99), build.column("c", 23)]

    described = decoder.decode(build.relation(oid=7, name="t", columns=columns))

    assert isinstance(described, Relation)
    assert (mood,) == described.types


@pytest.mark.parametrize(
    ("identity", "expected"), [("d", (0, 2)), ("i", (0, 2)), ("n", ()), ("f", ())], ids=str
)
def test_key(identity, expected):
    """The key is what identifies a row: nothing does under FULL, where every column is marked, or NOTHING."""
    columns = [
        build.column("a", key=True),
        build.column("b", key=identity == "f"),
        build.column("c", key=True),
    ]
    payload = build.relation(oid=7, name="t", replica_identity=identity, columns=columns)

    described = Decoder().decode(payload)

    assert isinstance(described, Relation)
    assert expected == described.key


def test_the_schema_of_system_catalogs():
    """The wire abbreviates pg_catalog to nothing."""
    described = Decoder().decode(build.relation(oid=7, namespace="", name="pg_class", columns=[]))

    assert "pg_catalog.pg_class" == str(described)


@pytest.mark.parametrize(
    "payload",
    [
        build.insert(relation=7, new=["s3cr3t"]),
        build.update(relation=7, new=["s3cr3t"], old=["s3cr3t"], old_kind="O"),
        build.delete(relation=7, old=["s3cr3t"]),
        build.message(lsn=1, prefix="p", content=b"s3cr3t"),
    ],
    ids=["Insert", "Update", "Delete", "Message"],
)
def test_no_message_shows_what_it_contains(payload):
    """The repr of a message and of its rows names tables and lengths, never values."""
    decoder = Decoder()
    decoder.decode(build.relation(oid=7, name="t", columns=[build.column("a")]))

    message: Any = decoder.decode(payload)

    assert "s3cr3t" not in f"{message!r} {getattr(message, 'new', None)!r} {getattr(message, 'old', None)!r}"


def test_errors_can_be_told_where():
    """``at`` adds the WAL position, and keeps message and field."""
    with pytest.raises(ProtocolError) as caught:
        Decoder().decode(build.insert(relation=7, new=[]))

    told = caught.value.at(0x16B3748)

    assert "Insert.relation at 0/16B3748: relation 7 was never described" == str(told)
