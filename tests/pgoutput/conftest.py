"""A sample of every message, ordinary and extreme, with the fields that the decoder must return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Column, Relation, Type
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

LSN, XID, LATEST, EARLIEST = 2**64 - 1, 2**32 - 1, 2**63 - 1, -(2**63)
AWKWARD = "Größe \"x\";\t'🐘'"
LONG = "é" * 40_000
THREE = (build.column("id", 23, key=True), build.column("note"), build.column("data", 17))
MANY = tuple(build.column(f"c{place}", XID, key=True, type_modifier=2**31 - 1) for place in range(1600))
ROW, BIG = [b"1", None, UNCHANGED], [b"", LONG.encode(), AWKWARD.encode()]


@dataclass(frozen=True)
class Sample:
    """A message as it is built: ``fields`` are the builder's keywords, and what must come out again.

    :param name: the message's name, as PostgreSQL's pages spell it.
    :param table: the columns of relation 7, if the message is about it.
    :param block: the transaction whose stream block it stands in.
    """

    name: str
    label: str
    fields: dict[str, Any]
    table: tuple[Column, ...] | None = None
    block: int | None = None

    @property
    def payload(self) -> bytes:
        """The message."""
        builder: Callable[..., bytes] = getattr(build, self.name.lower().replace(" ", "_"), build.type_)
        return builder(**self.fields)

    @property
    def kind(self) -> type:
        """The class of the decoded message."""
        name = self.name.replace(" ", "")
        return {"Relation": Relation, "Type": Type}.get(name) or getattr(m, name)

    @property
    def inside(self) -> Sample:
        """Return the same message inside a stream block, made by a subtransaction."""
        prefix = {} if self.name == "Origin" else {"xid": XID}
        return replace(self, fields=self.fields | prefix, block=5, label=f"{self.label} in a block".strip())

    def decoder(self, streaming: Streaming = Streaming.PARALLEL) -> Decoder:
        """A decoder that has read what comes before the message."""
        decoder = Decoder(streaming)
        if self.block is not None:
            decoder.decode(build.stream_start(xid=self.block, first_segment=True))
        if self.table is not None:
            decoder.decode(build.relation(oid=7, name="t", columns=self.table, xid=self.block))
        return decoder

    def __str__(self) -> str:
        return f"{self.name} {self.label}".strip()


def s(name: str, label: str = "", /, *, table: tuple[Column, ...] | None = None, **fields: Any) -> Sample:
    """A sample, written in a line."""
    return Sample(name, label, fields, table)


# What begins with an xid inside a stream block, and has none outside; Origin alone has none in either.
CONTENT = [
    s("Relation", oid=7, namespace="public", name="orders", replica_identity="d", columns=THREE),
    s("Relation", "empty", oid=0, namespace="", name="", replica_identity="n", columns=()),
    s("Relation", "wide", oid=XID, namespace=AWKWARD, name=LONG, replica_identity="f", columns=MANY),
    s(
        "Relation",
        "awkward",
        oid=1,
        namespace=LONG,
        name=AWKWARD,
        replica_identity="i",
        columns=(build.column(AWKWARD, 0, type_modifier=-(2**31)),),
    ),
    s("Type", oid=99, namespace="shop", name="mood"),
    s("Type", "extreme", oid=XID, namespace="", name=AWKWARD),
    s("Origin", commit_lsn=1, name="north"),
    s("Origin", "extreme", commit_lsn=LSN, name=LONG),
    s("Insert", table=THREE, relation=7, new=ROW),
    s("Insert", "big", table=THREE, relation=7, new=BIG),
    s("Insert", "empty", table=(), relation=7, new=[]),
    s("Insert", "wide", table=MANY, relation=7, new=[None] * 1600),
    s("Update", table=THREE, relation=7, new=ROW, old=None, old_kind=""),
    s("Update", "key", table=THREE, relation=7, new=BIG, old=[b"0", None, None], old_kind="K"),
    s("Update", "full", table=THREE, relation=7, new=ROW, old=BIG, old_kind="O"),
    s("Update", "empty", table=(), relation=7, new=[], old=[], old_kind="O"),
    s("Delete", "key", table=THREE, relation=7, old=[b"1", None, None], old_kind="K"),
    s("Delete", "full", table=THREE, relation=7, old=BIG, old_kind="O"),
    s("Truncate", table=THREE, relations=(7,), cascade=False, restart_identity=False),
    s("Truncate", "empty", relations=(), cascade=False, restart_identity=False),
    s("Truncate", "cascade", table=THREE, relations=(7,) * 9, cascade=True, restart_identity=False),
    s("Truncate", "restart", table=THREE, relations=(7, 7), cascade=False, restart_identity=True),
    s("Message", transactional=True, lsn=9, prefix="p", content=b"\0c"),
    s("Message", "big", transactional=False, lsn=LSN, prefix=AWKWARD, content=b"\xff" * 70_000),
    s("Message", "empty", transactional=True, lsn=0, prefix="", content=b""),
]
CONTROL = [
    s("Begin", final_lsn=1, commit_time=-5, xid=3),
    s("Begin", "extreme", final_lsn=LSN, commit_time=LATEST, xid=XID),
    s("Commit", commit_lsn=1, end_lsn=2, commit_time=3),
    s("Commit", "extreme", commit_lsn=LSN, end_lsn=LSN, commit_time=EARLIEST),
    s("Stream Start", xid=1, first_segment=True),
    s("Stream Start", "extreme", xid=XID, first_segment=False),
    replace(s("Stream Stop"), block=5),
    s("Stream Commit", xid=5, commit_lsn=1, end_lsn=2, commit_time=3),
    s("Stream Commit", "extreme", xid=XID, commit_lsn=LSN, end_lsn=LSN, commit_time=EARLIEST),
    s("Stream Abort", xid=5, subxid=6, abort_lsn=7, abort_time=8),
    s("Stream Abort", "extreme", xid=XID, subxid=XID, abort_lsn=LSN, abort_time=LATEST),
    s("Begin Prepare", prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
    s("Begin Prepare", "extreme", prepare_lsn=LSN, end_lsn=LSN, prepare_time=EARLIEST, xid=XID, gid=AWKWARD),
    s("Prepare", prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
    s("Prepare", "extreme", prepare_lsn=LSN, end_lsn=LSN, prepare_time=LATEST, xid=XID, gid=LONG),
    s("Commit Prepared", commit_lsn=1, end_lsn=2, commit_time=3, xid=4, gid="g"),
    s("Commit Prepared", "extreme", commit_lsn=LSN, end_lsn=LSN, commit_time=EARLIEST, xid=XID, gid=""),
    s(
        "Rollback Prepared",
        prepare_end_lsn=1,
        rollback_end_lsn=2,
        prepare_time=3,
        rollback_time=4,
        xid=5,
        gid="g",
    ),
    s(
        "Rollback Prepared",
        "extreme",
        prepare_end_lsn=LSN,
        rollback_end_lsn=LSN,
        prepare_time=EARLIEST,
        rollback_time=LATEST,
        xid=XID,
        gid=AWKWARD,
    ),
    s("Stream Prepare", prepare_lsn=1, end_lsn=2, prepare_time=3, xid=4, gid="g"),
    s("Stream Prepare", "extreme", prepare_lsn=LSN, end_lsn=LSN, prepare_time=LATEST, xid=XID, gid=AWKWARD),
]
SAMPLES = [*CONTENT, *CONTROL, *(sample.inside for sample in CONTENT)]


@pytest.fixture(params=SAMPLES, ids=str)
def sample(request: pytest.FixtureRequest) -> Sample:
    """Every message in turn, content also inside a stream block."""
    return request.param


@pytest.fixture(params=CONTENT, ids=str)
def content(request: pytest.FixtureRequest) -> Sample:
    """Every message that may stand in a stream block, outside of one."""
    return request.param


@pytest.fixture
def samples() -> list[Sample]:
    """All samples."""
    return SAMPLES
