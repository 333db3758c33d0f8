"""Which slices need a new look-up of their tables."""

from __future__ import annotations

import orjson
import pytest

from aiorepl import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.source.catalog.table_lookups import TableLookups
from aiorepl.source.catalog.tables import LOOK_UP
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.values import Types


class Catalog:
    """A source whose table gets a parent."""

    def __init__(self) -> None:
        self.snapshot, self.end, self.parents = "100:100:", "0/1000", ()

    async def connect_sql(self):
        return self

    async def fetch(self, query, *arguments, timeout):
        if query != LOOK_UP:
            return []
        tables = [self.table(7, "t", self.parents), self.table(8, "parent", ())]
        return [{"snapshot": self.snapshot, "ending": self.end, "tables": tables}]

    def table(self, oid, name, parents):
        fields = {"oid": oid, "schema": "public", "name": name, "parents": parents, "columns": ["id"]}
        more = {"partitioned": name == "parent", "generated": None, "subclassed": False, "numbers": [1]}
        return orjson.dumps({**fields, **more, "altered": [3], "created": 3}).decode()

    def terminate(self):
        pass


class Reads:
    """The slices of transactions with one row, each with a description of the table."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.lookups = TableLookups(self.catalog)
        self.decoder, self.assembler = Decoder(), Assembler(Types())

    async def settle(self, xid: int, lsn: int) -> None:
        payloads = [
            build.begin(final_lsn=lsn, xid=xid),
            build.relation(oid=7, name="t", columns=[build.column("id", 23)]),
            build.insert(relation=7, new=["1"]),
            build.commit(commit_lsn=lsn, end_lsn=lsn + 8),
        ]
        await self.lookups.settle(self.assembler.feed([self.decoder.decode(payload) for payload in payloads]))


@pytest.mark.parametrize("later", [1, 1 << 31, (1 << 31) + 5000, (1 << 32) + 50])
async def test_a_look_up_of_long_ago(later):
    """However many transactions after its last look-up a table is described again, it is looked up again."""
    reads = Reads()
    await reads.settle(90, LSN(0x100))
    assert () == reads.lookups.catalog.ancestors(7)

    xid = 100 + later
    reads.catalog.snapshot, reads.catalog.end, reads.catalog.parents = f"{xid}:{xid}:", "0/2000", (8,)
    await reads.settle((xid - 1) % (1 << 32), LSN(0x1800))

    assert (("public", "parent"),) == reads.lookups.catalog.ancestors(7)
