"""What the tests of transactions share: payloads in, slices out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import Change
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.transaction import Slice
from aiorepl.values import Types

INT4 = 23


class Reads:
    """A decoder and an assembler in a row; relation 7 is described already."""

    def __init__(
        self, resume: ReplayFilter | None = None, *, identity: str = "d", binary: bool = False
    ) -> None:
        self.decoder = Decoder()
        self.assembler = Assembler(Types(), binary=binary, resume=resume)
        columns = [build.column("id", INT4, key=identity in "dif"), build.column("note", key=identity == "f")]
        self.feed(build.relation(oid=7, name="orders", replica_identity=identity, columns=columns))

    def feed(self, *payloads: bytes) -> list[Slice]:
        """What one read brings."""
        return self.assembler.feed([self.decoder.decode(payload) for payload in payloads])

    def each(self, *payloads: bytes) -> list[Slice]:
        """The same, a read for each message."""
        return [part for payload in payloads for part in self.feed(payload)]


@pytest.fixture
def open_reads() -> type[Reads]:
    """A decoder and an assembler in a row, by their options."""
    return Reads


@pytest.fixture
def reads() -> Reads:
    """A decoder and an assembler in a row."""
    return Reads()


@pytest.fixture
def shape() -> Callable[[list[Slice]], list[tuple[Any, ...]]]:
    """Slices as tuples: commit LSN, the ordinals, whether it is the first, and the end LSN."""

    def shape(slices: list[Slice]) -> list[tuple[Any, ...]]:
        return [
            (
                None if part.transaction is None else part.transaction.commit_lsn,
                [change.ordinal for change in part.changes],
                part.first,
                part.end_lsn,
            )
            for part in slices
        ]

    return shape


@pytest.fixture
def one_change() -> Callable[..., Any]:
    """The change that a message in a transaction of its own becomes."""

    def one_change(payload: bytes, **options: Any) -> Change:
        begin, commit = build.begin(final_lsn=0x10, xid=3), build.commit(commit_lsn=0x10, end_lsn=0x20)
        (part,) = Reads(**options).feed(begin, payload, commit)
        (change,) = part.changes
        assert LSN(0x20) == part.end_lsn
        return change

    return one_change
