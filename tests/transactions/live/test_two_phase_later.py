"""A slot that becomes two-phase while transactions are prepared: their rows come when they commit."""

from __future__ import annotations

import pytest

SLOT = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')"


@pytest.mark.parametrize("server", [15, 16, 18], indirect=True)
@pytest.mark.parametrize("delivered", [False, True], ids=["held", "delivered"])
@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_switched_on(server, tables, slot_name, deliver, delivered, streaming):
    """Prepared before the switch and committed after it: whole, at the commit; what is prepared after it is not told
    of any differently.
    """
    early, late = f"early {slot_name[-8:]}", f"late {slot_name[-8:]}"
    options = {"streaming": streaming, "two_phase": True, "deliver_prepared": delivered}

    async def prepare(gid: str, key: int) -> None:
        await tables.execute(f"BEGIN; INSERT INTO one VALUES ({key}); PREPARE TRANSACTION '{gid}'")

    await tables.execute(SLOT, slot_name)
    await prepare(early, 1)
    await tables.execute("INSERT INTO one VALUES (2)")
    before = await deliver(slot_name)
    between = await deliver(slot_name, **options)
    await prepare(late, 3)
    undecided = await deliver(slot_name, **options)
    for gid in (early, late):
        await tables.execute(f"COMMIT PREPARED '{gid}'")
    decided = await deliver(slot_name, **options)

    assert [[2], [], [3] if delivered else [], [1] if delivered else [1, 3]] == [
        [change.new["id"] for part in slices for change in part.changes]
        for slices in (before, between, undecided, decided)
    ]
    assert [(early, False), (late, delivered)] == [
        (part.transaction.gid, part.transaction.prepared) for part in decided if part.transaction is not None
    ]


@pytest.mark.parametrize("delivered", [False, True], ids=["held", "delivered"])
async def test_rolled_back(tables, slot_name, deliver, delivered):
    """A transaction that is prepared before the switch and rolled back after it delivers nothing and holds nothing."""
    gid = f"early {slot_name[-8:]}"
    options = {"two_phase": True, "deliver_prepared": delivered}
    await tables.execute(SLOT, slot_name)
    await tables.execute(f"BEGIN; INSERT INTO one VALUES (1); PREPARE TRANSACTION '{gid}'")
    await deliver(slot_name)

    await tables.execute(f"ROLLBACK PREPARED '{gid}'")
    await tables.execute("INSERT INTO one VALUES (2)")
    slices = await deliver(slot_name, **options)

    assert [2] == [change.new["id"] for part in slices for change in part.changes]
    confirmed = (
        "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2"
    )
    assert await tables.fetchval(confirmed, str(slices[-1].end_lsn), slot_name)
