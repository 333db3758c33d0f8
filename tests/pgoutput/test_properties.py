"""Any bytes, in any state of the decoder, give a message or a ProtocolError."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

TYPES = b"BCORYIUDTMSEcAbPKrp"
COLUMNS = [build.column("id", 23, key=True), build.column("note")]
ROW = ["1", None]
VALID = [
    build.begin(final_lsn=1, xid=3),
    build.commit(commit_lsn=1, end_lsn=2),
    build.origin(commit_lsn=1, name="north"),
    build.relation(oid=7, name="t", columns=COLUMNS),
    build.relation(oid=7, name="t", columns=COLUMNS, xid=5),
    build.type_(oid=99, name="mood"),
    build.insert(relation=7, new=["1", UNCHANGED]),
    build.insert(relation=7, new=["1", "text"], xid=5),
    build.update(relation=7, new=ROW, old=ROW, old_kind="O"),
    build.delete(relation=7, old=ROW),
    build.truncate(relations=[7, 7], cascade=True),
    build.message(lsn=1, prefix="p", content=b"content"),
    build.stream_start(xid=5, first_segment=True),
    build.stream_stop(),
    build.stream_commit(xid=5, commit_lsn=1, end_lsn=2),
    build.stream_abort(xid=5, subxid=6),
    build.stream_abort(xid=5, subxid=6, abort_lsn=7, abort_time=8),
    build.begin_prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g"),
    build.prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g"),
    build.commit_prepared(commit_lsn=1, end_lsn=2, xid=3, gid="g"),
    build.rollback_prepared(prepare_end_lsn=1, rollback_end_lsn=2, xid=3, gid="g"),
    build.stream_prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g"),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid message with a few bytes changed, left out or put in."""
    payload = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(payload)))
        payload[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(payload)


TYPED = st.builds(bytes.__add__, st.sampled_from([bytes([kind]) for kind in TYPES]), st.binary(max_size=60))
PAYLOADS = st.binary(max_size=60) | TYPED | st.sampled_from(VALID) | mutated()


@settings(max_examples=4 * settings().max_examples)
@given(st.sampled_from(Streaming), st.lists(PAYLOADS, min_size=1, max_size=12))
def test_any_bytes(streaming, payloads):
    """A message or ProtocolError, and what is a message can be used in full."""
    decoder = Decoder(streaming)
    for payload in payloads:
        try:
            message = decoder.decode(payload)
        except ProtocolError:
            continue
        assert isinstance(message, m.AnyMessage)
        assert isinstance(repr(message), str)
        if isinstance(message, m.Insert | m.Update):
            assert len(message.relation.columns) == len(message.new.split()) == len(message.new.kinds())
        if isinstance(message, m.Update | m.Delete) and message.old is not None:
            assert len(message.relation.columns) == len(message.old.split()) == len(message.old.kinds())
        if isinstance(message, Relation):
            assert len(message.columns) == len(message.names) >= len(message.key)


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
COLUMN = st.builds(
    build.column,
    NAMES,
    st.integers(0, 2**32 - 1),
    key=st.booleans(),
    type_modifier=st.integers(-(2**31), 2**31 - 1),
)


@given(st.integers(0, 2**32 - 1), NAMES, NAMES, st.sampled_from("dnfi"), st.lists(COLUMN, max_size=20))
def test_relations(oid, namespace, name, identity, columns):
    """Any relation comes out as it went in."""
    payload = build.relation(
        oid=oid, namespace=namespace, name=name, replica_identity=identity, columns=columns
    )

    described = Decoder().decode(payload)

    assert isinstance(described, Relation)
    assert (oid, namespace, name, identity, tuple(columns)) == (
        described.oid,
        described.namespace,
        described.name,
        described.replica_identity,
        described.columns,
    )


@given(st.integers(0, 2**32 - 1), NAMES, NAMES)
def test_types(oid, namespace, name):
    """Any type comes out as it went in."""
    described = Decoder().decode(build.type_(oid=oid, namespace=namespace, name=name))

    assert isinstance(described, Type)
    assert (oid, namespace, name) == (described.oid, described.namespace, described.name)
