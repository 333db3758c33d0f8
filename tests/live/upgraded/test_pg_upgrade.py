"""After pg_upgrade, a journal and sinks continue once the new cluster is proven to continue the stream; before, they are refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from aiorepl import ConfigurationError, Pipeline, SlotError, SlotLost
from aiorepl.journal import JournalReader
from aiorepl.source.diagnose.check import check
from aiorepl.source.lineage import Lineage, read_lineage
from aiorepl.source.server.upgrade import adopt, prepare
from aiorepl.source.source import Source
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.server


class Delivery:
    """A pipeline into a sink that keeps its position, with or without a journal."""

    def __init__(self, slot, folder, *, journal):
        self.slot = slot
        self.record = folder / "upgrades.json"
        self.journal = folder / "journal" if journal else None
        self.sink = MemorySink(keeps_position=True)

    def source(self, server, **options):
        """The source on a server."""
        options = {"slot": self.slot, "create_slot": True, "upgrades": self.record} | options
        return Source(server.dsn, publication="p", **options)

    async def run(self, server, **options):
        """Run the pipeline until all changes are delivered."""
        options = options if self.journal is None else {"journal": self.journal, **options}
        await Pipeline(self.source(server), {"s": self.sink}, until="now", **options).run()

    def keys(self):
        """The keys of the delivered rows, in their order."""
        return [change.key["id"] for change in self.sink.changes]


@pytest.fixture
def delivery(request, slot_name, tmp_path):
    """A pipeline that keeps its positions."""
    return Delivery(slot_name, tmp_path, journal=getattr(request, "param", False))


async def command(delivery, folder, server, name):
    """Run ``aiorepl upgrade`` with the file of the pipeline."""
    file = folder / "pipeline.toml"
    file.write_text(
        f'[source]\ndsn = "{server.dsn}"\nslot = "{delivery.slot}"\npublication = "p"\nupgrades = "{delivery.record}"\n'
        '[[sinks]]\ntype = "stdout"\n'
    )
    arguments = [sys.executable, "-m", "aiorepl", "upgrade", name, str(file)]
    return await asyncio.to_thread(subprocess.run, arguments, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("delivery", [True, False], ids=["journal", "direct"], indirect=True)
async def test_a_pipeline_continues(upgradable, delivery, tmp_path):
    """Nothing is lost and nothing comes twice, over the upgrade and over restarts of the new cluster."""
    old, new, client = upgradable.old, upgradable.new, upgradable.client
    await delivery.run(old)
    await client.execute("INSERT INTO items VALUES (1), (2); INSERT INTO parts VALUES (3)")
    await delivery.run(old)
    told = await command(delivery, tmp_path, old, "prepare")
    assert "recorded cluster" in told.stdout, told.stderr
    await upgradable.upgrade()
    with pytest.raises(SlotError, match="aiorepl upgrade"):
        await delivery.run(new)
    told = await command(delivery, tmp_path, new, "adopt")
    assert " continues " in told.stdout, told.stderr
    client = upgradable.client
    await client.execute("INSERT INTO items VALUES (4); INSERT INTO parts VALUES (5)")
    if delivery.journal is not None:
        stored = JournalReader(delivery.journal).position()
        levels = [
            found.level async for found in check(delivery.source(new), stored) if found.about == "journal"
        ]
        assert ["ok"] == levels
    await delivery.run(new)
    await delivery.run(new)
    await client.execute("UPDATE items SET note = 'x' WHERE id = 1")
    await asyncio.to_thread(new.restart)
    await delivery.run(new)

    assert [1, 2, 3, 4, 5, 1] == delivery.keys()
    (upgrade,) = read_lineage(delivery.record).upgrades
    assert (2, upgrade.old.system_identifier) == (
        delivery.sink.position.timeline,
        delivery.sink.position.system_identifier,
    )
    assert upgrade.new == (await adopt(delivery.source(new))).new
    if delivery.journal is not None:
        assert [] == list(JournalReader(delivery.journal).gaps())


async def test_each_proof_is_required(upgradable, delivery):
    """``adopt`` checks the slot, the tables, the LSNs and the statistics of writes; the refusal names the missing fact."""
    old, new, client = upgradable.old, upgradable.new, upgradable.client
    await delivery.run(old)
    await client.execute("INSERT INTO items VALUES (1)")
    await delivery.run(old)
    older = delivery.sink.position
    await client.execute("INSERT INTO items VALUES (2)")
    with pytest.raises(SlotError, match="has changes that the pipeline has not read"):
        await prepare(delivery.source(old))
    await delivery.run(old)
    with pytest.raises(ConfigurationError, match="has no record of the old cluster"):
        await adopt(delivery.source(old))
    with pytest.raises(ConfigurationError, match="name the file"):
        await prepare(delivery.source(old, upgrades=None))
    upgrade = await prepare(delivery.source(old))
    with pytest.raises(ConfigurationError, match="this is still the old cluster"):
        await adopt(delivery.source(old))
    await upgradable.upgrade()
    client = upgradable.client

    async def refused(**changes):
        record = replace(upgrade, old=replace(upgrade.old, **changes))
        delivery.record.write_bytes(Lineage((record,)).dump())
        with pytest.raises(SlotError) as caught:
            await adopt(delivery.source(new))
        return str(caught.value)

    tables = upgrade.old.tables
    items = next(oid for oid, table in tables.items() if table[1] == "items")
    schema, name, file, columns = tables[items]
    assert "pg_upgrade has not made this cluster" in await refused(version=19)
    assert "the old slot belonged to database other" in await refused(database="other")
    assert "the old cluster's slot was other" in await refused(slot="other")
    assert "with two_phase" in await refused(two_phase=True)
    assert "the old cluster's WAL ended at F/0" in await refused(end=type(upgrade.old.end).parse("F/0"))
    assert "public.items (oid" in await refused(tables={k: v for k, v in tables.items() if k != items})
    assert "was published in the old cluster, but is not in this one" in await refused(
        tables={**tables, "77": ["public", "gone", 77, []]}
    )
    assert "is public.items on" in await refused(tables={**tables, items: [schema, "was", file, columns]})
    assert "the columns of" in await refused(tables={**tables, items: [schema, name, file, columns[:1]]})
    assert "truncated, rewritten or restored since" in await refused(
        tables={**tables, items: [schema, name, 7, columns]}
    )
    await client.execute("INSERT INTO items VALUES (3)")
    await upgradable.restarted()  # a restart makes the statistics of ended sessions visible
    assert "rows of table public.items were written on this server before" in await refused()
    await asyncio.to_thread(new.kill)
    await asyncio.to_thread(new.start)
    assert "has lost its statistics, by a crash or a reset" in await refused()

    # A forged proof: positions are still compared.
    begins = await upgradable.confirmed(delivery.slot)
    delivery.record.write_bytes(Lineage((upgrade.adopted_by("7", begins),)).dump())
    with pytest.raises(SlotError, match="this server belongs to"):
        await delivery.run(new)
    identifier = str(await upgradable.client.fetchval("SELECT system_identifier FROM pg_control_system()"))
    delivery.record.write_bytes(Lineage((upgrade.adopted_by(identifier, begins),)).dump())
    newest = delivery.sink.position
    for wrong in (older, replace(newest, lsn=type(newest.lsn)(upgrade.old.end + 8))):
        delivery.sink.position = wrong
        with pytest.raises(SlotLost):
            await delivery.run(new)
    delivery.sink.position = newest
    await upgradable.client.execute(
        "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", delivery.slot
    )
    with pytest.raises(SlotLost, match="the slot no longer has"):
        await delivery.run(new)
