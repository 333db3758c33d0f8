"""The message builders, read back by the decoder: every keyword arrives in the field of its name."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

ORDERS = build.relation(
    oid=7,
    name="orders",
    columns=[build.column("id", 23, key=True), build.column("note"), build.column("data")],
)

CONTROL: list[tuple[Any, dict[str, Any], type]] = [
    (build.begin, {"final_lsn": 1, "commit_time": -5, "xid": 3}, m.Begin),
    (build.commit, {"commit_lsn": 1, "end_lsn": 2, "commit_time": 3}, m.Commit),
    (build.origin, {"commit_lsn": 1, "name": "north"}, m.Origin),
    (build.message, {"transactional": False, "lsn": 9, "prefix": "p", "content": b"\0c"}, m.Message),
    (build.stream_start, {"xid": 5, "first_segment": True}, m.StreamStart),
    (build.stream_commit, {"xid": 5, "commit_lsn": 1, "end_lsn": 2, "commit_time": 3}, m.StreamCommit),
    (build.stream_abort, {"xid": 5, "subxid": 6, "abort_lsn": 7, "abort_time": 8}, m.StreamAbort),
    (
        build.begin_prepare,
        {"prepare_lsn": 1, "end_lsn": 2, "prepare_time": 3, "xid": 4, "gid": "g"},
        m.BeginPrepare,
    ),
    (build.prepare, {"prepare_lsn": 1, "end_lsn": 2, "prepare_time": 3, "xid": 4, "gid": "g"}, m.Prepare),
    (
        build.commit_prepared,
        {"commit_lsn": 1, "end_lsn": 2, "commit_time": 3, "xid": 4, "gid": "g"},
        m.CommitPrepared,
    ),
    (
        build.rollback_prepared,
        {
            "prepare_end_lsn": 1,
            "rollback_end_lsn": 2,
            "prepare_time": 3,
            "rollback_time": 4,
            "xid": 5,
            "gid": "g",
        },
        m.RollbackPrepared,
    ),
    (
        build.stream_prepare,
        {"prepare_lsn": 1, "end_lsn": 2, "prepare_time": 3, "xid": 4, "gid": "g"},
        m.StreamPrepare,
    ),
    (build.type_, {"oid": 99, "namespace": "shop", "name": "mood"}, Type),
]


@pytest.mark.parametrize(
    ("builder", "fields", "kind"), CONTROL, ids=[kind.__name__ for _, _, kind in CONTROL]
)
def test_fields(builder: Any, fields: dict[str, Any], kind: type) -> None:
    """Each field of a message has the value that it was built with."""
    read = Decoder(Streaming.PARALLEL).decode(builder(**fields))
    assert type(read) is kind
    assert {name: getattr(read, name) for name in fields} == fields


def test_rows() -> None:
    """Text, binary, NULL and unchanged columns come back as they were given, old row and new."""
    decoder = Decoder()
    relation = decoder.decode(ORDERS)
    assert isinstance(relation, Relation)
    assert (relation.names, relation.key, relation.replica_identity) == (("id", "note", "data"), (0,), "d")
    row = ["1", UNCHANGED, build.Binary(b"\1")]
    inserted = decoder.decode(build.insert(relation=7, new=row))
    updated = decoder.decode(build.update(relation=7, old=["0", None, None], old_kind="K", new=row))
    deleted = decoder.decode(build.delete(relation=7, old=["1", None, b"x"], old_kind="O"))
    assert isinstance(inserted, m.Insert)
    assert inserted.new.split() == [b"1", UNCHANGED, b"\1"]
    assert inserted.new.kinds() == b"tub"
    assert isinstance(updated, m.Update)
    assert updated.old is not None
    assert (updated.old_kind, updated.old.split()) == ("K", [b"0", None, None])
    assert updated.new.split() == [b"1", UNCHANGED, b"\1"]
    assert isinstance(deleted, m.Delete)
    assert (deleted.old_kind, deleted.old.split()) == ("O", [b"1", None, b"x"])


def test_truncate() -> None:
    """The option bits and the relations arrive."""
    decoder = Decoder()
    decoder.decode(ORDERS)
    read = decoder.decode(build.truncate(relations=[7], cascade=True))
    assert isinstance(read, m.Truncate)
    assert (str(read.relations[0]), read.cascade, read.restart_identity) == ("public.orders", True, False)
    read = decoder.decode(build.truncate(relations=[7, 7], restart_identity=True))
    assert isinstance(read, m.Truncate)
    assert (len(read.relations), read.cascade, read.restart_identity) == (2, False, True)


def test_prefix_inside_a_stream() -> None:
    """Inside a block every content message names its subtransaction, and Origin does not."""
    decoder = Decoder(Streaming.ON)
    decoder.decode(build.stream_start(xid=5, first_segment=True))
    payloads = [
        build.relation(oid=7, name="t", columns=[build.column("id")], xid=6),
        build.type_(oid=99, name="mood", xid=6),
        build.insert(relation=7, new=["1"], xid=6),
        build.update(relation=7, new=["1"], xid=6),
        build.delete(relation=7, old=["1"], xid=6),
        build.truncate(relations=[7], xid=6),
        build.message(lsn=1, xid=6),
    ]
    assert [getattr(decoder.decode(payload), "xid", None) for payload in payloads] == [6] * len(payloads)
    assert decoder.decode(build.origin(commit_lsn=1, name="north")) == m.Origin(1, "north", 5)
    assert decoder.decode(build.stream_stop()) == m.StreamStop()
