"""Tables that were described within a streamed transaction that is then prepared."""

from __future__ import annotations

import pytest

MANY = "INSERT INTO one SELECT {0} + i, repeat('x', 100) FROM generate_series(1, 2000) i"


@pytest.mark.parametrize("server", [15, 16, 17, 18], indirect=True)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_rows_behind_it(server, tables, slot_name, deliver, events, end):
    """Rows of a table that only a streamed and prepared transaction has described are read, before and after that
    transaction ends, and read by the table's later form if it altered the table.
    """
    name = await tables.fetchval("SELECT current_database()")
    await tables.execute(f"ALTER DATABASE \"{name}\" SET logical_decoding_work_mem = '64kB'")
    await tables.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", slot_name)
    gid = slot_name[-16:]
    await tables.execute(f"BEGIN; {MANY.format(0)}; PREPARE TRANSACTION '{gid}'")
    await tables.execute("INSERT INTO one VALUES (-1)")
    await tables.execute(f"{end} PREPARED '{gid}'")
    await tables.execute("INSERT INTO one VALUES (-2)")
    await tables.execute(f"BEGIN; {MANY.format(5000)}; ALTER TABLE one ADD more int")
    await tables.execute(
        f"INSERT INTO one VALUES (-3, 'x', 3); {MANY.format(9000)}; PREPARE TRANSACTION '{gid}'"
    )
    await tables.execute("INSERT INTO two VALUES (1)")
    await tables.execute(f"{end} PREPARED '{gid}'")
    await tables.execute("INSERT INTO one VALUES (-4)")

    found = events(await deliver(slot_name, two_phase=True, streaming="on"))

    rows = [(table, new) for *_, kind, table, _, new in found if kind == "insert"]
    narrow, wide = {"note": None}, {"note": None, "more": None}
    expected = [("one", {"id": -1} | narrow), ("one", {"id": -2} | narrow), ("two", {"id": 1} | narrow)]
    expected += [("one", {"id": -3, "note": "x", "more": 3})] if end == "COMMIT" else []
    expected += [("one", {"id": -4} | (wide if end == "COMMIT" else narrow))]
    assert expected == [(table, new) for table, new in rows if table == "two" or new["id"] < 0]
