"""Writes the seeds of the corpus, every message in every context: ``python tests/fuzz/seeds.py``."""

from __future__ import annotations

from pathlib import Path

from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

COLUMNS = [build.column("id", 23, key=True), build.column("note"), build.column("data", 17, type_modifier=9)]
ROW = ["1", UNCHANGED, build.Binary(b"\0\xff")]
KEY = ["1", None, None]


def content(xid: int | None) -> list[bytes]:
    """Return the messages within a transaction."""
    return [
        build.type_(oid=99, namespace="shop", name="mood", xid=xid),
        build.relation(oid=7, name="orders", columns=COLUMNS, xid=xid),
        build.relation(oid=8, namespace="", name="Größe", replica_identity="n", columns=[], xid=xid),
        build.insert(relation=7, new=ROW, xid=xid),
        build.insert(relation=8, new=[], xid=xid),
        build.update(relation=7, new=ROW, xid=xid),
        build.update(relation=7, new=ROW, old=KEY, old_kind="K", xid=xid),
        build.update(relation=7, new=ROW, old=["1", "text", ""], old_kind="O", xid=xid),
        build.delete(relation=7, old=KEY, xid=xid),
        build.delete(relation=7, old=ROW, old_kind="O", xid=xid),
        build.truncate(relations=[7, 8], cascade=True, restart_identity=True, xid=xid),
        build.message(lsn=9, prefix="audit", content=b"\0\1\2", xid=xid),
    ]


def transcripts() -> dict[str, tuple[Streaming, list[bytes]]]:
    """Return the seeds by name."""
    block = [build.stream_start(xid=5, first_segment=True), *content(6), build.stream_stop()]
    prepared = {"prepare_lsn": 0x10, "end_lsn": 0x20, "prepare_time": 3, "xid": 5, "gid": "gid"}
    decided = [
        build.commit_prepared(commit_lsn=0x30, end_lsn=0x40, commit_time=4, xid=5, gid="gid"),
        build.rollback_prepared(
            prepare_end_lsn=0x20, rollback_end_lsn=0x40, rollback_time=4, xid=5, gid="gid"
        ),
    ]
    return {
        "plain": (
            Streaming.OFF,
            [
                build.begin(final_lsn=0x10, commit_time=1, xid=3),
                build.origin(commit_lsn=1, name="north"),
                *content(None),
                build.commit(commit_lsn=0x10, end_lsn=0x20, commit_time=1),
                build.message(transactional=False, lsn=9, prefix="ping"),
            ],
        ),
        "streamed": (
            Streaming.ON,
            [
                *block,
                build.stream_abort(xid=5, subxid=6),
                build.stream_commit(xid=5, commit_lsn=1, end_lsn=2),
            ],
        ),
        "parallel": (
            Streaming.PARALLEL,
            [
                build.stream_start(xid=4, first_segment=False),
                build.origin(commit_lsn=1, name="north"),
                build.stream_stop(),
                *block,
                build.stream_abort(xid=5, subxid=5, abort_lsn=7, abort_time=8),
            ],
        ),
        "prepared": (
            Streaming.OFF,
            [build.begin_prepare(**prepared), *content(None), build.prepare(**prepared), *decided],
        ),
        "streamed-prepared": (Streaming.ON, [*block, build.stream_prepare(**prepared), *decided]),
        "wide": (
            Streaming.OFF,
            [
                build.relation(oid=7, name="w", columns=[build.column(f"c{n}") for n in range(60)]),
                build.insert(relation=7, new=[None, UNCHANGED, "t"] * 20),
            ],
        ),
    }


def seeds() -> dict[str, bytes]:
    """Return the seeds in the form that the target reads."""
    return {
        name: bytes([list(Streaming).index(streaming)])
        + b"".join(len(payload).to_bytes(2, "big") + payload for payload in payloads)
        for name, (streaming, payloads) in transcripts().items()
    }


if __name__ == "__main__":
    folder = Path(__file__).with_name("corpus")
    folder.mkdir(exist_ok=True)
    for name, data in seeds().items():
        (folder / name).write_bytes(data)
